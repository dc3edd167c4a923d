//! Where the time of a run went: the totals of `trace.json`, whose spans are the phases of each thread.
//!
//! A trace does not say which span lies in which; their times do.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The spans that the profiler keeps; a trace of that many breaks off before the run ends.
const MOST_SPANS: usize = 500_000;
/// So many phases within each other are told apart; those inside count as part of the innermost.
const DEEPEST: usize = 16;

/// A file in the Trace Event Format.
#[derive(Debug, Deserialize)]
pub struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

#[derive(Debug, Deserialize)]
struct Event {
    name: String,
    ph: String,
    #[serde(default)]
    tid: u64,
    /// Start, in microseconds.
    #[serde(default)]
    ts: f64,
    /// Length, in microseconds.
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Arguments,
}

#[derive(Debug, Default, Deserialize)]
struct Arguments {
    #[serde(default)]
    name: String,
}

/// All spans of one name that lie in the same phases.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// The thread it ran on.
    pub thread: String,
    /// Its name, after those of the phases around it, the outermost first.
    pub path: Vec<String>,
    /// How often it ran.
    pub calls: usize,
    /// Seconds it took, with all phases inside of it.
    pub seconds: f64,
    /// Those seconds as a fraction of all outermost phases of the thread.
    pub share: f64,
}

impl Trace {
    /// Whether spans may be missing at its end.
    pub fn is_full(&self) -> bool {
        self.spans().count() >= MOST_SPANS
    }

    fn spans(&self) -> impl Iterator<Item = &Event> {
        // Only a damaged file has negative lengths; without them every sum below can be compared with every other.
        self.events.iter().filter(|event| event.ph == "X" && event.dur >= 0.0)
    }

    /// Name and seconds of all spans, by their start, of the first thread that has one called `name`.
    pub fn spans_beside(&self, name: &str) -> Vec<(&str, f64)> {
        let first = self.spans().filter(|span| span.name == name).map(|span| span.tid).min();
        let mut spans: Vec<&Event> = self.spans().filter(|span| Some(span.tid) == first).collect();
        spans.sort_by(|a, b| a.ts.total_cmp(&b.ts));
        spans.into_iter().map(|span| (span.name.as_str(), span.dur / 1e6)).collect()
    }

    fn thread(&self, tid: u64) -> String {
        let names = |event: &&Event| event.ph == "M" && event.name == "thread_name" && event.tid == tid;
        self.events.iter().find(names).map_or_else(|| format!("thread {tid}"), |event| event.args.name.clone())
    }
}

/// The phases of every thread, each followed by those inside of it, the longest first.
pub fn total(trace: &Trace) -> Vec<Phase> {
    let mut threads: BTreeMap<u64, Vec<&Event>> = BTreeMap::new();
    trace.spans().for_each(|span| threads.entry(span.tid).or_default().push(span));
    threads.into_iter().flat_map(|(tid, spans)| of_thread(&trace.thread(tid), spans)).collect()
}

fn of_thread(thread: &str, mut spans: Vec<&Event>) -> Vec<Phase> {
    spans.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.dur.total_cmp(&a.dur)));
    let mut totals: BTreeMap<Vec<&str>, (usize, f64)> = BTreeMap::new();
    let mut around: Vec<(&str, f64)> = Vec::new();
    for span in spans {
        // Times are rounded: the middle of a span tells more surely than its end what it lies in.
        let middle = span.ts + span.dur / 2.0;
        while around.last().is_some_and(|(_, end)| middle >= *end) {
            around.pop();
        }
        if around.len() == DEEPEST {
            continue;
        }
        around.push((&span.name, span.ts + span.dur));
        let total = totals.entry(around.iter().map(|(name, _)| *name).collect()).or_default();
        *total = (total.0 + 1, total.1 + span.dur / 1e6);
    }
    in_order(thread, &totals)
}

fn in_order(thread: &str, totals: &BTreeMap<Vec<&str>, (usize, f64)>) -> Vec<Phase> {
    let all: f64 = totals.iter().filter(|(path, _)| path.len() == 1).map(|(_, (_, seconds))| seconds).sum();
    // A phase sorts by the time of every phase that it lies in, from the outermost inwards.
    let rank = |path: &[&str]| -> Vec<(f64, String)> {
        (1..=path.len())
            .map(|depth| (-totals.get(&path[..depth]).map_or(0.0, |it| it.1), path[depth - 1].into()))
            .collect()
    };
    let mut paths: Vec<_> = totals.iter().map(|(path, total)| (rank(path), path, total)).collect();
    paths.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap_or(std::cmp::Ordering::Equal));
    let phase = |(_, path, (calls, seconds)): (_, &Vec<&str>, &(usize, f64))| Phase {
        thread: thread.into(),
        path: path.iter().map(ToString::to_string).collect(),
        calls: *calls,
        seconds: *seconds,
        share: if all > 0.0 { seconds / all } else { 0.0 },
    };
    paths.into_iter().map(phase).collect()
}
