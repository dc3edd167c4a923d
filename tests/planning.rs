//! The planner: its predictions are those of the schedule, its choice is the best of all, and a training takes it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use burn::backend::Autodiff;
use kiln::study::planning::pipeline::{self, Work};
use kiln::study::planning::{Experiment, Layout, Measured, Planning, Room, Unit, cuts, text};
use kiln_engine::nn::initialize;
use kiln_engine::parallel::{HostBackend, Times, World, time_copy, time_units};
use kiln_training::{ModelConfig, ResNet, Stem};

use crate::small::{plan_of, setup};

mod commands;

/// Numbers between 0 and 1 that look drawn.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1u64 << 24) as f64
    }
}

/// A model of `units` units on `devices` devices, all of it drawn, with memory for everything.
fn drawn(seed: u64, units: usize, devices: usize) -> Measured {
    let mut numbers = Numbers(seed);
    let mut next = || 0.1 + numbers.next();
    let times = |_| Times { forward: next(), backward: next(), update: 0.05 * next() };
    let times: Vec<Vec<Times>> =
        (0..devices * units).map(times).collect::<Vec<_>>().chunks(units).map(<[_]>::to_vec).collect();
    let mut numbers = Numbers(seed + 1);
    let mut next = || 0.1 + numbers.next();
    let unit = |_| Unit { state: next(), gradients: next(), kept: next(), passed: next(), ..Unit::default() };
    Measured {
        units: (0..units).map(unit).collect(),
        devices,
        times: BTreeMap::from([(devices, times)]),
        in_processes: false,
        parts_update: seed % 2 == 1,
        link: 3.0,
        room: Room { each: vec![f64::INFINITY; devices], all: f64::INFINITY },
    }
}

/// Units that take `seconds` on each device, forward and backward alike, and pass on `passed` bytes.
fn even(units: usize, seconds: &[f64], passed: f64) -> Measured {
    let times = |seconds: &f64| vec![Times { forward: *seconds, backward: *seconds, update: 0.0 }; units];
    Measured {
        units: vec![Unit { state: 1.0, gradients: 1.0, kept: 1.0, passed, ..Unit::default() }; units],
        devices: seconds.len(),
        times: BTreeMap::from([(seconds.len(), seconds.iter().map(times).collect())]),
        in_processes: false,
        parts_update: false,
        link: 1.0,
        room: Room { each: vec![f64::INFINITY; seconds.len()], all: f64::INFINITY },
    }
}

fn one_replica(micro_batches: usize, uses_all: bool) -> Experiment {
    Experiment { batch_size: 1, micro_batches, replicas: Some(1), uses_all }
}

/// Identical jobs that go through machines one after the other take the sum of one job's times, and the greatest one
/// for each further job.
fn flow_shop(times: &[f64], jobs: usize) -> f64 {
    times.iter().sum::<f64>() + (jobs - 1) as f64 * times.iter().copied().fold(0.0, f64::max)
}

/// The cut whose parts begin where `bits` has a one.
fn of_bits(bits: usize, units: usize) -> Vec<Range<usize>> {
    let points = (1..units).filter(|point| bits >> (point - 1) & 1 == 1);
    let ends: Vec<usize> = std::iter::once(0).chain(points).chain([units]).collect();
    ends.windows(2).map(|ends| ends[0]..ends[1]).collect()
}

/// A step of one process, as the textbook has it: all forward passes, then all backward passes, each a flow shop whose
/// machines receive before they compute.
fn by_the_book(measured: &Measured, replicas: usize, micro_batches: usize, cut: &[Range<usize>]) -> f64 {
    let times = &measured.times[&measured.devices];
    let slowest = |stage: usize, of: &dyn Fn(&Times) -> f64| {
        let on = |device: usize| times[device][cut[stage].clone()].iter().map(of).sum::<f64>();
        (0..replicas).map(|replica| on(stage * replicas + replica)).fold(0.0, f64::max)
    };
    let over =
        |stage: usize| if stage == 0 { 0.0 } else { measured.units[cut[stage].start - 1].passed / measured.link };
    let stages = 0..cut.len();
    let forward: Vec<f64> = stages.clone().map(|it| slowest(it, &|times| times.forward) + over(it)).collect();
    let behind = |stage: usize| if stage + 1 == cut.len() { 0.0 } else { over(stage + 1) };
    let backward: Vec<f64> = stages.clone().map(|it| slowest(it, &|times| times.backward) + behind(it)).collect();
    let gradients = |stage: usize| measured.units[cut[stage].clone()].iter().map(|unit| unit.gradients).sum::<f64>();
    let end = |stage| (replicas - 1) as f64 * gradients(stage) / measured.link + slowest(stage, &|times| times.update);
    let parts = if measured.parts_update { replicas as f64 } else { 1.0 };
    let passes = match cut.len() {
        1 => micro_batches as f64 * (forward[0] + backward[0]),
        _ => flow_shop(&forward, micro_batches) + flow_shop(&backward, micro_batches),
    };
    passes + stages.map(end).fold(0.0, f64::max) / parts
}

#[test]
fn the_schedule_of_one_process_is_two_flow_shops() {
    let mut numbers = Numbers(7);
    for (stages, micro_batches) in [(1, 1), (2, 1), (2, 5), (3, 2), (5, 8), (8, 3)] {
        let work: Vec<Work> = (0..stages)
            .map(|stage| Work {
                forward: numbers.next(),
                backward: numbers.next(),
                receiving: if stage == 0 { 0.0 } else { numbers.next() },
            })
            .collect();
        let forward: Vec<f64> = work.iter().map(|it| it.forward + it.receiving).collect();
        let behind = |stage: usize| work.get(stage + 1).map_or(0.0, |next| next.receiving);
        let backward: Vec<f64> = work.iter().enumerate().map(|(stage, it)| it.backward + behind(stage)).collect();
        let expected = flow_shop(&forward, micro_batches) + flow_shop(&backward, micro_batches);
        let found = pipeline::seconds(&work, &vec![micro_batches; stages], micro_batches);
        assert!((found - expected).abs() < 1e-12, "{stages} stages, {micro_batches}: {found}, not {expected}");
    }
}

#[test]
fn the_schedule_of_several_processes_alternates() {
    let work = |forward, backward| Work { forward, backward, receiving: 0.0 };
    // Equal stages: one micro-batch through all of them, then one after the other.
    for (stages, micro_batches) in [(2, 4), (4, 4), (3, 9)] {
        let ahead: Vec<usize> = (0..stages).map(|stage| stages - stage).collect();
        let found = pipeline::seconds(&vec![work(1.0, 2.0); stages], &ahead, micro_batches);
        assert_eq!(found, (stages + micro_batches - 1) as f64 * 3.0, "{stages} stages, {micro_batches}");
    }
    // By hand: 0 computes forward until 1 and 2; 1 forward until 3, back until 4, forward until 6, back until 7; 0 goes
    // back from 4 to 7 and to 10.
    assert_eq!(pipeline::seconds(&[work(1.0, 3.0), work(2.0, 1.0)], &[2, 1], 2), 10.0);
}

#[test]
fn every_cut_is_listed_once() {
    for units in 1..10 {
        for stages in 1..=units {
            let listed = cuts(units, stages);
            let all = (0..1 << (units - 1)).map(|bits| of_bits(bits, units)).filter(|cut| cut.len() == stages);
            let mut all: Vec<_> = all.map(|cut| cut.iter().map(|part| part.end).collect::<Vec<_>>()).collect();
            all.sort();
            let ends: Vec<Vec<usize>> = listed.iter().map(|cut| cut.iter().map(|part| part.end).collect()).collect();
            assert_eq!(ends, all, "{units} units in {stages} stages");
        }
    }
    assert_eq!([cuts(10, 5).len(), cuts(18, 9).len()], [126, 24_310]);
}

/// ResNet-152 has 52 units, and 115 million cuts into eight stages.
#[test]
fn a_model_of_many_units_is_cut_well_without_comparing_all_cuts() {
    let experiment = Experiment { batch_size: 1, micro_batches: 8, replicas: Some(1), uses_all: true };
    let planning = Planning::new(&even(52, &[1.0; 8], 0.0), experiment).unwrap();
    let longest = planning.choice().layout.cut.iter().map(Range::len).max();
    assert_eq!((longest, planning.choice().layout.cut.len()), (Some(7), 8));
    assert!(planning.compared < 10_000, "{}", planning.compared);
    // A drawn model whose cuts can all be compared: they are better by a few percent at most.
    let measured = drawn(3, 40, 5);
    let found = Planning::new(&measured, Experiment { micro_batches: 4, uses_all: true, ..experiment }).unwrap();
    let layout = |cut| Layout { replicas: 1, micro_batches: 4, cut, ..Layout::default() };
    let all = cuts(40, 5).into_iter().map(|cut| measured.forecast(layout(cut), 1).step_seconds);
    let best = all.fold(f64::INFINITY, f64::min);
    assert!(found.choice().step_seconds <= 1.05 * best, "{} against {best}", found.choice().step_seconds);
}

fn seconds_of(units: &[Times]) -> f64 {
    units.iter().map(|it| it.forward + it.backward).sum()
}

/// Every way to give each device one of the replicas or more.
fn all_shares(replicas: usize, devices: usize) -> Vec<Vec<usize>> {
    if devices == 1 {
        return vec![vec![replicas]];
    }
    let with = |first: usize| {
        all_shares(replicas - first, devices - 1).into_iter().map(move |rest| [vec![first], rest].concat())
    };
    (1..=replicas + 1 - devices).flat_map(with).collect()
}

#[test]
fn the_choice_is_the_best_of_all_placements() {
    for seed in 0..20 {
        let (units, devices) = (4 + seed as usize % 5, 1 + seed as usize % 4);
        let measured = drawn(seed, units, devices);
        let experiment = Experiment { batch_size: 3, micro_batches: 4, replicas: None, uses_all: false };
        let planning = Planning::new(&measured, experiment).unwrap();
        let mut best: BTreeMap<[usize; 2], f64> = BTreeMap::new();
        for replicas in [1, 2, 4] {
            for cut in (0..1 << (units - 1)).map(|bits| of_bits(bits, units)) {
                if replicas * cut.len() <= devices {
                    let seconds = by_the_book(&measured, replicas, 4 / replicas, &cut);
                    let least = best.entry([replicas, cut.len()]).or_insert(f64::INFINITY);
                    *least = least.min(seconds);
                }
            }
        }
        let (rows, shared): (Vec<_>, Vec<_>) = planning.rows.iter().partition(|row| row.layout.shares.is_empty());
        assert_eq!(rows.len(), best.len(), "seed {seed}");
        for row in shared {
            let seconds: Vec<f64> = measured.times[&devices].iter().map(|units| seconds_of(units)).collect();
            let end =
                |shares: &[usize]| shares.iter().zip(&seconds).map(|(it, one)| *it as f64 * one).fold(0.0, f64::max);
            let least = all_shares(row.layout.replicas, devices).iter().map(|it| end(it)).fold(f64::INFINITY, f64::min);
            // Shares as equal as they can be stay where others gain less than 5 %.
            let stay = row.layout.shares == World::counts(row.layout.replicas, devices);
            let bound = if stay { least / 0.95 } else { least };
            assert!(end(&row.layout.shares) < bound + 1e-6, "seed {seed}: {row:?}, not {least}");
        }
        for row in rows {
            let expected = best[&[row.layout.replicas, row.layout.cut.len()]];
            assert!((row.step_seconds - expected).abs() < 1e-12, "seed {seed}: {row:?}, not {expected}");
            assert!((row.images_per_second - 12.0 / row.step_seconds).abs() < 1e-9);
            assert!((0.0..1.0).contains(&row.bubble), "{row:?}");
        }
        assert!(planning.rows.is_sorted_by(|one, next| one.step_seconds <= next.step_seconds));
    }
}

#[test]
fn unequal_devices_get_unequal_parts() {
    let planned = |seconds: &[f64]| {
        let planning = Planning::new(&even(9, seconds, 0.0), one_replica(8, true)).unwrap();
        planning.choice().layout.split_points()
    };
    assert_eq!(planned(&[1.0, 2.0]), [6]);
    assert_eq!(planned(&[2.0, 1.0]), [3]);
    assert_eq!(planned(&[1.0, 1.0, 1.0]), [3, 6]);
    assert_eq!(planned(&[4.0, 4.0, 1.0]), [1, 2]);
}

/// The bubble of fill and drain: of `M + S - 1` times, `S - 1` are idle.
#[test]
fn the_bubble_memory_and_traffic_are_those_of_the_textbook() {
    let forecast = |micro_batches, stages: usize, replicas| {
        let measured = even(8, &vec![1.0; stages * replicas], 5.0);
        let measured = Measured { link: f64::INFINITY, ..measured };
        let cut = (0..stages).map(|stage| stage * 8 / stages..(stage + 1) * 8 / stages).collect();
        measured.forecast(Layout { replicas, micro_batches, cut, ..Layout::default() }, 1)
    };
    for (micro_batches, stages) in [(1, 2), (4, 2), (4, 4), (8, 4)] {
        let it = forecast(micro_batches, stages, 1);
        let bubble = (stages - 1) as f64 / (micro_batches + stages - 1) as f64;
        assert!((it.bubble - bubble).abs() < 1e-12, "{micro_batches} in {stages}: {}", it.bubble);
        // Activations and their gradients, over each boundary.
        assert_eq!(it.traffic, (2 * micro_batches * (stages - 1)) as f64 * 5.0);
        let part = (8 / stages) as f64;
        let of = |received: f64| part + micro_batches as f64 * (part + received);
        assert_eq!((it.memory[0], it.memory[stages - 1]), (of(0.0), of(5.0)));
    }
    // Two replicas exchange the eight gradients, too.
    assert_eq!(forecast(4, 2, 2).traffic, 2.0 * 4.0 * 2.0 * 5.0 + 2.0 * 8.0);
    assert_eq!(forecast(4, 1, 2).traffic, 2.0 * 8.0);
    // A process for each stage holds no more than the stages behind it.
    let measured = Measured { in_processes: true, ..even(8, &[1.0, 1.0], 0.0) };
    let it = measured.forecast(Layout { replicas: 1, micro_batches: 6, cut: vec![0..4, 4..8], ..Layout::default() }, 1);
    assert_eq!(it.memory, [4.0 + 2.0 * 4.0, 4.0 + 4.0]);
    // What is computed again is there for one unit at a time.
    let mut measured = even(8, &[1.0, 1.0], 0.0);
    (measured.units[2].again, measured.units[5].again) = (7.0, 3.0);
    let it = measured.forecast(Layout { replicas: 1, micro_batches: 6, cut: vec![0..5, 5..8], ..Layout::default() }, 1);
    assert_eq!(it.memory, [5.0 + 6.0 * 5.0 + 7.0, 3.0 + 6.0 * 3.0 + 3.0]);
}

#[test]
fn processes_exchange_gradients_beside_the_last_backward_pass() {
    let step = |in_processes, micro_batches, borders: &[usize]| {
        let cut: Vec<Range<usize>> = borders.windows(2).map(|ends| ends[0]..ends[1]).collect();
        let mut measured = Measured { in_processes, ..even(3, &vec![1.0; 2 * cut.len()], 0.0) };
        // The gradients of the last unit, which are final first, take 2 s over the link, those of the others 0.25 s.
        measured.units.iter_mut().zip([0.25, 0.25, 2.0]).for_each(|(unit, gradients)| unit.gradients = gradients);
        measured.forecast(Layout { replicas: 2, micro_batches, cut, ..Layout::default() }, 1).step_seconds
    };
    // From second 1 of the backward pass the link is busy until second 3.5, which is half a second longer.
    assert_eq!(step(true, 1, &[0, 3]), 3.0 + 3.0 + 0.5);
    assert_eq!(step(true, 2, &[0, 3]), 12.0 + 0.5);
    assert_eq!(step(false, 1, &[0, 3]), 6.0 + 2.5);
    // Of two stages, the first exchanges the second half of its gradients behind its pass; the other one 2 s.
    assert_eq!(step(true, 1, &[0, 2, 3]), 6.0 + 2.0);
    // With several micro-batches the gradients of a stage are exchanged behind all of them.
    assert_eq!(step(true, 2, &[0, 2, 3]), 8.0 + 2.0);
}

#[test]
fn the_link_decides_between_replicas_and_stages() {
    let choice = |gradients: f64, passed: f64| {
        let mut measured = Measured { in_processes: true, ..even(4, &[1.0, 1.0], passed) };
        measured.units.iter_mut().for_each(|unit| unit.gradients = gradients);
        let experiment = Experiment { batch_size: 1, micro_batches: 8, replicas: None, uses_all: true };
        let planning = Planning::new(&measured, experiment).unwrap();
        let it = &planning.choice().layout;
        [it.replicas, it.cut.len()]
    };
    // Without traffic replicas have no bubble; large gradients on a slow link cost more than one.
    assert_eq!(choice(0.0, 0.0), [2, 1]);
    assert_eq!(choice(100.0, 0.01), [1, 2]);
    assert_eq!(choice(100.0, 1000.0), [2, 1]);
}

#[test]
fn a_faster_device_hosts_more_replicas_where_that_is_faster() {
    let experiment = |micro_batches| Experiment { batch_size: 1, micro_batches, replicas: None, uses_all: false };
    let choice = |seconds: &[f64], micro_batches, in_processes| {
        // What stages send takes long.
        let mut measured = Measured { in_processes, ..even(4, seconds, 1000.0) };
        measured.units.iter_mut().for_each(|unit| unit.gradients = 0.125);
        Planning::new(&measured, experiment(micro_batches)).unwrap()
    };
    // Three times 4 units of 2 s on one device, once of 6 s on the other; one sum of two devices' half a byte, over the
    // link of one byte per second.
    let planning = choice(&[1.0, 3.0], 4, false);
    assert_eq!(planning.choice().step_seconds, 3.0 * 8.0 + 0.5);
    // Three replicas, each with four units and their activations.
    assert_eq!(planning.choice().memory, [3.0 * 8.0]);
    assert_eq!(planning.choice().layout.shares, [3, 1]);
    let use_it = "--world-size 4 --accumulation-steps 1 --stages 1 --replicas-per-device 3,1";
    assert!(planning.to_string().contains("4 (3,1)") && planning.to_string().ends_with(use_it), "{planning}");
    // Two processes send half of the gradients each, twice; the last three units' while the first one is computed.
    let planning = choice(&[1.0, 3.0], 4, true);
    assert_eq!((planning.choice().step_seconds, planning.choice().traffic), (24.0 + 0.125, 2.0 * 0.5));
    // Of equals, fewer replicas come first.
    let rows = choice(&[1.0, 3.0], 8, false).rows;
    let shares: Vec<&[usize]> = rows.iter().map(|row| &row.layout.shares[..]).filter(|it| !it.is_empty()).collect();
    assert_eq!(shares, [&[3, 1][..], &[6, 2]]);
    // What is uneven by nature.
    assert_eq!(choice(&[1.0, 2.0], 3, false).choice().layout.shares, [2, 1]);
    // Nothing finer than one replica for each device, or nothing to gain.
    assert!(choice(&[1.0, 3.0], 2, false).rows.iter().all(|row| row.layout.shares.is_empty()));
    assert!(choice(&[1.0, 1.0], 8, false).rows.iter().all(|row| row.layout.shares.is_empty()));
    // A device that has no room for so many.
    let mut measured = even(4, &[1.0, 3.0], 1000.0);
    measured.room.each = vec![3.0 * 8.0 - 0.1, 8.0];
    let row = Planning::new(&measured, experiment(4)).unwrap().rows.into_iter().find(|row| row.layout.shares == [3, 1]);
    assert!(!row.unwrap().fits);
}

#[test]
fn what_does_not_fit_is_not_chosen() {
    let mut measured = even(4, &[1.0, 1.0], 0.0);
    // Four units with one micro-batch at a time are 8 bytes; two with all eight are 18.
    measured.room.each = vec![7.9; 2];
    let planning = Planning::new(&measured, one_replica(1, false)).unwrap();
    assert_eq!(planning.choice().layout.cut.len(), 2, "half of the model fits where the whole does not");
    assert!(planning.choice().fits && !planning.rows[1].fits);
    assert!(planning.to_string().contains("too large"), "{planning}");
    assert!(text::reason(&planning).contains("nothing else fits"), "{}", text::reason(&planning));
    measured.room.each = vec![1.0; 2];
    let planning = Planning::new(&measured, one_replica(1, false)).unwrap();
    assert!(text::reason(&planning).contains("no placement fits into memory"), "{}", text::reason(&planning));
    measured.room = Room { each: vec![f64::INFINITY; 2], all: 1.0 };
    assert!(!Planning::new(&measured, one_replica(1, false)).unwrap().choice().fits, "devices share their memory");
}

#[test]
fn an_uneven_number_of_devices_is_refused() {
    let experiment = Experiment { replicas: Some(2), ..one_replica(2, true) };
    let error = Planning::new(&even(4, &[1.0; 3], 0.0), experiment).unwrap_err().to_string();
    assert!(error.contains("got '3' devices for '2' replicas"), "{error}");
}

/// A unit's output is what the next one sees: `[batch, channels, height, width]` in f32.
fn times_are_of_units<B: HostBackend>() {
    let experiment = plan_of(&setup(1, 4, 0.05), 0..8);
    let config = ModelConfig { stem: Stem::Cifar, width: 4, ..ModelConfig::default() };
    let model = initialize(ResNet::<Autodiff<B>>::new(&config, 10, 0.0, &B::open(0).unwrap()), 0).unwrap();
    let devices = crate::backends::devices::<B>(2);
    let timing = time_units::<B, _>(&Arc::new(experiment.task), &Arc::new(experiment.plan), &model, &devices).unwrap();
    let side = |unit: usize| [32, 32, 16, 8, 4][unit.div_ceil(2).min(4)];
    let channels = |unit: usize| 4 * 32 / side(unit);
    let expected: Vec<usize> = (0..9).map(|unit| 4 * 4 * channels(unit) * side(unit) * side(unit)).collect();
    assert_eq!(timing.passed, expected);
    assert_eq!(timing.times.iter().map(Vec::len).collect::<Vec<_>>(), vec![10; devices.len()]);
    assert!(timing.times.iter().flatten().all(|it| it.forward > 0.0 && it.backward > 0.0 && it.update > 0.0));
    let copied = time_copy::<B>(0).unwrap();
    assert!((1e6..1e13).contains(&copied), "{copied} bytes per second");
}

on_every_backend! {
    the_times_of_a_network_are_those_of_its_units => || times_are_of_units::<TestBackend>();
}
