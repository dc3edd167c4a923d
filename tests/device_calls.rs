//! What a training step asks of a device, by wgpu's own log: below CubeCL, so that it does not matter who asks.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::backend::{Autodiff, Wgpu};
use burn::tensor::Tensor;
use kiln_data::{ImageSet, Normalization};
use kiln_engine::nn::initialize;
use kiln_engine::parallel::{DataParallel, HostBackend, Observer, StartingPoint, StepReport, TrainingState, Write};
use kiln_ops::Precision;
use kiln_system::Result;
use kiln_training::{ModelConfig, ResNet, Stem};
use log::{LevelFilter, Log, Metadata, Record};
use serde::{Deserialize, Serialize};

use crate::reference::run::{Experiment, plan};
use crate::toy::setup;

/// Images of a replica in a step.
const SHARE: usize = 4;
/// Height and width of an image.
const SIDE: usize = 32;

/// A run whose calls are counted, in a process of its own.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Case {
    stem: Stem,
    precision: Precision,
    world: usize,
    /// What is added to each step.
    planted: Planted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Planted {
    Nothing,
    Write,
    Read,
}

/// How often each of these happened.
type Calls = [usize; 4];
const LAUNCHES: usize = 0;
/// With the constants of kernels.
const WRITES: usize = 1;
const READS: usize = 2;
const BYTES_READ: usize = 3;

/// Counts what wgpu says that it does.
struct Listener(Mutex<Calls>);

static LISTENER: Listener = Listener(Mutex::new([0; 4]));

impl Log for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("wgpu_core")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let (said, mut calls) = (record.args().to_string(), self.0.lock().unwrap());
        if said.starts_with("ComputePass::dispatch") {
            calls[LAUNCHES] += 1;
        } else if said == "Queue::write_buffer" {
            calls[WRITES] += 1;
        } else if said.starts_with("Buffer::map_async") {
            calls[READS] += 1;
        } else if said.starts_with("CommandEncoder::copy_buffer_to_buffer") {
            let digits = said.rsplit_once("Some(").and_then(|(_, rest)| rest.split_once(')')).unwrap().0;
            calls[BYTES_READ] += digits.parse::<usize>().unwrap();
        }
    }

    fn flush(&self) {}
}

/// Does what is planted at each step.
#[derive(Clone)]
struct Planter(Planted);

impl Observer for Planter {
    fn step(&mut self, _: &StepReport) -> Result<()> {
        if self.0 != Planted::Nothing {
            let value = Tensor::<Wgpu, 1>::from_floats([1.0], &Default::default());
            if self.0 == Planted::Read {
                drop(value.into_data());
            }
        }
        Ok(())
    }
    fn checkpoint(&mut self, _: TrainingState) -> Result<Write> {
        Ok(Box::new(|| Ok(())))
    }
}

impl Case {
    /// Trains for so many steps; the calls until the end.
    fn train(&self, steps: usize) -> Calls {
        let count = steps * SHARE * self.world;
        let pixels = (0..count * 3 * SIDE * SIDE).map(|at| (at * 31 % 251) as u8).collect();
        let labels = (0..count).map(|at| (at % 2) as u32).collect();
        let images = ImageSet::new(pixels, labels, vec!["a".into(), "b".into()], [SIDE; 2]).unwrap();
        let mut setup = setup(self.world, SHARE, 0.1);
        (setup.devices, setup.precision) = (vec![0], self.precision);
        let Experiment { mut plan, task } = plan(&setup, images, Normalization { mean: [0.5; 3], std: [0.5; 3] });
        plan.check_every = 0;
        let config = ModelConfig { stem: self.stem, width: 8, ..ModelConfig::default() };
        let model = ResNet::<Autodiff<Wgpu>>::new(&config, 2, 0.0, &Wgpu::open(0).unwrap());
        let (start, limit) = (StartingPoint::default(), Duration::from_secs(60));
        let strategy =
            DataParallel::<Wgpu, _>::new(Arc::new(task), Arc::new(plan), start, limit, Box::new(Planter(self.planted)));
        kiln_engine::train(initialize(model, 0).unwrap(), strategy).unwrap();
        *LISTENER.0.lock().unwrap()
    }

    /// The calls of a step, counted by another process.
    fn calls(self) -> Calls {
        let name = concat!(module_path!(), "::the_process_whose_calls_are_counted").split_once("::").unwrap().1;
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args([name, "--exact", "--ignored", "--nocapture"]).stdin(Stdio::null());
        process.env(COUNTED, serde_json::to_string(&self).unwrap());
        let output = process.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let output = String::from_utf8(output.stdout).unwrap();
        let counted = output.lines().find_map(|line| line.strip_prefix(COUNTED)).unwrap();
        serde_json::from_str(counted).unwrap()
    }
}

/// Names the case to a process, and begins the line in which it answers.
const COUNTED: &str = "KILN_TEST_DEVICE_CALLS";

#[test]
#[ignore = "not a test: the process whose calls are counted"]
fn the_process_whose_calls_are_counted() {
    let Ok(case) = std::env::var(COUNTED) else { return };
    let case: Case = serde_json::from_str(&case).unwrap();
    log::set_logger(&LISTENER).unwrap();
    log::set_max_level(LevelFilter::Trace);
    // The first run compiles and checks kernels; what begins and ends a run is the same in the two others.
    let [first, short, long] = [2, 2, 5].map(|steps| case.train(steps));
    let calls: Calls = std::array::from_fn(|i| {
        let of_three = (long[i] - short[i]) - (short[i] - first[i]);
        assert_eq!(of_three % 3, 0, "the same in each step: {first:?}, {short:?}, {long:?}");
        of_three / 3
    });
    println!("\n{COUNTED}{}", serde_json::to_string(&calls).unwrap());
}

/// Each replica sends its pixels, their areas, what normalises them and its labels; its outcome comes back in one copy.
fn only_the_outcome_leaves(calls: Calls, world: usize) -> bool {
    calls[READS] == world && calls[BYTES_READ] <= 64 * world && calls[WRITES] <= calls[LAUNCHES] + 4 * world
}

fn steps_stay_on_the_device(stem: Stem, precision: Precision) {
    let of = |world| Case { stem, precision, world, planted: Planted::Nothing }.calls();
    let counted = [1, 2, 4].map(|world| (world, of(world)));
    println!("{stem:?}, {precision:?}, replicas and launches, writes, reads, bytes read: {counted:?}");
    assert!(counted.iter().all(|(world, calls)| only_the_outcome_leaves(*calls, *world)), "{counted:?}");
}

/// The counts see a value that somebody else writes or reads.
fn what_is_planted_is_found() {
    for (planted, differs) in [(Planted::Write, WRITES), (Planted::Read, READS)] {
        let of = |planted| Case { stem: Stem::Cifar, precision: Precision::F32, world: 1, planted }.calls();
        let (calls, with_more) = (of(Planted::Nothing), of(planted));
        println!("{planted:?}: {calls:?}, {with_more:?}");
        assert_eq!(with_more[differs], calls[differs] + 1, "{calls:?}, {with_more:?}");
        assert!(!only_the_outcome_leaves(with_more, 1), "{with_more:?}");
    }
}

on_backend! {
    "wgpu" wgpu Wgpu:
    only_the_outcome_of_a_step_leaves_the_device => || steps_stay_on_the_device(Stem::Cifar, Precision::F32);
    only_the_outcome_leaves_it_with_a_large_stem => || steps_stay_on_the_device(Stem::Imagenet, Precision::F32);
    only_the_outcome_leaves_it_in_f16 => || steps_stay_on_the_device(Stem::Cifar, Precision::F16);
    a_planted_write_or_read_is_counted => what_is_planted_is_found;
}
