//! What shards and their lists of names hold beside samples: it is read, or named, and never passed over in silence.

use super::*;

#[test]
fn a_sample_that_is_not_whole_is_refused_by_shard_place_and_key() {
    let (_, shards) = both();
    let (bytes, _) = picture(0);
    let expect = |members: &[(&str, &[u8])], parts: &[&str]| {
        shard(&shards.path().join("val-000.tar"), members);
        assert_names(&complaint(&shards_of(shards.path())), parts);
    };
    expect(&[("a.jpg", &bytes), ("b.cls", b"0")], &["val-000.tar' has no 'a.cls'"]);
    expect(&[("b.cls", b"0"), ("c.txt", b"")], &["val-000.tar' has no picture beside 'b.cls'"]);
    expect(&[("a.jpg", &bytes), ("a.png", &bytes)], &["'a.png' at byte", "second picture of its key"]);
    expect(&[("a.jpg", b"text"), ("a.cls", b"0")], &["'a.jpg' at byte 512 of", "is not a JPEG", "data.corrupt=skip"]);
    expect(&[("a.jpg", &bytes[..300]), ("a.cls", b"0")], &["'a.jpg' at byte 512 of", "is cut off"]);
    expect(&[("a.jpg", b""), ("a.cls", b"0")], &["'a.jpg' at byte 512 of", "is not a JPEG"]);
    expect(&[("a\nb.jpg", b""), ("a\nb.cls", b"0")], &[r"'a\nb.jpg' at byte 512"]);
    expect(&[("notes.txt", b"")], &["has no images for validation: 'notes.txt' at byte 512", "neither a picture"]);
    expect(&[("notes", b"")], &["has no images for validation: 'notes' at byte 512", "no key and suffix"]);
    let dotted: [(&str, &[u8]); 2] = [("img_0.0.jpg", &bytes), ("img_0.0.cls", b"0")];
    expect(&dotted, &["no images for validation: 'img_0.0.jpg' at byte 512", "ends at the first dot", "WebDataset"]);
}

#[test]
fn joined_shards_are_read_to_the_end_of_the_last() {
    let (_, shards) = both();
    let expected = content(&load(&shards_of(shards.path())).unwrap());
    let [first, second] = ["train-000.tar", "train-001.tar"].map(|name| shards.path().join(name));
    let [one, two] = [&first, &second].map(|path| fs::read(path).unwrap());
    fs::remove_file(&second).unwrap();
    // With the zeros to which some programs fill up their files, and a part of a block behind them.
    for (between, behind) in [(0, 0), (512, 0), (9216, 10_240), (0, 7)] {
        fs::write(&first, [&one[..], &vec![0; between], &two, &vec![0; behind]].concat()).unwrap();
        assert_eq!(content(&load(&shards_of(shards.path())).unwrap()), expected, "{between} {behind}");
    }
    for length in [one.len() + two.len() - 1024, one.len() + 700, one.len() + 100] {
        fs::write(&first, &[&one[..], &two].concat()[..length]).unwrap();
        assert_names(&complaint(&shards_of(shards.path())), &["train-000.tar'", "again"]);
    }
    fs::write(&first, [&one[..], b"notes"].concat()).unwrap();
    let at = format!("has other bytes than a tar header behind its end, at byte {}", one.len());
    assert_names(&complaint(&shards_of(shards.path())), &[&at]);
}

#[test]
fn an_index_that_an_earlier_version_kept_is_made_anew() {
    let (_, shards) = both();
    age(shards.path());
    load(&shards_of(shards.path())).unwrap();
    let kept = shards.path().join(".kiln-webdataset.index");
    let bytes = fs::read(&kept).unwrap();
    let (body, footer) = bytes.split_at(bytes.len() - 48);
    let (length, rest) = body.split_first_chunk().unwrap();
    let (head, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut head: serde_json::Value = serde_json::from_slice(head).unwrap();
    head.as_object_mut().unwrap().remove("rules").unwrap();
    head["classes"] = ["cat", "dog", ""].into();
    let head = serde_json::to_vec(&head).unwrap();
    let body = [&(head.len() as u64).to_le_bytes()[..], &head, rest].concat();
    fs::write(&kept, [&body[..], &[0; 8], &Sha256::digest(&body)[..], &footer[40..]].concat()).unwrap();
    assert_eq!(load(&shards_of(shards.path())).unwrap().train.classes(), CLASSES);
}

#[test]
fn compressed_shards_are_called_compressed() {
    let (_, shards) = both();
    let path = shards.path().join("val-000.tar");
    let whole = fs::read(&path).unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&whole).unwrap();
    fs::write(&path, packed.finish().unwrap()).unwrap();
    assert_names(&complaint(&shards_of(shards.path())), &["val-000.tar' is compressed (gzip)", "decompress it"]);
    for name in ["val-000.tar.gz", "val-000.tgz", "val-001.tar.zst"] {
        let compressed = shards.path().join(name);
        fs::rename(&path, &compressed).unwrap();
        assert_names(&complaint(&shards_of(shards.path())), &[&format!("{name}' is compressed"), "gunzip"]);
        fs::rename(&compressed, &path).unwrap();
    }
    // One of several is not left out either.
    fs::write(&path, &whole).unwrap();
    fs::write(shards.path().join("train-002.tar.gz"), "").unwrap();
    assert_names(&complaint(&shards_of(shards.path())), &["train-002.tar.gz' is compressed"]);
}

#[test]
fn a_file_of_class_names_has_a_name_on_each_line() {
    let (_, shards) = both();
    let names = shards.path().join("classes.txt");
    for text in ["cat\ndog\n\n", "cat\r\ndog\r\n \n\n"] {
        fs::write(&names, text).unwrap();
        assert_eq!(load(&shards_of(shards.path())).unwrap().train.classes(), CLASSES, "{text:?}");
    }
    let expect = |text: &str, parts: &[&str]| {
        fs::write(&names, text).unwrap();
        assert_names(&complaint(&shards_of(shards.path())), parts);
    };
    expect("cat\n\ndog\n", &["line 2 of", "classes.txt' is empty", "remove the line"]);
    expect("\ncat\ndog\n", &["line 1 of"]);
    expect("caf\u{e9}\ncafe\u{301}\n", &["two classes that are both read as", "<U+0301>"]);
    fs::write(&names, "caf\u{e9}\ndog\n").unwrap();
    let (bytes, _) = picture(0);
    shard(&shards.path().join("val-000.tar"), &[("k.jpg", &bytes), ("k.cls", "cafe\u{301}".as_bytes())]);
    assert_eq!(load(&shards_of(shards.path())).unwrap().validation.label(0), 0);
}
