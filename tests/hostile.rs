//! Files that would fill the memory of who believes them: refused within a bound, however large they are.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use kiln_engine::checkpoint::Snapshot;
use kiln_engine::checkpoint::content::Entry;
use kiln_engine::checkpoint::manifest::Manifest;
use sha2::{Digest, Sha256};

use crate::command::{Workplace, errors, succeeded};

/// What a command may take, in MiB; files here are larger, or would become larger.
const BOUND: u64 = 256;
const GIB: u64 = 1 << 30;

/// Runs the command with no more memory than so many MiB: the system grants none beyond that, and it would be aborted.
fn bounded(place: &Workplace, bound: u64, arguments: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -d $1 && shift && exec \"$@\"", "sh", &(bound << 10).to_string()]);
    command.arg(crate::command::train()).args(arguments).current_dir(place.path("")).stdin(Stdio::null());
    command.output().unwrap()
}

#[track_caller]
fn refused(place: &Workplace, arguments: &[&str], parts: &[&str]) {
    refused_within(place, BOUND, arguments, parts);
}

/// Fails unless the command is refused with one line that has all of `parts`.
#[track_caller]
fn refused_within(place: &Workplace, bound: u64, arguments: &[&str], parts: &[&str]) {
    let output = bounded(place, bound, arguments);
    let lines = errors(&output);
    assert!(matches!(output.status.code(), Some(1 | 2)) && lines.len() == 1, "{}: {lines:?}", output.status);
    for part in parts {
        assert!(lines[0].contains(part), "'{part}' is not in '{}'", lines[0]);
    }
}

/// A file of so many bytes, of which only the first take place on the disk.
fn sparse(path: &Path, start: &[u8], length: u64) {
    let mut file = File::create(path).unwrap();
    file.write_all(start).unwrap();
    file.set_len(length).unwrap();
}

#[test]
fn a_pickle_of_nothing_but_nones_takes_no_memory_for_each() {
    let place = Workplace::new();
    let magic = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";
    for opcodes in [b"N".as_slice(), b")", b"]", b"(", b"N\x85", b"K\x07", b"Nq\x01"] {
        let bytes = [magic, b"\x80\x02".as_slice(), &opcodes.repeat((50 << 20) / opcodes.len()), b"."].concat();
        fs::write(place.path("bomb.pth"), bytes).unwrap();
        refused(&place, &["evaluate", "--checkpoint=bomb.pth"], &["'bomb.pth'", "more than 524288 steps"]);
    }
    // The same four times within the limit: what is read before the weights stays in memory.
    let long = [b"\x80\x02".as_slice(), &b"N\x85".repeat(262_000), b"."].concat();
    fs::write(place.path("bomb.pth"), [magic.as_slice(), &long, &long, &long, &long].concat()).unwrap();
    refused(&place, &["evaluate", "--checkpoint=bomb.pth"], &["'bomb.pth'", "not little-endian"]);
    let bytes = [magic, b"\x80\x02".as_slice(), &b"N".repeat(50 << 20), b"."].concat();
    fs::write(place.path("bomb.pth"), bytes).unwrap();
    refused(
        &place,
        &["data=synthetic", "run.threads=1", "--pretrained=bomb.pth"],
        &["'bomb.pth'", "more than 524288 steps"],
    );
}

#[test]
fn of_a_large_file_that_is_no_weights_only_the_header_is_read() {
    let place = Workplace::new();
    let starts: [(&str, Vec<u8>, &str); 5] = [
        ("zeros.safetensors", vec![], "'zeros.safetensors' is not a readable safetensors file"),
        ("zeros.pth", vec![], "'zeros.pth' is not a readable PyTorch file"),
        ("zip.pth", b"PK\x03\x04".to_vec(), "'zip.pth' is not a readable PyTorch file"),
        ("long.safetensors", [&(3 * GIB - 8).to_le_bytes()[..], b"{"].concat(), "its header claims 3221225464 bytes"),
        ("beyond.safetensors", [&u64::MAX.to_le_bytes()[..], b"{"].concat(), "its header claims"),
    ];
    for (name, start, reason) in starts {
        sparse(&place.path(name), &start, 3 * GIB);
        refused(&place, &["evaluate", "--checkpoint", name], &[reason]);
        refused(&place, &["export", "--to=onnx", "--checkpoint", name], &[reason]);
    }
}

#[test]
fn a_header_that_would_make_millions_of_tensors_is_refused() {
    let place = Workplace::new();
    let tensors: Vec<String> =
        (0..400_000).map(|at| format!("\"{at}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}")).collect();
    let header = format!("{{{}}}", tensors.join(","));
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    assert!(bytes.len() > 16 << 20);
    fs::write(place.path("many.safetensors"), bytes).unwrap();
    refused(&place, &["evaluate", "--checkpoint=many.safetensors"], &["'many.safetensors'", "at most 8 MiB"]);
}

#[test]
fn a_checkpoint_is_not_read_beyond_what_it_says_of_itself() {
    let place = Workplace::new();
    let evaluate = ["evaluate", "--checkpoint=run"];
    fs::create_dir(place.path("run")).unwrap();
    let model = place.path("run/model.safetensors");
    let manifest = place.path("run/manifest.json");
    sparse(&manifest, b"{", GIB);
    refused(&place, &evaluate, &["manifest.json", "more than 1 MiB"]);
    let files = [("model.safetensors".to_string(), Entry::of(&[0; 8]))].into();
    let mut said = Manifest::of(&Snapshot { step: 1, epoch: 0, accuracy: None, files: Vec::new() }, files);
    fs::write(&manifest, said.to_json()).unwrap();
    sparse(&model, &[0; 8], GIB);
    refused(&place, &evaluate, &["model.safetensors' is damaged", "has 1073741824 bytes, manifest.json says 8"]);
    // A manifest that says so, and vouches for itself.
    said.files.get_mut("model.safetensors").unwrap().size = GIB;
    let text = said.to_json();
    let at = text.rfind("\"sha256\": \"").unwrap() + 11;
    let unsealed = [&text[..at], &text[at + 64..]].concat();
    let sum = format!("{:x}", Sha256::digest(&unsealed));
    fs::write(&manifest, [&text[..at], &sum, &text[at + 64..]].concat()).unwrap();
    refused(&place, &evaluate, &["model.safetensors' is damaged", "its SHA-256 is not the one"]);
}

#[test]
fn a_data_set_takes_no_more_than_a_data_set_needs() {
    let place = Workplace::new();
    let train = ["--epochs=1", "run.threads=1", "--width=2"];
    fs::create_dir(place.path("data")).unwrap();
    sparse(&place.path("data/data_batch_1.bin"), b"\x01", GIB);
    refused(&place, &train, &["data_batch_1.bin", "more than 256 MiB"]);
    fs::remove_file(place.path("data/data_batch_1.bin")).unwrap();
    // A list of arguments in a list of arguments and so on; nesting; a value that holds another twice and so on.
    let twice: Vec<u8> = (0..250).flat_map(|it| [b'q', it, b'h', it, 0x86]).collect();
    for program in [vec![b'('; 10 << 20], vec![0x85; 10 << 20], b"2".repeat(10 << 20), twice, b"N".repeat(50 << 20)] {
        fs::write(place.path("data/data_batch_1"), [b"\x80\x02N".as_slice(), &program, b"."].concat()).unwrap();
        refused(&place, &train, &["data_batch_1' is not a CIFAR-10 pickle"]);
    }
    fs::remove_file(place.path("data/data_batch_1")).unwrap();
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let (mut header, unpacked) = (tar::Header::new_gnu(), 1200 << 20);
    header.set_size(unpacked);
    archive.append_data(&mut header, "data_batch_1.bin", std::io::repeat(0).take(unpacked)).unwrap();
    let bytes = archive.into_inner().unwrap().finish().unwrap();
    assert!(bytes.len() < 16 << 20);
    fs::write(place.path("data/cifar-10-binary.tar.gz"), bytes).unwrap();
    // What is unpacked is as large as a data set may be, and twice that while it grows.
    refused_within(&place, 1024, &train, &["cifar-10-binary.tar.gz'", "more than 256 MiB"]);
}

#[test]
fn an_image_that_claims_to_be_huge_takes_no_memory_for_that() {
    let place = Workplace::new();
    let mut png = [&b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"[..], &[0, 1, 0, 0, 0, 1, 0, 0, 8, 2, 0, 0, 0]].concat();
    png.extend(crc32fast::hash(&png[12..]).to_be_bytes());
    png.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e\0\0\0\0IEND\xae\x42\x60\x82");
    for split in ["train", "val"] {
        fs::create_dir_all(place.path(&format!("set/{split}/it"))).unwrap();
        fs::write(place.path(&format!("set/{split}/it/large.png")), &png).unwrap();
    }
    for exif in ["data.exif=ignore", "data.exif=apply"] {
        let arguments = ["--data=folder", "--data-dir=set", "run.threads=1", "--width=2", exif];
        refused(&place, &arguments, &["large.png", "is not a PNG", "limit"]);
    }
}

#[test]
fn an_error_that_quotes_a_name_sends_no_commands_to_the_terminal() {
    let place = Workplace::new();
    let output = bounded(&place, BOUND, &["evaluate", "--checkpoint=\u{1b}[31m.pth"]);
    let lines = errors(&output);
    assert!(lines.len() == 1 && lines[0].contains("[31m.pth") && !lines[0].contains(char::is_control), "{lines:?}");
}

#[test]
fn configurations_and_the_files_of_a_run_are_read_within_bounds() {
    let place = Workplace::new();
    sparse(&place.path("large.toml"), b"", GIB);
    refused(&place, &["config", "--config=large.toml"], &["'large.toml'", "more than 1 MiB"]);
    fs::create_dir(place.path("run")).unwrap();
    for (name, length) in [("metrics.jsonl", GIB / 2), ("summary.json", GIB), ("config.toml", GIB), ("trace.json", GIB)]
    {
        sparse(&place.path("run").join(name), b"", length);
    }
    succeeded(&bounded(&place, BOUND, &["report", "run"]));
    let page = fs::read_to_string(place.path("run/report.html")).unwrap();
    for note in ["summary.json cannot be read", "config.toml cannot be read", "metrics.jsonl holds no step yet"] {
        assert!(page.contains(note), "{note}");
    }
}

#[test]
fn references_do_not_multiply_without_end() {
    let place = Workplace::new();
    let keys = [
        "run.output_dir",
        "data.dir",
        "data.cache_dir",
        "parallel.job_secret_file",
        "parallel.dist_interface",
        "parallel.job_id",
    ];
    let references =
        keys.windows(2).map(|pair| format!("{} = \"{}\"\n", pair[0], format!("${{{}}}", pair[1]).repeat(50)));
    fs::write(place.path("bomb.toml"), references.collect::<String>()).unwrap();
    refused(&place, &["config", "--config=bomb.toml"], &["bomb.toml:", "it is longer than 65536 bytes"]);
}

#[test]
fn of_very_many_unknown_keys_the_first_are_explained() {
    let place = Workplace::new();
    let text: String = (0..60_000).map(|at| format!("run.seed{at}=1\n")).collect();
    fs::write(place.path("many.toml"), text).unwrap();
    let lines = errors(&bounded(&place, BOUND, &["config", "--config=many.toml"]));
    assert!(lines.len() == 21 && lines[0].contains("did you mean 'run.seed'?"), "{lines:?}");
    assert!(lines[19].contains("many.toml:20)") && lines[20].contains("more unknown keys"), "{lines:?}");
}

#[cfg(feature = "parquet")]
#[test]
fn a_page_that_is_compressed_beyond_all_pictures_is_refused() {
    let place = Workplace::new();
    fs::create_dir(place.path("set")).unwrap();
    for split in ["train", "test"] {
        let bomb = crate::files::file("tests/fixtures/bomb.parquet");
        fs::copy(bomb, place.path(&format!("set/{split}-0.parquet"))).unwrap();
    }
    let arguments = ["--data=parquet", "--data-dir=set", "run.threads=1", "--width=2", "--epochs=1"];
    refused(&place, &arguments, &["train-0.parquet' is damaged", "compressed bytes has more than 16777216"]);
}

#[test]
fn a_class_takes_memory_for_its_weights_and_not_for_all_other_classes() {
    let place = Workplace::new();
    let small = ["data=synthetic", "data.train_size=8", "data.val_size=53", "--width=2", "--epochs=1", "run.threads=1"];
    let run = [&small[..], &["--backend=flex", "model.num_classes=21841", "--output-dir=run"]].concat();
    // A number for every pair of classes takes 3.6 GiB.
    succeeded(&bounded(&place, 1024, &run));
    succeeded(&bounded(&place, 1024, &["evaluate", "--checkpoint=run"]));
    succeeded(&bounded(&place, 1024, &["report", "run"]));
}

#[test]
fn names_that_would_make_a_header_too_long_are_left_out() {
    let place = Workplace::new();
    fs::create_dir(place.path("set")).unwrap();
    for split in ["train", "val"] {
        let mut archive = tar::Builder::new(File::create(place.path(&format!("set/{split}-0.tar"))).unwrap());
        let mut picture = std::io::Cursor::new(Vec::new());
        image::RgbImage::new(8, 8).write_to(&mut picture, image::ImageFormat::Png).unwrap();
        for (name, content) in [("0.png", picture.get_ref().as_slice()), ("0.cls", b"1048575")] {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, name, content).unwrap();
        }
        archive.finish().unwrap();
    }
    let set =
        ["--data=webdataset", "--data-dir=set", "data.image_size=8", "--width=1", "--batch-size=1", "--backend=flex"];
    place.bare(&[&set[..], &["--epochs=1", "--output-dir=run"]].concat()).output().map(|it| succeeded(&it)).unwrap();
    succeeded(&place.bare(&["evaluate", "--checkpoint=run"]).output().unwrap());
}
