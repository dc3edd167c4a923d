//! Files that are broken, or meant to break the reader: each is refused with one line, and nothing in it is run.

use std::fs;
use std::path::Path;

use tempfile::tempdir;

use super::craft::{REMEDY, around, refusal, text, view};
use super::{assert_line, fixture, read};

#[test]
fn what_would_run_code_is_refused_and_does_not_run() {
    let witness = Path::new("/tmp/kiln-weights-executed");
    for name in ["evil.pth", "evil_legacy.pth"] {
        assert_line(&read(&fixture(name)).unwrap_err().to_string(), &[name, "posix.system", "not executed", REMEDY]);
    }
    assert_line(&read(&fixture("evil.pkl")).unwrap_err().to_string(), &["evil.pkl", REMEDY]);
    // Also where no tensor is: behind the state dictionary, or beside it.
    let beside =
        [&view(8, 0, &[8], &[1])[..view(8, 0, &[8], &[1]).len() - 1], b"s", &text("y"), b"cos\nsystem\n"].concat();
    assert_line(&refusal(&around(&beside)), &["os.system"]);
    assert!(!witness.exists());
}

#[test]
fn a_whole_module_is_refused_by_its_class() {
    for name in ["module_object.pth", "module_object_legacy.pth"] {
        assert_line(&read(&fixture(name)).unwrap_err().to_string(), &[name, "__main__.Net", REMEDY]);
    }
}

#[test]
fn what_holds_no_readable_tensors_is_refused() {
    let cases = [
        ("list.pth", "no dictionary"),
        (
            "no_tensors.pth",
            "none is named 'state_dict', 'model_state_dict', 'model', 'net', 'model_state', 'weights', 'params'",
        ),
        ("no_tensors.pth", "it has 'epoch'"),
        ("several.pth", "more than one dictionary of tensors"),
        ("bool.pth", "'BOOL'"),
        ("protocol4.pth", "protocol 4"),
        ("bomb.pth", "compressed"),
    ];
    for (name, reason) in cases {
        assert_line(&read(&fixture(name)).unwrap_err().to_string(), &[name, reason, REMEDY]);
    }
}

#[test]
fn a_folder_a_missing_file_a_device_and_an_empty_file_are_told_apart() {
    let dir = tempdir().unwrap();
    assert_line(&read(dir.path()).unwrap_err().to_string(), &["is not a file", ".safetensors"]);
    let missing = dir.path().join("missing.pth");
    assert_line(&read(&missing).unwrap_err().to_string(), &["cannot read", "missing.pth"]);
    assert_line(&read(Path::new("/dev/zero")).unwrap_err().to_string(), &["is not a file"]);
    let empty = dir.path().join("empty.pth");
    fs::write(&empty, "").unwrap();
    assert_line(&read(&empty).unwrap_err().to_string(), &["empty.pth", "it is empty", REMEDY]);
    let sparse = dir.path().join("large.pth");
    fs::File::create(&sparse).unwrap().set_len(5 << 30).unwrap();
    assert_line(&read(&sparse).unwrap_err().to_string(), &["large.pth", "4 GiB"]);
}

#[test]
fn what_is_no_pytorch_file_at_all_is_refused() {
    for bytes in [b"hello".as_slice(), b"<!DOCTYPE html><html>", b"PK\x03\x04", b"PK\x05\x06", &[0; 4096]] {
        refusal(bytes);
    }
}

#[test]
fn no_beginning_of_a_file_passes_for_the_whole() {
    for name in ["state.pth", "legacy.pth"] {
        let bytes = fs::read(fixture(name)).unwrap();
        for length in 0..bytes.len() {
            refusal(&bytes[..length]);
        }
    }
}

#[test]
fn a_flipped_bit_in_an_entry_of_an_archive_is_noticed() {
    let good = fs::read(fixture("state.pth")).unwrap();
    let start = good.windows(4).position(|it| it == 0.125_f32.to_le_bytes()).unwrap();
    let mut bad = good.clone();
    bad[start] ^= 1;
    assert_line(&refusal(&bad), &["checksum", "state/data/"]);
}

#[test]
fn an_archive_that_claims_more_than_it_has_is_refused() {
    let good = fs::read(fixture("state.pth")).unwrap();
    let directory = good.windows(4).position(|it| it == b"PK\x01\x02").unwrap();
    // Flags, method, size, offset, lengths of name, extra field and comment.
    let fields = [(8, "compressed"), (10, "compressed"), (20, "compressed"), (42, "damaged")];
    for (at, reason) in fields.into_iter().chain([28, 30, 32].map(|at| (at, "damaged"))) {
        let mut bad = good.clone();
        bad[directory + at..][..2].fill(0xff);
        assert_line(&refusal(&bad), &[reason]);
    }
    let mut bad = good.clone();
    bad[directory + 20..][..8].fill(0xff);
    assert_line(&refusal(&bad), &["damaged"]);
    let mut bad = good.clone();
    let end = good.windows(4).position(|it| it == b"PK\x06\x06").unwrap();
    bad[end + 24..][..16].fill(0xff);
    assert_line(&refusal(&bad), &["damaged"]);
}
