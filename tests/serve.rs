//! The page of a run over HTTP: what viewers see and may do, and that the training does not notice them.

mod browser;
mod followed;
mod refusals;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

#[cfg(feature = "gloo")]
use crate::command::free_port;
use crate::command::{Workplace, errors, kill, signal, succeeded, until, wait};

/// A run that ends by no means of its own before a test does.
const ENDLESS: [&str; 3] = ["--epochs=100000", "--checkpoint-every=never", "--serve=127.0.0.1:0"];

/// A process that serves a page.
pub struct Served {
    pub child: Child,
    /// Reads what it prints, so that it never waits for that.
    output: JoinHandle<String>,
    /// What it has printed.
    pub url: String,
}

impl Served {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        // One of several processes has its rank before the line.
        let line = next(&mut output, |line| line.contains("page        http://"));
        let output = std::thread::spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).unwrap();
            text
        });
        Self { child, output, url: line.split_once("page        ").unwrap().1.trim_end().into() }
    }

    /// The host and the port.
    pub fn place(&self) -> &str {
        self.url.strip_prefix("http://").unwrap().split('/').next().unwrap()
    }

    /// Which buttons and other addresses need, as `?token=...`.
    pub fn token(&self) -> &str {
        self.url.rsplit_once('/').unwrap().1
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.place()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(180))).unwrap();
        stream
    }

    /// The whole answer to these bytes.
    pub fn answer(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }

    /// The answer to a request with the headers of a browser that has this page open.
    pub fn ask(&self, method: &str, target: &str) -> String {
        self.answer(format!("{method} {target} HTTP/1.1\r\nHost: {}\r\n\r\n", self.place()).as_bytes())
    }

    pub fn page(&self) -> String {
        let answer = self.ask("GET", "/");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        answer
    }

    /// The events of the page, line by line.
    pub fn events(&self) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        stream.write_all(format!("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", self.place()).as_bytes()).unwrap();
        let mut events = BufReader::new(stream);
        let head = next(&mut events, |line| line.starts_with("HTTP/1.1"));
        assert_eq!(head, "HTTP/1.1 200 OK\r\n");
        events
    }

    /// Its exit code and the rest of what it prints.
    pub fn end(mut self) -> (Option<i32>, String, Vec<String>) {
        let code = wait(&mut self.child);
        (code, self.output.join().unwrap(), errors(&self.child.wait_with_output().unwrap()))
    }
}

/// The next line that is meant.
#[track_caller]
pub fn next(lines: &mut impl BufRead, is_meant: impl Fn(&str) -> bool) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the connection ended");
        if is_meant(&line) {
            return line;
        }
    }
}

/// What stands beside a name on a page.
pub fn tile(page: &str, name: &str) -> Option<String> {
    let value = page.split_once(&format!("<dt>{name}</dt><dd>"))?.1;
    Some(value[..value.find('<')?].into())
}

#[test]
fn a_page_follows_its_run_and_its_button_stops_it_with_a_checkpoint_of_the_same_bits() {
    let place = Workplace::new();
    let served = Served::start(place.small("run", &ENDLESS));
    let mut events = served.events();
    let epochs = || tile(&served.page(), "Epochs").and_then(|it| it.parse::<usize>().ok()).unwrap_or(0);
    // Every event is about another state of the files, so each may show more epochs.
    let mut before = 0;
    for _ in 0..2 {
        loop {
            next(&mut events, |line| line == "data: page\n");
            let now = epochs();
            if now > before {
                before = now;
                break;
            }
        }
    }
    let page = served.page();
    assert!(page.contains("<h2>Progress</h2>") && page.contains("<h2>Curves</h2>") && !page.contains("<aside"));
    assert!(page.contains(" of 400000</dd>"), "the goal of the run");
    assert!(tile(&page, "Remaining").is_some() && tile(&page, "Training loss").is_some());

    let answer = served.ask("POST", &format!("/stop{}", served.token()));
    assert!(answer.starts_with("HTTP/1.1 202 Accepted\r\n") && answer.ends_with("after this step\n"), "{answer}");
    next(&mut events, |line| line == "event: end\n");
    let last = served.page();
    assert!(!last.contains("<h2>Progress</h2>") && tile(&last, "Peak memory").is_some(), "the summary is there");
    drop(events);
    let (code, text, wrong) = served.end();
    assert_eq!((code, wrong), (Some(143), vec![]));
    assert!(text.contains("\nstopped by SIGTERM; continue with --resume\n"), "{text}");

    let stopped = place.run("run").latest_step();
    let more = format!("--max-steps={}", stopped + 3);
    place.train("run", &["--epochs=100000", "--checkpoint-every=never", "--resume", &more]);
    place.train("calm", &["--epochs=100000", "--checkpoint-every=never", &more]);
    assert_eq!(place.run("run").tensors(), place.run("calm").tensors());
    assert_eq!(place.run("run").steps(), place.run("calm").steps());
}

#[test]
fn the_other_button_saves_and_the_run_goes_on() {
    let place = Workplace::new();
    let mut served = Served::start(place.small("run", &ENDLESS));
    until("three steps are done", || place.run("run").steps().len() >= 3);
    assert!(!place.run("run").has_checkpoint());
    let answer = served.ask("POST", &format!("/save{}", served.token()));
    assert!(answer.starts_with("HTTP/1.1 202 Accepted\r\n"), "{answer}");
    until("there is a checkpoint", || place.run("run").has_checkpoint());
    let saved = place.run("run").latest_step();
    until("the run goes on", || place.run("run").steps().len() > saved + 3);
    assert_eq!(place.run("run").latest_step(), saved, "one wish is one checkpoint");
    kill(&mut served.child);

    let more = format!("--max-steps={}", saved + 3);
    place.train("run", &["--epochs=100000", "--checkpoint-every=never", "--resume", &more]);
    place.train("calm", &["--epochs=100000", "--checkpoint-every=never", &more]);
    assert_eq!(place.run("run").tensors(), place.run("calm").tensors());
}

#[test]
fn a_hundred_viewers_of_whom_half_read_nothing_change_no_bit() {
    let place = Workplace::new();
    place.train("calm", &["--epochs=30"]);
    let served = Served::start(place.small("run", &["--epochs=30", "--serve=127.0.0.1:0"]));
    let get = |target: &str| {
        let mut stream = served.connect();
        let request = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", served.place());
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    // They ask for the page or for events and never take a byte.
    let silent: Vec<TcpStream> = ["/", "/events"].into_iter().cycle().take(50).map(get).collect();
    let mut listening: Vec<_> = (0..50).map(|_| served.events()).collect();
    for events in &mut listening {
        next(events, |line| line == "data: page\n");
        served.page();
    }
    let (code, text, wrong) = served.end();
    assert_eq!((code, wrong), (Some(0), vec![]));
    assert!(text.contains("\ntrained     30 epochs"), "{text}");
    drop((silent, listening));
    place.run("run").equals(&place.run("calm"), 30);
}

#[cfg(feature = "gloo")]
#[test]
fn the_first_of_several_processes_serves_and_all_stop() {
    let place = Workplace::new();
    let served = Served::start(place.launch(2, "run", &ENDLESS));
    until("both processes have done steps", || {
        let steps = |name: &str| std::fs::read_to_string(place.path(name)).is_ok_and(|it| it.contains("\"step\""));
        steps("run/metrics.jsonl") && steps("run/rank-1.jsonl")
    });
    let answer = served.ask("POST", &format!("/save{}", served.token()));
    assert!(answer.starts_with("HTTP/1.1 202 Accepted\r\n"), "{answer}");
    until("there is a checkpoint", || place.run("run").has_checkpoint());
    let shows_both = |page: &str| page.contains("<th scope=\"row\" class=\"number\">1</th>");
    until("both processes are on the page", || shows_both(&served.page()));
    served.ask("POST", &format!("/stop{}", served.token()));
    assert_eq!(served.end().0, Some(143));
}

#[cfg(feature = "gloo")]
#[test]
fn an_elastic_run_is_served_by_the_process_that_writes_it() {
    let place = Workplace::new();
    let [meeting, page] = [free_port(), free_port()];
    let [meeting, page] = [format!("--dist-url=tcp://127.0.0.1:{meeting}"), format!("--serve=127.0.0.1:{page}")];
    let member = || {
        let mut command = place.small("run", &ENDLESS[..2]);
        command.args(["--elastic=1:2", "--heartbeat=0.1", "--lost-after=3", &meeting, &page]);
        command.env("KILN_SERVE_TOKEN", "a-token-of-this-test");
        command
    };
    let mut first = Served::start(member());
    let command = member();
    let other = std::thread::spawn(|| Served::start(command));
    until("both are on the page", || first.page().contains("computes replica 1"));
    kill(&mut first.child);
    let other = other.join().unwrap();
    assert_eq!(other.url, first.url);
    until("one is on the page", || other.page().contains("computes replicas 0 to 1"));
    let mut events = other.events();
    let answer = other.ask("POST", &format!("/stop{}", other.token()));
    assert!(answer.starts_with("HTTP/1.1 202 Accepted\r\n"), "{answer}");
    let mut rest = String::new();
    events.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("data: page\n\n") && !rest.contains("end"), "viewers try again: {rest}");
    assert_eq!(other.end().0, Some(143));
    assert!(place.run("run").has_checkpoint());
}

#[test]
fn a_finished_run_is_served_without_buttons_until_a_signal() {
    let place = Workplace::new();
    place.train("run", &["--epochs=2"]);
    let mut command = place.bare(&["serve", "run", "--bind=127.0.0.1:0"]);
    command.env("KILN_SERVE_TOKEN", "a-token-of-this-test");
    let served = Served::start(command);
    assert!(served.url.ends_with('/'), "without a token, which nothing here needs: {}", served.url);
    let page = served.page();
    assert_eq!(tile(&page, "Epochs").as_deref(), Some("2"));
    assert!(!page.contains("<button") && !page.contains("<h2>Progress</h2>"));
    let answer = served.ask("POST", "/stop?token=a-token-of-this-test");
    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
    // It is the page of the run's directory, whatever happens there.
    place.train("run", &["--epochs=3", "--resume"]);
    until("the third epoch is on the page", || tile(&served.page(), "Epochs").as_deref() == Some("3"));
    signal(&served.child, "INT");
    assert_eq!(served.end().0, Some(130));
    succeeded(&place.bare(&["report", "run"]).output().unwrap());
}
