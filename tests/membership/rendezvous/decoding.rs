//! No bytes that anybody could send make the rendezvous panic.

use std::time::{Duration, Instant};

use kiln_membership::rendezvous::greeting;
use kiln_membership::rendezvous::membership::{Event, ProcessInfo, Progress, Rules};
use kiln_membership::rendezvous::roster::Roster;
use kiln_membership::rendezvous::store::Store;
use kiln_membership::rendezvous::wire::{Envelope, FromMember, FromService, Purpose, decode, encode};
use proptest::prelude::*;
use prost::Message;

use super::{introduction, person, terms};

/// SplitMix64 (Steele, Lea, Flood 2014): small, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.roll() % end.max(1) as u64) as usize
    }

    /// `bytes` with a few of them flipped, removed, repeated or made up; sometimes unharmed.
    fn harm(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..self.below(4) {
            let place = self.below(bytes.len() + 1);
            match self.below(4) {
                0 if place < bytes.len() => bytes[place] ^= 1 << self.below(8),
                1 => bytes.truncate(place),
                2 => bytes.extend_from_within(place..),
                _ => bytes.insert(place, self.roll() as u8),
            }
        }
        bytes
    }

    /// What arrives of `envelope`.
    fn carry(&mut self, envelope: Envelope, harmed: bool) -> Option<Envelope> {
        if !harmed {
            return Some(envelope);
        }
        let mut envelope = Envelope::decode(self.harm(envelope.encode_to_vec()).as_slice()).ok()?;
        envelope.body = self.harm(envelope.body);
        Some(envelope)
    }

    fn message(&mut self) -> FromMember {
        let doing = Progress { activity: "step 1".into(), step: self.roll() % 3, images_per_second: 0.0 };
        match self.below(5) {
            0 => FromMember::Beat(doing),
            1 => FromMember::Trouble(doing, 0, "timed out".into()),
            2 => FromMember::Leave(doing, Some("failed".into())),
            3 => FromMember::Set { id: 1, key: "key".into(), value: vec![1, 2, 3] },
            _ => FromMember::Get { id: 2, keys: vec!["key".into()], limit: Duration::MAX },
        }
    }
}

/// A greeting and a session, one stage of which is harmed: members that know the secret may send nonsense too.
fn attack(seed: u64) {
    let mut dice = Dice(seed);
    let stage = dice.below(3);
    let (terms, now) = (terms(2), Instant::now());
    let (mut roster, store) = (Roster::new(Rules::strict(&terms), now), Store::default());
    roster.handle(Event::Joined(1, ProcessInfo { id: 1, ..introduction(0) }), now);
    let Some(hello) = dice.carry(greeting::hello(&terms), stage == 0) else { return };
    if greeting::greet(&terms, &hello).is_err() {
        return assert!(stage == 0, "an unharmed greeting succeeds");
    }
    if let Some(answer) = dice.carry(greeting::answer(None), stage == 1) {
        let _ = greeting::refusal(&answer);
    }
    let introduction = if stage == 2 { dice.harm(person(1)) } else { person(1) };
    let Ok(Purpose::Join(process_info)) = decode(&introduction) else { return };
    roster.handle(Event::Joined(2, process_info), now);
    for round in 0..8 {
        let message = encode(&dice.message());
        let body = dice.harm(message);
        receive(&body, &mut roster, &store, now + Duration::from_millis(700 * round));
    }
    listen(&mut dice);
}

fn receive(body: &[u8], roster: &mut Roster, store: &Store, now: Instant) {
    match decode(body) {
        Ok(FromMember::Set { key, value, .. }) => drop(store.set(key, value)),
        Ok(message) => message.events(2).into_iter().for_each(|event| drop(roster.handle(event, now))),
        Err(_) => {}
    }
}

/// What a member hears.
fn listen(dice: &mut Dice) {
    let mut roster = Roster::new(Rules::strict(&terms(1)), Instant::now());
    roster.handle(Event::Joined(1, introduction(0)), Instant::now());
    let body = encode(&FromService::View(roster.view()));
    let _ = decode::<FromService>(&dice.harm(body));
}

proptest! {
    #[test]
    fn harmed_sessions_never_panic(seed: u64) {
        attack(seed);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let envelope = Envelope { body: bytes.clone() };
        prop_assert!(greeting::greet(&terms(2), &envelope).is_err());
        let _ = greeting::refusal(&envelope);
        let _ = Envelope::decode(bytes.as_slice());
        let now = Instant::now();
        receive(&bytes, &mut Roster::new(Rules::strict(&terms(2)), now), &Store::default(), now);
    }
}

/// `KILN_FUZZ_SECONDS=600 cargo test --features gloo rendezvous::decoding -- --ignored --nocapture`
#[test]
#[ignore = "runs for KILN_FUZZ_SECONDS, ten minutes if unset"]
fn harmed_sessions_never_panic_for_minutes() {
    let seconds = std::env::var("KILN_FUZZ_SECONDS").map_or(600, |it| it.parse().unwrap());
    let (start, mut dice) = (Instant::now(), Dice(std::process::id().into()));
    let mut rounds = 0_u64;
    while start.elapsed() < Duration::from_secs(seconds) {
        let seed = dice.roll();
        // The seed of a failure is all that is needed to repeat it.
        std::panic::catch_unwind(|| attack(seed)).unwrap_or_else(|_| panic!("attack({seed}) panicked"));
        rounds += 1;
    }
    println!("{rounds} sessions in {seconds} s");
}
