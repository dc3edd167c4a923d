//! How many kernels batch-norm on CubeCL launches, by wgpu's own log: below CubeCL, so that it
//! does not matter who asks. A device spends microseconds on each, however small it is.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::Wgpu;
use burn::tensor::backend::Backend;
use kiln_engine::HostBackend;
use kiln_ops::statistics::{Combine, Direction, Payload, StatisticsGroup, Synchronized};
use kiln_ops::{BatchNormOps, Epilogue, PrecisionKind, ReluState};
use log::{LevelFilter, Log, Metadata, Record};

use super::{noise, tensor};
use crate::backends::computes_in;

type Device = Wgpu<f32, i32>;

/// Counts the launches that wgpu tells of.
struct Listener(AtomicUsize);

static LISTENER: Listener = Listener(AtomicUsize::new(0));

impl Log for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("wgpu_core")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) && record.args().to_string().starts_with("ComputePass::dispatch") {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

/// The result of `work`, and its launches.
fn counted<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let device = Device::open(0).unwrap();
    let so_far = || {
        Device::sync(&device).unwrap();
        LISTENER.0.load(Ordering::Relaxed)
    };
    let before = so_far();
    let done = work();
    (done, so_far() - before)
}

/// A group of one, whose statistics are handed over on the device.
struct Alone;

impl StatisticsGroup for Alone {
    fn gather(&self, _: usize, _: Direction, _: Vec<f64>, _: Combine) -> Arc<Vec<Vec<f64>>> {
        unreachable!("statistics stay on the device")
    }

    fn meet(
        &self,
        _: usize,
        _: Direction,
        part: Payload,
        combine: &dyn Fn(Vec<Payload>) -> Payload,
    ) -> Option<Payload> {
        Some(combine(vec![part]))
    }
}

/// Launches of the forward and of the backward pass of a batch-norm.
fn norm(precision: PrecisionKind, shortcut: Option<bool>, is_shared: bool) -> [usize; 2] {
    // As a convolution leaves them.
    let images = |seed| tensor::<Device, 4>(&noise(4 * 64 * 16, seed), [4, 8, 8, 16]).cast(precision.dtype());
    let [x, other, gradient] = [1, 2, 3].map(|seed| images(seed).permute([0, 3, 1, 2]).into_primitive().tensor());
    let [weight, bias] = [4, 5].map(|seed| tensor::<Device, 1>(&noise(16, seed), [16]).into_primitive().tensor());
    let group = Synchronized { group: Arc::new(Alone), layer: 0, samples: [4].into(), replica: 0 };
    let epilogue = match shortcut {
        None => Epilogue::Identity,
        Some(false) => Epilogue::Relu,
        Some(true) => Epilogue::AddRelu(other),
    };
    let sync = is_shared.then_some(&group);
    let forward = || Device::bn_train(x.clone(), weight.clone(), bias.clone(), 1e-5, sync, epilogue.clone());
    let (done, launches) = counted(forward);
    let mask = (shortcut == Some(false)).then(|| [done.scale.unwrap(), bias.clone()]);
    let relu = shortcut.map(|_| ReluState { output: done.output, mask });
    let statistics = [done.mean, done.inv_std];
    let share = 1.0 / done.count;
    let backward =
        || Device::bn_gradients(gradient, x.clone(), weight.clone(), statistics, relu.as_ref(), |own| (own, share));
    [launches, counted(backward).1]
}

/// Alone and in a group, without anything behind it, with ReLU, and with a shortcut and ReLU.
fn norms(precision: PrecisionKind) -> [[[usize; 2]; 3]; 2] {
    [false, true].map(|is_shared| [None, Some(false), Some(true)].map(|shortcut| norm(precision, shortcut, is_shared)))
}

#[test]
#[ignore = "not a test: the process whose launches are counted"]
fn the_process_whose_launches_are_counted() {
    let Ok(case) = std::env::var(COUNTED) else { return };
    // Before anything else uses the device.
    Device::open(0).unwrap();
    log::set_logger(&LISTENER).unwrap();
    log::set_max_level(LevelFilter::Trace);
    let found = match case.as_str() {
        "f32" => format!("{:?}", norms(PrecisionKind::F32)),
        _ => format!("{:?}", norms(PrecisionKind::F16)),
    };
    println!("\n{COUNTED}{found}");
}

/// Names the case to a process, and begins the line in which it answers.
const COUNTED: &str = "KILN_TEST_LAUNCHES";

/// What a process of its own counts.
fn found(case: &str) -> String {
    let name = concat!(module_path!(), "::the_process_whose_launches_are_counted").split_once("::").unwrap().1;
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args([name, "--exact", "--ignored", "--nocapture"]).stdin(Stdio::null()).env(COUNTED, case);
    let output = process.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said.lines().find_map(|line| line.strip_prefix(COUNTED)).unwrap().to_owned()
}

fn batch_norm_takes_three_kernels_each_way() {
    // The factors follow from the statistics of all replicas.
    let expected = format!("{:?}", [[[3, 3]; 3], [[4, 3]; 3]]);
    assert_eq!(found("f32"), expected);
    if computes_in::<Device>(PrecisionKind::F16) {
        assert_eq!(found("f16"), expected);
    }
}

on_backend! {
    "wgpu" wgpu Device:
    batch_norm_is_three_kernels_each_way => batch_norm_takes_three_kernels_each_way;
}
