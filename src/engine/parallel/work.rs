//! How long each worker works in a step, apart from its waits for others: who is slow, and whether by its device, its
//! loader or its network.
//!
//! A worker that arrives first waits, so the time until the end of a step says nothing about it. Each one therefore
//! counts its own waits, in the few functions in which a thread waits for others, and tells all others the rest in the
//! message that it sends them anyway.
//!
//! A device that works while the host goes on is waited for before the host waits for others, or its work would count as
//! a wait. That takes a moment of the device, so it is done in few steps, which all workers agree on, and only these are
//! told.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// The time between two measured steps if the device is not the processor.
pub(super) const PAUSE: Duration = Duration::from_secs(10);

/// A wait in which its data is on the way for no longer than this says nothing of the network: the kernel of a host whose
/// process is late confirms what it has received after so long (`TCP_DELACK_MAX` of Linux).
const UNCONFIRMED: Duration = Duration::from_millis(200);

/// How long each connection of this process has had data on the way so far.
pub(super) type Sending = Box<dyn Fn() -> Vec<Duration>>;

/// What a worker did in a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Without waits for other workers.
    pub seconds: f64,
    /// The part of it in which its loader had no batch yet.
    pub loading: f64,
    /// Time in which it waited for other workers while data of its process was on the way to theirs, less 0.2 s for each
    /// wait; not a part of `seconds`.
    pub sending: f64,
    /// The index of its device, as given by `--gpu-ids`.
    pub device: usize,
}

impl Work {
    /// The length of the message form.
    pub(super) const VALUES: usize = 4;

    pub(super) fn to_values(self) -> [f64; Self::VALUES] {
        [self.seconds, self.loading, self.sending, self.device as f64]
    }

    pub(super) fn from_values(values: &[f64]) -> Self {
        Self { seconds: values[0], loading: values[1], sending: values[2], device: values[3] as usize }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Wait {
    Others,
    Data,
}

/// The waits of a worker's thread in its current step.
#[derive(Default)]
struct Waits {
    /// By [`Wait`].
    spent: [Duration; 2],
    sending: Duration,
    /// Returns when the device has done what is queued.
    settle: Option<Box<dyn Fn()>>,
    sent: Option<Sending>,
}

thread_local! {
    static WAITS: RefCell<Waits> = RefCell::default();
}

/// Counts the time of `wait` as a wait of this thread.
pub(super) fn waiting<T>(what: Wait, wait: impl FnOnce() -> T) -> T {
    // Taken out for the moment, since a device may run anything.
    let (settle, sent) = WAITS.with_borrow_mut(|waits| (waits.settle.take(), waits.sent.take()));
    settle.iter().for_each(|settle| settle());
    let so_far = || match (&sent, what) {
        (Some(sent), Wait::Others) => sent(),
        _ => Vec::new(),
    };
    let (start, before) = (Instant::now(), so_far());
    let result = wait();
    let spent = start.elapsed();
    let sending = so_far().into_iter().zip(before).map(|(now, before)| now.saturating_sub(before)).max();
    WAITS.with_borrow_mut(|waits| {
        waits.spent[what as usize] += spent;
        waits.sending += sending.unwrap_or_default().min(spent).saturating_sub(UNCONFIRMED);
        (waits.settle, waits.sent) = (settle, sent);
    });
    result
}

/// The measurement of a step on the thread of its worker.
pub(super) struct Measurement {
    start: Instant,
    device: usize,
}

impl Measurement {
    /// Begins with a step on `device`. `settle` waits for it if it works beside the host.
    pub(super) fn begin(device: usize, settle: Option<Box<dyn Fn()>>, sent: Option<Sending>) -> Self {
        settle.iter().for_each(|settle| settle());
        WAITS.set(Waits { settle, sent, ..Waits::default() });
        Self { start: Instant::now(), device }
    }

    pub(super) fn end(self) -> Work {
        let Waits { spent: [others, data], sending, .. } = WAITS.take();
        let seconds = self.start.elapsed().saturating_sub(others).as_secs_f64();
        Work { seconds, loading: data.as_secs_f64(), sending: sending.as_secs_f64(), device: self.device }
    }
}

impl Drop for Measurement {
    /// Also after a step that failed: what the waits hold must not outlive the replica.
    fn drop(&mut self) {
        WAITS.take();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::thread::sleep;

    use super::*;

    #[test]
    fn waits_for_others_are_no_work_and_what_a_device_does_meanwhile_is() {
        const MOMENT: Duration = Duration::from_millis(20);
        let measured = Measurement::begin(7, None, None);
        waiting(Wait::Others, || sleep(50 * MOMENT));
        waiting(Wait::Data, || sleep(MOMENT));
        let (work, moment) = (measured.end(), MOMENT.as_secs_f64());
        assert!(work.seconds >= work.loading && work.loading >= moment && work.seconds < 50.0 * moment, "{work:?}");
        assert_eq!((work.device, work.sending), (7, 0.0));

        let settled = Rc::new(Cell::new(0));
        let settle = || {
            let settled = settled.clone();
            Some(Box::new(move || settled.set(settled.get() + 1)) as Box<dyn Fn()>)
        };
        let measured = Measurement::begin(0, settle(), None);
        (0..3).for_each(|_| waiting(Wait::Others, || ()));
        assert_eq!(settled.get(), 4, "at its begin and before each wait");
        measured.end();
        waiting(Wait::Others, || ());
        assert_eq!(settled.get(), 4, "not in the steps between");
    }

    #[test]
    fn a_wait_while_data_is_long_on_the_way_is_that_of_a_sender() {
        const MOMENT: Duration = Duration::from_millis(20);
        let sent = Rc::new(Cell::new(Duration::ZERO));
        let send = |time| sent.set(sent.get() + time);
        let so_far = sent.clone();
        // Another connection has been busy for longer, but is not now.
        let all = move || vec![Duration::from_secs(99), so_far.get()];
        let measured = Measurement::begin(0, None, Some(Box::new(all)));
        // Beside the worker's own work, not yet confirmed, and longer.
        send(Duration::from_secs(9));
        waiting(Wait::Data, || (sleep(UNCONFIRMED + MOMENT), send(UNCONFIRMED + MOMENT)));
        waiting(Wait::Others, || (sleep(MOMENT), send(MOMENT)));
        waiting(Wait::Others, || (sleep(UNCONFIRMED + MOMENT), send(UNCONFIRMED + MOMENT)));
        let work = measured.end();
        assert!((work.sending - MOMENT.as_secs_f64()).abs() < 1e-9, "{work:?}");
    }
}
