//! The learning rate that a run takes, as its records show it.

use crate::command::{STEPS_PER_EPOCH, Workplace, errors};

/// A run of one replica, whose epoch has eight steps of four images: every rate of the schedule that these ask for.
fn rates(place: &Workplace, run: &str, arguments: &[&str]) -> Vec<f64> {
    place.train(run, &[&["--world-size=1", "--learning-rate=0.08"], arguments].concat());
    place.run(run).rates().into_iter().map(|(_, rate)| rate).collect()
}

#[track_caller]
fn close(ours: &[f64], expected: &[f64]) {
    let near = ours.len() == expected.len() && ours.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(near, "{ours:?} and not {expected:?}");
}

#[test]
fn a_warm_up_that_is_asked_for_rises_with_one_replica_too() {
    let place = Workplace::new();
    let run = ["--epochs=1", "--schedule=constant", "--warmup-epochs=0.5"];
    let from = |share: f64| -> Vec<f64> {
        (0..8).map(|step| 0.08 * (share + (1.0 - share) * f64::from(step) / 4.0).min(1.0)).collect()
    };
    close(&rates(&place, "asked", &run), &from(0.01));
    close(&rates(&place, "share", &[&run[..], &["schedule.warmup_start=0.5"]].concat()), &from(0.5));
    let plan = place.train("plan", &[&run[..], &["--world-size=1", "--learning-rate=0.08", "--dry-run"]].concat());
    assert!(plan.contains("learning rate from 0.0008 to 0.08 in 4 warm-up steps, then constant"), "{plan}");
}

#[test]
fn a_run_from_before_the_warm_up_rose_goes_on_with_its_rates() {
    let place = Workplace::new();
    let run = ["--epochs=1", "--schedule=constant", "--warmup-epochs=0.5"];
    let again = |name: &str| rates(&place, name, &[&run[..], &["--resume"]].concat());
    rates(&place, "new", &[&run[..], &["--max-steps=2"]].concat());
    close(&again("new")[2..], &[0.0404, 0.0602, 0.08, 0.08, 0.08, 0.08]);
    rates(&place, "old", &[&run[..], &["--max-steps=2", "schedule.warmup_start=1"]].concat());
    let config = place.path("old/config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.contains("warmup_start = 1.0\n"), "{text}");
    std::fs::write(&config, text.replace("warmup_start = 1.0\n", "")).unwrap();
    close(&again("old"), &[0.08; 8]);
}

#[test]
fn one_cycle_takes_any_number_of_epochs_and_any_rise() {
    let place = Workplace::new();
    let replicas = ["--world-size=2", "--schedule=onecycle", "--epochs=1", "schedule.onecycle_rise=0.25"];
    // A quarter of four steps: the rise is over with the first.
    let rates = rates(&place, "run", &replicas);
    assert_eq!(rates.len(), STEPS_PER_EPOCH);
    assert_eq!(rates[0], 0.16);
    assert!(rates.is_sorted_by(|one, next| one > next), "{rates:?}");
    for epochs in ["1", "2", "4"] {
        let plain = ["data=synthetic", "--schedule=onecycle", "--epochs", epochs, "--dry-run", "--output-dir=plan"];
        let output = place.bare(&plain).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{epochs} epochs: {:?}", errors(&output));
    }
}

#[test]
fn a_rate_that_is_no_number_is_refused_before_it_changes_a_weight() {
    let place = Workplace::new();
    let output = place.small("run", &["--learning-rate=1e39", "--epochs=1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = errors(&output).join("\n");
    assert!(said.contains("the learning rate is not finite at step 1; no checkpoint has it"), "{said}");
}
