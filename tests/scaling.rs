//! The scaling analysis: its numbers are those of the measurements, and its models are no surer than these allow.

mod browser;
mod command;
mod fit;
mod measurements;
mod pages;

use std::collections::BTreeMap;

use kiln::study::scaling::{Analysis, Measurement, Mode};

/// A measurement of three steps around `seconds`.
fn measured(mode: Mode, replicas: usize, processes: usize, seconds: f64) -> Measurement {
    Measurement {
        mode,
        replicas,
        processes,
        devices_shared: false,
        steps: 3,
        step_seconds: vec![1.1 * seconds, 0.9 * seconds, seconds],
        images_per_step: if mode == Mode::Weak { 32 * replicas } else { 256 },
        exposed_communication: 0.02 * seconds * (replicas as f64).log2(),
        memory_bytes: (replicas as u64) << 30,
    }
}

fn analysed(measurements: &[Measurement]) -> Analysis {
    Analysis::new(measurements.to_vec(), BTreeMap::from([("device".into(), "a <script>\"&".into())])).unwrap()
}

/// Both modes, one and two processes, some of it on shared devices.
fn varied() -> Vec<Measurement> {
    let mut all = Vec::new();
    for (replicas, weak, strong) in [(1, 0.1923, 0.8012), (2, 0.2017, 0.4311), (4, 0.2144, 0.2402), (8, 0.2229, 0.1487)]
    {
        all.push(measured(Mode::Weak, replicas, 1, weak));
        all.push(measured(Mode::Strong, replicas, 1, strong));
        if replicas > 1 {
            all.push(measured(Mode::Weak, replicas, 2, 1.07 * weak));
        }
    }
    all
}
