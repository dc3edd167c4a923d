//! Every command of the README and the guide is run as it stands there, with small networks and few steps, on this
//! machine.
//!
//! What a command needs is made first: runs, images, weights. Addresses of other machines become this one's. The lines
//! of launchers are run in `distributed/launchers.rs`, the links are followed in `guide/links.rs`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use crate::command::{Workplace, errors, succeeded};
use crate::files::file;

mod alone;
mod links;
#[cfg(feature = "gloo")]
mod together;

/// What makes a training short; later words win.
const SHORT: [&str; 4] = ["--width=2", "--max-steps=1", "--limit-val-batches=1", "--progress=plain"];

/// What a command needs, and so which test runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A training in one process.
    Training,
    /// Something that is refused, as the lines behind it say.
    Mistake,
    /// A question about a run, a model or the program.
    About,
    /// Several trainings, one after another.
    Study,
    /// Processes that train together.
    Together,
    /// Processes that come and go.
    Elastic,
    /// What another program starts.
    Launcher,
}

/// A command as it stands in a page, without its comment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    text: String,
}

impl Line {
    /// The line of a block for shells, if it is a command of this program.
    fn of(line: &str) -> Option<Self> {
        let text = line.split("  #").next()?.trim();
        let is_command =
            text.split(' ').any(|word| word == "train") && !text.starts_with("train:") && !text.starts_with('#');
        is_command.then(|| Self { text: text.into() })
    }

    fn kind(&self) -> Kind {
        let has = |word: &str| self.text.split(' ').any(|it| it == word);
        match self.text.split(' ').next().unwrap() {
            "$" => Kind::Mistake,
            "train" => match self.words()[0] {
                "evaluate" | "predict" | "export" | "report" | "completions" | "man" | "config" | "doctor" | "pack"
                | "slurm" | "verify" | "--version" => Kind::About,
                "sweep" | "find" | "scaling" | "plan" => Kind::Study,
                "rendezvous" | "members" => Kind::Elastic,
                _ if has("--elastic") => Kind::Elastic,
                _ if has("--rank") || has("launch") => Kind::Together,
                _ => Kind::Training,
            },
            first if first.contains('=') => Kind::Together,
            _ => Kind::Launcher,
        }
    }

    /// What stands before `train`.
    #[cfg_attr(not(feature = "gloo"), allow(dead_code, reason = "of use to processes"))]
    pub fn front(&self) -> Vec<&str> {
        self.text.split(' ').take_while(|word| *word != "train").collect()
    }

    /// What stands behind it; the dots stand for more words.
    fn words(&self) -> Vec<&str> {
        self.text
            .split(' ')
            .skip_while(|word| *word != "train")
            .skip(1)
            .filter(|word| *word != "...")
            .map(|word| word.trim_matches('\''))
            .collect()
    }

    /// The command with its last words added, and with words replaced that this machine does not know.
    fn command(&self, place: &Workplace, replaced: &[(&str, &str)], added: &[&str]) -> Command {
        let replace =
            |word: &str| replaced.iter().fold(word.to_string(), |word, (from, to)| word.replacen(from, to, 1));
        let words: Vec<String> = self.words().into_iter().map(replace).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).chain(added.iter().copied()).collect();
        place.bare(&words)
    }
}

/// The pages' commands of a kind, each once.
fn lines(kind: Kind) -> Vec<Line> {
    let mut seen = BTreeSet::new();
    let all: Vec<Line> = shell().lines().filter_map(Line::of).collect();
    let found: Vec<Line> = all.into_iter().filter(|line| line.kind() == kind && seen.insert(line.clone())).collect();
    assert!(!found.is_empty(), "{kind:?}");
    found
}

/// The pages' command that begins so.
#[cfg(feature = "gloo")]
pub fn launcher(program: &str) -> Line {
    lines(Kind::Launcher).into_iter().find(|line| line.text.starts_with(program)).unwrap()
}

/// The README and the pages of the guide.
fn pages() -> Vec<PathBuf> {
    let guide = std::fs::read_dir(file("src/guide")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = guide.filter(|path| path.extension().is_some_and(|it| it == "md")).collect();
    pages.push(file("README.md"));
    pages.sort();
    pages
}

fn text() -> String {
    pages().iter().map(|page| std::fs::read_to_string(page).unwrap()).collect::<Vec<_>>().join("\n")
}

/// The blocks for shells of all pages.
fn shell() -> String {
    let text = text();
    let blocks = text.split("\n```sh\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
    blocks.collect::<Vec<_>>().join("\n")
}

/// The repository's data, also under the name that the published ones have.
fn sample(place: &Workplace) {
    let data = file("data");
    std::fs::create_dir(place.path("data")).unwrap();
    for name in ["batches.meta.txt", "data_batch_1.bin", "test_batch.bin"] {
        std::fs::copy(data.join(name), place.path("data").join(name)).unwrap();
    }
    let whole = place.path("cifar/cifar-10-batches-bin");
    std::fs::create_dir_all(&whole).unwrap();
    for batch in 1..=5 {
        std::fs::copy(data.join("data_batch_1.bin"), whole.join(format!("data_batch_{batch}.bin"))).unwrap();
    }
    for name in ["batches.meta.txt", "test_batch.bin"] {
        std::fs::copy(data.join(name), whole.join(name)).unwrap();
    }
}

/// A place with the repository's data, a folder of photos, and the weights that commands name.
fn workplace() -> Workplace {
    let place = Workplace::new();
    sample(&place);
    for (class, colour) in [("cats", [90, 20, 200]), ("dogs", [200, 120, 20])] {
        for split in ["train", "val"] {
            let folder = place.path("photos").join(split).join(class);
            std::fs::create_dir_all(&folder).unwrap();
            for name in ["1.jpg", "2.jpg"] {
                image::RgbImage::from_pixel(40, 30, image::Rgb(colour)).save(folder.join(name)).unwrap();
            }
        }
    }
    for (shard, label) in [("train-0", "0"), ("train-1", "1"), ("val-0", "1")] {
        std::fs::create_dir_all(place.path("shards")).unwrap();
        let mut tar = tar::Builder::new(std::fs::File::create(place.path(&format!("shards/{shard}.tar"))).unwrap());
        tar.append_path_with_name(place.path("photos/val/cats/1.jpg"), "1.jpg").unwrap();
        std::fs::write(place.path("label"), label).unwrap();
        tar.append_path_with_name(place.path("label"), "1.cls").unwrap();
        tar.finish().unwrap();
    }
    #[cfg(feature = "parquet")]
    hub(&place);
    succeeded(&place.bare(&["pack", "photos", "--output=photos.pack"]).output().unwrap());
    for (photo, name) in [("photos/val/cats/1.jpg", "cat.jpg"), ("photos/val/dogs/1.jpg", "dog.png")] {
        image::open(place.path(photo)).unwrap().save(place.path(name)).unwrap();
    }
    for run in ["runs/0001", "runs/0002"] {
        let output = format!("--output-dir={run}");
        succeeded(&place.bare(&[&SHORT[..], &[&output]].concat()).output().unwrap());
    }
    std::os::unix::fs::symlink("0002", place.path("runs/last")).ok();
    for (name, stem) in [("weights.pth", "cifar"), ("published.pth", "imagenet")] {
        let stem = format!("--stem={stem}");
        succeeded(&place.bare(&[&SHORT[..], &[&stem, "--output-dir=trained"]].concat()).output().unwrap());
        let export = ["export", "--checkpoint=trained", "--to=pth", "--output", name];
        succeeded(&place.bare(&export).output().unwrap());
        std::fs::remove_dir_all(place.path("trained")).unwrap();
    }
    place
}

/// Photos as Parquet files.
#[cfg(feature = "parquet")]
fn hub(place: &Workplace) {
    std::fs::create_dir(place.path("hub")).unwrap();
    let photo = std::fs::read(place.path("photos/val/cats/1.jpg")).unwrap();
    for file in ["train-00000-of-00001", "test-00000-of-00001"] {
        let rows = [0, 1].map(|label| (Some(&photo[..]), None, Some(label)));
        let path = place.path(&format!("hub/{file}.parquet"));
        crate::parquet_files::write(
            &path,
            &["cats", "dogs"],
            &rows,
            parquet::file::properties::WriterProperties::builder(),
        );
    }
}

#[test]
fn commands_of_make_are_there() {
    let (text, shell) = (text(), shell());
    let makefile = std::fs::read_to_string(file("Makefile")).unwrap();
    let inline = text.split("`make ").skip(1).filter_map(|rest| rest.split([' ', '`', '\n']).next());
    let blocks = shell.lines().filter_map(|line| line.strip_prefix("make ")?.split(' ').next());
    let targets: BTreeSet<&str> = inline.chain(blocks).collect();
    for target in &targets {
        assert!(makefile.lines().any(|line| line.starts_with(&format!("{target}:"))), "there is no 'make {target}'");
    }
    assert!(targets.len() >= 15, "{targets:?}");
}

/// Commands in the middle of a sentence are understood.
#[test]
fn words_between_words_are_commands_too() {
    let text = text();
    let inline = text.split("`train ").skip(1).filter_map(|rest| rest.split('`').next());
    let whole = inline.filter(|it| it.chars().all(|letter| !letter.is_uppercase() && letter != '.'));
    let mut asked = 0;
    for line in whole {
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = Workplace::new().bare(&[&words[..1], &["--help"]].concat()).output().unwrap();
        assert!(succeeded(&output).contains("Usage: train"), "{line}: {:?}", errors(&output));
        asked += 1;
    }
    assert!(asked >= 10, "only {asked}");
}
