//! A device that fails gives its replicas to the others of its process, and no number shows it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::backend::Autodiff;
use kiln_engine::parallel::{
    Assignment, GenerationResult, HostBackend, Membership, Observer, Plan, Undisturbed, World,
};
use kiln_engine::state::{StateDict, sha256};
use kiln_system::{Error, Result};

use crate::backends::{devices, several_devices};
use crate::reference::run::{Recorded, Recorder};
use crate::toy::{Mishap, Toy, fit, images, plan_of, setup, strategy};

const REPLICAS: usize = 3;
/// The third of five steps of three replicas with two images each.
const ON_REPLICA_1_IN_STEP_3: i64 = 13;

/// Gives all replicas to the devices that are left.
struct Shrinking {
    plan: Plan,
    devices: Mutex<Vec<usize>>,
    failures: Arc<Mutex<Vec<(usize, String)>>>,
}

impl Membership for Shrinking {
    fn next(&self, held: Option<GenerationResult>, _observer: &mut dyn Observer) -> Result<Option<Assignment>> {
        let GenerationResult { state, failed, .. } = held.unwrap_or_default();
        let mut devices = self.devices.lock().unwrap();
        devices.retain(|device| failed.iter().all(|(lost, _)| lost != device));
        self.failures.lock().unwrap().extend(failed);
        if devices.is_empty() {
            return Err(Error::Training("no device is left".into()));
        }
        let plan = Plan { world: World::new(REPLICAS, devices.clone()), ..self.plan.clone() };
        Ok(Some(Assignment { plan: Arc::new(plan), processes: None, generation: Arc::new(Undisturbed), state }))
    }

    fn complete(&self) -> Result<bool> {
        Ok(true)
    }
}

type Failures = Vec<(usize, String)>;

fn outcome<B: HostBackend>(mishap: Mishap, devices: usize) -> (Result<()>, Recorded, Failures) {
    let toy = Toy::<Autodiff<B>>::new(30, mishap, &B::open(0).unwrap());
    let mut setup = setup(REPLICAS, 2, 0.1);
    (setup.devices, setup.optim.ema_decay) = ((0..devices).collect(), 0.9);
    let experiment = plan_of(&setup, images(&Vec::from_iter(0..30), 30));
    let (recorder, failures) = (Recorder::default(), Arc::<Mutex<Failures>>::default());
    let devices = Mutex::new(setup.devices.clone());
    let membership = Shrinking { plan: experiment.plan.clone(), devices, failures: failures.clone() };
    let strategy = strategy::<B>(&experiment, Duration::from_secs(5), recorder.clone()).elastic(Box::new(membership));
    let result = fit::<B>(&toy, strategy);
    let recorded = std::mem::take(&mut *recorder.0.lock().unwrap());
    let failures = std::mem::take(&mut *failures.lock().unwrap());
    (result, recorded, failures)
}

fn last(recorded: &Recorded) -> [String; 3] {
    let state = recorded.states.last().unwrap();
    let average: &StateDict = state.average.as_ref().unwrap();
    [&state.weights, &state.optimizer, average].map(sha256)
}

pub fn others_take_over<B: HostBackend>() {
    let Some(found) = several_devices::<B>(3) else { return };
    let (result, calm, _) = outcome::<B>(Mishap::None, found);
    result.unwrap();
    for devices in (2..=found).rev() {
        let (result, recorded, failures) = outcome::<B>(Mishap::PanicOnce(ON_REPLICA_1_IN_STEP_3), devices);
        result.unwrap();
        let [(device, how)] = &failures[..] else { panic!("{failures:?}") };
        // Replica 1 is alone on its device, or on the first of two with replica 0.
        assert_eq!(*device, if devices == 3 { 1 } else { 0 });
        assert!(how.contains("replica 1 panicked at step 3: the device is gone"), "{how}");
        assert_eq!(recorded.steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(last(&recorded), last(&calm), "{devices} devices");
    }
}

pub fn the_last_one_ends_the_run<B: HostBackend>() {
    let (result, recorded, failures) = outcome::<B>(Mishap::PanicOnce(ON_REPLICA_1_IN_STEP_3), 1);
    assert_eq!(result.unwrap_err().to_string(), "no device is left");
    assert_eq!(failures.len(), 1);
    assert_eq!(recorded.steps.len(), 2);
}

pub fn numbers_that_are_not_finite_are_no_device_s_fault<B: HostBackend>() {
    let devices = devices::<B>(3).len();
    let (result, _, failures) = outcome::<B>(Mishap::LossIsNaN(ON_REPLICA_1_IN_STEP_3), devices);
    assert!(result.unwrap_err().to_string().contains("the loss is not finite on replica 1 at step 3"));
    assert!(failures.is_empty());
}

on_every_backend! {
    other_devices_take_over_the_replicas_of_one_that_fails => || others_take_over::<TestBackend>();
    a_run_ends_with_its_last_device => || the_last_one_ends_the_run::<TestBackend>();
    a_loss_that_is_no_number_ends_an_elastic_run => || numbers_that_are_not_finite_are_no_device_s_fault::<TestBackend>();
}

#[cfg(feature = "flex")]
#[test]
fn a_replica_on_flex_computes_on_a_pool_of_its_share_of_the_threads() {
    let pool = |threads, replicas| {
        burn::backend::Flex::on_threads(threads, replicas, || {
            (rayon::current_num_threads(), std::thread::current().name().map(String::from))
        })
    };
    let replica = move || [pool(5, 2), pool(2, 1), pool(1, 4)];
    let name = || Some(String::from("replica-7"));
    let thread = std::thread::Builder::new().name("replica-7".into()).spawn(replica).unwrap();
    assert_eq!(thread.join().unwrap(), [(2, name()), (2, name()), (1, name())]);
}

#[cfg(feature = "tch")]
#[test]
fn only_replicas_on_libtorch_have_teams_of_threads() {
    type Tch = burn::backend::LibTorch<f32>;
    let counts = || {
        Tch::stay_on_one_thread();
        let alone = ::tch::get_num_threads();
        [alone, Tch::on_threads(5, 2, ::tch::get_num_threads), Tch::on_threads(1, 4, ::tch::get_num_threads)]
    };
    assert_eq!(std::thread::spawn(counts).join().unwrap(), [1, 2, 1]);
}
