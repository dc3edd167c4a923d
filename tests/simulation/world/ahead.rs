//! Members connect for a pending generation while the current one computes.

use std::collections::BTreeSet;

use super::{Event, World};
use crate::rendezvous::member_state::Attempt;
use crate::rendezvous::wire::FromMember;

/// How long an attempt may take.
const CONNECT: u64 = 10_000;

impl World {
    /// Connects for a pending generation while the current one computes.
    pub(super) fn prepare(&mut self, who: usize) {
        let pending = self.processes[who].shared.state.lock().pending().map(|(attempt, it)| (attempt, it.blocks.len()));
        let Some((attempt, size)) = pending.filter(|(attempt, _)| Some(*attempt) != self.processes[who].attempt) else {
            return;
        };
        self.processes[who].attempt = Some(attempt);
        let prepared = self.prepared.entry((self.tenure(who), attempt.generation));
        prepared.or_insert_with(|| (size, BTreeSet::new()));
        let delay = self.random.within(5..=300);
        self.after(delay, Event::Prepare { who, attempt });
        self.after(CONNECT, Event::Prepared { who, attempt, ok: false });
    }

    pub(super) fn connect_ahead(&mut self, who: usize, attempt: Attempt) {
        let process = &self.processes[who];
        if process.is_over() || process.cut > self.now {
            return;
        }
        let key = (self.tenure(who), attempt.generation);
        let Some((size, connected)) = self.prepared.get_mut(&key) else { return };
        connected.insert(who);
        if connected.len() == *size {
            for who in connected.clone() {
                let attempt = self.processes[who].attempt.expect("it connects");
                let delay = self.random.within(1..=50);
                self.after(delay, Event::Prepared { who, attempt, ok: true });
            }
        }
    }

    pub(super) fn connected(&mut self, who: usize, attempt: Attempt, ok: bool) {
        let process = &mut self.processes[who];
        let is_current = process.shared.state.lock().pending().is_some_and(|(current, _)| current == attempt);
        if process.is_over() || !is_current || !process.reported.insert((attempt.session, attempt.generation)) {
            return;
        }
        let progress = process.shared.state.lock().progress.clone();
        let message = if ok {
            FromMember::Connected(attempt.generation)
        } else {
            FromMember::Trouble(progress, attempt.generation, "not all could be reached".into())
        };
        self.command(who, message);
    }
}
