//! Reads a trace, which `--profile` writes: the spans of each thread.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::metrics::TRACED;

/// A file in the Trace Event Format.
#[derive(Debug, Deserialize)]
pub struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
    #[serde(rename = "otherData", default)]
    origin: Value,
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

/// A phase of a thread; times in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span<'a> {
    pub name: &'a str,
    /// When it began, since the start of the trace.
    pub start: f64,
    /// How long it took, with the spans in it.
    pub seconds: f64,
}

impl Span<'_> {
    pub fn end(&self) -> f64 {
        self.start + self.seconds
    }
}

impl Trace {
    /// Whether spans may be missing at its end.
    pub fn is_full(&self) -> bool {
        self.spans().count() >= TRACED
    }

    /// Seconds since 1970 at the start of the trace.
    pub fn start(&self) -> f64 {
        self.origin["start"].as_f64().unwrap_or(0.0) / 1e6
    }

    /// The spans of every thread with its name, sorted by their start, outer ones first.
    pub fn threads(&self) -> Vec<(String, Vec<Span<'_>>)> {
        let mut threads: BTreeMap<u64, Vec<Span<'_>>> = BTreeMap::new();
        for event in self.spans() {
            let span = Span { name: &event.name, start: event.ts / 1e6, seconds: event.dur / 1e6 };
            threads.entry(event.tid).or_default().push(span);
        }
        threads.values_mut().for_each(|spans| {
            spans.sort_by(|a, b| a.start.total_cmp(&b.start).then(b.seconds.total_cmp(&a.seconds)));
        });
        threads.into_iter().map(|(tid, spans)| (self.name(tid), spans)).collect()
    }

    fn spans(&self) -> impl Iterator<Item = &Event> {
        // A damaged file may have negative or NaN lengths, which could not be sorted.
        self.events.iter().filter(|event| event.ph == "X" && event.dur >= 0.0)
    }

    fn name(&self, tid: u64) -> String {
        let names = |event: &&Event| event.ph == "M" && event.name == "thread_name" && event.tid == tid;
        self.events.iter().find(names).map_or_else(|| format!("thread {tid}"), |event| event.args.name.clone())
    }
}
