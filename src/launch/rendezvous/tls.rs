//! Encryption of the rendezvous: which PEM files, and what each side needs of them.
//!
//! The service shows a certificate; members check that `authority` signed it for the host they were told to reach. Who
//! may join is decided by the job's secret alone, so members need no certificates of their own.

use std::path::PathBuf;

use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

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
}

impl Tls {
    pub(super) fn server(&self) -> Result<ServerTlsConfig> {
        let certificate = read(self.certificate.as_ref(), "--tls-cert")?;
        let key = read(self.key.as_ref(), "--tls-key")?;
        Ok(ServerTlsConfig::new().identity(Identity::from_pem(certificate, key)))
    }

    /// `host` is the name or address that the certificate must be made for.
    pub(super) fn client(&self, host: &str) -> Result<ClientTlsConfig> {
        let authority = read(self.authority.as_ref(), "--tls-ca")?;
        Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority)).domain_name(host))
    }
}

fn read(path: Option<&PathBuf>, flag: &str) -> Result<Vec<u8>> {
    let path =
        path.ok_or_else(|| Error::usage(format!("an encrypted rendezvous needs a file for {flag}; give one")))?;
    std::fs::read(path).map_err(|error| {
        Error::usage(format!("cannot read '{}': {error}; give {flag} a PEM file that can be read", path.display()))
    })
}
