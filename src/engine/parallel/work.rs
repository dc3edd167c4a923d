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

/// What a worker did in a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Without waits for other workers.
    pub seconds: f64,
    /// The part of it in which its loader had no batch yet.
    pub loading: f64,
    /// In which it waited for other workers while its own data was on the way to theirs; not a part of `seconds`.
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
    /// Returns when the device has done what is queued.
    settle: Option<Box<dyn Fn()>>,
}

thread_local! {
    static WAITS: RefCell<Waits> = RefCell::default();
}

/// Counts the time of `wait` as a wait of this thread.
pub(super) fn waiting<T>(what: Wait, wait: impl FnOnce() -> T) -> T {
    // Taken out for the moment, since a device may run anything.
    let settle = WAITS.with_borrow_mut(|waits| waits.settle.take());
    settle.iter().for_each(|settle| settle());
    let start = Instant::now();
    let result = wait();
    WAITS.with_borrow_mut(|waits| {
        waits.spent[what as usize] += start.elapsed();
        waits.settle = settle;
    });
    result
}

/// The measurement of a step on the thread of its worker.
pub(super) struct Measurement {
    start: Instant,
    device: usize,
    /// How long data of its process had been on the way before.
    sent: Duration,
}

impl Measurement {
    /// Begins with a step on `device`. `settle` waits for it if it works beside the host; `sent` is how long data of this
    /// process has been on the way to others so far.
    pub(super) fn begin(device: usize, settle: Option<Box<dyn Fn()>>, sent: Duration) -> Self {
        settle.iter().for_each(|settle| settle());
        WAITS.set(Waits { settle, ..Waits::default() });
        Self { start: Instant::now(), device, sent }
    }

    /// `sent` is as for [`Measurement::begin`].
    pub(super) fn end(self, sent: Duration) -> Work {
        let [others, data] = WAITS.take().spent;
        let seconds = self.start.elapsed().saturating_sub(others).as_secs_f64();
        // What is sent while the worker computes holds nobody up.
        let sending = sent.saturating_sub(self.sent).min(others).as_secs_f64();
        Work { seconds, loading: data.as_secs_f64(), sending, device: self.device }
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
        let measured = Measurement::begin(7, None, MOMENT);
        waiting(Wait::Others, || sleep(50 * MOMENT));
        waiting(Wait::Data, || sleep(MOMENT));
        let (work, moment) = (measured.end(3 * MOMENT), MOMENT.as_secs_f64());
        assert!(work.seconds >= work.loading && work.loading >= moment && work.seconds < 50.0 * moment, "{work:?}");
        assert_eq!((work.device, work.sending), (7, 2.0 * moment));
        let work = Measurement::begin(7, None, MOMENT).end(3 * MOMENT);
        assert_eq!(work.sending, 0.0, "nobody waited");

        let settled = Rc::new(Cell::new(0));
        let settle = || {
            let settled = settled.clone();
            Some(Box::new(move || settled.set(settled.get() + 1)) as Box<dyn Fn()>)
        };
        let measured = Measurement::begin(0, settle(), Duration::ZERO);
        (0..3).for_each(|_| waiting(Wait::Others, || ()));
        assert_eq!(settled.get(), 4, "at its begin and before each wait");
        measured.end(Duration::ZERO);
        waiting(Wait::Others, || ());
        assert_eq!(settled.get(), 4, "not in the steps between");
    }
}
