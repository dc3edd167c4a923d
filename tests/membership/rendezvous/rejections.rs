//! Whoever is turned away a thousand times gets a line, and a line that counts.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use kiln_membership::rendezvous::rejections::{INTERVAL, MOST_ADDRESSES, Rejections};

fn address(number: u32) -> IpAddr {
    IpAddr::from(number.to_be_bytes())
}

#[test]
fn the_first_is_told_at_once_and_the_others_together() {
    let (mut rejections, now) = (Rejections::default(), Instant::now());
    let first = rejections.note(address(1), "no proof", now).unwrap();
    assert_eq!(first, "rejected a connection from 0.0.0.1: no proof");
    assert!((0..999).all(|_| rejections.note(address(1), "no handshake", now).is_none()));
    assert!(rejections.note(address(2), "no proof", now).is_some());
    assert!(rejections.due_lines(now + INTERVAL - Duration::from_millis(1), false).is_empty());
    let told = "rejected 999 more connections from 0.0.0.1, the last because: no handshake";
    assert_eq!(rejections.due_lines(now + INTERVAL, false), [told]);
    // The count begins anew, and ends where nobody comes.
    assert!(rejections.note(address(1), "no proof", now + INTERVAL).is_none());
    assert_eq!(rejections.due_lines(now + INTERVAL, true).len(), 1);
    assert!(rejections.due_lines(now + INTERVAL * 3, false).is_empty());
    assert!(rejections.note(address(1), "no proof", now + INTERVAL * 3).is_some());
}

#[test]
fn a_thousand_addresses_share_a_line() {
    let (mut rejections, now) = (Rejections::default(), Instant::now());
    let lines = (0..1000).filter_map(|number| rejections.note(address(number), "no proof", now)).count();
    assert_eq!(lines, MOST_ADDRESSES + 1);
    let last = rejections.due_lines(now, true);
    assert_eq!(last.len(), 1);
    assert!(last[0].contains("more connections from other addresses"), "{last:?}");
    assert!(last[0].contains(&format!("rejected {} more", 999 - MOST_ADDRESSES)), "{last:?}");
}
