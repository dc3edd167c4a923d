//! Totals of the phases of each thread, from the spans of `trace.json`. Nesting is derived from their times.

use std::collections::BTreeMap;

use super::trace::{Span, Trace};

/// Most levels of nesting; deeper phases count as part of the innermost.
const DEEPEST: usize = 16;

/// All spans of one path.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    pub thread: String,
    /// The names of the enclosing phases, the outermost first, then its own.
    pub path: Vec<String>,
    pub calls: usize,
    /// Seconds, including nested phases.
    pub seconds: f64,
    /// Seconds as a fraction of all outermost phases of the thread.
    pub share: f64,
}

/// The phases of every thread, each followed by its nested phases, the longest first.
pub(crate) fn total(trace: &Trace) -> Vec<Phase> {
    trace.threads().iter().flat_map(|(thread, spans)| of_thread(thread, spans)).collect()
}

fn of_thread(thread: &str, spans: &[Span<'_>]) -> Vec<Phase> {
    let mut totals: BTreeMap<Vec<&str>, (usize, f64)> = BTreeMap::new();
    let mut around: Vec<(&str, f64)> = Vec::new();
    for span in spans {
        // Times are rounded, so the middle of a span decides in which one it lies.
        let middle = span.start + span.seconds / 2.0;
        while around.last().is_some_and(|(_, end)| middle >= *end) {
            around.pop();
        }
        if around.len() == DEEPEST {
            continue;
        }
        around.push((span.name, span.end()));
        let total = totals.entry(around.iter().map(|(name, _)| *name).collect()).or_default();
        *total = (total.0 + 1, total.1 + span.seconds);
    }
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
