//! An elastic job under chaos: members die, fall silent, join and drain, and the service is restarted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kiln::launch::rendezvous::bulletin::{
    Action, Bulletin, Event, Phase, Placement, Progress, Rules, SessionId, StateVersion,
};
use kiln::launch::rendezvous::placement::Block;
use kiln::launch::rendezvous::roster::Roster;
use proptest::prelude::*;

use super::actor::Actor;

pub(super) const WORLD: usize = 6;
const MIN: usize = 2;
const TICK: u64 = 200;

pub(super) fn rules() -> Rules {
    let time = Duration::from_millis;
    Rules {
        min: MIN,
        max: 4,
        world: WORLD,
        beat: time(1000),
        lost_after: time(5000),
        elastic_timeout: time(u64::MAX),
        settle: time(1000),
        ready_timeout: time(20_000),
        strict: false,
    }
}

/// Far more than a loss, two waits for members that are stuck, and some changes of generation take, in milliseconds.
const CALM: u64 = 120_000;

#[derive(Debug, Clone)]
enum Chaos {
    Join(usize),
    Die(usize),
    Deaf(usize, u64),
    Disconnect(usize),
    Reconnect(usize),
    Drain(usize),
    DrainRank(usize),
    FailDevice(usize),
    Trouble(usize),
    Restart,
    Pass(u64),
}

fn chaos() -> impl Strategy<Value = Chaos> {
    let who = 0_usize..12;
    prop_oneof![
        4 => (1_usize..4).prop_map(Chaos::Join),
        2 => who.clone().prop_map(Chaos::Die),
        1 => (who.clone(), 100_u64..30_000).prop_map(|(who, time)| Chaos::Deaf(who, time)),
        1 => who.clone().prop_map(Chaos::Disconnect),
        1 => who.clone().prop_map(Chaos::Reconnect),
        2 => who.clone().prop_map(Chaos::Drain),
        1 => (0_usize..8).prop_map(Chaos::DrainRank),
        1 => who.clone().prop_map(Chaos::FailDevice),
        1 => who.prop_map(Chaos::Trouble),
        1 => Just(Chaos::Restart),
        8 => (1_u64..3000).prop_map(Chaos::Pass),
    ]
}

struct Sim {
    roster: Roster,
    start: Instant,
    now: u64,
    actors: Vec<Actor>,
    /// What the present roster was told last of whoever is connected: whether the member is ready and what it holds.
    told: BTreeMap<SessionId, (u64, Option<StateVersion>)>,
    next: u64,
    latest: u64,
    generations: usize,
    /// The leaver that must make the next bulletin announce an end.
    once_more: bool,
}

impl Sim {
    fn new() -> Self {
        let start = Instant::now();
        Self {
            roster: Roster::new(rules(), start),
            start,
            now: 0,
            actors: Vec::new(),
            told: BTreeMap::new(),
            next: 1,
            latest: 0,
            generations: 0,
            once_more: false,
        }
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_millis(self.now)
    }

    fn tell(&mut self, event: Event) {
        self.note(&event);
        let actions = self.roster.handle(event.clone(), self.instant());
        for action in actions {
            match action {
                Action::Announce(bulletin) => self.check(&bulletin),
                Action::Welcome => {}
                // Nobody may have that rank.
                Action::Refuse(_) if matches!(event, Event::DrainRank(_)) => {}
                Action::Refuse(refusal) => panic!("refused: {refusal:?} on {event:?}"),
                Action::Decide(verdict) => panic!("decided: {verdict}"),
            }
        }
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Joined(session, who) => {
                self.told.retain(|_, (id, _)| *id != who.id);
                self.told.insert(*session, (who.id, who.computing.is_none().then_some(who.holds)));
            }
            Event::Ready(session, ready) => drop(self.told.entry(*session).and_modify(|it| it.1 = Some(ready.holds))),
            Event::Left(session, _) | Event::Closed(session, _) => drop(self.told.remove(session)),
            Event::Beat(..)
            | Event::Connected(..)
            | Event::Trouble(..)
            | Event::Drain(..)
            | Event::DrainRank(..)
            | Event::Tick => {}
        }
    }

    /// The promises that every bulletin keeps.
    fn check(&mut self, bulletin: &Bulletin) {
        if std::mem::take(&mut self.once_more) {
            assert_eq!(bulletin.phase, Phase::Ending, "a generation with a leaver ends at once");
        }
        assert!(!bulletin.why.contains('\n') && bulletin.why.len() < 3000);
        if bulletin.phase == Phase::Running && bulletin.generation > self.latest {
            // Of an adopted generation, only those who came back are known.
            if !bulletin.why.contains("restarted") {
                self.check_beginning(bulletin);
            }
        }
        assert!(bulletin.generation >= self.latest, "numbers grow");
        self.latest = bulletin.generation;
    }

    fn check_beginning(&mut self, bulletin: &Bulletin) {
        let placement = bulletin.placement();
        assert!(placement.covers(WORLD), "{placement:?}");
        assert!(placement.blocks.iter().all(|block| block.replicas.len() >= block.devices && block.devices > 0));
        let held: BTreeMap<_, _> = self.told.values().copied().collect();
        let part = |id: &u64| placement.rank(*id).is_some();
        for block in &placement.blocks {
            let holds = held.get(&block.id).copied();
            assert!(holds.is_some(), "{} is lost: {bulletin:?}", block.id);
            let holds = holds.flatten().expect("all members are ready");
            let heard = self.actors.iter().filter(|actor| actor.id == block.id).map(|actor| actor.heard).max();
            assert!(heard < Some(bulletin.generation), "a member heard of {heard:?} before: {bulletin:?}");
            let entry = bulletin.members.iter().find(|entry| entry.id == block.id).unwrap();
            if entry.draining {
                let others = placement.blocks.iter().filter(|other| other.id != block.id);
                let newest = others.filter_map(|other| held[&other.id]).max();
                assert!(newest.is_some_and(|newest| newest < holds), "a leaver takes part: {bulletin:?}");
                self.once_more = true;
            }
        }
        let stay =
            placement.blocks.iter().filter(|block| bulletin.members.iter().any(|it| it.id == block.id && !it.draining));
        assert!(stay.count() >= 1);
        let there = |id: &u64| bulletin.members.iter().any(|entry| entry.id == *id);
        let newest = held.iter().filter(|(id, _)| there(id)).filter_map(|(_, holds)| *holds).max();
        let ours = held.iter().filter(|(id, _)| part(id)).filter_map(|(_, holds)| *holds).max();
        assert_eq!(ours, newest, "the newest state is in the generation: {bulletin:?}");
        self.generations += 1;
    }

    /// One of those that live.
    fn pick(&self, who: usize) -> Option<usize> {
        let live: Vec<_> = (0..self.actors.len()).filter(|&it| !self.actors[it].gone).collect();
        live.get(who % live.len().max(1)).copied()
    }

    fn join(&mut self, devices: usize) {
        let (id, session) = (self.next, self.next);
        self.next += 1;
        let actor = Actor {
            id,
            session,
            devices,
            holds: StateVersion::default(),
            heard: 0,
            computing: None,
            connected: (0, 0),
            draining: false,
            deaf_until: 0,
            gone: false,
        };
        self.tell(Event::Joined(session, actor.introduction()));
        self.actors.push(actor);
    }

    fn reconnect(&mut self, index: usize) {
        self.actors[index].session = self.next;
        self.next += 1;
        let actor = &self.actors[index];
        self.tell(Event::Joined(actor.session, actor.introduction()));
    }

    fn suffer(&mut self, chaos: Chaos) {
        let who = match chaos {
            Chaos::Join(devices) => return self.join(devices),
            Chaos::Pass(time) => return self.pass(time),
            Chaos::DrainRank(rank) => return self.tell(Event::DrainRank(rank)),
            Chaos::Restart => {
                self.roster = Roster::new(rules(), self.instant());
                self.told.clear();
                (self.latest, self.once_more) = (0, false);
                return;
            }
            Chaos::Die(who) | Chaos::Disconnect(who) | Chaos::Reconnect(who) | Chaos::Drain(who) => who,
            Chaos::Deaf(who, _) | Chaos::FailDevice(who) | Chaos::Trouble(who) => who,
        };
        let Some(index) = self.pick(who) else { return };
        let now = self.now;
        let actor = &mut self.actors[index];
        let event = match chaos {
            Chaos::Die(_) => {
                actor.gone = true;
                Some(Event::Closed(actor.session, "its connection closed".into()))
            }
            Chaos::Deaf(_, time) => {
                actor.deaf_until = now + time;
                None
            }
            Chaos::Disconnect(_) => Some(Event::Closed(actor.session, "its connection closed".into())),
            Chaos::Reconnect(_) => return self.reconnect(index),
            Chaos::Drain(_) => {
                actor.draining = true;
                Some(Event::Drain(actor.session))
            }
            Chaos::FailDevice(_) => {
                actor.devices = (actor.devices - 1).max(1);
                actor.ready(Some("device 0 failed"))
            }
            _ => actor.computing.as_ref().map(|it| Event::Trouble(actor.session, it.generation, "reset".into())),
        };
        event.into_iter().for_each(|event| self.tell(event));
    }

    /// Time passes in which members hear, answer, compute and beat.
    fn pass(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            (0..self.actors.len()).for_each(|index| self.act(index));
            self.compute();
            self.tell(Event::Tick);
        }
    }

    fn act(&mut self, index: usize) {
        let actor = &self.actors[index];
        if actor.gone || actor.deaf_until > self.now {
            return;
        }
        if !self.roster.bulletin().members.iter().any(|entry| entry.id == actor.id) {
            self.reconnect(index);
        }
        let bulletin = self.roster.bulletin();
        let actor = &mut self.actors[index];
        let event = actor.answer(&bulletin).or_else(|| actor.connect(&bulletin));
        actor.gone |= matches!(event, Some(Event::Left(..)));
        let session = actor.session;
        self.tell(event.unwrap_or(Event::Beat(session, Progress::default())));
    }

    /// Members of a generation share a state once all of them are there; who misses one has trouble.
    fn compute(&mut self) {
        let assemblies: Vec<_> = self.actors.iter().filter_map(|actor| actor.computing.clone()).collect();
        for placement in assemblies {
            let inside = |actor: &&mut Actor| !actor.gone && actor.computing.as_ref() == Some(&placement);
            let mut members: Vec<_> = self.actors.iter_mut().filter(inside).collect();
            if members.len() == placement.blocks.len() && members.iter().all(|it| it.deaf_until <= self.now) {
                let step = members.iter().map(|it| it.holds).max().unwrap_or_default().step + 1;
                let holds = StateVersion { generation: placement.generation, step };
                members.iter_mut().for_each(|member| member.holds = holds);
            } else if self.peer_is_gone(&placement) {
                self.report(&placement);
            }
        }
    }

    fn peer_is_gone(&self, placement: &Placement) -> bool {
        let left = |block: &Block| {
            let actor = self.actors.iter().find(|actor| actor.id == block.id);
            actor.is_none_or(|it| {
                it.gone || it.heard >= placement.generation && it.computing.as_ref() != Some(placement)
            })
        };
        placement.blocks.iter().any(left)
    }

    fn report(&mut self, placement: &Placement) {
        let inside =
            |actor: &&Actor| !actor.gone && actor.deaf_until <= self.now && actor.computing.as_ref() == Some(placement);
        let sessions: Vec<_> = self.actors.iter().filter(inside).map(|actor| actor.session).collect();
        for session in sessions {
            self.tell(Event::Trouble(session, placement.generation, "connection reset".into()));
        }
    }

    /// The chaos ends: whoever is there stays, and hears.
    fn calm_down(&mut self) {
        self.actors.iter_mut().for_each(|actor| actor.deaf_until = 0);
        self.pass(CALM);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_job_survives_chaos(story in proptest::collection::vec(chaos(), 1..80)) {
        let mut sim = Sim::new();
        story.into_iter().for_each(|chaos| sim.suffer(chaos));
        sim.calm_down();
        let live: Vec<_> = sim.actors.iter().filter(|actor| !actor.gone).collect();
        prop_assert!(live.iter().all(|actor| !actor.draining), "whoever drains has left: {:?}", live);
        let bulletin = sim.roster.bulletin();
        if live.len() < MIN {
            prop_assert_eq!(bulletin.phase, Phase::Waiting);
            return Ok(());
        }
        prop_assert_eq!(bulletin.phase, Phase::Running, "{:?}", bulletin);
        prop_assert_eq!(bulletin.members.len(), live.len());
        let placement = bulletin.placement();
        let computing = live.iter().filter(|actor| actor.computing.as_ref() == Some(&placement)).count();
        prop_assert_eq!(computing, placement.blocks.len());
        prop_assert!(live.iter().any(|actor| actor.holds.generation == placement.generation), "it commits steps");
        let before = sim.generations;
        sim.pass(CALM);
        prop_assert_eq!(sim.generations, before, "nothing changes without a cause");
    }
}
