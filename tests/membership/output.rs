//! Lines of several ranks on one stream.

use std::io::{self, Read, Write};
use std::sync::Arc;

use kiln_membership::output::{Sink, pass_on};
use parking_lot::Mutex;
use proptest::prelude::*;

/// Hands out its chunks one by one, as a pipe does.
struct Chunks(Vec<Vec<u8>>);

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let chunk = if self.0.is_empty() { Vec::new() } else { self.0.remove(0) };
        buffer[..chunk.len()].copy_from_slice(&chunk);
        Ok(chunk.len())
    }
}

fn passed_on(chunks: &[&[u8]], prefix: &str) -> (Vec<u8>, Option<String>) {
    let sink = Arc::new(Mutex::new(Vec::new()));
    let last_words =
        pass_on(Chunks(chunks.iter().map(|chunk| chunk.to_vec()).collect()), prefix, &(sink.clone() as Sink));
    let bytes = sink.lock().clone();
    (bytes, last_words)
}

#[test]
fn each_line_gets_the_prefix_wherever_the_chunks_are_cut() {
    let (bytes, _) = passed_on(&[b"on", b"e\ntw", b"o\n", b"\nthree"], "[1] ");
    assert_eq!(bytes, b"[1] one\n[1] two\n[1] \n[1] three\n");
}

#[test]
fn a_carriage_return_ends_a_line_and_takes_its_line_feed_along() {
    let (bytes, _) = passed_on(&[b"10 %\r20 %\r", b"\nx\r\ny\r", b"z\r"], "[0] ");
    assert_eq!(bytes, b"[0] 10 %\n[0] 20 %\n[0] x\n[0] y\n[0] z\n");
}

#[test]
fn bytes_that_are_no_text_are_kept() {
    assert_eq!(passed_on(&[b"\xff\xfe\0caf\xe9\n"], "[0] ").0, b"[0] \xff\xfe\0caf\xe9\n");
}

#[test]
fn a_stream_without_line_breaks_does_not_fill_the_memory() {
    let chunk = vec![b'x'; 60_000];
    let (bytes, _) = passed_on(&[chunk.as_slice(); 40], "");
    assert!(bytes.iter().filter(|byte| **byte == b'\n').count() > 1);
    assert_eq!(bytes.iter().filter(|byte| **byte == b'x').count(), 40 * chunk.len());
}

#[test]
fn the_last_words_are_the_last_complaint_of_the_program() {
    let (_, words) = passed_on(&[b"train: first\ntrain: disk full\nsomething else\n"], "");
    assert_eq!(words.unwrap(), "disk full");
    let (_, words) = passed_on(&[b"panicked at x:\n  index out of range\nnote: run with RUST_BACKTRACE=1\n\n"], "");
    assert_eq!(words.unwrap(), "index out of range");
    assert_eq!(passed_on(&[b"\n\n"], "").1, None);
}

/// A pager that was left.
struct Closed(usize);

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        self.0 += 1;
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_sink_does_not_stop_the_reading() {
    let sink = Arc::new(Mutex::new(Closed(0)));
    let chunks = vec![b"line\n".to_vec(), b"line\n".to_vec(), b"train: late\n".to_vec()];
    assert_eq!(pass_on(Chunks(chunks), "", &(sink.clone() as Sink)).unwrap(), "late");
    assert_eq!(sink.lock().0, 1);
}

proptest! {
    #[test]
    fn no_cut_changes_the_lines(chunks in proptest::collection::vec("[ab\r\n]{1,6}", 0..8)) {
        let whole = chunks.concat();
        let cut: Vec<&[u8]> = chunks.iter().map(|chunk| chunk.as_bytes()).collect();
        let at_once = if whole.is_empty() { vec![] } else { vec![whole.as_bytes()] };
        prop_assert_eq!(passed_on(&cut, "[2] "), passed_on(&at_once, "[2] "));
    }
}
