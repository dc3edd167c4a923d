//! An encrypted rendezvous: members trust the authority they were given, and no other.

use std::fs;
use std::path::{Path, PathBuf};

use kiln::launch::rendezvous::wire::Purpose;
use kiln::launch::rendezvous::{Service, Terms, Tls, query};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::{PATIENCE, gather, introduction, join_at, refused_in_the_end, service, terms};

fn write(folder: &Path, name: &str, text: String) -> Option<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    Some(path)
}

/// A new authority, and certificates of it for these hosts.
pub fn certified_for<const N: usize>(folder: &Path, name: &str, hosts: [&str; N]) -> [Tls; N] {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let public = write(folder, &format!("{name}.ca"), authority.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(authority, key);
    hosts.map(|host| {
        let own = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![host.into()]).unwrap().signed_by(&own, &issuer).unwrap();
        Tls {
            certificate: write(folder, &format!("{name}-{host}.crt"), certificate.pem()),
            key: write(folder, &format!("{name}-{host}.key"), own.serialize_pem()),
            authority: public.clone(),
            name: None,
        }
    })
}

/// A new authority, and a certificate of it for the loopback address.
fn certified(folder: &Path, name: &str) -> Tls {
    let [tls] = certified_for(folder, name, ["127.0.0.1"]);
    tls
}

/// Another authority may be a stranger's, so trust is tried again.
fn refused(service: &Service, tls: Option<Tls>) -> String {
    let (address, terms) = (service.address().to_string(), Terms { tls, ..terms(2) });
    refused_in_the_end(|patience| join_at(&address, &terms, introduction(1), patience).err().unwrap())
}

#[test]
fn members_meet_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let terms = Terms { tls: Some(certified(folder.path(), "good")), ..terms(2) };
    let service = service(&terms);
    let members = gather(&service, &terms);
    members[0].set("key", b"value").unwrap();
    assert_eq!(members[1].get(&["key".into()], PATIENCE).unwrap(), [b"value"]);
}

#[test]
fn another_authority_or_no_encryption_is_not_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let good = Terms { tls: Some(certified(folder.path(), "good")), ..terms(2) };
    let other = certified(folder.path(), "other");
    let text = refused(&service(&good), Some(other.clone()));
    assert!(text.contains("--tls-ca") && text.contains("invalid peer certificate"), "{text}");
    let text = refused(&service(&terms(2)), Some(other));
    assert!(text.contains("--tls-ca"), "{text}");
}

#[test]
fn a_service_at_an_address_is_believed_to_be_who_its_certificate_says() {
    let folder = tempfile::tempdir().unwrap();
    let [node, other] = certified_for(folder.path(), "job", ["node", "other"]);
    let service = service(&Terms { tls: Some(node.clone()), ..terms(0) });
    let look = |tls: Tls| query(&service.address().to_string(), &Terms { tls: Some(tls), ..terms(0) }, &Purpose::Look);
    assert_eq!(look(node.of_own_name().unwrap()).unwrap(), None, "nobody came yet");
    let [stranger] = certified_for(folder.path(), "another job", ["node"]);
    for tls in [node, other.of_own_name().unwrap(), stranger.of_own_name().unwrap()] {
        let text = look(tls).unwrap_err().to_string();
        assert!(text.contains("cannot trust the rendezvous"), "{text}");
    }
}

#[test]
fn missing_and_unusable_files_are_usage_errors() {
    let folder = tempfile::tempdir().unwrap();
    let good = certified(folder.path(), "good");
    let start = |tls: Tls| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        Service::start(listener, Terms { tls: Some(tls), ..terms(2) }).err().map(|error| error.to_string())
    };
    let text = start(Tls { key: None, ..good.clone() }).unwrap();
    assert!(text.contains("--tls-key"), "{text}");
    let text = start(Tls { certificate: Some("/nowhere.pem".into()), ..good.clone() }).unwrap();
    assert!(text.contains("'/nowhere.pem'") && text.contains("--tls-cert"), "{text}");
    let text = start(Tls { certificate: write(folder.path(), "junk", "junk".into()), ..good.clone() }).unwrap();
    assert!(text.contains("--tls-cert"), "{text}");
    let text = refused(&service(&terms(2)), Some(Tls { authority: None, ..good }));
    assert!(text.contains("--tls-ca"), "{text}");
}
