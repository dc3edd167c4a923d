//! Runs on an MLflow server, which its own client reads back.

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::Deserialize;

use crate::command::{Workplace, errors, free_port, refused, signal, succeeded, until};
use crate::python::ask;
use crate::skipped::skip;

#[derive(Debug, Deserialize)]
struct Found {
    experiment: String,
    name: String,
    status: String,
    params: BTreeMap<String, String>,
    metrics: BTreeMap<String, Vec<(usize, f64)>>,
    files: Vec<(String, u64)>,
}

/// A server with its files in a directory of the test.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// `None`, with a word why, where MLflow is not installed.
    fn start(place: &Workplace, port: u16) -> Option<Self> {
        let venv = std::env::var_os("KILN_VENV").map_or(".venv".into(), PathBuf::from);
        let program = venv.join("bin/mlflow");
        if !program.is_file() {
            skip(&format!("'{}' has no MLflow; make setup-tch installs it", venv.display()));
            return None;
        }
        let mut command = Command::new(program);
        let store = format!("sqlite:///{}", place.path("mlflow.db").display());
        command.args(["server", "--workers=1", "--host=127.0.0.1", &format!("--port={port}")]);
        command.args(["--backend-store-uri", &store, "--artifacts-destination"]).arg(place.path("artifacts"));
        command.current_dir(place.path("")).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        until("MLflow answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Self { child, port })
    }

    fn runs(&self) -> Vec<Found> {
        let said = ask("mlflow", "mlflow_runs.py", &[Path::new(&self.port.to_string())]).unwrap();
        serde_json::from_str(&said).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its workers end with it.
        signal(&self.child, "TERM");
        let _ = self.child.wait();
    }
}

fn sent_to(mut command: Command, port: u16) -> Command {
    command.env("MLFLOW_TRACKING_URI", format!("http://127.0.0.1:{port}")).env_remove("MLFLOW_EXPERIMENT_NAME");
    command
}

#[test]
fn a_run_is_one_run_there_however_often_it_was_resumed_and_the_server_was_away() {
    let (place, port) = (Workplace::new(), free_port());
    // Nobody is there: the training says so, and is as without.
    let train = |arguments: &[&str]| sent_to(place.small("run", arguments), port).output().unwrap();
    let alone = train(&["--mlflow", "--epochs=1"]);
    succeeded(&alone);
    let said = errors(&alone).join("\n");
    assert!(said.contains("MLflow does not") && said.contains("--resume=run sends the rest"), "{said}");
    let Some(server) = Server::start(&place, port) else { return };
    // The second time, nothing is left to do.
    for _ in 0..2 {
        let later = train(&["--resume", "--epochs=2"]);
        let page = format!("mlflow      http://127.0.0.1:{port}/#/experiments/");
        assert!(succeeded(&later).contains(&page), "{later:?}");
        assert_eq!(errors(&later), [] as [&str; 0]);
    }

    let found = server.runs();
    let [run] = &found[..] else { panic!("{found:?}") };
    assert_eq!([&run.experiment[..], &run.name, &run.status], ["kiln", "run", "FINISHED"]);
    assert_eq!((run.params["run.epochs"].as_str(), run.params["optim.optimizer"].as_str()), ("2", "sgd"));
    let here = place.run("run");
    assert!(here.steps().len() > 2 && here.epochs().len() == 2);
    assert_eq!(run.metrics["train/loss"], here.steps());
    assert_eq!(run.metrics["train/lr"], here.rates());
    let losses: Vec<_> = run.metrics["val/loss"].iter().map(|(_, loss)| *loss).collect();
    assert_eq!(losses, here.epochs().iter().map(|(_, loss)| *loss).collect::<Vec<_>>());
    let sizes: BTreeMap<_, _> = run.files.iter().cloned().collect();
    for (there, here) in
        [("report.html", "run/report.html"), ("checkpoint/config.toml", "run/checkpoints/best/config.toml")]
    {
        assert_eq!(sizes[there], std::fs::metadata(place.path(here)).unwrap().len(), "{there}");
    }
}

#[test]
fn a_server_that_never_answers_holds_up_nothing_but_the_end() {
    let place = Workplace::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let output = sent_to(place.small("run", &["--mlflow", "--max-steps=2"]), port).output().unwrap();
    assert!(succeeded(&output).contains("report"));
    assert!(errors(&output).join("\n").contains("--resume=run sends the rest"));
}

#[test]
fn what_is_no_server_is_refused_at_once() {
    let place = Workplace::new();
    for address in ["databricks", "http://me:secret@host", "file:///tmp/mlruns"] {
        let mut command = place.small("run", &["--mlflow", "--dry-run"]);
        let line = refused(&command.env("MLFLOW_TRACKING_URI", address).output().unwrap(), 2);
        assert!(line.contains("MLFLOW_TRACKING_URI must be the address") && !line.contains("secret"), "{line}");
    }
}
