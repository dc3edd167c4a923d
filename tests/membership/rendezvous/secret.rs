//! The job's secret is guarded before it is used.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use kiln_membership::rendezvous::Secret;
use kiln_system::Error;

#[test]
fn a_secret_file_that_others_may_read_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    fs::write(&path, "sixteen bytes at least\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let error = Secret::from_file(&path).unwrap_err();
    assert!(matches!(error, Error::Usage(_)));
    assert!(error.to_string().contains(&format!("mode '640'); run: chmod 600 '{}'", path.display())), "{error}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(Secret::from_file(&path).unwrap().to_text(), "sixteen bytes at least");
}

#[test]
fn a_missing_or_endless_file_is_no_secret() {
    for path in ["/nowhere/secret", "/dev/zero", "/"] {
        assert!(matches!(Secret::from_file(path.as_ref()), Err(Error::Usage(_))), "{path}");
    }
}

#[test]
fn a_short_secret_is_refused() {
    let error = Secret::from_text("  too short  ").unwrap_err().to_string();
    assert!(error.contains("'9' bytes") && error.contains("at least 16"), "{error}");
}

#[test]
fn a_secret_that_repeats_itself_is_refused() {
    for text in
        ["aaaaaaaaaaaaaaaaaaaaaaaa", "abcdefghiabcdefghi", "passwordpassword", &format!("kiln-{}", "0".repeat(64))]
    {
        let error = Secret::from_text(text).unwrap_err().to_string();
        assert!(error.contains("is repetitive") && error.contains("train secret FILE"), "{error}");
        assert!(!error.contains(text), "{error}");
    }
    assert!(Secret::from_text("three words, then a number: 1789").is_ok());
}

#[test]
fn random_secrets_differ_and_survive_as_text() {
    let (one, other) = (Secret::random(), Secret::random());
    assert_ne!(one.to_text(), other.to_text());
    assert_eq!(Secret::from_text(one.to_text()).unwrap().to_text(), one.to_text());
    assert!(!one.is_none() && Secret::none().is_none());
}

#[test]
fn a_secret_does_not_show_itself() {
    let secret = Secret::from_text("sixteen bytes at least").unwrap();
    assert_eq!(format!("{secret:?}"), "Secret(..)");
}
