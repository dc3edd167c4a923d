//! The words of a verdict: one line that says who, where, at what, and how it is known.
//!
//! Texts that come from members (host names, activities, error messages of an engine) are cut and kept to one line
//! here, since they end up in logs and terminals.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Introduction;
use super::judge::Seat;

/// A verdict names so many processes, and so many places where the others are.
const MOST_NAMED: usize = 3;
/// The longest text of a member that is repeated, in characters.
const LONGEST: usize = 300;

/// `rank 1 (host b, process 4711)`.
pub(super) fn name(who: &Introduction) -> String {
    format!("rank {} (host {}, process {})", who.rank, line(&who.host, 80), who.process)
}

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

/// `rank 3`, or `ranks 0, 2-5`; nothing for none.
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

/// A time for people: milliseconds below a second, else seconds with one digit.
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

/// Where the members that are not to blame are: ranks by activity.
pub(super) struct Others(BTreeMap<String, Vec<usize>>);

impl Others {
    /// Groups `seats`, which come in rank order.
    pub fn of<'a>(seats: impl Iterator<Item = &'a Seat>) -> Self {
        let mut places = BTreeMap::<_, Vec<_>>::new();
        for seat in seats {
            places.entry(place(&seat.doing.text)).or_default().push(seat.who.rank);
        }
        Self(places)
    }

    /// `; ranks 0, 2 wait at step 12`, or nothing if there is nobody.
    fn clause(&self) -> String {
        let waits = |ranks: &[usize]| if ranks.len() == 1 { "was" } else { "were" };
        let groups = self.0.iter().take(MOST_NAMED);
        let groups: Vec<_> =
            groups.map(|(place, found)| format!("{} {} at {place}", ranks(found), waits(found))).collect();
        if groups.is_empty() { String::new() } else { format!("; {}", groups.join("; ")) }
    }
}

/// A member ended by its own account.
pub(super) fn failed(seat: &Seat, reason: &str) -> String {
    format!("{} failed at {}: {}", name(&seat.who), place(&seat.doing.text), line(reason, LONGEST))
}

/// Members are gone or silent, who were last at `activity`.
pub(super) fn lost(seats: &[&Seat], activity: &str, how: &str, others: &Others) -> String {
    let (place, how) = (place(activity), line(how, LONGEST));
    format!("{} {} lost at {place}: {how}{}", names(seats), were(seats), others.clause())
}

/// Members live, but did not come to the collective in which `reporter` waited.
pub(super) fn absent(seats: &[&Seat], reporter: &Seat) -> String {
    let last = seats.first().map(|seat| place(&seat.doing.text)).unwrap_or_default();
    let state = if seats.iter().all(|seat| seat.finished) { "had finished already, last" } else { "still" };
    format!(
        "{} did not come to {}: {state} at {last}; {} waited: {}",
        names(seats),
        place(&reporter.doing.text),
        name(&reporter.who),
        symptom(reporter)
    )
}

/// Everybody lives and came: what is left is the network between them.
pub(super) fn broken(reporter: &Seat) -> String {
    format!(
        "the connection between {} and its peers broke at {}, though all processes are alive: {}",
        name(&reporter.who),
        place(&reporter.doing.text),
        symptom(reporter)
    )
}

fn symptom(reporter: &Seat) -> String {
    line(reporter.symptom.as_deref().unwrap_or("no symptom was given"), LONGEST)
}

fn names(seats: &[&Seat]) -> String {
    let named = seats.iter().take(MOST_NAMED).map(|seat| name(&seat.who));
    let more = seats.len().checked_sub(MOST_NAMED).filter(|more| *more > 0).map(|more| format!("{more} more"));
    named.chain(more).collect::<Vec<_>>().join(" and ")
}

fn were(seats: &[&Seat]) -> &'static str {
    if seats.len() == 1 { "was" } else { "were" }
}
