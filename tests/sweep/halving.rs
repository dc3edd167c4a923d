//! Runs that are stopped early because others are better, and several runs at a time.

use kiln::metrics::Record;
use kiln::study::halving::{best, rungs};

use super::*;

#[test]
fn each_rung_has_a_part_of_the_points_and_a_multiple_of_the_epochs() {
    let plan = |points, epochs, factor| {
        let rungs = rungs(points, epochs, factor);
        rungs.iter().map(|rung| (rung.points, rung.ends_after(epochs))).collect::<Vec<_>>()
    };
    assert_eq!(plan(9, 9, Some(3)), [(9, 1), (3, 3), (1, 9)]);
    assert_eq!(plan(16, 50, Some(4)), [(16, 4), (4, 13), (1, 50)]);
    assert_eq!(plan(20, 90, Some(3)), [(20, 10), (6, 30), (2, 90)]);
    assert_eq!(plan(9, 2, Some(3)), [(9, 2)], "no run is shorter than an epoch");
    assert_eq!(plan(9, 4, Some(3)), [(9, 2), (3, 4)]);
    assert_eq!(plan(2, 9, Some(3)), [(2, 9)], "one of them would have to go on");
    assert_eq!(plan(9, 9, None), [(9, 9)]);
}

#[test]
fn the_best_go_on_and_of_equal_ones_the_first() {
    assert_eq!(best(&[Some(0.5), Some(0.7), None, Some(0.6)], 2), [1, 3]);
    assert_eq!(best(&[Some(0.5), Some(0.5), Some(0.5)], 2), [0, 1]);
    assert_eq!(best(&[None, Some(0.1), None], 2), [1], "one that failed does not go on");
    assert_eq!(best(&[], 1), [0_usize; 0]);
}

/// The best accuracy of a run in its first epochs.
fn accuracy(place: &Workplace, run: &str, epochs: usize) -> f64 {
    let value = |record| match record {
        Record::Epoch(epoch) if epoch.epoch <= epochs => Some(epoch.val_accuracy),
        _ => None,
    };
    place.run(run).records().into_iter().filter_map(value).fold(0.0, f64::max)
}

#[test]
fn a_survivor_ends_as_if_it_had_never_paused() {
    let place = Workplace::new();
    let (grid, length) = (["run.seed=1,2,3,4", "--halving=2"], ["--epochs=4", "--warmup-epochs=1"]);
    let text = succeeded(&sweep(&place, "grid", &grid, &length).output().unwrap());
    let mut left: Vec<String> = (1..=4).map(|seed| format!("grid/seed={seed}")).collect();
    for (epochs, kept) in [(1, 2), (2, 1)] {
        left.sort_by(|a, b| accuracy(&place, b, epochs).total_cmp(&accuracy(&place, a, epochs)));
        for stopped in left.split_off(kept) {
            assert_eq!(place.run(&stopped).latest_step(), epochs * STEPS_PER_EPOCH, "{stopped}: {text}");
        }
        left.sort();
    }
    place.train(
        "calm",
        &[&[format!("--seed={}", left[0].trim_start_matches("grid/seed=")).as_str()], &length[..]].concat(),
    );
    place.run(&left[0]).equals(&place.run("calm"), 4);
    assert_eq!(text.matches("stopped after epoch 1").count(), 2, "{text}");
    assert_eq!(text.matches("stopped after epoch 2").count(), 1, "{text}");

    let before = written(&place, &left[0]);
    let again = succeeded(&sweep(&place, "grid", &grid, &length).output().unwrap());
    assert_eq!(again.matches("is complete").count(), 4 + 2 + 1, "{again}");
    assert_eq!(written(&place, &left[0]), before, "the same decisions, from the same records");

    succeeded(&sweep(&place, "grid", &grid[..1], &length).output().unwrap());
    for seed in 1..=4 {
        assert_eq!(
            place.run(&format!("grid/seed={seed}")).epochs().len(),
            4,
            "without halving all are trained to the end"
        );
    }
}

#[test]
fn several_runs_at_a_time_save_at_a_signal_and_end_as_one_at_a_time() {
    let place = Workplace::new();
    let (grid, length) = (["run.seed=1,2,3", "--jobs=2"], ["--epochs=16", "--checkpoint-every=1epochs"]);
    let mut child = started(&place, sweep(&place, "grid", &grid, &length), "grid/seed=1", 6);
    until("the second run is under way", || place.run("grid/seed=2").has_checkpoint());
    assert_eq!(children(&child).len(), 2);
    assert!(!place.path("grid/seed=3").exists());
    signal(&child, "TERM");
    assert_eq!(wait(&mut child), Some(143));
    for seed in ["grid/seed=1", "grid/seed=2"] {
        assert_eq!(place.run(seed).latest_step(), place.run(seed).steps().len(), "{seed}: saved after the last step");
    }
    let text = succeeded(&sweep(&place, "grid", &grid, &length).output().unwrap());
    assert!(text.contains("end 3/3     seed=3  "), "{text}");
    for seed in ["seed=1", "seed=2", "seed=3"] {
        place.train(seed, &[&[format!("--{seed}").as_str()], &length[..]].concat());
        place.run(&format!("grid/{seed}")).equals(&place.run(seed), 16);
    }
}

#[test]
fn runs_at_a_time_divide_devices_and_threads() {
    let place = Workplace::new();
    let (grid, arguments) =
        (["run.seed=1,2", "--jobs=2", "--gpu-ids=0,1"], ["--epochs=1", "--world-size=2", "--threads=4"]);
    let text = succeeded(&sweep(&place, "grid", &grid, &arguments).output().unwrap());
    let setting = |seed: usize, key: &str| {
        let config = std::fs::read_to_string(place.path(&format!("grid/seed={seed}/config.toml"))).unwrap();
        config.parse::<toml::Table>().unwrap()[key.split('.').next().unwrap()][key.split('.').nth(1).unwrap()]
            .to_string()
    };
    let mut devices = [1, 2].map(|seed| setting(seed, "parallel.gpu_ids"));
    devices.sort();
    assert_eq!(devices, ["[0]", "[1]"], "{text}");
    assert_eq!([1, 2].map(|seed| setting(seed, "run.threads")), ["2", "2"]);
    let twice = sweep(&place, "other", &grid, &["--gpu-ids=0"]).output().unwrap();
    assert_eq!((twice.status.code(), errors(&twice).len()), (Some(2), 1), "{:?}", errors(&twice));
}
