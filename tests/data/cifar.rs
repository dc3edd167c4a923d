//! CIFAR in all its forms, and everything that can be wrong with its files.

use std::fs;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use kiln_data::{DataConfig, DataSplits, Source};
use tempfile::{TempDir, tempdir};

use super::{assert_names, complaint, load};
use crate::files::file;

/// Records of `label_bytes` labels; image `i` is filled with `first + i`.
fn records(labels: &[&[u8]], first: u8) -> Vec<u8> {
    let record = |(index, label): (usize, &&[u8])| [label, [first + index as u8; 3072].as_slice()].concat();
    labels.iter().enumerate().flat_map(record).collect()
}

fn cifar10(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("data_batch_1.bin"), records(&[&[3], &[9]], 10)).unwrap();
    fs::write(folder.join("data_batch_3.bin"), records(&[&[0]], 30)).unwrap();
    fs::write(folder.join("test_batch.bin"), records(&[&[1]], 50)).unwrap();
}

fn from(source: Source, dir: &Path) -> DataSplits {
    load(&DataConfig { source, dir: dir.to_path_buf(), ..DataConfig::default() }).unwrap()
}

/// Label and first byte of every training image.
fn summary(splits: &DataSplits) -> Vec<(u32, u8)> {
    (0..splits.train.len() as u32).map(|id| (splits.train.label(id), splits.train.image(id).unwrap()[0])).collect()
}

/// A `.tar.gz` of a folder, as the originals are made: every file below one directory.
fn pack(folder: &Path, archive: &Path) {
    let mut builder = tar::Builder::new(GzEncoder::new(fs::File::create(archive).unwrap(), Compression::fast()));
    builder.append_dir_all("inner", folder).unwrap();
    builder.into_inner().unwrap().finish().unwrap();
}

/// A folder of CIFAR-10 in which one file has other content.
fn with_file(name: &str, content: &[u8]) -> TempDir {
    let dir = tempdir().unwrap();
    cifar10(dir.path());
    fs::write(dir.path().join(name), content).unwrap();
    dir
}

#[test]
fn the_batches_that_are_there_are_read_in_order() {
    let dir = tempdir().unwrap();
    cifar10(&dir.path().join("cifar-10-batches-bin"));
    let splits = from(Source::Cifar10, dir.path());
    assert_eq!(summary(&splits), [(3, 10), (9, 11), (0, 30)]);
    assert_eq!((splits.validation.len(), splits.validation.label(0), splits.validation.size()), (1, 1, [32, 32]));
    assert_eq!(splits.train.classes()[3], "cat");
}

#[test]
fn loose_files_an_archive_and_a_folder_hold_the_same_images() {
    let (loose, packed) = (tempdir().unwrap(), tempdir().unwrap());
    cifar10(loose.path());
    pack(loose.path(), &packed.path().join("cifar-10-binary.tar.gz"));
    assert_eq!(from(Source::Cifar10, packed.path()).train, from(Source::Cifar10, loose.path()).train);
}

#[test]
fn a_named_folder_is_preferred_to_loose_files() {
    let dir = tempdir().unwrap();
    cifar10(dir.path());
    let real = dir.path().join("cifar-10-batches-bin");
    cifar10(&real);
    fs::write(real.join("data_batch_1.bin"), records(&[&[7]], 99)).unwrap();
    assert_eq!(summary(&from(Source::Cifar10, dir.path()))[0], (7, 99));
}

#[test]
fn a_batch_pickled_by_numpy_is_read() {
    let dir = tempdir().unwrap();
    let fixture = fs::read(file("tests/fixtures/cifar-10-batches-py/data_batch_1")).unwrap();
    let folder = dir.path().join("cifar-10-batches-py");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("data_batch_1"), &fixture).unwrap();
    fs::write(folder.join("test_batch"), &fixture).unwrap();
    let splits = from(Source::Cifar10, dir.path());
    assert_eq!((0..4).map(|id| splits.train.label(id)).collect::<Vec<_>>(), [3, 0, 9, 7]);
    for id in 0..4 {
        let drawn: Vec<u8> = (0..3072).map(|index| ((id * 40 + index / 16) % 251) as u8).collect();
        assert_eq!(splits.train.image(id).unwrap(), drawn);
    }
    let packed = tempdir().unwrap();
    pack(&folder, &packed.path().join("cifar-10-python.tar.gz"));
    assert_eq!(from(Source::Cifar10, packed.path()).train, splits.train);
}

/// A pickle as Python 2 wrote the originals: byte strings for names, numpy's functions by their old module.
fn pickle_of_python_2(labels: &str, label: u8, shape: u16) -> Vec<u8> {
    let text = |name: &str| [b"U".as_slice(), &[name.len() as u8], name.as_bytes()].concat();
    let mut pickle = b"\x80\x02}q\x01(".to_vec();
    pickle.extend(
        [text("data"), b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85".to_vec()].concat(),
    );
    pickle.extend([text("b"), b"\x87R(K\x01K\x01M".to_vec(), shape.to_le_bytes().to_vec()].concat());
    pickle.extend(
        [b"\x86cnumpy\ndtype\nq\x04".to_vec(), text("u1"), b"K\x00K\x01\x87R(K\x03".to_vec(), text("|")].concat(),
    );
    pickle.extend(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x0c\x00\x00");
    pickle.extend(
        [vec![200; 3072], b"tb".to_vec(), text(labels), vec![b']', b'K', label, b'a'], b"u.".to_vec()].concat(),
    );
    pickle
}

/// The same for CIFAR-10 as Python 3 writes it again, in protocol 4.
fn pickle_of_python_3(label: u8) -> Vec<u8> {
    let text = |text: &str| [b"\x8c".as_slice(), &[text.len() as u8], text.as_bytes(), b"\x94"].concat();
    let array = [text("numpy._core.multiarray"), text("_reconstruct"), b"\x93\x94".to_vec(), text("numpy")].concat();
    let made = b"\x93\x94K\0\x85\x94C\x01b\x94\x87\x94R\x94(K\x01K\x01M\0\x0c\x86\x94h\x07".to_vec();
    let bytes = [text("dtype"), b"\x93\x94".to_vec(), text("u1"), b"\x89\x88\x87\x94R\x94(K\x03".to_vec()].concat();
    let state = b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0t\x94b\x89B\0\x0c\0\0".to_vec();
    let start =
        [b"\x80\x04\x95\0\0\0\0\0\0\0\0}\x94(C\x06labels\x94]\x94K", [label].as_slice(), b"aC\x04data\x94"].concat();
    [start, array, text("ndarray"), made, bytes, text("|"), state, vec![200; 3072], b"\x94t\x94bu.".to_vec()].concat()
}

#[test]
fn a_batch_that_was_pickled_again_is_read() {
    let dir = tempdir().unwrap();
    for name in ["data_batch_1", "test_batch"] {
        fs::write(dir.path().join(name), pickle_of_python_3(7)).unwrap();
    }
    assert_eq!(summary(&from(Source::Cifar10, dir.path())), [(7, 200)]);
}

#[test]
fn cifar_100_is_read_with_its_fine_labels_in_both_versions() {
    let (binary, python) = (tempdir().unwrap(), tempdir().unwrap());
    for name in ["train.bin", "test.bin"] {
        fs::write(binary.path().join(name), records(&[&[19, 99]], 200)).unwrap();
    }
    for name in ["train", "test"] {
        fs::write(python.path().join(name), pickle_of_python_2("fine_labels", 99, 3072)).unwrap();
    }
    let splits = from(Source::Cifar100, binary.path());
    assert_eq!((summary(&splits), splits.train.classes().len()), (vec![(99, 200)], 100));
    assert_eq!(from(Source::Cifar100, python.path()).train, splits.train);
    fs::write(binary.path().join("fine_label_names.txt"), (0..100).map(|i| format!("name{i}\n")).collect::<String>())
        .unwrap();
    assert_eq!(from(Source::Cifar100, binary.path()).train.classes()[99], "name99");
}

#[test]
fn a_missing_data_set_names_all_three_remedies() {
    let dir = tempdir().unwrap();
    let missing = |source, dir: &Path| {
        let config = DataConfig { source, dir: dir.to_path_buf(), ..DataConfig::default() };
        load(&config).unwrap_err().to_string()
    };
    let text = missing(Source::Cifar10, dir.path());
    assert_names(&text, &["no CIFAR-10 in", "--data cifar10 --download", "--data-dir DIR", "experiment=quickstart"]);
    assert_names(&missing(Source::Cifar100, &dir.path().join("nowhere")), &["--download", "nowhere", "cifar100"]);
}

#[test]
fn a_missing_file_of_a_data_set_is_named() {
    for name in ["test_batch.bin", "data_batch_1.bin"] {
        let dir = tempdir().unwrap();
        cifar10(dir.path());
        fs::remove_file(dir.path().join(name)).unwrap();
        assert_names(&complaint(Source::Cifar10, dir.path()), &[name, "is missing", "--download"]);
    }
}

#[test]
fn a_truncated_or_empty_file_is_named_with_its_size_and_the_rule() {
    let cut = with_file("data_batch_3.bin", &[0; 1234]);
    assert_names(&complaint(Source::Cifar10, cut.path()), &["data_batch_3.bin'", "1234 bytes", "3073", "--download"]);
    let empty = with_file("test_batch.bin", &[]);
    assert_names(&complaint(Source::Cifar10, empty.path()), &["test_batch.bin'", "0 bytes", "3073"]);
}

#[test]
fn a_label_outside_the_classes_is_named_with_its_record() {
    let dir = with_file("data_batch_1.bin", &records(&[&[0], &[10]], 0));
    assert_names(&complaint(Source::Cifar10, dir.path()), &["data_batch_1.bin'", "'10'", "record 1", "0..=9"]);
}

#[test]
fn an_archive_cut_short_or_of_something_else_is_refused() {
    let (loose, packed) = (tempdir().unwrap(), tempdir().unwrap());
    cifar10(loose.path());
    let archive = packed.path().join("cifar-10-binary.tar.gz");
    pack(loose.path(), &archive);
    let whole = fs::read(&archive).unwrap();
    for content in [&whole[..whole.len() / 2], b"<html>not found</html>", &[]] {
        fs::write(&archive, content).unwrap();
        complaint(Source::Cifar10, packed.path());
    }
    fs::write(&archive, &whole[..whole.len() / 2]).unwrap();
    assert_names(&complaint(Source::Cifar10, packed.path()), &["cifar-10-binary.tar.gz'", "damaged", "--download"]);
}

#[test]
fn a_pickle_of_something_else_is_refused_and_runs_nothing() {
    let witness = tempdir().unwrap();
    let target = witness.path().join("ran");
    let call = format!(
        "cos\nsystem\n(U{}touch {}tR.",
        (6 + target.display().to_string().len()) as u8 as char,
        target.display()
    );
    let cases: [(&[u8], &str); 6] = [
        (b"", "pickle"),
        (b"\x80\x02}.", "no entry 'data'"),
        (b"\x80\x02K\x01.", "no dictionary"),
        (&pickle_of_python_2("other", 1, 3072), "no entry 'labels'"),
        (&pickle_of_python_2("labels", 1, 3071), "numpy array"),
        (call.as_bytes(), "pickle"),
    ];
    for (content, reason) in cases {
        let dir = tempdir().unwrap();
        fs::write(dir.path().join("data_batch_1"), content).unwrap();
        assert_names(&complaint(Source::Cifar10, dir.path()), &["data_batch_1'", reason]);
    }
    let fixture = pickle_of_python_2("labels", 1, 3072);
    for length in 0..fixture.len().min(260) {
        let dir = tempdir().unwrap();
        fs::write(dir.path().join("data_batch_1"), &fixture[..length]).unwrap();
        assert_names(&complaint(Source::Cifar10, dir.path()), &["data_batch_1'"]);
    }
    assert!(!target.exists(), "a pickle ran a command");
}
