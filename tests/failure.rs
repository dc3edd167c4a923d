//! When a replica dies, hangs or diverges, the run ends: soon, with a line that says who, where and what, and without
//! harm to what was saved.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::backend::Autodiff;
use kiln_engine::parallel::{HostBackend, Observer, StepReport, TrainingState, Write};
use kiln_engine::state::sha256;
use kiln_system::{Error, Result};

use crate::reference::run::{Recorded, Recorder};
use crate::toy::{Mishap, Toy, images, plan_of, setup, train};
use crate::until::until;

const REPLICAS: usize = 3;
/// The third of five steps of three replicas with two images each: images 12 to 17, every third one for replica 1.
const ON_REPLICA_1_IN_STEP_3: i64 = 13;
/// How long a test waits for a replica that does not come; nothing in the toy takes a fraction of it.
const TIMEOUT: Duration = Duration::from_secs(2);

struct Outcome {
    message: String,
    recorded: Recorded,
    copies: usize,
}

fn outcome<B: HostBackend>(mishap: Mishap, sync_bn: bool) -> Outcome {
    let toy = Toy::<Autodiff<B>>::new(30, mishap, &B::open(0).unwrap());
    let mut setup = setup(REPLICAS, 2, 0.1);
    setup.sync_bn = sync_bn;
    let recorder = Recorder::default();
    let plan = plan_of(&setup, images(&Vec::from_iter(0..30), 30));
    let error = train::<B>(&toy, plan, TIMEOUT, recorder.clone()).expect_err("the run should fail");
    assert!(matches!(error, Error::Training(_)), "{error:?}");
    let outcome = Outcome {
        message: error.to_string(),
        recorded: std::mem::take(&mut recorder.0.lock().unwrap()),
        copies: toy.copies(),
    };
    toy.wake();
    outcome
}

impl Outcome {
    #[track_caller]
    fn says(&self, parts: &[&str]) {
        assert_eq!(self.message.lines().count(), 1, "{}", self.message);
        parts.iter().for_each(|part| assert!(self.message.contains(part), "'{part}' is not in '{}'", self.message));
    }

    /// Two steps were done and saved, and nothing of the third got out.
    #[track_caller]
    fn keeps_two_steps(&self) {
        assert_eq!(self.recorded.steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(self.recorded.states.iter().map(|state| state.position.global_step).collect::<Vec<_>>(), [1, 2]);
    }
}

pub fn panics<B: HostBackend>(mishap: fn(i64) -> Mishap) {
    for sync_bn in [true, false] {
        let outcome = outcome::<B>(mishap(ON_REPLICA_1_IN_STEP_3), sync_bn);
        outcome.says(&["replica 1 panicked at step 3: no memory left", "--resume latest"]);
        outcome.keeps_two_steps();
        assert_eq!(outcome.copies, 1, "a replica's thread still holds its model");
    }
}

pub fn hangs<B: HostBackend>() {
    for (sync_bn, operation) in [(true, "forward statistics of batch-norm layer 0"), (false, "end of forward")] {
        let start = Instant::now();
        let outcome = outcome::<B>(Mishap::Sleep(ON_REPLICA_1_IN_STEP_3), sync_bn);
        outcome.says(&[&format!("replica 1 did not come to the {operation} of step 3 within 2 s"), "--timeout"]);
        outcome.keeps_two_steps();
        assert!(start.elapsed() < 10 * TIMEOUT, "the end took {:?}", start.elapsed());
        assert!(outcome.copies <= 3, "more than the sleeping replica is left: {} models", outcome.copies);
    }
}

pub fn diverges<B: HostBackend>() {
    let outcome = outcome::<B>(Mishap::LossIsNaN(ON_REPLICA_1_IN_STEP_3), true);
    outcome.says(&["the loss is not finite on replica 1 at step 3", "no checkpoint has it", "--learning-rate"]);
    outcome.keeps_two_steps();
    let saved = &outcome.recorded.states[1];
    for tensor in saved.weights.values().chain(saved.optimizer.values()) {
        assert!(tensor.as_f32().is_none_or(|values| values.iter().all(|value| value.is_finite())));
    }
    assert_ne!(sha256(&saved.weights), sha256(&outcome.recorded.states[0].weights), "the toy learns nothing");
}

/// An observer that cannot write what it is given; it counts what comes afterwards.
#[derive(Clone, Default)]
struct FullDisk {
    checkpoints: Arc<Mutex<usize>>,
    steps: Arc<Mutex<usize>>,
}

impl Observer for FullDisk {
    fn step(&mut self, _report: &StepReport) -> Result<()> {
        *self.steps.lock().unwrap() += 1;
        Ok(())
    }
    fn checkpoint(&mut self, _state: TrainingState) -> Result<Write> {
        let checkpoints = self.checkpoints.clone();
        Ok(Box::new(move || {
            let mut checkpoints = checkpoints.lock().unwrap();
            *checkpoints += 1;
            let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
            Err(Error::io("write", format!("checkpoint {checkpoints}"))(full))
        }))
    }
}

pub fn cannot_save<B: HostBackend>() {
    let toy = Toy::<Autodiff<B>>::new(10, Mishap::None, &B::open(0).unwrap());
    let plan = plan_of(&setup(REPLICAS, 2, 0.1), images(&Vec::from_iter(0..600), 10));
    let observer = FullDisk::default();
    let error = train::<B>(&toy, plan, TIMEOUT, observer.clone()).unwrap_err();
    assert!(error.to_string().starts_with("cannot write 'checkpoint 1'"), "the first error counts: {error}");
    assert!(error.to_string().ends_with("; make room there"), "{error}");
    let steps = *observer.steps.lock().unwrap();
    assert!(steps < 100, "the run went on to its end, {steps} steps");
    assert_eq!(toy.copies(), 1, "a replica's thread still holds its model");
}

/// A disk that writes the first report down while the replicas go on.
struct SlowDisk<B: HostBackend>(Toy<Autodiff<B>>);

impl<B: HostBackend> Observer for SlowDisk<B> {
    fn step(&mut self, report: &StepReport) -> Result<()> {
        if report.step == 1 {
            until("the replicas train on", || self.0.calls().len() > 50 * REPLICAS);
        }
        Ok(())
    }
    fn checkpoint(&mut self, _state: TrainingState) -> Result<Write> {
        Ok(Box::new(|| Ok(())))
    }
}

pub fn does_not_wait_for_the_disk<B: HostBackend>() {
    let toy = Toy::<Autodiff<B>>::new(10, Mishap::None, &B::open(0).unwrap());
    let mut experiment = plan_of(&setup(REPLICAS, 2, 0.1), images(&Vec::from_iter(0..600), 10));
    experiment.plan.save_every_steps = 0;
    train::<B>(&toy, experiment, TIMEOUT, SlowDisk::<B>(toy.clone())).unwrap();
}

/// Steps of a run of three processes.
#[cfg(feature = "gloo")]
const STEPS: usize = 7;

/// What three processes of one replica each make of a mishap, in the order of ranks.
#[cfg(feature = "gloo")]
fn errors_of_processes<B: HostBackend>(mishap: Mishap) -> Vec<Error> {
    use kiln_engine::parallel::{Processes, World};

    let world = |rank| World::staged([REPLICAS, 1], rank, vec![1; REPLICAS], vec![0]);
    let samples = 2 * REPLICAS * STEPS;
    let process = |(rank, processes): (usize, Processes)| {
        let toy = Toy::<Autodiff<B>>::new(samples, mishap, &B::open(0).unwrap());
        let mut experiment = plan_of(&setup(REPLICAS, 2, 0.1), images(&Vec::from_iter(0..samples), samples));
        experiment.plan.world = world(rank);
        crate::toy::train_with::<B>(&toy, experiment, TIMEOUT, Recorder::default(), Some(processes)).unwrap_err()
    };
    std::thread::scope(|scope| {
        let ranks = crate::engines::connected(&world(0), true).into_iter().enumerate();
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || process(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// On every replica, in every step.
#[cfg(feature = "gloo")]
pub fn is_heard_by_processes<B: HostBackend>() {
    for (step, guilty) in (0..STEPS).flat_map(|step| (0..REPLICAS).map(move |replica| (step, replica))) {
        let (label, at) = ((2 * REPLICAS * step + guilty) as i64, format!("at step {}", step + 1));
        let errors = errors_of_processes::<B>(Mishap::PanicInForward(label));
        let words = format!("replica {guilty} panicked {at}: no memory left");
        assert!(errors[guilty].to_string().starts_with(&words), "{}", errors[guilty]);
        for (rank, error) in errors.iter().enumerate() {
            assert_eq!(error.exit_code(), if rank == guilty { 1 } else { 75 }, "process {rank}, {at}: {error}");
        }

        let errors = errors_of_processes::<B>(Mishap::LossIsNaN(label));
        // All get to know the number; whoever is slower may find that another one is gone already.
        let (found, others): (Vec<_>, Vec<_>) = errors.iter().partition(|error| error.exit_code() == 1);
        assert!(!found.is_empty(), "{errors:?}");
        for error in found {
            let words = format!("the loss is not finite on replica {guilty} {at}");
            assert!(error.to_string().starts_with(&words), "{error}");
        }
        assert!(others.iter().all(|error| error.exit_code() == 75), "{errors:?}");
    }
}

on_every_backend! {
    #[cfg(feature = "gloo")]
    other_processes_hear_of_a_replica_that_panics_or_diverges => || is_heard_by_processes::<TestBackend>();
    a_replica_that_panics_in_forward_ends_the_run_by_name => || panics::<TestBackend>(Mishap::PanicInForward);
    a_replica_that_panics_before_its_backward_ends_the_run_by_name => || panics::<TestBackend>(Mishap::PanicAfterTheFence);
    a_replica_that_hangs_ends_the_run_by_name_within_the_timeout => || hangs::<TestBackend>();
    a_loss_that_is_no_number_ends_the_run_before_it_reaches_a_weight => || diverges::<TestBackend>();
    replicas_do_not_wait_for_a_disk_that_is_slow => || does_not_wait_for_the_disk::<TestBackend>();
    a_checkpoint_that_cannot_be_written_ends_the_run_with_that_error => || cannot_save::<TestBackend>();
}
