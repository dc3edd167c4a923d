//! The end of a run: the first member says so once the last checkpoint is written, and waits for the others.

use super::member::{Link, Outcome, Stage};
use super::{COLLECTIVE, World};
use crate::rendezvous::wire::FromMember;

impl World {
    /// The run is done, once its last checkpoint is written.
    pub(super) fn finish(&mut self, who: usize) {
        let state = self.processes[who].state.expect("the run is done");
        if std::mem::take(&mut self.processes[who].is_first_step) && self.is_first(who) {
            // Whoever had to write it may be lost.
            self.write(who, state, true);
        }
        if self.processes[who].write.is_some() {
            self.processes[who].stage = Stage::Saving;
        } else {
            self.announce_end(who);
        }
    }

    /// The first member says that the run is complete; the others wait for that.
    pub(super) fn announce_end(&mut self, who: usize) {
        let process = &mut self.processes[who];
        process.requests += 1;
        let (id, session) = (process.requests, process.shared.state.lock().session);
        process.stage = Stage::Closing { request: id, session, since: None };
        let generation = process.placement().map_or(0, |it| it.generation);
        let key = format!("{generation}/complete");
        let message = if self.is_first(who) {
            FromMember::Set { id, key, value: Vec::new() }
        } else {
            FromMember::Get { id, keys: vec![key], limit: std::time::Duration::MAX }
        };
        self.ask(who, message);
    }

    /// A request is not sent without a session, and its wait ends at once.
    pub(super) fn ask(&mut self, who: usize, message: FromMember) {
        match self.processes[who].link {
            Link::Up { .. } if !self.is_disturbed(who) => self.command(who, message),
            _ => self.processes[who].requests += 1,
        }
        self.look(who);
    }

    pub(super) fn close_run(&mut self, who: usize, request: u64, session: u64, since: Option<u64>) {
        let is_late = since.is_some_and(|since| self.now >= since + COLLECTIVE);
        let process = &mut self.processes[who];
        let is_answered = process.answers.contains(&request);
        let is_up = matches!(process.link, Link::Up { .. }) && process.shared.state.lock().session == session;
        let state = process.state;
        let is_first = self.is_first(who);
        let generation = self.processes[who].placement().map_or(0, |it| it.generation);
        if is_answered && !is_first {
            let rank = self.processes[who].placement().and_then(|it| it.rank(self.processes[who].id)).unwrap_or(0);
            self.command(who, FromMember::Set { id: 0, key: format!("{generation}/over/{rank}"), value: Vec::new() });
            self.leave(who, None, Outcome::Complete(state));
        } else if is_late || is_answered && since.is_some() {
            self.leave(who, None, Outcome::Complete(state));
        } else if is_answered {
            let size = self.processes[who].placement().map_or(0, |it| it.blocks.len());
            let keys: Vec<String> = (1..size).map(|rank| format!("{generation}/over/{rank}")).collect();
            let now = self.now;
            let process = &mut self.processes[who];
            process.requests += 1;
            let id = process.requests;
            process.stage = Stage::Closing { request: id, session, since: Some(now) };
            self.ask(who, FromMember::Get { id, keys, limit: std::time::Duration::MAX });
        } else if !is_up || self.is_disturbed(who) || self.processes[who].requests > request {
            if since.is_some() { self.leave(who, None, Outcome::Complete(state)) } else { self.part(who, None) }
        }
    }
}
