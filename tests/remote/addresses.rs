//! What a checkpoint says is data: it reaches nobody's server unless the user has given the address, and no variable of
//! the environment at all.

use std::fs;
use std::path::Path;
use std::process::Output;

use kiln_engine::checkpoint::{Keep, Snapshot, Store, all, read};

use super::{Server, TRAINING, training};
use crate::command::{Workplace, errors, refused, succeeded};
use crate::storage::stored;

/// A copy of `run` as a stranger would make it: all sums are right, but `key` of `section` has another value.
fn forged(place: &Workplace, run: &str, name: &str, (section, key, value): (&str, &str, &str)) {
    let to = place.path(name);
    let mut store = Store::open(&to).unwrap();
    for (step, path) in all(&place.path(run)).unwrap() {
        let mut loaded = read(&path).unwrap();
        let settings = String::from_utf8(loaded.files["config.toml"].clone()).unwrap();
        let mut settings: toml::Table = settings.parse().unwrap();
        settings[section].as_table_mut().unwrap().insert(key.into(), value.into());
        if value.ends_with(".tar") {
            settings["data"].as_table_mut().unwrap().insert("source".into(), "webdataset".into());
        }
        let text = format!("# Written by hand.\n\n\n{settings}");
        loaded.files.insert("config.toml".into(), text.into_bytes());
        let files = loaded.files.into_iter().map(|(name, bytes)| (name, bytes.into())).collect();
        let snapshot = Snapshot { step, epoch: loaded.epoch, accuracy: None, files };
        store.save(&snapshot, true, Keep { last: 100, best: 1 }).unwrap();
    }
    fs::copy(place.path(run).join("metrics.jsonl"), to.join("metrics.jsonl")).unwrap();
}

fn with_secret(place: &Workplace, arguments: &[&str]) -> Output {
    place.bare(arguments).env("MY_TOKEN", "hunter2").output().unwrap()
}

#[test]
fn a_strangers_checkpoint_asks_no_server_and_learns_nothing_of_the_environment() {
    let place = Workplace::new();
    let server = Server::new(&place.path(""));
    place.train("run", &["--max-steps=4"]);
    let shards = format!("{}/${{oc.env:MY_TOKEN}}/{{train,val}}.tar", server.url);
    let [plain, copies, weights] = ["data/{train,val}.tar", "copies", "best"].map(|it| format!("{}/{it}", server.url));
    let hidden = "\\u0024{oc.env:MY_TOKEN}";
    let cases = [
        ("token", ("data", "dir", &shards[..]), "is a reference in a checkpoint (data.dir in token/"),
        (
            "setting",
            ("model", "freeze", "${oc.env:MY_TOKEN}"),
            "is a reference in a checkpoint (model.freeze in setting/",
        ),
        ("data", ("data", "dir", &plain), &format!("add --data-dir {plain}")),
        ("copies", ("checkpoint", "url", &copies), &format!("add --checkpoint-url {copies}")),
        ("weights", ("model", "pretrained", &weights), &format!("add --pretrained {weights}")),
        ("file", ("checkpoint", "path", "precious.pth"), "add --checkpoint precious.pth, or --checkpoint= for no copy"),
    ];
    for (name, setting, part) in cases {
        forged(&place, "run", name, setting);
        let resume = format!("--resume={name}");
        let mut outputs = vec![with_secret(&place, &[&resume, "--max-steps=6"])];
        if !["copies", "file"].contains(&name) {
            // A repetition makes no copies.
            outputs.push(with_secret(&place, &["verify", name]));
        }
        if ["token", "setting", "data"].contains(&name) {
            outputs.push(with_secret(&place, &["evaluate", "--checkpoint", name]));
        }
        for output in outputs {
            let line = refused(&output, 2);
            assert!(line.contains(part), "{name}: {line} without {part}");
            assert!(!line.contains("hunter2") && !line.contains(hidden), "{line}");
        }
    }
    assert_eq!(server.heads(), Vec::<String>::new());
    // What a command does not use is no reason to refuse.
    succeeded(&with_secret(&place, &["verify", "copies"]));
    succeeded(&with_secret(&place, &["verify", "file"]));
    assert!(!place.path("precious.pth").exists());
    succeeded(&with_secret(&place, &["--resume=file", "--checkpoint=", "--max-steps=6"]));
    succeeded(&with_secret(&place, &["evaluate", "--checkpoint=copies", "--backend=flex"]));
    assert_eq!(server.heads(), Vec::<String>::new());
}

#[test]
fn an_error_in_the_settings_of_a_checkpoint_names_its_line() {
    let place = Workplace::new();
    place.train("run", &["--max-steps=4"]);
    forged(&place, "run", "wrong", ("optim", "learning_rate", "fast"));
    let text = fs::read_to_string(place.run("wrong").checkpoint("latest/config.toml")).unwrap();
    let line = text.lines().position(|line| line == "learning_rate = \"fast\"").unwrap() + 1;
    let lines = errors(&place.bare(&["--resume=wrong"]).output().unwrap());
    let expected = format!("got 'fast' (optim.learning_rate in wrong/checkpoints/step-00000004/config.toml:{line})");
    assert!(lines.len() == 1 && lines[0].contains(&expected), "'{expected}' is not in {lines:?}");
}

#[test]
fn a_run_goes_on_with_the_addresses_that_are_given_again() {
    let place = Workplace::new();
    stored(&place);
    let server = Server::new(&place.path(""));
    let whole = [&TRAINING[..], &["checkpoint.keep_last=100"]].concat();
    let copies = format!("--checkpoint-url={}/copies", server.url);
    succeeded(&training(&place, "run", &server, &[&whole[..], &["--max-steps=6", &copies]].concat()).output().unwrap());
    let data = format!("--data-dir={}/shards/{}", server.url, super::PATTERN);
    let bare = |arguments: &[&str]| {
        let mut command = place.bare(arguments);
        command.env("XDG_CACHE_HOME", place.path("cache")).output().unwrap()
    };
    let lines = errors(&bare(&["--resume=run", "--max-steps=8"]));
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains(&server.url)), "{lines:?}");
    let before = fs::read(place.path("copies/latest")).unwrap();
    succeeded(&bare(&["verify", "run", "--stretches=0", "--", &data]));
    assert_eq!(fs::read(place.path("copies/latest")).unwrap(), before);
    // From the environment, and from the address of the copies itself, where they go again.
    let from_copies = format!("--resume={}/copies/step-00000006", server.url);
    let mut command = place.bare(&[&from_copies, "--max-steps=8", "--output-dir=again"]);
    command.env("XDG_CACHE_HOME", place.path("cache"));
    succeeded(&command.env("TRAIN__DATA__DIR", &data["--data-dir=".len()..]).output().unwrap());
    assert_eq!(fs::read_to_string(place.path("copies/latest")).unwrap(), "step-00000008");
    assert!(Path::new(&place.path("again/checkpoints/step-00000008")).exists());
}
