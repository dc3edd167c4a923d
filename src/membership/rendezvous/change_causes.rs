//! The causes of a change of membership, in one line.

use super::sentence;

/// How many causes the line names.
const MOST_CAUSES: usize = 5;
const LONGEST: usize = 500;

#[derive(Debug, Default)]
pub(super) struct ChangeCauses {
    list: Vec<String>,
    /// The generation after the change has begun: the next cause belongs to another change.
    closed: bool,
}

impl ChangeCauses {
    /// Adds a cause, unless it is known.
    pub(crate) fn add(&mut self, cause: impl Into<String>) {
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

    /// Ends the list: the generation after the change has begun.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// All causes in one line, followed by the `shortage`.
    pub(crate) fn line(&self, shortage: Option<String>) -> String {
        self.list.iter().cloned().chain(shortage).collect::<Vec<_>>().join("; ")
    }
}
