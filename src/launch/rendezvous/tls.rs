//! Encryption of the rendezvous: the PEM files that each side needs.
//!
//! The service has a certificate; members check that `authority` signed it for the host that they connect to. Members
//! need no certificates, since the job's secret decides which process may join.
//!
//! A process that takes the rendezvous over finds the holder by the address of its socket, while the certificate is
//! made for the name that members use. So it expects the name of its own certificate: like members, it trusts only the
//! owner of a certificate of the authority for this name.

use std::path::PathBuf;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};
use webpki::EndEntityCert;

use crate::error::{Error, Result};

/// The PEM files of the rendezvous' encryption.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// The service's certificate chain (`--tls-cert`).
    pub certificate: Option<PathBuf>,
    /// The private key to it (`--tls-key`).
    pub key: Option<PathBuf>,
    /// The certificate of the authority that members trust (`--tls-ca`).
    pub authority: Option<PathBuf>,
    /// The name that the service's certificate must be made for; `None` for the host of the address.
    pub name: Option<String>,
}

impl Tls {
    pub(super) fn server(&self) -> Result<ServerTlsConfig> {
        let certificate = read(self.certificate.as_ref(), "--tls-cert")?;
        let key = read(self.key.as_ref(), "--tls-key")?;
        Ok(ServerTlsConfig::new().identity(Identity::from_pem(certificate, key)))
    }

    /// These files for connecting to a service with the name of this certificate, whatever its address; without a name
    /// in the certificate, the address counts.
    ///
    /// # Errors
    /// [`Error::Usage`] if the certificate cannot be read.
    pub fn of_own_name(&self) -> Result<Self> {
        let chain = read(self.certificate.as_ref(), "--tls-cert")?;
        let own = CertificateDer::from_pem_slice(&chain).ok();
        let own = own.as_ref().and_then(|own| EndEntityCert::try_from(own).ok());
        let name = own.and_then(|own| own.valid_dns_names().find(|name| !name.starts_with('*')).map(String::from));
        Ok(Self { name, ..self.clone() })
    }

    /// `host` is where the service is reached.
    pub(super) fn client(&self, host: &str) -> Result<ClientTlsConfig> {
        let authority = read(self.authority.as_ref(), "--tls-ca")?;
        Ok(ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority))
            .domain_name(self.name.as_deref().unwrap_or(host)))
    }
}

fn read(path: Option<&PathBuf>, flag: &str) -> Result<Vec<u8>> {
    let path =
        path.ok_or_else(|| Error::usage(format!("an encrypted rendezvous needs a file for {flag}; give one")))?;
    std::fs::read(path).map_err(|error| {
        Error::usage(format!("cannot read '{}': {error}; give {flag} a PEM file that can be read", path.display()))
    })
}
