//! Mutual TLS by the job's secret.
//!
//! Every process derives the same key and certificate from the secret: an Ed25519 key (RFC 8032) with the HKDF-SHA256
//! (RFC 5869) of the secret as its seed, and a self-signed certificate with fixed dates and number. Both sides of a
//! connection show this certificate and accept no other. So TLS (RFC 8446) proves that both know the secret, encrypts
//! their messages, and detects messages that were changed, repeated, dropped or sent back.

use rcgen::{CertificateParams, DnType, KeyPair, SerialNumber};
use ring::hkdf::{HKDF_SHA256, Salt};
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

use super::Secret;

const NAME: &str = "kiln";
/// What precedes the seed in the encoding of an Ed25519 key (RFC 8410, section 7).
const PRIVATE_KEY: [u8; 16] = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";

pub(super) fn server(secret: &Secret) -> ServerTlsConfig {
    let (identity, certificate) = identity(secret);
    ServerTlsConfig::new().identity(identity).client_ca_root(certificate)
}

pub(super) fn client(secret: &Secret) -> ClientTlsConfig {
    let (identity, certificate) = identity(secret);
    ClientTlsConfig::new().identity(identity).ca_certificate(certificate).domain_name(NAME)
}

fn identity(secret: &Secret) -> (Identity, Certificate) {
    let mut key = PRIVATE_KEY.to_vec();
    key.resize(PRIVATE_KEY.len() + 32, 0);
    let derived = Salt::new(HKDF_SHA256, b"kiln rendezvous").extract(secret.as_key());
    let seed = derived.expand(&[b"Ed25519 key"], HKDF_SHA256).and_then(|seed| seed.fill(&mut key[PRIVATE_KEY.len()..]));
    seed.expect("HKDF gives a seed of its hash's length");
    let key = KeyPair::try_from(key).expect("any 32 bytes are an Ed25519 key");
    let mut certificate = CertificateParams::new([NAME.into()]).expect("the name is one of DNS");
    certificate.distinguished_name.push(DnType::CommonName, NAME);
    certificate.serial_number = Some(SerialNumber::from(1));
    let certificate = certificate.self_signed(&key).expect("an Ed25519 key signs any certificate").pem();
    (Identity::from_pem(&certificate, key.serialize_pem()), Certificate::from_pem(certificate))
}
