//! Shards in an object store: the weights of the local run whatever the server does, or one line that names the object;
//! no byte is fetched that a perfect cache would have; no secret is shown.

mod addresses;
mod copies;
mod encrypted;
mod server;

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use image::{Rgb, RgbImage};
use server::Answer;
use tar::Builder;

use crate::command::{Workplace, errors, refused, succeeded};
use crate::storage::{append, stored};
pub use server::Server;

const PATTERN: &str = "{train-{0..2},val-0}.tar";
const LOCAL: [&str; 2] = ["--data=webdataset", "--data-dir=shards/{train-{0..2},val-0}.tar"];
const TRAINING: [&str; 4] = ["--image-size=16", "--epochs=2", "--cache-mb=0", "--checkpoint-every=1steps"];

/// A training on what the server has in its folder `shards`; an index is kept in the folder `cache`.
fn training(place: &Workplace, run: &str, server: &Server, arguments: &[&str]) -> Command {
    let dir = format!("--data-dir={}/shards/{PATTERN}", server.url);
    let mut command = place.small(run, &[&TRAINING[..], &["--data=webdataset", &dir], arguments].concat());
    command.env("XDG_CACHE_HOME", place.path("cache"));
    command
}

#[test]
fn the_weights_are_those_of_a_directory_whatever_the_server_does() {
    let place = Workplace::new();
    stored(&place);
    let server = Server::new(&place.path(""));
    place.train("calm", &[&TRAINING[..], &LOCAL].concat());
    let calm = place.run("calm");
    server.misbehave(|number, _| match number % 11 {
        _ if number == 40 => Answer::Stall,
        2 | 3 => Answer::Busy,
        7 => Answer::Cut,
        _ => Answer::Right,
    });
    let cached = ["data.cache_dir=disk", "data.cache_dir_mb=1", "data.retry_seconds=15"];
    let runs = [("plain", &cached[2..]), ("disk", &cached), ("disk-again", &cached)];
    for (run, arguments) in runs {
        succeeded(&training(&place, run, &server, arguments).output().unwrap());
        place.run(run).equals(&calm, 2);
        // What one run leaves on the disk the next one need not fetch.
        assert_eq!(server.sent().0 == 0, run == "disk-again", "{run}");
    }
    // From a directory to the store and back, in the middle of an epoch.
    for world in ["--world-size=1", "--world-size=4"] {
        let batch = if world.ends_with('1') { "--batch-size=8" } else { "--batch-size=2" };
        let (all, name) = ([world, batch, "--mixup=0.4"], |kind: &str| format!("{kind}{world}"));
        place.train(&name("calm"), &[&TRAINING[..], &LOCAL, &all].concat());
        place.train(&name("moved"), &[&TRAINING[..], &LOCAL, &all, &["--max-steps=2"]].concat());
        let rest = [&all[..], &["--resume", "data.retry_seconds=15"]].concat();
        succeeded(&training(&place, &name("moved"), &server, &rest).output().unwrap());
        place.run(&name("moved")).equals(&place.run(&name("calm")), 2);
    }
}

#[test]
fn a_certificate_that_nobody_signed_is_trusted_when_it_is_named_and_refused_at_once_when_not() {
    let place = Workplace::new();
    stored(&place);
    let server = Server::new(&place.path(""));
    let (url, pem) = encrypted::encrypted(&server);
    fs::write(place.path("own.pem"), pem).unwrap();
    fs::write(place.path("none.pem"), "no certificate").unwrap();
    let train = |run: &str, authorities: &str| {
        let dir = format!("--data-dir={url}/shards/{PATTERN}");
        let line = [&TRAINING[..], &["--data=webdataset", &dir, "data.retry_seconds=600"]].concat();
        let mut command = place.small(run, &line);
        command.env("XDG_CACHE_HOME", place.path("cache")).env("SSL_CERT_FILE", authorities).output().unwrap()
    };
    let refused = |authorities: &str, words: &str| {
        let lines = errors(&train("refused", authorities));
        assert!(lines.len() == 1 && lines[0].contains(words) && lines[0].contains("SSL_CERT_FILE"), "{lines:?}");
    };
    refused("", "certificate");
    refused("none.pem", "'none.pem' has no certificate");
    place.train("calm", &[&TRAINING[..], &LOCAL].concat());
    succeeded(&train("run", "own.pem"));
    place.run("run").equals(&place.run("calm"), 2);
}

#[test]
fn what_does_not_pass_is_one_line_that_names_the_object() {
    let place = Workplace::new();
    stored(&place);
    let server = Server::new(&place.path(""));
    succeeded(&training(&place, "", &server, &["--dry-run"]).output().unwrap());
    let cases: [(Answer, &[&str]); 7] = [
        (Answer::Gone, &["at byte", "404", "put the object back"]),
        (Answer::Busy, &["at byte", "503", "data.retry_seconds"]),
        (Answer::Denied, &["at byte", "403", "AWS_ACCESS_KEY_ID"]),
        (Answer::Changed, &["has changed since the start"]),
        (Answer::Whole, &["at byte", "Range request not supported", "serve them with a server that answers those"]),
        (Answer::WrongRange, &["at byte", "Requested"]),
        (Answer::WrongBytes, &["at byte", "is not a JPEG"]),
    ];
    for (answer, parts) in cases {
        server.misbehave(move |_, path| if path.ends_with("train-1.tar") { answer } else { Answer::Right });
        let line = refused(&training(&place, "run", &server, &["data.retry_seconds=1"]).output().unwrap(), 1);
        for part in [&[&format!("{}/shards/train-1.tar", server.url)[..]], parts].concat() {
            assert!(line.contains(part), "{answer:?}: {line} without {part}");
        }
        assert!(!line.contains("kiln-test-key"), "{line}");
        fs::remove_dir_all(place.path("run")).ok();
    }
    // Of bytes without an end no more are read than were asked for: the rest waits in the buffers of the two sides.
    server.misbehave(move |_, path| if path.ends_with("train-1.tar") { Answer::Endless } else { Answer::Right });
    server.sent();
    let lines = errors(&training(&place, "run", &server, &[]).output().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("sent more than the"), "{lines:?}");
    let (requests, bytes) = server.sent();
    assert!(bytes < requests * (16 << 20), "{bytes} bytes for {requests} requests");
    fs::remove_dir_all(place.path("run")).ok();
    fs::remove_file(place.path("shards/train-2.tar")).unwrap();
    let lines = errors(&training(&place, "run", &server, &[]).output().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("there is no") && lines[0].contains("train-2.tar"), "{lines:?}");
}

/// Pictures that do not compress, of some 59 KB, in three shards of training and one of validation.
fn noise(place: &Workplace, training: usize, validation: usize) {
    fs::create_dir_all(place.path("shards")).unwrap();
    let tar = |name: &str| Builder::new(File::create(place.path(&format!("shards/{name}.tar"))).unwrap());
    let mut tars = [tar("train-0"), tar("train-1"), tar("train-2"), tar("val-0")];
    let mut state = 1_u32;
    for number in 0..training + validation {
        let image = RgbImage::from_fn(140, 140, |_, _| {
            Rgb([(); 3].map(|()| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            }))
        });
        let path = place.path("picture.png");
        image.save(&path).unwrap();
        let tar = &mut tars[if number < training { number * 3 / training } else { 3 }];
        append(tar, &format!("{number:04}.png"), &fs::read(&path).unwrap());
        append(tar, &format!("{number:04}.cls"), (number % 3).to_string().as_bytes());
    }
    tars.into_iter().for_each(|tar| drop(tar.into_inner().unwrap()));
}

/// How often a sample of `order` is not in a cache for `room` samples, that evicts what is needed last, or what was
/// used longest ago.
fn misses(order: &[u64], room: usize, is_lru: bool) -> usize {
    let next: Vec<usize> = {
        let mut seen = HashMap::new();
        let after = |(at, id): (usize, &u64)| seen.insert(*id, at).unwrap_or(usize::MAX);
        let mut next: Vec<usize> = order.iter().enumerate().rev().map(after).collect();
        next.reverse();
        next
    };
    let (mut cache, mut count): (BTreeSet<(usize, u64)>, usize) = (BTreeSet::new(), 0);
    for (at, id) in order.iter().enumerate() {
        let held = cache.iter().find(|(_, held)| held == id).copied();
        count += usize::from(held.is_none());
        held.map(|held| cache.remove(&held));
        cache.insert((if is_lru { at } else { next[at] }, *id));
        if cache.len() > room {
            if is_lru {
                cache.pop_first()
            } else {
                cache.pop_last()
            };
        }
    }
    count
}

#[test]
fn what_is_fetched_is_little_more_than_a_perfect_cache_fetches() {
    const TRAINING: usize = 200;
    const VALIDATION: usize = 20;
    let place = Workplace::new();
    noise(&place, TRAINING, VALIDATION);
    let server = Server::new(&place.path(""));
    let settings = |epochs| {
        // One replica: two are not in step, and then no order is the one that the perfect cache is computed for.
        let sizes = ["--image-size=8", "--world-size=1", "--batch-size=10", "data.prefetch_mb=1", "data.augment=false"];
        [&sizes[..], &[epochs, "data.cache_dir=disk", "data.cache_dir_mb=6", "--checkpoint-every=never"]].concat()
    };
    succeeded(
        &training(&place, "", &server, &[&settings("--epochs=6")[..], &["--dry-run"]].concat()).output().unwrap(),
    );
    let (indexing, indexed) = server.sent();
    let total: u64 = ["train-0", "train-1", "train-2", "val-0"]
        .map(|name| fs::metadata(place.path(&format!("shards/{name}.tar"))).unwrap().len())
        .iter()
        .sum();
    succeeded(&training(&place, "run", &server, &settings("--epochs=6")).output().unwrap());
    let (requests, bytes) = server.sent();
    let mut order = Vec::new();
    for line in fs::read_to_string(place.run("run").path().join("samples.jsonl")).unwrap().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        order.extend(line["samples"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()));
        if order.len() % (TRAINING + VALIDATION) == TRAINING {
            order.extend((0..VALIDATION as u64).map(|id| TRAINING as u64 + id));
        }
    }
    assert_eq!(order.len(), 6 * (TRAINING + VALIDATION));
    let sample = total as f64 / (TRAINING + VALIDATION) as f64;
    let room = (6 << 20) / (sample as usize).next_multiple_of(4096);
    let [best, lru] = [false, true].map(|is_lru| misses(&order, room, is_lru) as f64 * sample);
    eprintln!(
        "index: {indexing} requests, {indexed} bytes of {total}; training: {requests} requests, {bytes} bytes; a perfect \
         cache {best:.0}, one by last use {lru:.0}, none {:.0}",
        order.len() as f64 * sample
    );
    assert!(indexed < total / 5 && indexing < 2 * order.len() as u64, "{indexed} bytes in {indexing} requests");
    assert!((bytes as f64) < 1.05 * best, "{bytes} bytes, a perfect cache {best}");
    assert!(1.2 * best < lru, "the test tells nothing");
}

#[test]
fn neighbours_come_together_if_shards_are_mixed_a_few_at_a_time() {
    let place = Workplace::new();
    noise(&place, 120, 8);
    let server = Server::new(&place.path(""));
    let run = |run: &str, arguments: &[&str]| {
        let sizes = [
            "--image-size=8",
            "--world-size=1",
            "--batch-size=5",
            "data.prefetch_mb=1",
            "data.augment=false",
            "--epochs=1",
        ];
        succeeded(&training(&place, run, &server, &[&sizes[..], arguments].concat()).output().unwrap());
        server.sent().0
    };
    let cache = ["data.cache_dir=disk", "data.cache_dir_mb=8"];
    run("", &["--dry-run"]);
    let alone = run("global", &cache);
    fs::remove_dir_all(place.path("disk")).unwrap();
    let together = run("window", &[&cache[..], &["data.order=window", "data.window=1"]].concat());
    eprintln!("requests: {alone} in the global order, {together} by windows");
    // One request for each shard, and a few for what the training reads before the prefetcher runs.
    assert!(together <= 8 && 10 * together < alone, "{together} and {alone}");
}

#[test]
fn a_bucket_is_listed_and_its_credentials_are_not_shown() {
    let place = Workplace::new();
    stored(&place);
    let server = Server::new(&place.path(""));
    let dir = "--data-dir=s3://shards";
    let all = [&TRAINING[..], &["--data=webdataset", dir]].concat();
    let with = |run: &str, arguments: &[&str]| {
        let mut command = place.small(run, &[&all[..], arguments].concat());
        command.env("XDG_CACHE_HOME", place.path("cache")).env("AWS_ENDPOINT_URL", &server.url);
        command.env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "here");
        command.env("AWS_ACCESS_KEY_ID", "kiln-test-key").env("AWS_SECRET_ACCESS_KEY", "kiln-test-secret");
        command.output().unwrap()
    };
    place.train("calm", &[&TRAINING[..], &LOCAL].concat());
    let output = with("run", &[]);
    let said = succeeded(&output) + &errors(&output).join("\n");
    place.run("run").equals(&place.run("calm"), 2);
    assert!(said.contains("webdataset in s3://shards"), "{said}");
    assert!(
        server
            .heads()
            .iter()
            .all(|head| head.to_lowercase().contains("authorization: aws4-hmac-sha256 credential=kiln-test-key"))
    );
    let config = fs::read_to_string(place.run("run").path().join("config.toml")).unwrap();
    assert!(!(said + &config).contains("kiln-test"));
    server.misbehave(|_, _| Answer::Denied);
    let lines = errors(&with("denied", &[]));
    assert!(lines.len() == 1 && lines[0].contains("403") && !lines[0].contains("kiln-test"), "{lines:?}");
}

#[test]
fn a_url_of_this_machine_is_a_directory() {
    let place = Workplace::new();
    stored(&place);
    let url = format!("--data-dir=file://{}", place.path("shards").display());
    place.train("calm", &[&TRAINING[..], &LOCAL].concat());
    place.train("url", &[&TRAINING[..], &["--data=webdataset", &url]].concat());
    place.run("url").equals(&place.run("calm"), 2);
}

#[test]
fn what_cannot_go_with_an_object_store_is_refused() {
    let place = Workplace::new();
    let url = |url: &'static str| ["--data=webdataset", url];
    let cases = [
        (&url("--data-dir=http://user:secret@host/{train,val}.tar")[..], "by the environment"),
        (&url("--data-dir=https://host/{train,val}.tar?token=secret"), "by the environment"),
        (&url("--data-dir=ftp://host/{train,val}.tar"), "unknown scheme 'ftp'"),
        (&url("--data-dir=http://127.0.0.1:1/shards"), "cannot be listed; name the shards"),
        (&["--data=folder", "--data-dir=s3://bucket"], "an object store can hold data 'webdataset' only, got 'folder'"),
        (&["--data=webdataset", "data.cache_dir=disk"], "cache dir is only for images in an object store"),
        (&["data=synthetic", "data.order=window"], "order=window works with data webdataset or parquet only"),
        (&["--data=webdataset", "data.retry_seconds=0"], "retry seconds"),
    ];
    for (arguments, part) in cases {
        let line = refused(&place.bare(&[arguments, &["--dry-run"]].concat()).output().unwrap(), 2);
        assert!(line.contains(part) && !line.contains("secret@"), "{line}");
    }
    assert!(!Path::new("disk").exists());
}
