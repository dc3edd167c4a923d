//! The network between members and the service. A connection keeps the order of its messages, as TCP does: a packet
//! that is lost is late, and one that would come twice comes once. Between connections there is no order, an old one
//! may still deliver when its successor does, and an introduction comes twice if its answer is lost.

use super::{Event, World};
use crate::rendezvous::membership::{ProcessInfo, SessionId};
use crate::rendezvous::wire::{FromMember, FromService};

#[derive(Debug, Clone)]
pub enum Parcel {
    Introduction(ProcessInfo),
    Up(FromMember),
    Down(FromService),
}

#[derive(Debug)]
pub struct Connection {
    pub who: usize,
    /// The service that it leads to.
    pub at: usize,
    pub service: u64,
    pub session: Option<SessionId>,
    /// Whether the end of the member, and that of the service, is open.
    pub open: [bool; 2],
    /// When the last message in each direction comes.
    last: [u64; 2],
    pub is_dirty: bool,
}

impl World {
    pub(super) fn connect(&mut self, who: usize) -> usize {
        let at = self.processes[who].address;
        let service = self.services[at].number;
        let last = [self.now; 2];
        self.connections.push(Connection { who, at, service, session: None, open: [true; 2], last, is_dirty: false });
        self.connections.len() - 1
    }

    /// Until when a member cannot reach the service at an address.
    pub(super) fn cut(&self, who: usize, at: usize) -> u64 {
        let process = &self.processes[who];
        let split = if process.split.0 == at { process.split.1 } else { 0 };
        process.cut.max(self.services[at].cut).max(split)
    }

    /// When what is sent now reaches the other end.
    fn arrival(&mut self, link: usize, up: bool) -> u64 {
        let mut at = self.now + self.random.within(1..=self.plan.latency);
        if self.plan.loss > 0 && self.random.once_in(self.plan.loss) {
            at += 200 << self.random.within(0..=3);
        }
        let cut = self.cut(self.connections[link].who, self.connections[link].at);
        if cut > self.now {
            at = at.max(cut) + self.random.within(1..=200);
        }
        let last = &mut self.connections[link].last[usize::from(up)];
        *last = at.max(*last);
        *last
    }

    pub(super) fn send(&mut self, link: usize, up: bool, parcel: Parcel) {
        if self.connections[link].open[usize::from(!up)] {
            let at = self.arrival(link, up);
            self.at(at, Event::Arrival { link, up, parcel });
        }
    }

    /// The end of the service (`there`) or of the member closes; the other one learns it, after what was sent before.
    pub(super) fn close(&mut self, link: usize, there: bool) {
        if std::mem::take(&mut self.connections[link].open[usize::from(there)]) {
            let at = self.arrival(link, !there);
            self.at(at, Event::Closing { link, up: !there });
        }
    }

    /// A machine is gone: its end closes, and nobody learns it.
    pub(super) fn vanish(&mut self, link: usize, there: bool) {
        self.connections[link].open[usize::from(there)] = false;
    }

    pub(super) fn notice(&mut self, link: usize, up: bool) {
        if !std::mem::take(&mut self.connections[link].open[usize::from(up)]) {
            return;
        }
        if up { self.service_lost(link) } else { self.session_lost(link, "its connection closed") }
    }
}
