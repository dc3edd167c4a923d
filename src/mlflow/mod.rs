//! The records of a run on an MLflow server.
//!
//! A thread follows `metrics.jsonl` and sends what is new, so that training never waits for the server. What could not
//! be sent stays in that file: `mlflow.json` beside it names the server's run and the last step that it has, from which
//! a later session goes on.

mod server;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kiln_engine::checkpoint::write_atomic;
use kiln_system::shown;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toml::Table;

pub use self::server::Server;
use self::server::{Answer, variable};
use crate::metrics::Record;
use crate::report::Tail;

/// How a run has ended, in MLflow's words.
pub const FINISHED: &str = "FINISHED";
pub const KILLED: &str = "KILLED";
pub const FAILED: &str = "FAILED";

const FILE: &str = "mlflow.json";
/// Between two looks at the log.
const PAUSE: Duration = Duration::from_secs(1);
/// Most records and parameters of a request; MLflow takes 1000 metrics and 100 parameters.
const RECORDS: usize = 150;
const PARAMETERS: usize = 100;
/// What an experiment is called if `MLFLOW_EXPERIMENT_NAME` is not set.
const EXPERIMENT: &str = "kiln";

/// What the server has of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Sent {
    run: String,
    #[serde(default)]
    experiment: String,
    /// Where its artifacts are, as a URI.
    artifacts: String,
    /// When it began, in milliseconds since 1970: a record's time counts from there, so sending it again changes
    /// nothing.
    begin: u64,
    /// The last step and the last epoch.
    step: usize,
    epoch: usize,
}

/// Sends the records of a run in a thread until it is dropped.
#[derive(Debug)]
pub struct Follower {
    end: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// `place` is the run's directory while this process writes its files.
    pub fn start(server: Server, place: impl Fn() -> Option<PathBuf> + Send + 'static, warn: fn(&str)) -> Self {
        let (end, ended) = channel();
        let follow = move || {
            let mut upload: Option<Upload> = None;
            let mut is_lost = false;
            while ended.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                upload = place().map(|place| upload.take().unwrap_or_else(|| Upload::new(&server, place)));
                let outcome = upload.as_mut().map_or(Ok(()), Upload::send);
                if let Err(why) = &outcome
                    && !is_lost
                {
                    warn(&format!("warning: MLflow does not take the records: {why}; they are sent when it does"));
                }
                is_lost = outcome.is_err();
            }
        };
        Self { end, thread: thread::Builder::new().name("mlflow".into()).spawn(follow).ok() }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Whichever end is gone already, nothing is left to do.
        let _ = self.end.send(());
        self.thread.take().map(JoinHandle::join);
    }
}

/// Sends what the server does not have of the run in `directory`, its report and its best checkpoint, and how it ended,
/// as one of [`FINISHED`], [`KILLED`] and [`FAILED`]. Returns the address of the run's page.
pub fn complete(server: &Server, directory: &Path, status: &str, warn: fn(&str)) -> Option<String> {
    let mut upload = Upload::new(server, directory.into());
    let sent = upload.send().and_then(|()| upload.artifacts()).and_then(|()| {
        let update = json!({"run_id": upload.sent.run, "status": status, "end_time": now()});
        server.post("runs/update", &update)
    });
    match sent {
        Ok(_) => Some(server.page(&upload.sent.experiment, &upload.sent.run)),
        Err(why) => {
            let remedy = format!("--resume={} sends the rest", shown(directory));
            warn(&format!("warning: MLflow does not have all of the run: {why}; {remedy}"));
            None
        }
    }
}

struct Upload {
    server: Server,
    directory: PathBuf,
    sent: Sent,
    is_begun: bool,
    tail: Tail,
    waiting: VecDeque<Record>,
}

impl Upload {
    fn new(server: &Server, directory: PathBuf) -> Self {
        let text = fs::read(directory.join(FILE)).unwrap_or_default();
        let sent = serde_json::from_slice(&text).unwrap_or_default();
        let (tail, waiting) = (Tail::default(), VecDeque::new());
        Self { server: server.clone(), directory, sent, is_begun: false, tail, waiting }
    }

    /// Sends the records that are new.
    fn send(&mut self) -> Answer<()> {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.begin().inspect_err(|_| self.is_begun = false)?;
        }
        if self.waiting.is_empty() {
            let (log, waiting, sent) = (self.directory.join("metrics.jsonl"), &mut self.waiting, &self.sent);
            let is_new = |record: &Record| match record {
                Record::Step(record) => record.step > sent.step,
                Record::Epoch(record) => record.epoch > sent.epoch,
                _ => false,
            };
            let read =
                self.tail.open(&log).and_then(|_| self.tail.records(|it| waiting.extend(Some(it).filter(is_new))));
            read.map_err(|reason| format!("'{}': {reason}", log.display()))?;
        }
        while !self.waiting.is_empty() {
            let count = self.waiting.len().min(RECORDS);
            let metrics: Vec<_> = self.waiting.iter().take(count).flat_map(|it| metrics(it, self.sent.begin)).collect();
            self.server.post("runs/log-batch", &json!({"run_id": self.sent.run, "metrics": metrics}))?;
            for record in self.waiting.drain(..count) {
                match record {
                    Record::Step(record) => self.sent.step = record.step,
                    Record::Epoch(record) => self.sent.epoch = record.epoch,
                    _ => {}
                }
            }
            self.remember()?;
        }
        Ok(())
    }

    /// Makes a run on the server, or goes on with that of an earlier session.
    fn begin(&mut self) -> Answer<()> {
        if !self.sent.run.is_empty() {
            return self.server.post("runs/update", &json!({"run_id": self.sent.run, "status": "RUNNING"})).map(drop);
        }
        let name = variable("MLFLOW_EXPERIMENT_NAME").unwrap_or(EXPERIMENT.into());
        let known = json!({"filter": format!("name = '{name}'"), "max_results": 1});
        let known = self.server.post("experiments/search", &known)?["experiments"][0]["experiment_id"].clone();
        let experiment = match known {
            Value::Null => self.server.post("experiments/create", &json!({"name": name}))?["experiment_id"].clone(),
            known => known,
        };
        let begin = now();
        let run = self.directory.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_str()?.to_string()));
        let run = json!({"experiment_id": experiment, "start_time": begin, "run_name": run});
        let info = &self.server.post("runs/create", &run)?["run"]["info"];
        let [run, artifacts] = ["run_id", "artifact_uri"].map(|key| info[key].as_str().unwrap_or_default().to_string());
        if run.is_empty() {
            return Err("it made no run".into());
        }
        let experiment = experiment.as_str().unwrap_or_default().to_string();
        self.sent = Sent { run, experiment, artifacts, begin, ..Sent::default() };
        self.remember()?;
        for part in self.parameters().chunks(PARAMETERS) {
            self.server.post("runs/log-batch", &json!({"run_id": self.sent.run, "params": part}))?;
        }
        Ok(())
    }

    /// Every setting of the run.
    fn parameters(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.directory.join("config.toml")).unwrap_or_default();
        let sections = text.parse::<Table>().unwrap_or_default();
        let settings = |(section, values): (&String, &toml::Value)| -> Vec<Value> {
            let of = |(key, value): (&String, &toml::Value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), String::from);
                json!({"key": format!("{section}.{key}"), "value": value})
            };
            values.as_table().into_iter().flatten().map(of).collect()
        };
        sections.iter().flat_map(settings).collect()
    }

    /// Sends the report, the settings and the files of the best checkpoint, where the server stores artifacts itself.
    fn artifacts(&self) -> Answer<()> {
        let Some(root) = self.sent.artifacts.strip_prefix("mlflow-artifacts:/") else { return Ok(()) };
        let put = |name: &str, path: &Path| self.server.put(&format!("{}/{name}", root.trim_matches('/')), path);
        for name in ["report.html", "summary.json", "config.toml"] {
            let path = self.directory.join(name);
            path.is_file().then(|| put(name, &path)).transpose()?;
        }
        let best = self.directory.join("checkpoints/best");
        for file in fs::read_dir(best).into_iter().flatten().flatten() {
            put(&format!("checkpoint/{}", file.file_name().to_string_lossy()), &file.path())?;
        }
        Ok(())
    }

    fn remember(&self) -> Answer<()> {
        let text = serde_json::to_vec(&self.sent).expect("plain numbers and texts");
        write_atomic(&self.directory.join(FILE), &text).map_err(|error| error.to_string())
    }
}

/// The numbers of a record as metrics of a run that began at `begin`.
fn metrics(record: &Record, begin: u64) -> Vec<Value> {
    let (step, seconds) = match record {
        Record::Step(record) => (record.step, record.seconds),
        Record::Epoch(record) => (record.step, record.seconds),
        _ => return Vec::new(),
    };
    let time = begin + (1000.0 * seconds) as u64;
    // JSON has no infinity; protobuf's JSON writes it as a text.
    let number = |value: f64| match value {
        _ if value.is_finite() => json!(value),
        _ if value.is_nan() => json!("NaN"),
        _ => json!(if value > 0.0 { "Infinity" } else { "-Infinity" }),
    };
    let metric = |(key, value)| json!({"key": key, "value": number(value), "timestamp": time, "step": step});
    record.scalars().into_iter().map(metric).collect()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}
