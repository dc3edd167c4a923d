//! The thread of a member that holds its session: what `reconnector.rs` and `connection.rs` do with the real state.

use super::member::Link;
use super::network::Parcel;
use super::{BEAT, Event, LOST, World};
use crate::rendezvous::clock::Instant;
use crate::rendezvous::member_state::{End, MemberState};
use crate::rendezvous::wire::{FromMember, FromService};

const RETRY: u64 = 100;
const HANDSHAKE: u64 = 5_000;
/// With several addresses.
const FIRST_HANDSHAKE: u64 = 500;

impl World {
    pub(super) fn dial(&mut self, who: usize) {
        let process = &self.processes[who];
        if process.is_over() || process.shared.is_over() || !matches!(process.link, Link::Down) {
            return;
        }
        let info = process.shared.state.lock().own.clone();
        let at = process.address;
        let cut = self.cut(who, at);
        let link = self.connect(who);
        self.processes[who].link = Link::Dialing { link, sent: Instant::now() };
        if !self.services[at].is_up && !self.services[at].has_vanished {
            // The address answers that nobody listens.
            let delay = self.random.within(1..=20);
            self.vanish(link, true);
            return self.after(delay, Event::Unanswered { who, link });
        }
        let is_elected = self.plan.addresses > 1;
        let rounds = self.processes[who].attempts / self.plan.addresses;
        let limit = if is_elected { HANDSHAKE.min(FIRST_HANDSHAKE << rounds.min(4)) } else { HANDSHAKE };
        self.after(limit, Event::Unanswered { who, link });
        let ready = cut.max(self.services[at].wakes);
        if self.services[at].is_up && ready < self.now + limit {
            let challenge = ready.max(self.now) + self.random.within(2..=60);
            self.at(challenge, Event::Introduced { who, link });
            self.processes[who].introduction = Some(info);
        }
    }

    /// The other side has proven the secret, and the introduction is on its way.
    pub(super) fn introduced(&mut self, who: usize, link: usize) {
        let process = &mut self.processes[who];
        let Some(info) = process.introduction.take() else { return };
        if process.is_over() || !matches!(process.link, Link::Dialing { link: current, .. } if current == link) {
            return;
        }
        process.shared.state.lock().is_introduced = true;
        process.is_patient = true;
        self.send(link, true, Parcel::Introduction(info));
        self.after(LOST, Event::Unanswered { who, link });
    }

    /// A limit of the handshake has passed; the one before the introduction no longer counts after it.
    pub(super) fn unanswered(&mut self, who: usize, link: usize) {
        let process = &mut self.processes[who];
        let Link::Dialing { link: current, sent } = process.link else { return };
        if current != link || process.is_over() {
            return;
        }
        let is_early = sent.elapsed().as_millis() < u128::from(LOST);
        if process.is_patient && is_early {
            return;
        }
        self.close(link, false);
        self.fail_to_meet(who, "no answer");
    }

    fn fail_to_meet(&mut self, who: usize, why: &str) {
        let process = &mut self.processes[who];
        (process.link, process.is_patient) = (Link::Down, false);
        (process.address, process.attempts) = ((process.address + 1) % self.plan.addresses, process.attempts + 1);
        process.shared.change(|state| (state.failure, state.is_introduced) = ((why.into(), false), false));
        self.after(RETRY, Event::Dial { who });
        self.look(who);
    }

    /// An open session ended, or a connection before there was one.
    pub(super) fn session_lost(&mut self, link: usize, how: &str) {
        let who = self.connections[link].who;
        let process = &mut self.processes[who];
        match process.link {
            Link::Up { link: current, .. } if current == link => {}
            Link::Dialing { link: current, .. } if current == link => return self.fail_to_meet(who, how),
            _ => return,
        }
        if process.is_over() {
            return;
        }
        let is_expected = process.shared.is_over();
        process.link = Link::Down;
        if is_expected {
            return;
        }
        process.shared.change(|state| state.disconnected_since = Some(Instant::now()));
        self.say(|| format!("member {} lost the service: {how}", self.processes[who].id));
        self.fail_to_meet(who, how);
    }

    pub(super) fn reach_member(&mut self, link: usize, parcel: Parcel) {
        self.messages += 1;
        let who = self.connections[link].who;
        let process = &mut self.processes[who];
        let Parcel::Down(message) = parcel else { return };
        if process.is_over() || !self.connections[link].open[0] {
            return;
        }
        match process.link {
            Link::Dialing { link: current, .. } if current == link => {
                process.is_patient = false;
                if let FromService::Refusal(refusal) = message {
                    self.say(|| format!("member {} was refused: {}", self.processes[who].id, refusal.reason));
                    self.processes[who].shared.end(End::Lost(refusal.reason));
                    return self.look(who);
                }
                if matches!(message, FromService::Elsewhere) {
                    self.close(link, false);
                    return self.fail_to_meet(who, "it does not lead");
                }
                process.shared.change(MemberState::begin_session);
                (process.link, process.attempts) = (Link::Up { link, unanswered: 0 }, 0);
                self.hear(who, message);
                self.after(0, Event::Beat { who, link });
                self.send_commands(who);
            }
            Link::Up { link: current, .. } if current == link => self.hear(who, message),
            _ => {}
        }
    }

    fn hear(&mut self, who: usize, message: FromService) {
        let process = &mut self.processes[who];
        if let Link::Up { unanswered, .. } = &mut process.link {
            *unanswered = 0;
        }
        if let FromService::Value(id, _) = message {
            process.answers.insert(id);
        }
        process.shared.handle_message(message);
        if process.shared.is_unknown() {
            let Link::Up { link, .. } = process.link else { return };
            self.close(link, false);
            return self.session_lost(link, "it no longer knows this process");
        }
        self.look(who);
    }

    pub(super) fn beat(&mut self, who: usize, link: usize) {
        let process = &mut self.processes[who];
        let Link::Up { link: current, unanswered } = &mut process.link else { return };
        if *current != link || process.outcome.is_some() {
            return;
        }
        let silence = if self.plan.addresses > 1 { LOST * 2 / 3 } else { LOST };
        if *unanswered > silence / BEAT {
            self.close(link, false);
            return self.session_lost(link, "no sign of life");
        }
        *unanswered += 1;
        let beat = process.shared.beat();
        self.send(link, true, Parcel::Up(beat));
        self.after(BEAT, Event::Beat { who, link });
    }

    /// Commands wait while there is no session.
    pub(super) fn command(&mut self, who: usize, command: FromMember) {
        self.processes[who].commands.push_back(command);
        self.send_commands(who);
    }

    fn send_commands(&mut self, who: usize) {
        let Link::Up { link, .. } = self.processes[who].link else { return };
        while let Some(command) = self.processes[who].commands.pop_front() {
            self.send(link, true, Parcel::Up(command));
        }
    }
}
