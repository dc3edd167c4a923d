//! The `train` command as a process: small runs on drawn images, and what they leave on the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;

use kiln::metrics::Record;
use kiln_engine::state::{from_safetensors, sha256};
use serde_json::Value;
use tempfile::TempDir;

use crate::files::carried;
#[allow(unused_imports, reason = "one program waits for nothing")]
pub use crate::until::{kill, until, wait};

/// Images of one epoch: four steps of eight, the last of six.
pub const IMAGES: usize = 30;
pub const STEPS_PER_EPOCH: usize = 4;

/// Two replicas and a network that takes a hundredth of a second for a step.
pub const SMALL: [&str; 12] = [
    "data=synthetic",
    "data.train_size=30",
    "data.val_size=16",
    "run.log_samples=true",
    "--width=4",
    "--stem=imagenet",
    "--world-size=2",
    "--batch-size=4",
    "--warmup-epochs=0",
    "--checkpoint-every=2steps",
    "--progress=plain",
    "--log-every=1000",
];

/// The program: that of this build, or the one beside the tests of a bundle.
pub fn train() -> PathBuf {
    match carried() {
        Some(_) => std::env::current_exe().unwrap().with_file_name("train"),
        None => env!("CARGO_BIN_EXE_train").into(),
    }
}

/// A directory for what outlives a test.
pub fn scratch() -> PathBuf {
    carried().map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), |_| std::env::temp_dir())
}

/// A directory in which commands are run.
pub struct Workplace {
    dir: TempDir,
}

impl Workplace {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A place with all that `make` leaves, which is made once and kept as `name` until the tests run again.
    pub fn prepared(name: &str, once: &Once, make: impl FnOnce(&Self)) -> Self {
        let kept = scratch().join(name);
        once.call_once(|| {
            let _ = std::fs::remove_dir_all(&kept);
            let place = Self::new();
            make(&place);
            copy(place.dir.path(), &kept, true);
        });
        let place = Self::new();
        copy(&kept, place.dir.path(), true);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command with exactly these arguments.
    pub fn bare(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(train());
        command.current_dir(self.dir.path()).args(arguments).stdin(Stdio::null());
        // Where the user's own secret is kept, and packs of Parquet files.
        command.env("XDG_STATE_HOME", scratch()).env("XDG_CACHE_HOME", scratch());
        #[cfg(feature = "gloo")]
        crate::stand_in::tell(&mut command);
        command
    }

    /// A small training in the directory `run`; later arguments win.
    pub fn small(&self, run: &str, arguments: &[&str]) -> Command {
        let mut command = self.bare(&SMALL);
        command.arg(format!("--output-dir={run}")).args(arguments);
        command
    }

    /// A small training that succeeds, and its standard output.
    #[track_caller]
    pub fn train(&self, run: &str, arguments: &[&str]) -> String {
        succeeded(&self.small(run, arguments).output().unwrap())
    }

    /// `train launch` of a small training on several processes.
    pub fn launch(&self, processes: usize, run: &str, arguments: &[&str]) -> Command {
        let mut command = self.bare(&["launch", &format!("--nproc={processes}"), "--"]);
        command.args(self.small(run, arguments).get_args());
        command
    }

    pub fn run(&self, name: &str) -> Run {
        Run(self.path(name))
    }

    /// Everything below the directory, by path; a file with its content.
    pub fn snapshot(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let mut found = BTreeMap::new();
        let mut open = vec![self.dir.path().to_path_buf()];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
                let plain = !entry.is_symlink();
                if plain && entry.is_dir() {
                    open.push(entry.clone());
                }
                let content = (plain && entry.is_file()).then(|| std::fs::read(&entry).unwrap());
                // Whoever looks at images first may keep an index beside them.
                if !entry.to_string_lossy().ends_with(".index") {
                    found.insert(entry, content);
                }
            }
        }
        found
    }
}

/// Standard output of a command that must have ended with code 0.
#[track_caller]
pub fn succeeded(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error, line by line.
pub fn errors(output: &Output) -> Vec<String> {
    String::from_utf8(output.stderr.clone()).unwrap().lines().map(String::from).collect()
}

/// The only line on standard error of a command that must have ended with this code.
#[track_caller]
pub fn refused(output: &Output, code: i32) -> String {
    let lines = errors(output);
    assert_eq!((output.status.code(), lines.len()), (Some(code), 1), "{lines:?}");
    lines.concat()
}

/// A port that nobody listened on a moment ago.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Sends a signal by its name to a process that the test started.
#[track_caller]
pub fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap().success());
}

/// Copies a directory, with the links in it or without.
pub fn copy(from: &Path, to: &Path, with_links: bool) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().unwrap();
        if kind.is_symlink() && !with_links {
            continue;
        }
        if kind.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(path).unwrap(), target).unwrap();
        } else if kind.is_dir() {
            copy(&path, &target, with_links);
        } else {
            std::fs::copy(path, target).unwrap();
        }
    }
}

/// A folder of two classes of one square image each, for training and validation.
pub fn photographs(folder: &Path, side: u32) {
    for class in ["train/cat", "train/dog", "val/cat", "val/dog"] {
        let path = folder.join(class).join("one.png");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        image::RgbImage::from_pixel(side, side, image::Rgb([9, 90, 200])).save(path).unwrap();
    }
}

/// How often to repeat what chance decides: `few` times, or `KILN_TEST_ROUNDS`.
pub fn rounds(few: usize) -> usize {
    std::env::var("KILN_TEST_ROUNDS").map_or(few, |rounds| rounds.parse().unwrap())
}

/// The directory of a run.
pub struct Run(PathBuf);

impl Run {
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn checkpoint(&self, name: &str) -> PathBuf {
        self.0.join("checkpoints").join(name)
    }

    pub fn has_checkpoint(&self) -> bool {
        self.checkpoint("latest").exists()
    }

    /// The step of the latest checkpoint.
    pub fn latest_step(&self) -> usize {
        let state = std::fs::read(self.checkpoint("latest/state.json")).unwrap();
        serde_json::from_slice::<Value>(&state).unwrap()["state"]["global_step"].as_u64().unwrap() as usize
    }

    /// A fingerprint of every tensor in the latest checkpoint.
    pub fn tensors(&self) -> Vec<(&'static str, String)> {
        let files = ["model.safetensors", "optimizer.safetensors", "average.safetensors"];
        let paths = files.map(|name| (name, self.checkpoint("latest").join(name)));
        let present = paths.into_iter().filter(|(_, path)| path.exists());
        let read = |path: &Path| from_safetensors(&std::fs::read(path).unwrap(), path).unwrap().0;
        present.map(|(name, path)| (name, sha256(&read(&path)))).collect()
    }

    fn lines(&self, name: &str) -> Vec<Vec<u8>> {
        let text = std::fs::read(self.0.join(name)).unwrap_or_default();
        text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")).map(<[u8]>::to_vec).collect()
    }

    pub fn records(&self) -> Vec<Record> {
        self.lines("metrics.jsonl").iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    /// Each step of `metrics.jsonl` with its loss, in the order of the file.
    pub fn steps(&self) -> Vec<(usize, f64)> {
        let step = |record| if let Record::Step(step) = record { Some((step.step, step.loss)) } else { None };
        self.records().into_iter().filter_map(step).collect()
    }

    /// The learning rate of each step of `metrics.jsonl`, in the order of the file.
    pub fn rates(&self) -> Vec<(usize, f64)> {
        let step = |record| if let Record::Step(step) = record { Some((step.step, step.lr)) } else { None };
        self.records().into_iter().filter_map(step).collect()
    }

    /// Each epoch of `metrics.jsonl` with its validation loss, in the order of the file.
    pub fn epochs(&self) -> Vec<(usize, f64)> {
        let epoch = |record| if let Record::Epoch(epoch) = record { Some((epoch.epoch, epoch.val_loss)) } else { None };
        self.records().into_iter().filter_map(epoch).collect()
    }

    /// The sample ids of every epoch in `samples.jsonl`, sorted.
    pub fn samples(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut epochs: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for line in self.lines("samples.jsonl") {
            let line: Value = serde_json::from_slice(&line).unwrap();
            let ids = line["samples"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
            epochs.entry(line["epoch"].as_u64().unwrap()).or_default().extend(ids);
        }
        epochs.values_mut().for_each(|ids| ids.sort_unstable());
        epochs
    }

    /// Fails unless each of `epochs` epochs trained on every image once.
    #[track_caller]
    pub fn saw_every_image_once(&self, epochs: usize) {
        let all: Vec<u64> = (0..IMAGES as u64).collect();
        let expected: BTreeMap<u64, Vec<u64>> = (0..epochs as u64).map(|epoch| (epoch, all.clone())).collect();
        assert_eq!(self.samples(), expected);
    }

    /// Fails unless this run came as far as `calm`: same tensors, each step once with the same numbers and images. An
    /// epoch in which it was stopped was not validated.
    #[track_caller]
    pub fn goes_like(&self, calm: &Self) {
        assert_eq!(self.latest_step(), calm.latest_step());
        assert_eq!(self.tensors(), calm.tensors());
        assert_eq!(self.steps(), calm.steps());
        assert_eq!(self.rates(), calm.rates());
        assert_eq!(self.samples(), calm.samples());
        let (epochs, expected) = (self.epochs(), calm.epochs());
        assert!(expected.starts_with(&epochs) && expected.len() <= epochs.len() + 1, "{epochs:?} {expected:?}");
    }

    /// Fails unless this run ended as `calm` did, and saw every image once in each of its epochs.
    #[track_caller]
    pub fn equals(&self, calm: &Self, epochs: usize) {
        self.goes_like(calm);
        assert_eq!(self.epochs().len(), epochs);
        self.saw_every_image_once(epochs);
    }
}
