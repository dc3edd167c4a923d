//! Formats the parts of verdicts and causes: ranks, times, activities.
//!
//! Texts from members (host names, activities, errors of an engine) are cut and kept to one line, since they end up in
//! logs and terminals.

use std::time::Duration;

/// The longest activity that is quoted, in characters.
const LONGEST: usize = 300;

/// `text` without line breaks and other control characters, and at most `longest` characters of it.
pub(super) fn line(text: &str, longest: usize) -> String {
    let mut line: String =
        text.chars().take(longest).map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    line.truncate(line.trim_end().len());
    if text.chars().nth(longest).is_some() {
        line.push_str("...");
    }
    line
}

/// `rank 3`, or `ranks 0, 2-5`; empty for no ranks.
pub(super) fn ranks(sorted: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let run = |&(first, last): &(usize, usize)| match last - first {
        0 => format!("{first}"),
        _ => format!("{first}-{last}"),
    };
    let list = runs.iter().map(run).collect::<Vec<_>>().join(", ");
    match sorted.len() {
        0 => String::new(),
        1 => format!("rank {list}"),
        _ => format!("ranks {list}"),
    }
}

/// A duration: milliseconds below a second, else seconds with one digit.
pub(super) fn span(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{} ms", time.as_millis()),
        seconds => format!("{seconds:.1} s"),
    }
}

/// What a process was doing, as in "at *step 12, gradient all-reduce*".
pub(super) fn place(activity: &str) -> String {
    match line(activity, LONGEST) {
        nothing if nothing.is_empty() => "the start".into(),
        place => place,
    }
}
