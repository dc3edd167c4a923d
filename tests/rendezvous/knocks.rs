//! Whoever is turned away a thousand times gets a line, and a line that counts.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use kiln::launch::rendezvous::knocks::{INTERVAL, MOST_ADDRESSES, Tallies};

fn address(number: u32) -> IpAddr {
    IpAddr::from(number.to_be_bytes())
}

#[test]
fn the_first_is_told_at_once_and_the_others_together() {
    let (mut tallies, now) = (Tallies::default(), Instant::now());
    let first = tallies.note(address(1), "no proof", now).unwrap();
    assert_eq!(first, "turned 0.0.0.1 away from the rendezvous: no proof");
    assert!((0..999).all(|_| tallies.note(address(1), "no handshake", now).is_none()));
    assert!(tallies.note(address(2), "no proof", now).is_some());
    assert!(tallies.settle(now + INTERVAL - Duration::from_millis(1), false).is_empty());
    let told = "turned 0.0.0.1 away from the rendezvous 999 more times, the last time because: no handshake";
    assert_eq!(tallies.settle(now + INTERVAL, false), [told]);
    // The count begins anew, and ends where nobody comes.
    assert!(tallies.note(address(1), "no proof", now + INTERVAL).is_none());
    assert_eq!(tallies.settle(now + INTERVAL, true).len(), 1);
    assert!(tallies.settle(now + INTERVAL * 3, false).is_empty());
    assert!(tallies.note(address(1), "no proof", now + INTERVAL * 3).is_some());
}

#[test]
fn a_thousand_addresses_share_a_line() {
    let (mut tallies, now) = (Tallies::default(), Instant::now());
    let lines = (0..1000).filter_map(|number| tallies.note(address(number), "no proof", now)).count();
    assert_eq!(lines, MOST_ADDRESSES + 1);
    let last = tallies.settle(now, true);
    assert_eq!(last.len(), 1);
    assert!(last[0].contains("turned other addresses away"), "{last:?}");
    assert!(last[0].contains(&format!("{} more times", 999 - MOST_ADDRESSES)), "{last:?}");
}
