//! Tensors, pickles and archives that break the rules of their formats: they cost little and are refused.

use super::assert_line;
use super::craft::{archive, around, from_bytes, refusal, text, view};

#[test]
fn a_tensor_must_lie_within_its_storage_and_its_storage_within_the_file() {
    let good = around(&view(8, 1, &[2, 3], &[3, 1]));
    assert_eq!(from_bytes(&good).unwrap()["x"].as_f32().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    // Elements, offset, shape, stride.
    type Case = (i64, i64, &'static [i64], &'static [i64], &'static str);
    let cases: [Case; 13] = [
        (8, 2, &[2, 3], &[4, 1], "leaves its storage"),
        (8, 8, &[1], &[1], "leaves its storage"),
        (8, i64::MAX, &[1], &[1], "leaves its storage"),
        (8, 0, &[2], &[i64::MAX], "leaves its storage"),
        (8, 0, &[3, 3], &[i64::MAX, i64::MAX], "leaves its storage"),
        (8, 0, &[1 << 40], &[0], "larger than the file"),
        (8, 0, &[i64::MAX, i64::MAX, 4], &[0, 0, 0], "larger than the file"),
        (8, -1, &[1], &[1], "malformed"),
        (8, 0, &[-1], &[1], "malformed"),
        (8, 0, &[2, 2], &[1], "malformed"),
        (8, 0, &[1; 9], &[1; 9], "malformed"),
        (7, 0, &[1], &[1], "two lengths"),
        (i64::MAX, 0, &[1], &[1], "more bytes than it has"),
    ];
    for (elements, offset, shape, stride, reason) in cases {
        assert_line(&refusal(&around(&view(elements, offset, shape, stride))), &[reason]);
    }
    // The same -1 in one byte.
    let (long, short) = ([b"\x8a\x08".as_slice(), &[0xff; 8]].concat(), b"\x8a\x01\xff");
    let object = view(8, -1, &[1], &[1]);
    let at = object.windows(10).position(|it| it == long).unwrap();
    assert_line(&refusal(&around(&[&object[..at], short, &object[at + 10..]].concat())), &["malformed"]);
}

#[test]
fn many_tensors_over_one_small_storage_cannot_fill_the_memory() {
    // Each is within the file's length, a thousand of them are not.
    let one = |index: usize| [text(&format!("x{index}")), view(8, 0, &[5000], &[0])[7..].to_vec()].concat();
    let object = [b"}".to_vec(), (0..1000).flat_map(one).collect()].concat();
    let file = around(&object);
    assert!(file.len() > 5000 && file.len() < 5000 * 1000);
    assert_line(&refusal(&file), &["larger than the file"]);
}

#[test]
fn depth_and_repetition_of_a_pickle_cost_no_more_than_its_length() {
    let deep = [b"}".to_vec(), text("x"), b"N".to_vec(), vec![0x85; 500_000], b"s".to_vec()].concat();
    assert_line(&refusal(&around(&deep)), &["no dictionary of tensors", "it has 'x'"]);
    assert_line(&refusal(&around(&vec![b'('; 500_000])), &["empty stack"]);
    // Each step doubles what a copying reader would hold: 2^250 values.
    let doubling = (0..250).flat_map(|it| [b'q', it, b'h', it, 0x86]);
    let laughs = [b"}".to_vec(), text("x"), b"N".to_vec(), doubling.collect(), b"s".to_vec()].concat();
    assert_line(&refusal(&around(&laughs)), &["no dictionary of tensors", "it has 'x'"]);
    // A dictionary that holds itself.
    let circle = [b"}q\0".to_vec(), text("state_dict"), b"h\0s".to_vec()].concat();
    assert_line(&refusal(&around(&circle)), &["no dictionary of tensors", "it has 'state_dict'"]);
    // One list of pairs for many dictionaries, and one dictionary under many names.
    let list = [b"](".to_vec(), b"NN\x86".repeat(50_000), b"eq\x01".to_vec()].concat();
    let dictionaries = b"ccollections\nOrderedDict\nh\x01\x85R".repeat(50_000);
    assert_line(&refusal(&around(&[list, dictionaries].concat())), &["no dictionary of tensors"]);
    let many = [b"}(".to_vec(), b"N}q\x01(".to_vec(), b"NN".repeat(100_000), b"u".to_vec(), b"Nh\x01".repeat(100_000)];
    assert_line(&refusal(&around(&[&many.concat()[..], b"u"].concat())), &["no dictionary of tensors"]);
}

#[test]
fn a_pickle_that_breaks_the_rules_of_its_machine_is_refused() {
    let cases: [(&[u8], &str); 14] = [
        (b"", "empty stack"),
        (b"t", "empty stack"),
        (b"K\x01(\x85t", "empty stack"),
        (b"K\x01(R", "empty stack"),
        (b"h\x07", "never wrote"),
        (b"q\x07", "empty stack"),
        (b"]K\x01K\x02s", "not a dictionary"),
        (b"}(K\x01u", "not a dictionary"),
        (b"K\x01K\x02a", "not a list"),
        (b"K\x01)R", "not a function"),
        (b"ccollections\nOrderedDict\nK\x01\x85R", "wrong arguments"),
        (b"K\x01}b", "attributes"),
        (b"X\xff\xff\xff\xff", "too early"),
        (b"\x93", "0x93"),
    ];
    for (object, reason) in cases {
        assert_line(&refusal(&around(object)), &[reason]);
    }
    let [tensor, numbered] =
        [view(8, 0, &[8], &[1]), [b"K\x01".to_vec(), view(8, 0, &[8], &[1])[7..].to_vec()].concat()];
    assert_line(&refusal(&around(&[&tensor, &numbered[..]].concat())), &["not text"]);
    let twice = [view(8, 0, &[8], &[1]), view(8, 0, &[8], &[1])[1..].to_vec()].concat();
    assert_line(&refusal(&around(&twice)), &["'x' twice"]);
}

#[test]
fn a_name_out_of_a_file_cannot_break_the_line() {
    let name = "\u{1b}[2J\n".repeat(1000);
    let object = [view(8, 0, &[8], &[1]), text(&name), b"Ns".to_vec()].concat();
    let line = refusal(&around(&object));
    assert_line(&line, &["\\u{1b}[2J\\n", "...' is not a tensor"]);
    let line = refusal(&around(&[b"}".to_vec(), text(&name), b"Ns".to_vec()].concat()));
    assert_line(&line, &["it has '\\u{1b}[2J\\n", "...'"]);
    assert!(line.len() < 1000, "{line}");
}

#[test]
fn entries_that_overlap_cannot_make_a_small_archive_a_large_one() {
    let names: Vec<String> = (0..100).map(|it| format!("a/data/{it:02}")).collect();
    let floats = vec![0; 4096];
    let pickle = |keys: usize| {
        let one = |key: usize| {
            let view = view(1024, 0, &[4], &[1]);
            let at = view.windows(6).position(|it| it == b"X\x01\0\0\x000").unwrap();
            let view = [&view[..at], &text(&format!("{key:02}")), &view[at + 6..]].concat();
            [text(&format!("x{key}")), view[7..].to_vec()].concat()
        };
        [b"\x80\x02}".to_vec(), (0..keys).flat_map(one).collect(), b".".to_vec()].concat()
    };
    let good = archive(&pickle(1), &names[..1], &floats);
    assert_eq!(from_bytes(&good).unwrap()["x0"].as_f32().unwrap(), [0.0; 4]);
    assert_line(&refusal(&archive(&pickle(100), &names, &floats)), &["overlap"]);
    let same = vec![names[0].clone(); 2];
    assert_line(&refusal(&archive(&pickle(1), &same, &floats)), &["'a/data/00' twice"]);
    assert_line(&refusal(&archive(&pickle(2), &names[..1], &floats)), &["'01' is missing"]);
    assert_line(&refusal(&archive(&pickle(1), &names[..1], &floats[4..])), &["'00' has 4092 bytes for 1024 elements"]);
}

#[test]
fn numbers_of_another_byte_order_are_refused() {
    assert_line(&refusal(&archive(b"", &["a/byteorder".into()], b"big")), &["not little-endian"]);
    let good = around(&view(8, 0, &[8], &[1]));
    let at = good.windows(2).position(|it| it == b"\x88s").unwrap();
    let big = [&good[..at], b"\x89", &good[at + 1..]].concat();
    assert_line(&refusal(&big), &["not little-endian"]);
}
