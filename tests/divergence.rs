//! A replica whose numbers silently become others than those of the rest is found and named, and nothing that it
//! touched is saved.

use std::time::Duration;

use burn::backend::Autodiff;
use burn::lr_scheduler::constant::ConstantLr;
use burn::module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, MultiGradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use kiln_engine::parallel::HostBackend;
use kiln_engine::state::sha256;
use kiln_system::{Error, Result};

use crate::reference::run::{Experiment, Recorded, Recorder, hosted};
use crate::toy::{Mishap, Toy, fit, images, plan_of, setup, strategy};

const TIMEOUT: Duration = Duration::from_secs(20);
const STEPS: usize = 8;
/// The update after which a replica is wrong.
const WRONG_AFTER: usize = 3;

/// What a broken device changes, on replica 1, in one update.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Weight,
    Gradient,
    Momentum,
}

/// An optimizer on a broken device.
#[derive(Clone)]
struct Broken<O> {
    inner: O,
    fault: Option<Fault>,
    updates: usize,
}

impl<B: AutodiffBackend, M: AutodiffModule<B>, O: Optimizer<M, B>> Optimizer<M, B> for Broken<O> {
    type Record = O::Record;

    fn step(&mut self, rate: f64, model: M, gradients: GradientsParams) -> M {
        self.updates += 1;
        let is_here = std::thread::current().name() == Some("replica-1") && self.updates == WRONG_AFTER;
        match self.fault.filter(|_| is_here) {
            None => self.inner.step(rate, model, gradients),
            Some(Fault::Weight) => self.inner.step(rate, model, gradients).map(&mut FlipFirst(false)),
            Some(Fault::Gradient) => self.inner.step(rate, model.clone(), flipped(&model, gradients).1),
            Some(Fault::Momentum) => {
                // The weights are right, the memory is not.
                let (right, wrong) = flipped(&model, gradients);
                let updated = self.inner.clone().step(rate, model.clone(), right);
                self.inner.step(rate, model, wrong);
                updated
            }
        }
    }

    fn step_multi(&mut self, _: f64, _: M, _: MultiGradientsParams) -> M {
        unreachable!("a replica has one device")
    }

    fn to_record(&self) -> Self::Record {
        self.inner.to_record()
    }

    fn load_record(self, record: Self::Record) -> Self {
        Self { inner: self.inner.load_record(record), ..self }
    }
}

/// A bit in the middle of the first number's fraction.
fn flip<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    let (shape, device) = (tensor.dims(), tensor.device());
    let mut values: Vec<f32> = tensor.into_data().to_vec().unwrap();
    values[0] = f32::from_bits(values[0].to_bits() ^ 1 << 14);
    Tensor::from_data(TensorData::new(values, shape), &device)
}

struct FlipFirst(bool);

impl<B: AutodiffBackend> ModuleMapper<B> for FlipFirst {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if std::mem::replace(&mut self.0, true) {
            return param;
        }
        let id = param.id;
        Param::initialized(id, Tensor::from_inner(flip(param.val().inner())).require_grad())
    }
}

/// The gradients, and the same with a flipped bit in the first one.
fn flipped<B: AutodiffBackend, M: Module<B>>(
    model: &M,
    gradients: GradientsParams,
) -> (GradientsParams, GradientsParams) {
    struct Copy<'a>(&'a GradientsParams, GradientsParams, GradientsParams);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Copy<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let Some(gradient) = self.0.get::<B::InnerBackend, D>(param.id) else { return };
            let is_first = self.1.is_empty();
            self.1.register(param.id, gradient.clone());
            self.2.register(param.id, if is_first { flip(gradient) } else { gradient });
        }
    }
    let mut copy = Copy(&gradients, GradientsParams::new(), GradientsParams::new());
    model.visit(&mut copy);
    (copy.1, copy.2)
}

fn experiment(replicas: usize) -> Experiment {
    let mut experiment = plan_of(&setup(replicas, 2, 0.1), images(&Vec::from_iter(0..2 * replicas * STEPS), 10));
    experiment.plan.threads = 1;
    experiment
}

fn train<B: HostBackend>(mut experiment: Experiment, fault: Option<Fault>) -> (Result<()>, Recorded) {
    experiment.plan = hosted::<B>(experiment.plan);
    let toy = Toy::<Autodiff<B>>::new(10, Mishap::None, &B::open(0).unwrap());
    let recorder = Recorder::default();
    let momentum = MomentumConfig { momentum: 0.9, dampening: 0.0, nesterov: false };
    let inner = SgdConfig::new().with_momentum(Some(momentum)).init();
    let strategy = strategy::<B>(&experiment, TIMEOUT, recorder.clone());
    let result = fit(&toy, strategy.by(Broken { inner, fault, updates: 0 }, ConstantLr::new(0.1)));
    let recorded = std::mem::take(&mut *recorder.0.lock().unwrap());
    (result, recorded)
}

fn text(error: &Error) -> String {
    assert!(matches!(error, Error::Training(_) | Error::Difference(_)), "{error:?}");
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
    error.to_string()
}

fn saved(recorded: &Recorded) -> Vec<usize> {
    recorded.states.iter().map(|state| state.position.global_step).collect()
}

pub fn is_named<B: HostBackend>() {
    for fault in [Fault::Weight, Fault::Gradient, Fault::Momentum] {
        // What only Burn's optimizer remembers shows in the weights after the next update.
        let found = WRONG_AFTER + usize::from(fault == Fault::Momentum);
        // Before every state is saved.
        let mut of_three = experiment(3);
        (of_three.plan.save_every_steps, of_three.plan.check_every) = (1, 1000);
        let device = hosted::<B>(of_three.plan.clone()).world.device_of(1);
        let (result, recorded) = train::<B>(of_three.clone(), Some(fault));
        let said = text(&result.unwrap_err());
        let words =
            format!("after step {found} replica 1 on device {device} does not hold the weights of the other 2;");
        assert!(said.starts_with(&words) && said.contains("--resume latest"), "{fault:?}: {said}");
        assert_eq!(saved(&recorded), Vec::from_iter(1..found), "{fault:?}");
        // Every so many steps.
        (of_three.plan.save_every_steps, of_three.plan.check_every) = (0, 4);
        let (result, recorded) = train::<B>(of_three.clone(), Some(fault));
        let said = text(&result.unwrap_err());
        assert!(said.starts_with("after step 4 replica 1 on device"), "{fault:?}: {said}");
        assert!(saved(&recorded).is_empty());
        // Not at all.
        of_three.plan.check_every = 0;
        let (result, recorded) = train::<B>(of_three, Some(fault));
        result.unwrap();
        assert_eq!(saved(&recorded), [STEPS]);
    }
}

pub fn has_no_majority<B: HostBackend>() {
    let (result, recorded) = train::<B>(experiment(2), Some(Fault::Weight));
    let said = text(&result.unwrap_err());
    let words = "after step 3 replicas do not hold the same weights and no majority does (0 on device 0, 1 on device ";
    assert!(said.starts_with(words), "{said}");
    assert_eq!(saved(&recorded), [1, 2]);
}

/// Everything that a run leaves.
fn bits<B: HostBackend>(check_every: usize, replicas: usize) -> Vec<[String; 2]> {
    let toy = Toy::<Autodiff<B>>::new(10, Mishap::None, &B::open(0).unwrap());
    let recorder = Recorder::default();
    let mut experiment = experiment(replicas);
    experiment.plan.check_every = check_every;
    crate::toy::train::<B>(&toy, experiment, TIMEOUT, recorder.clone()).unwrap();
    let recorded = recorder.0.lock().unwrap();
    recorded.states.iter().map(|state| [sha256(&state.weights), sha256(&state.optimizer)]).collect()
}

pub fn changes_no_bit<B: HostBackend>() {
    for replicas in [1, 3] {
        let unchecked = bits::<B>(0, replicas);
        assert_eq!(unchecked.len(), STEPS);
        assert_eq!(bits::<B>(1, replicas), unchecked);
        assert_eq!(bits::<B>(3, replicas), unchecked);
    }
}

/// `KILN_TEST_STEPS` asks for more.
pub fn gives_no_false_alarm<B: HostBackend>() {
    let steps = std::env::var("KILN_TEST_STEPS").map_or(300, |steps| steps.parse().unwrap());
    for sync_bn in [true, false] {
        let mut setup = setup(3, 2, 0.01);
        setup.sync_bn = sync_bn;
        setup.optim.ema_decay = 0.9;
        // The last step has one image: two replicas have none.
        let mut experiment = plan_of(&setup, images(&Vec::from_iter(0..61), 10));
        (experiment.plan.save_every_steps, experiment.plan.epochs) = (0, steps / 11);
        experiment.plan.last_step = usize::MAX;
        let toy = Toy::<Autodiff<B>>::new(10, Mishap::None, &B::open(0).unwrap());
        let recorder = Recorder::default();
        crate::toy::train::<B>(&toy, experiment, TIMEOUT, recorder.clone()).unwrap();
        let done = recorder.0.lock().unwrap().steps.len();
        assert!(done >= steps - 11, "{done} steps");
    }
}

on_every_backend! {
    a_replica_whose_weights_momentum_or_gradients_change_is_named_and_not_saved => || is_named::<TestBackend>();
    without_a_majority_the_run_stops_and_says_so => || has_no_majority::<TestBackend>();
    comparing_the_replicas_changes_no_bit => || changes_no_bit::<TestBackend>();
    replicas_that_are_right_raise_no_alarm => || gives_no_false_alarm::<TestBackend>();
    #[cfg(feature = "gloo")]
    flips_in_processes_are_found_and_every_process_says_the_same => || processes::are_found::<TestBackend>();
    #[cfg(feature = "gloo")]
    an_elastic_run_goes_back_to_what_all_agreed_on => || processes::go_back::<TestBackend>();
}

#[cfg(feature = "gloo")]
mod processes {
    use std::sync::{Arc, Mutex};

    use kiln_engine::parallel::{
        Assignment, GenerationResult, Membership, Observer, Plan, Processes, StartingPoint, TrainingState, Undisturbed,
        World,
    };
    use kiln_engine::state::{HostTensor, StateDict};

    use super::*;
    use crate::toy::strategy_from;

    const PROCESSES: usize = 3;
    const FLIPS: usize = 50;

    fn world(rank: usize) -> World {
        World::staged([PROCESSES, 1], rank, vec![1; PROCESSES], vec![0])
    }

    fn plan_at(rank: usize) -> Plan {
        Plan { world: world(rank), check_every: 1, ..experiment(PROCESSES).plan }
    }

    /// One generation.
    struct Once(Mutex<Option<Assignment>>);

    impl Membership for Once {
        fn next(&self, _held: Option<GenerationResult>, _observer: &mut dyn Observer) -> Result<Option<Assignment>> {
            Ok(self.0.lock().unwrap().take())
        }

        fn complete(&self) -> Result<bool> {
            Ok(true)
        }
    }

    /// One generation whose state is wrong on one process, and one whose state is right.
    struct Twice(Mutex<Vec<Assignment>>);

    impl Membership for Twice {
        fn next(&self, held: Option<GenerationResult>, _observer: &mut dyn Observer) -> Result<Option<Assignment>> {
            if let Some(GenerationResult { state, failed, discarded, .. }) = held {
                assert!(state.is_none() && failed.is_empty());
                let (step, how) = discarded.unwrap();
                assert_eq!(step, 2);
                assert!(how.starts_with("after step 2 replica 1 on device 0 of process 1 does not hold"), "{how}");
            }
            Ok(self.0.lock().unwrap().pop())
        }

        fn complete(&self) -> Result<bool> {
            Ok(true)
        }
    }

    pub fn go_back<B: HostBackend>() {
        let new = || Toy::<Autodiff<B>>::new(10, Mishap::None, &B::open(0).unwrap());
        let calm = Recorder::default();
        crate::toy::train::<B>(&new(), experiment(PROCESSES), TIMEOUT, calm.clone()).unwrap();
        let right = calm.0.lock().unwrap().states[0].clone();
        let mut wrong = right.clone();
        flip(&mut wrong.weights, 0);
        let connected = || crate::engines::connected(&world(0), true);
        let run = |(rank, (first, second))| {
            let assignment = |processes, state: &TrainingState| {
                let plan = Arc::new(Plan { roll_back: true, ..plan_at(rank) });
                let (processes, generation) = (Some(processes), Arc::new(Undisturbed));
                Assignment { plan, processes, generation, state: Some(state.clone()) }
            };
            let begins = if rank == 1 { &wrong } else { &right };
            let generations = Twice(Mutex::new(vec![assignment(second, &right), assignment(first, begins)]));
            let experiment = Experiment { plan: plan_at(rank), ..experiment(PROCESSES) };
            let recorder = Recorder::default();
            let strategy = strategy::<B>(&experiment, TIMEOUT, recorder.clone());
            fit(&new(), strategy.elastic(Box::new(generations))).unwrap();
            recorder
        };
        let recorders: Vec<Recorder> = std::thread::scope(|scope| {
            let ranks = connected().into_iter().zip(connected()).enumerate();
            let threads: Vec<_> = ranks
                .map(|rank| {
                    scope.spawn({
                        let run = &run;
                        move || run(rank)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let bits = |recorder: &Recorder| recorder.0.lock().unwrap().states.last().map(|state| sha256(&state.weights));
        assert_eq!(bits(&recorders[0]), bits(&calm));
        assert!(bits(&calm).is_some());
    }

    /// Flips a bit of another tensor for each `number`, one that the next update does not round away.
    fn flip(state: &mut StateDict, number: usize) -> String {
        let mut floats: Vec<_> = state
            .iter_mut()
            .filter_map(|(name, tensor)| match tensor {
                HostTensor::F32 { data, .. } if !name.contains("running") => Some((name, data)),
                _ => None,
            })
            .collect();
        let count = floats.len();
        let (name, data) = &mut floats[number % count];
        let (place, bit) = (number * 7919 % data.len(), 12 + number % 11);
        data[place] = f32::from_bits(data[place].to_bits() ^ 1 << bit);
        format!("bit {bit} of number {place} of {name}")
    }

    /// A process that goes on from `state`.
    fn process<B: HostBackend>(
        rank: usize,
        processes: Processes,
        state: TrainingState,
        is_elastic: bool,
    ) -> Result<()> {
        let toy = Toy::<Autodiff<B>>::new(10, Mishap::None, &B::open(0).unwrap());
        let experiment = Experiment { plan: plan_at(rank), ..experiment(PROCESSES) };
        if is_elastic {
            let (plan, generation) = (Arc::new(experiment.plan.clone()), Arc::new(Undisturbed));
            let assignment = Assignment { plan, processes: Some(processes), generation, state: Some(state) };
            let strategy = strategy::<B>(&experiment, TIMEOUT, Recorder::default());
            return fit(&toy, strategy.elastic(Box::new(Once(Mutex::new(Some(assignment))))));
        }
        let (toy, start) = StartingPoint::restore::<B, Toy<Autodiff<B>>>(toy, &state, "the state").unwrap();
        let strategy = strategy_from::<B>(&experiment, start, TIMEOUT, Recorder::default());
        fit::<B>(&toy, strategy.with(Some(processes)))
    }

    pub fn are_found<B: HostBackend>() {
        let mut calm = experiment(PROCESSES);
        calm.plan.last_step = 2;
        let recorder = Recorder::default();
        let toy = Toy::<Autodiff<B>>::new(10, Mishap::None, &B::open(0).unwrap());
        crate::toy::train::<B>(&toy, calm, TIMEOUT, recorder.clone()).unwrap();
        let state = recorder.0.lock().unwrap().states[0].clone();
        for number in 0..=FLIPS {
            let guilty = number % PROCESSES;
            let mut states = vec![state.clone(); PROCESSES];
            let wrong = &mut states[guilty];
            // The last round has nothing to find.
            let what = (number < FLIPS).then(|| match number % 2 {
                0 => flip(&mut wrong.weights, number / 2),
                _ => flip(&mut wrong.optimizer, number / 2),
            });
            let is_elastic = number % 4 > 1;
            let results: Vec<Result<()>> = std::thread::scope(|scope| {
                let ranks = crate::engines::connected(&world(0), true).into_iter().zip(states).enumerate();
                let run = |(rank, (processes, state))| process::<B>(rank, processes, state, is_elastic);
                let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || run(rank))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for (rank, result) in results.into_iter().enumerate() {
                let Some(what) = &what else {
                    result.unwrap();
                    continue;
                };
                let said = text(&result.expect_err(what));
                let words = format!(
                    "after step 2 replica {guilty} on device 0 of process {guilty} does not hold the weights of the other 2;"
                );
                assert!(said.starts_with(&words), "{what}, process {rank}: {said}");
            }
        }
    }
}
