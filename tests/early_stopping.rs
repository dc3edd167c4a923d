//! A run that gets no better ends, with everything saved, and stays ended.

use kiln::metrics::Record;

use crate::command::{STEPS_PER_EPOCH, Workplace};

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
