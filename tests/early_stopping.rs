//! A run that gets no better ends, with everything saved, and stays ended.

use kiln::metrics::Record;

use crate::command::{STEPS_PER_EPOCH, Workplace, errors};

/// The accuracy of each validation of a run.
fn accuracies(place: &Workplace, run: &str) -> Vec<f64> {
    let accuracy = |record| if let Record::Epoch(epoch) = record { Some(epoch.val_accuracy) } else { None };
    place.run(run).records().into_iter().filter_map(accuracy).collect()
}

/// The epochs of a run, and in which of them the validation was better than ever.
fn epochs(place: &Workplace, run: &str) -> (usize, usize) {
    let (mut count, mut best) = (0, (0, f64::MIN));
    for accuracy in accuracies(place, run) {
        count += 1;
        if accuracy > best.1 {
            best = (count, accuracy);
        }
    }
    (count, best.0)
}

#[test]
fn a_run_ends_after_so_many_epochs_without_a_better_validation() {
    let place = Workplace::new();
    // A rate that changes nothing: the first validation is the best.
    let arguments = ["--epochs=20", "--early-stopping=2", "--learning-rate=1e-12"];
    let output = place.train("run", &arguments);
    assert_eq!(epochs(&place, "run"), (3, 1));
    assert!(output.contains("stopped early: no better validation in 2 epochs"), "{output}");
    assert_eq!(place.run("run").latest_step(), 3 * STEPS_PER_EPOCH);
    let again = place.train("run", &[&arguments[..], &["--resume"]].concat());
    assert!(again.contains("the run is complete") && again.contains("--early-stopping"), "{again}");
    assert_eq!(epochs(&place, "run").0, 3, "nothing was trained");
    place.train("run", &["--epochs=20", "--early-stopping=4", "--learning-rate=1e-12", "--resume"]);
    assert_eq!(epochs(&place, "run"), (5, 1), "more patience lets it go on");
}

#[test]
fn a_plateau_halves_the_rate_after_validations_that_are_no_better_in_a_resumed_run_too() {
    let place = Workplace::new();
    let arguments = ["--epochs=9", "--schedule=plateau", "schedule.patience_epochs=0", "schedule.gamma=0.5"];
    let arguments = [&arguments[..], &["--optimizer=rmsprop", "--learning-rate=1e-3"]].concat();
    let output = place.train("calm", &arguments);
    let plan = "then x 0.5 when validations are no better than the best one for more than 0 in a row";
    assert!(output.contains(plan), "{output}");
    let (mut rate, mut best) = (2e-3, f64::MIN);
    let mut expected = Vec::new();
    for accuracy in accuracies(&place, "calm") {
        expected.extend([rate; STEPS_PER_EPOCH]);
        rate *= if accuracy > best * 1.0001 { 1.0 } else { 0.5 };
        best = best.max(accuracy);
    }
    let rates = |run: &str| place.run(run).rates().into_iter().map(|(_, rate)| rate).collect::<Vec<_>>();
    assert_eq!(rates("calm"), expected);
    assert!(rate < 2e-3 / 4.0, "it was halved again and again: {rate}");
    // Inside an epoch, at its end, on other devices.
    for (steps, device) in
        [("--max-steps=10", "--gpu-ids=0"), ("--max-steps=16", "--gpu-ids=0,1"), ("--max-steps=23", "--gpu-ids=1")]
    {
        place.train("cut", &[&arguments[..], &[steps, device, "--resume=auto"]].concat());
    }
    place.train("cut", &[&arguments[..], &["--resume"]].concat());
    assert_eq!(rates("cut"), expected);
    place.run("cut").equals(&place.run("calm"), 9);
    let refused = place.small("cut", &["--epochs=10", "--optimizer=adam", "--resume"]).output().unwrap();
    assert!(errors(&refused)[0].contains("optim.optimizer: saved \"rmsprop\", now \"adam\""), "{:?}", errors(&refused));
}

#[test]
fn a_better_validation_counts_anew_and_the_best_ones_are_kept() {
    let place = Workplace::new();
    let learns = ["--learning-rate=0.005", "--width=8", "data.train_size=256", "data.val_size=64"];
    let keeps = ["--epochs=12", "--early-stopping=3", "--keep-best=2", "--keep-last=1"];
    place.train("run", &[learns, keeps].concat());
    let (count, best) = epochs(&place, "run");
    assert!(best > 1, "a run that learns");
    assert!(count == best + 3 || count == 12, "{count} epochs, the best was {best}");
    let kept = std::fs::read_dir(place.run("run").path().join("checkpoints")).unwrap();
    let steps = kept.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("step-")).count();
    let mut ranked = accuracies(&place, "run");
    let last = ranked[count - 1];
    ranked.sort_by(|left, right| right.total_cmp(left));
    // Of ten classes.
    assert!(ranked[0] > 0.25, "a run that learns, whatever the rounding: {ranked:?}");
    // The rounding of the processor decides whether the last one is among the best.
    assert!(steps == 3 || (steps == 2 && last >= ranked[1]), "the last one and the two best of {ranked:?}: {steps}");
}
