//! Steps that are recorded and replayed have the bits of steps that are not, and nothing of the host in them: stand-ins
//! for a CUDA graph do again what they were to record, and the optimizer has no numbers then but those on the device.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::LibTorch;
use kiln_engine::optim::OptimizerKind;
use kiln_engine::parallel::{BnStatistics, HostBackend, NewGraph, Recorded};
use kiln_engine::state::sha256;
use kiln_ops::{Graph, Precision};
use kiln_training::Stem;
use parking_lot::Mutex;

use crate::reference::run::{Experiment, Setup};
use crate::small::{narrow, plan_of, setup, train_together, train_with, try_train};
use crate::stages::{outcome, reports};

type Torch = LibTorch<f32>;
type Change = fn(&mut Setup);

/// Five batches of an epoch have a shape, the sixth has another; of two replicas the first one's is the same.
const IMAGES: usize = 23;

fn experiment(change: impl FnOnce(&mut Setup)) -> Experiment {
    let mut setup = setup(1, 4, 0.05);
    setup.optim.ema_decay = 0.9;
    change(&mut setup);
    let mut experiment = plan_of(&setup, 0..IMAGES);
    (experiment.plan.epochs, experiment.plan.last_step) = (2, 12);
    experiment
}

/// Losses, norms and validations, and a checksum of the state.
fn trained(recorded: Recorded, mut experiment: Experiment) -> (Vec<f64>, String) {
    experiment.plan.recorded = recorded;
    let recorded = train_with::<Torch>(&narrow(Stem::Cifar), experiment);
    (reports(&recorded), sha256(&outcome(recorded)))
}

static REPLAYS: AtomicUsize = AtomicUsize::new(0);

/// For tests that count them.
static COUNTING: Mutex<()> = Mutex::new(());

struct Again;

impl Graph for Again {
    fn record(&mut self, work: &mut dyn FnMut()) -> Result<(), String> {
        work();
        Ok(())
    }

    fn replay(&mut self, work: &mut dyn FnMut()) -> Result<(), String> {
        REPLAYS.fetch_add(1, Ordering::Relaxed);
        work();
        Ok(())
    }
}

/// Records, and then does nothing.
struct Idle;

impl Graph for Idle {
    fn record(&mut self, work: &mut dyn FnMut()) -> Result<(), String> {
        Again.record(work)
    }

    fn replay(&mut self, _work: &mut dyn FnMut()) -> Result<(), String> {
        Ok(())
    }
}

/// Refuses before the work.
struct Refusing;

impl Graph for Refusing {
    fn record(&mut self, _work: &mut dyn FnMut()) -> Result<(), String> {
        Err("the device is busy".into())
    }

    fn replay(&mut self, _work: &mut dyn FnMut()) -> Result<(), String> {
        unreachable!("nothing was recorded")
    }
}

const AGAIN: NewGraph = || Ok(Box::new(Again));
const IDLE: NewGraph = || Ok(Box::new(Idle));
const REFUSING: NewGraph = || Ok(Box::new(Refusing));

static MADE: AtomicUsize = AtomicUsize::new(0);

/// Of four graphs of two replicas one refuses.
const ONE_REFUSES: NewGraph = || {
    let refuses = MADE.fetch_add(1, Ordering::Relaxed) % 4 == 2;
    Ok(if refuses { Box::new(Refusing) as Box<dyn Graph> } else { Box::new(Again) })
};

/// Rates that change with every step, in two places.
fn changing(setup: &mut Setup) {
    (setup.schedule.base, setup.schedule.warmup_steps) = (0.01, 12);
    setup.optim.backbone_lr_scale = 0.3;
    setup.optim.weight_decay = 0.01;
}

#[test]
fn replayed_steps_have_the_bits_of_others() {
    if !crate::backends::is_there::<Torch>("tch") {
        return;
    }
    let _one = COUNTING.lock();
    let cases: [(&str, Change); 5] = [
        ("sgd", |_| ()),
        ("changing rates", changing),
        ("adamw", |setup| {
            setup.optim.optimizer = OptimizerKind::AdamW;
            changing(setup);
        }),
        ("adam, clipped", |setup| {
            setup.optim.optimizer = OptimizerKind::Adam;
            setup.optim.clip_grad_norm = 0.1;
        }),
        ("bf16", |setup| setup.precision = Precision::Bf16),
    ];
    for (name, change) in cases {
        REPLAYS.store(0, Ordering::Relaxed);
        let replayed = trained(Recorded::By(AGAIN), experiment(change));
        // Of ten steps of the shape the fourth is recorded in two parts, and replayed at once.
        assert_eq!(REPLAYS.load(Ordering::Relaxed), 2 * 7, "{name}");
        for (what, graph) in [("other bits", IDLE), ("refused", REFUSING)] {
            assert_eq!(trained(Recorded::By(graph), experiment(change)), replayed, "{name}, {what}");
        }
        // Rates on the device are f32, and so is the norm by which gradients are clipped. Adam soon makes much of it.
        let plain = trained(Recorded::No, experiment(change));
        let first = plain.0.iter().zip(&replayed.0).take(6);
        let off = first.map(|(one, other)| (one - other).abs() / other.abs());
        assert!(off.fold(0.0, f64::max) < 1e-4, "{name}: {plain:?} instead of {replayed:?}");
        if ["sgd", "changing rates", "bf16"].contains(&name) {
            assert_eq!(plain.1, replayed.1, "{name}");
        }
    }
}

fn of_two_replicas(setup: &mut Setup) {
    (setup.world_size, setup.devices, setup.batch_size) = (2, vec![0, 1], 2);
    setup.sync_bn = false;
    changing(setup);
}

/// What they exchange is not recorded.
#[test]
fn replayed_steps_of_replicas_have_the_bits_of_others() {
    if !crate::backends::is_there::<Torch>("tch") {
        return;
    }
    let _one = COUNTING.lock();
    let clipped: Change = |setup| {
        of_two_replicas(setup);
        setup.optim.clip_grad_norm = 0.1;
    };
    let on_one_device: Change = |setup| {
        of_two_replicas(setup);
        setup.devices = vec![0];
    };
    let cases: [(&str, BnStatistics, Change); 4] = [
        ("own statistics", BnStatistics::First, of_two_replicas),
        ("mean statistics", BnStatistics::Mean, of_two_replicas),
        ("clipped", BnStatistics::First, clipped),
        ("on one device", BnStatistics::Mean, on_one_device),
    ];
    for (name, statistics, change) in cases {
        let experiment = || {
            let mut experiment = experiment(change);
            (experiment.plan.bn_statistics, experiment.plan.threads) = (statistics, 1);
            experiment
        };
        REPLAYS.store(0, Ordering::Relaxed);
        let replayed = trained(Recorded::By(AGAIN), experiment());
        assert_eq!(REPLAYS.load(Ordering::Relaxed), 2 * 2 * 7, "{name}");
        for (what, graph) in [("other bits", IDLE), ("refused", REFUSING), ("refused by one", ONE_REFUSES)] {
            assert_eq!(trained(Recorded::By(graph), experiment()), replayed, "{name}, {what}");
        }
        let plain = trained(Recorded::No, experiment());
        assert!(name == "clipped" || plain.1 == replayed.1, "{name}");
    }
}

#[cfg(all(feature = "gloo", target_os = "linux"))]
#[test]
fn processes_replay_the_bits_of_one() {
    use kiln_engine::parallel::World;

    let _one = COUNTING.lock();
    let trained = |world: World, others| {
        let mut experiment = experiment(of_two_replicas);
        (experiment.plan.recorded, experiment.plan.threads) = (Recorded::By(AGAIN), 1);
        experiment.plan.world = world;
        train_together::<Torch>(&narrow(Stem::Cifar), experiment, others).unwrap()
    };
    let world = |rank| World::staged([2, 1], rank, vec![1; 2], vec![0]);
    let others = crate::engines::connected(&world(0), true).into_iter().enumerate();
    let mut done: Vec<_> = std::thread::scope(|scope| {
        let start = |(rank, others)| scope.spawn(move || trained(world(rank), Some(others)));
        let threads: Vec<_> = others.map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let alone = trained(World::new(2, vec![0, 1]), None);
    assert_eq!(sha256(&outcome(done.swap_remove(0))), sha256(&outcome(alone)));
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    if !crate::backends::is_there::<Torch>("tch") {
        return;
    }
    let refusal = |graph: NewGraph, change: Change| {
        let mut experiment = experiment(change);
        experiment.plan.recorded = Recorded::By(graph);
        try_train::<Torch>(&narrow(Stem::Cifar), experiment).err().expect("it is refused").to_string()
    };
    let cases: [Change; 4] = [
        |setup| setup.precision = Precision::F16,
        |setup| setup.optim.optimizer = OptimizerKind::Lars,
        |setup| setup.accumulation_steps = 2,
        |setup| (setup.world_size, setup.devices, setup.sync_bn) = (2, vec![0, 1], true),
    ];
    for change in cases {
        let error = refusal(AGAIN, change);
        assert!(error.contains("one replica or --no-sync-bn") && error.contains("--cuda-graph off"), "{error}");
    }
    let error = refusal(|| Err("there is no CUDA device".into()), |_| ());
    assert!(error.contains("there is no CUDA device; train with --cuda-graph off"), "{error}");
    assert_eq!(<Torch as HostBackend>::graph(0).err().as_deref(), Some("LibTorch finds no CUDA device"));
}

/// Of the LibTorch that this program runs with, if that one is for CUDA.
#[cfg(target_os = "linux")]
#[test]
fn libtorchs_library_has_the_graphs_members() {
    <Torch as HostBackend>::open(0).unwrap();
    let loaded = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = loaded.split_whitespace().find(|word| word.ends_with("/libtorch_cpu.so")).unwrap();
    let library = std::path::Path::new(ours).with_file_name("libtorch_cuda.so");
    if !library.exists() {
        return crate::skipped::skip("LibTorch is for processors only");
    }
    let Ok(shown) = std::process::Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output() else {
        return crate::skipped::skip("nm is not installed");
    };
    let symbols = String::from_utf8(shown.stdout).unwrap();
    let symbols: std::collections::HashSet<&str> =
        symbols.lines().filter_map(|line| line.split(' ').next_back()).collect();
    for symbol in kiln_ops::GRAPH_SYMBOLS {
        assert!(symbols.contains(symbol.to_str().unwrap()), "{symbol:?} is not in {}", library.display());
    }
}
