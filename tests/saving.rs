//! States are written beside the training: in order, one at a time, all of them, however slow the disk is.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::backend::Autodiff;
use kiln_engine::parallel::{HostBackend, Observer, Plan, Processes, StepReport, TrainingState, Write};
use kiln_engine::state::sha256;
use kiln_system::{Error, Result};

use crate::reference::run::Experiment;
use crate::toy::{Mishap, Toy, images, plan_of, setup, train_with};
use crate::until::until;

const REPLICAS: usize = 3;
const STEPS: usize = 20;
/// Steps between two states.
const EVERY: usize = 5;
/// How long replicas wait for each other.
const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Seen {
    step: usize,
    waited: Vec<usize>,
    is_writing: bool,
    /// The step and the weights of each state that is written.
    written: Vec<(usize, String)>,
}

/// A disk on which the write of the state of a step takes as long as `act` does.
#[derive(Clone)]
struct Disk {
    seen: Arc<Mutex<Seen>>,
    act: Act,
}

type Act = Arc<dyn Fn(usize, &Mutex<Seen>) -> Result<()> + Send + Sync>;

impl Disk {
    fn new(act: impl Fn(usize, &Mutex<Seen>) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { seen: Arc::default(), act: Arc::new(act) }
    }

    fn written(&self) -> Vec<(usize, String)> {
        self.seen.lock().unwrap().written.clone()
    }
}

impl Observer for Disk {
    fn step(&mut self, report: &StepReport) -> Result<()> {
        self.seen.lock().unwrap().step = report.step;
        Ok(())
    }
    fn checkpoint(&mut self, state: TrainingState) -> Result<Write> {
        let (seen, act) = (self.seen.clone(), self.act.clone());
        assert!(!std::mem::replace(&mut seen.lock().unwrap().is_writing, true), "two states are in memory");
        Ok(Box::new(move || {
            let step = state.position.global_step;
            let done = catch_unwind(AssertUnwindSafe(|| act(step, &seen)));
            seen.lock().unwrap().is_writing = false;
            done.unwrap_or_else(|panic| resume_unwind(panic))?;
            seen.lock().unwrap().written.push((step, sha256(&state.weights)));
            Ok(())
        }))
    }
    fn waiting(&mut self, step: usize) {
        self.seen.lock().unwrap().waited.push(step);
    }
}

fn experiment() -> Experiment {
    let mut experiment = plan_of(&setup(REPLICAS, 2, 0.1), images(&Vec::from_iter(0..2 * REPLICAS * STEPS), 10));
    // LibTorch adds up in another order on another number of threads.
    (experiment.plan.save_every_steps, experiment.plan.threads) = (EVERY, 1);
    experiment
}

fn train<B: HostBackend>(plan: Plan, disk: &Disk, processes: Option<Processes>) -> Result<()> {
    let toy = Toy::<Autodiff<B>>::new(10, Mishap::None, &B::open(0).unwrap());
    train_with::<B>(&toy, Experiment { plan, ..experiment() }, TIMEOUT, disk.clone(), processes)
}

fn steps(disk: &Disk) -> Vec<usize> {
    disk.written().into_iter().map(|(step, _)| step).collect()
}

/// What a disk without any delay gets.
fn swift<B: HostBackend>() -> Vec<(usize, String)> {
    let disk = Disk::new(|_, _| Ok(()));
    train::<B>(experiment().plan, &disk, None).unwrap();
    assert_eq!(steps(&disk), [5, 10, 15, 20]);
    disk.written()
}

pub fn goes_on<B: HostBackend>() {
    // Each write ends when the run has come to the next state.
    let disk = Disk::new(|step, seen| {
        until("the training goes on", || seen.lock().unwrap().step >= (step + EVERY).min(STEPS));
        Ok(())
    });
    train::<B>(experiment().plan, &disk, None).unwrap();
    assert_eq!(disk.written(), swift::<B>());
}

/// Of the second state.
fn stalling() -> Disk {
    Disk::new(|step, _| {
        if step == 2 * EVERY {
            std::thread::sleep(4 * TIMEOUT);
        }
        Ok(())
    })
}

pub fn stalls<B: HostBackend>() {
    let disk = stalling();
    train::<B>(experiment().plan, &disk, None).unwrap();
    assert_eq!(disk.written(), swift::<B>());
    assert_eq!(disk.seen.lock().unwrap().waited, [3 * EVERY], "the training says once where it waits");
}

#[cfg(feature = "gloo")]
pub fn stalls_for_processes<B: HostBackend>() {
    use kiln_engine::parallel::World;

    let world = |rank| World::staged([REPLICAS, 1], rank, vec![1; REPLICAS], vec![0]);
    let disks: Vec<Disk> = (0..REPLICAS).map(|_| stalling()).collect();
    std::thread::scope(|scope| {
        for ((rank, processes), disk) in crate::engines::connected(&world(0), true).into_iter().enumerate().zip(&disks)
        {
            let plan = Plan { world: world(rank), ..experiment().plan };
            scope.spawn(move || train::<B>(plan, disk, Some(processes)).unwrap());
        }
    });
    assert_eq!(disks[0].written(), swift::<B>());
    assert!(disks[1..].iter().all(|disk| disk.written().is_empty()), "the first process writes");
}

pub fn stops<B: HostBackend>() {
    let plan = experiment().plan;
    let stop = plan.stop.clone();
    let disk = Disk::new(move |step, seen| {
        if step == EVERY {
            stop.request(kiln_system::stop::Reason::Signal(15));
            until("the last state waits for this one", || !seen.lock().unwrap().waited.is_empty());
        }
        Ok(())
    });
    train::<B>(plan, &disk, None).unwrap();
    let (steps, last) = (steps(&disk), disk.seen.lock().unwrap().step);
    assert!(steps[0] == EVERY && steps.is_sorted() && steps.last() == Some(&last) && last < STEPS, "{steps:?}, {last}");
}

pub fn fails<B: HostBackend>() {
    for broken in [EVERY, STEPS] {
        let disk = Disk::new(move |step, _| {
            let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
            if step == broken { Err(Error::io("write", format!("state {step}"))(full)) } else { Ok(()) }
        });
        let error = train::<B>(experiment().plan, &disk, None).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot write 'state {broken}'")), "{error}");
    }
    let disk = Disk::new(|_, _| panic!("a mistake"));
    let error = train::<B>(experiment().plan, &disk, None).unwrap_err();
    assert!(error.to_string().contains("the thread that writes checkpoints panicked"), "{error}");
}

on_every_backend! {
    steps_are_done_and_reported_while_a_state_is_written => || goes_on::<TestBackend>();
    a_disk_that_stalls_longer_than_any_limit_costs_neither_a_replica_nor_a_state => || stalls::<TestBackend>();
    #[cfg(feature = "gloo")]
    a_disk_that_stalls_costs_no_process => || stalls_for_processes::<TestBackend>();
    a_stop_waits_for_the_state_under_way_and_saves_its_own => || stops::<TestBackend>();
    a_state_that_cannot_be_written_ends_the_run_even_if_it_is_the_last => || fails::<TestBackend>();
}
