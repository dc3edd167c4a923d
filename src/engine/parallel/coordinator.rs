//! The coordinator of a process: takes what its replicas say, until all of them have ended.
//!
//! It is the thread that called the learner, and does all output but that of checkpoints, for which it starts another
//! one (`writer.rs`), so that no file or terminal delays a replica.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use kiln_system::Result;
use kiln_system::stop::Reason;

use super::ending::{Endings, GenerationEnd};
use super::writer::Writer;
use super::{Ended, Event, HostBackend, Observer, Plan, Task};

/// How long replicas may take to end after one of them has failed; then the run ends without them.
const GRACE: Duration = Duration::from_secs(5);

/// What replicas send to the coordinator.
pub(super) enum Message<B: HostBackend, T: Task<B>> {
    Event(Event),
    Ended(usize, Ended<B, T>),
}

pub(super) struct Coordinator<'a> {
    pub(super) plan: &'a Plan,
    /// How long a replica waits for others.
    pub(super) timeout: Duration,
    pub(super) observer: &'a mut dyn Observer,
}

impl Coordinator<'_> {
    /// Handles messages until all replicas have ended, or one has failed and the others had time to end.
    pub(super) fn run<B: HostBackend, T: Task<B>>(
        self,
        messages: &Receiver<Message<B, T>>,
    ) -> Result<GenerationEnd<B, T>> {
        let mut endings = Endings::default();
        let mut deadline: Option<Instant> = None;
        let (mut writer, mut failure) = (Writer::default(), None);
        while !endings.are_all(self.plan) {
            let message = match deadline {
                None => messages.recv().ok(),
                Some(deadline) => messages.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok(),
            };
            match message {
                Some(Message::Event(event)) => {
                    let written = writer.check();
                    if let Err(error) = written.and(observe(self.observer, &mut writer, event)) {
                        self.plan.stop.request(Reason::Failure(error.to_string()));
                        // The replicas themselves have not failed: they stop together after their step.
                        deadline.get_or_insert(Instant::now() + self.timeout + GRACE);
                        failure.get_or_insert(error);
                    }
                }
                Some(Message::Ended(rank, ended)) => {
                    // After a failure the others end soon; at the end of a generation they may compute until their next
                    // collective times out.
                    let patience = match ended {
                        Ended::Finished(_) => None,
                        Ended::Failed(_) => Some(GRACE),
                        Ended::Parted(..) | Ended::Lost(_) | Ended::Discarded(..) => Some(self.timeout + GRACE),
                    };
                    deadline = deadline.or(patience.map(|patience| Instant::now() + patience));
                    endings.add(rank, ended);
                }
                None => break,
            }
        }
        // The next generation, or the next command, finds the last state on the disk.
        failure = failure.or(writer.finish().err());
        failure.map_or_else(|| endings.sum_up(self.plan), Err)
    }
}

fn observe(observer: &mut dyn Observer, writer: &mut Writer, event: Event) -> Result<()> {
    match event {
        Event::Step(report) => observer.step(&report)?,
        Event::Validating { done, total } => observer.validating(done, total),
        Event::Epoch(report) => observer.epoch(&report)?,
        Event::Checkpoint(state, slot) => writer.start(observer.checkpoint(*state)?, slot)?,
        Event::Waiting { step } => observer.waiting(step),
    }
    Ok(())
}
