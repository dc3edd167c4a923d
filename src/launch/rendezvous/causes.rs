//! Why the membership of an elastic job changed, in one line.

use super::sentence;

/// A line names so many causes; the first ones say enough.
const MOST_CAUSES: usize = 5;
/// The longest cause, in characters.
const LONGEST: usize = 500;

/// The causes of one change of generation.
#[derive(Debug, Default)]
pub(super) struct Causes {
    list: Vec<String>,
    /// The generation to which they led has begun: the next cause is one of another change.
    closed: bool,
}

impl Causes {
    /// One more, unless it is known.
    pub fn add(&mut self, cause: impl Into<String>) {
        if std::mem::take(&mut self.closed) {
            self.list.clear();
        }
        let mut cause = sentence::line(&cause.into(), LONGEST);
        if self.list.contains(&cause) || self.list.len() > MOST_CAUSES {
            return;
        }
        if self.list.len() == MOST_CAUSES {
            cause = "and more".into();
        }
        self.list.push(cause);
    }

    /// The generation to which they led has begun.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// All in one line, and then the `shortage` that came of it.
    pub fn line(&self, shortage: Option<String>) -> String {
        self.list.iter().cloned().chain(shortage).collect::<Vec<_>>().join("; ")
    }
}
