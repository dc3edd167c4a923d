//! Totals of the phases of each thread, from the spans of `trace.json`. Nesting is derived from their times.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The profiler's limit of spans; a trace of that many is incomplete.
const MOST_SPANS: usize = 500_000;
/// Most levels of nesting; deeper phases count as part of the innermost.
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

/// All spans of one path.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// The thread it ran on.
    pub thread: String,
    /// The names of the enclosing phases, the outermost first, then its own.
    pub path: Vec<String>,
    /// Number of spans.
    pub calls: usize,
    /// Seconds, including nested phases.
    pub seconds: f64,
    /// Seconds as a fraction of all outermost phases of the thread.
    pub share: f64,
}

impl Trace {
    /// Whether spans may be missing at its end.
    pub fn is_full(&self) -> bool {
        self.spans().count() >= MOST_SPANS
    }

    fn spans(&self) -> impl Iterator<Item = &Event> {
        // A damaged file may have negative or NaN lengths, which could not be sorted below.
        self.events.iter().filter(|event| event.ph == "X" && event.dur >= 0.0)
    }

    /// Name and seconds of all spans, sorted by start, of the first thread with a span called `name`.
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

/// The phases of every thread, each followed by its nested phases, the longest first.
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
        // Times are rounded, so the middle of a span decides in which one it lies.
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
    // Sort by the times of the enclosing phases, from the outermost inwards.
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
