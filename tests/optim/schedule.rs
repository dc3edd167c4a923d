//! The learning rate as a function of the step, and the loss scale of f16: numbers without tensors.

use kiln_engine::optim::{
    CountedFrom, LossScale, LrScaling, Plateau, Schedule, ScheduleConfig, ScheduleInterval, ScheduleKind, WarmupShape,
};
use serde_json::{Value, json};

use crate::python::ask;

fn schedule(kind: ScheduleKind, config: ScheduleConfig) -> Schedule {
    Schedule::new(&ScheduleConfig { kind, ..config }, 0.1, 4, 2, [10, 20])
}

#[test]
fn the_peak_is_scaled_by_replicas_and_on_request_by_accumulation() {
    let peak = |lr_scaling, scale_accumulation| {
        let config = ScheduleConfig { lr_scaling, scale_accumulation, ..ScheduleConfig::default() };
        schedule(ScheduleKind::Cosine, config).peak
    };
    assert_eq!(peak(LrScaling::Linear, false), 0.4);
    assert_eq!(peak(LrScaling::Linear, true), 0.8);
    assert_eq!(peak(LrScaling::Sqrt, false), 0.2);
    assert_eq!(peak(LrScaling::None, true), 0.1);
}

#[test]
fn warm_up_rises_in_even_steps_from_the_unscaled_rate_to_the_peak() {
    let warm = schedule(ScheduleKind::Cosine, ScheduleConfig { warmup_epochs: 2.5, ..ScheduleConfig::default() });
    assert_eq!(warm.warmup_steps, 50);
    assert_eq!(warm.at(0), 0.1);
    assert!((warm.at(25) - 0.25).abs() < 1e-12);
    assert_eq!(warm.at(50), 0.4);
    let config = ScheduleConfig { warmup_epochs: 2.5, warmup_start: 0.01, ..ScheduleConfig::default() };
    let warm = schedule(ScheduleKind::Cosine, config);
    assert!((warm.at(0) - 0.004).abs() < 1e-12 && (warm.at(25) - 0.202).abs() < 1e-12);
    assert_eq!(warm.at(50), 0.4);
}

#[test]
fn after_the_warm_up_each_shape_follows_its_formula() {
    let config = ScheduleConfig { warmup_epochs: 0.0, step_epochs: 3, final_lr: 0.04, ..ScheduleConfig::default() };
    let at = |kind, step| schedule(kind, config.clone()).at(step);
    assert!((at(ScheduleKind::Cosine, 100) - 0.22).abs() < 1e-12);
    assert!((at(ScheduleKind::Cosine, 200) - 0.04).abs() < 1e-12);
    assert!((at(ScheduleKind::Linear, 50) - 0.31).abs() < 1e-12);
    assert!((at(ScheduleKind::Exponential, 100) - 0.4 * 0.1_f64.sqrt()).abs() < 1e-12);
    assert_eq!(at(ScheduleKind::Constant, 199), 0.4);
    assert_eq!(at(ScheduleKind::Step, 59), 0.4);
    assert!((at(ScheduleKind::Step, 60) - 0.04).abs() < 1e-12);
    assert!((at(ScheduleKind::Step, 120) - 0.004).abs() < 1e-12);
}

#[test]
fn a_shape_begins_where_the_warm_up_ends_and_is_done_with_the_run() {
    let warm = |kind| {
        let config =
            ScheduleConfig { warmup_epochs: 5.0, restart_epochs: 1, final_lr: 0.04, ..ScheduleConfig::default() };
        schedule(kind, config)
    };
    for kind in [ScheduleKind::Cosine, ScheduleKind::Linear] {
        assert_eq!([100, 150, 200].map(|step| (warm(kind).at(step) * 1e9).round()), [4e8, 2.2e8, 4e7], "{kind:?}");
    }
    assert!((warm(ScheduleKind::Exponential).at(150) - 0.4 * 0.1_f64.sqrt()).abs() < 1e-12);
    // Periods of 20 and 40 steps.
    let restarts = [100, 110, 119, 120, 140, 160].map(|step| warm(ScheduleKind::Restarts).at(step));
    assert_eq!([restarts[0], restarts[3], restarts[5]], [0.4; 3]);
    assert!((restarts[1] - 0.22).abs() < 1e-12 && restarts[2] < 0.05 && (restarts[4] - 0.22).abs() < 1e-12);
    let whole = Schedule { warmup_steps: 200, ..warm(ScheduleKind::Linear) };
    assert_eq!(whole.at(200), 0.4, "a run that is all warm-up");
}

/// A rate of 0.08 and two epochs of warm-up from a hundredth of it: the rate of each of six epochs by torch 2.9.0, as
/// torchvision composes `LinearLR` or `ConstantLR` and `StepLR(2, 0.1)`, and by timm 1.0.31.
#[test]
fn a_shape_counts_from_the_end_of_the_warm_up_or_from_the_start() {
    let close = |counted_from, warmup_shape, expected: [f64; 6]| {
        let config = ScheduleConfig {
            kind: ScheduleKind::Step,
            step_epochs: 2,
            warmup_epochs: 2.0,
            warmup_start: 0.01,
            warmup_shape,
            counted_from,
            interval: ScheduleInterval::Epoch,
            ..ScheduleConfig::default()
        };
        let schedule = Schedule::new(&config, 0.08, 1, 1, [6, 4]);
        for step in 0..24 {
            assert!((schedule.at(step) - expected[step / 4]).abs() < 1e-12, "{counted_from:?} in step {step}");
        }
    };
    close(CountedFrom::Warmup, WarmupShape::Linear, [0.0008, 0.0404, 0.08, 0.08, 0.008, 0.008]);
    close(CountedFrom::Warmup, WarmupShape::Constant, [0.0008, 0.0008, 0.08, 0.08, 0.008, 0.008]);
    close(CountedFrom::Start, WarmupShape::Linear, [0.0008, 0.0404, 0.008, 0.008, 0.0008, 0.0008]);
    close(CountedFrom::Auto, WarmupShape::Linear, [0.0008, 0.0404, 0.008, 0.008, 0.0008, 0.0008]);
}

#[test]
fn one_cycle_without_room_to_rise_starts_at_the_peak_and_stays_at_its_end() {
    let cycle =
        |onecycle_rise| schedule(ScheduleKind::OneCycle, ScheduleConfig { onecycle_rise, ..ScheduleConfig::default() });
    for rise in [0.005, 0.001] {
        assert!((cycle(rise).at(0) - 0.4).abs() < 1e-4, "{}", cycle(rise).at(0));
    }
    assert_eq!(cycle(0.3).at(1000), cycle(0.3).at(199));
}

#[test]
fn a_constant_rate_is_constant() {
    let constant = Schedule::constant(0.3, 9);
    assert_eq!([0, 5, 8, 90].map(|step| constant.at(step)), [0.3; 4]);
    assert_eq!((constant.total_steps, constant.warmup_steps), (9, 0));
}

/// `torch.optim.lr_scheduler.OneCycleLR(max_lr=0.4, total_steps=200, cycle_momentum=False)` and
/// `CosineAnnealingWarmRestarts(T_0=40, T_mult=2, eta_min=0.04)`, torch 2.9.0.
#[test]
fn one_cycle_and_restarts_are_those_of_torch() {
    let at = |kind, steps: [usize; 6]| {
        let config = ScheduleConfig { restart_epochs: 2, final_lr: 0.04, ..ScheduleConfig::default() };
        // One cycle has no other warm-up, whatever the default says.
        let warmup_epochs = if kind == ScheduleKind::OneCycle { 5.0 } else { 0.0 };
        let schedule = schedule(kind, ScheduleConfig { warmup_epochs, ..config });
        steps.map(|step| schedule.at(step))
    };
    let close = |ours: [f64; 6], theirs: [f64; 6]| {
        let differ = ours.iter().zip(theirs).any(|(ours, theirs)| (ours - theirs).abs() > 1e-12);
        assert!(!differ, "{ours:?} and not {theirs:?}");
    };
    close(at(ScheduleKind::OneCycle, [0, 20, 59, 60, 130, 199]), ONE_CYCLE);
    close(at(ScheduleKind::Restarts, [0, 39, 40, 80, 119, 120]), RESTARTS);
}

const ONE_CYCLE: [f64; 6] =
    [0.016000000000000014, 0.11496623289613117, 0.4, 0.3999496471899134, 0.19551320509129047, 1.6e-06];
const RESTARTS: [f64; 6] = [0.4, 0.04055487992803697, 0.4, 0.22000000000000003, 0.04013877347666988, 0.4];

/// The rate of every epoch of a run as `plateau.py` has it; after each validation the memory goes through its text.
fn rates_on_a_plateau(run: &Value) -> Vec<f64> {
    let number = |name: &str| run[name].as_f64().unwrap();
    let scores: Vec<f64> = serde_json::from_value(run["scores"].clone()).unwrap();
    let config = ScheduleConfig {
        kind: ScheduleKind::Plateau,
        warmup_epochs: run["warmup"].as_f64().unwrap_or(0.0),
        warmup_start: 0.01,
        interval: ScheduleInterval::Epoch,
        gamma: number("factor"),
        patience_epochs: number("patience") as usize,
        cooldown_epochs: number("cooldown") as usize,
        final_lr: number("min"),
        ..ScheduleConfig::default()
    };
    let schedule = Schedule::new(&config, number("lr"), 1, 1, [scores.len(), 3]);
    let mut plateau = Plateau::default();
    let rate = |(epoch, score): (usize, &f64)| {
        let rates = [0, 1, 2].map(|step| schedule.reduced(3 * epoch + step, plateau.reductions));
        assert_eq!(rates, [rates[0]; 3], "the rate of an epoch");
        plateau.validated(&schedule, *score, 3 * (epoch + 1));
        plateau = serde_json::from_str(&serde_json::to_string(&plateau).unwrap()).unwrap();
        rates[0]
    };
    scores.iter().enumerate().map(rate).collect()
}

#[test]
fn a_plateau_has_the_rates_of_torch_and_of_timm_with_the_same_scores() {
    // Accuracies that rise, stay, rise by less than the threshold, fall, and rise again.
    let rising = [0.1, 0.3, 0.5, 0.5, 0.50004, 0.50004, 0.4, 0.52, 0.52, 0.52, 0.1, 0.2, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6];
    let scores: Vec<f64> = rising.into_iter().chain([0.60005; 30]).collect();
    let losses: Vec<f64> = scores.iter().map(|score| score - 2.0).collect();
    let run = |scores: &[f64], [lr, factor, min]: [f64; 3], [patience, cooldown]: [usize; 2], warmup: Option<usize>| {
        json!({
            "scores": scores, "lr": lr, "factor": factor, "min": min, "patience": patience, "cooldown": cooldown,
            "warmup": warmup,
        })
    };
    let runs = [
        run(&scores, [0.1, 0.1, 0.0], [10, 0], None),
        run(&scores, [0.1, 0.5, 0.0], [2, 0], None),
        run(&scores, [0.1, 0.5, 0.004], [2, 3], None),
        run(&scores, [0.1, 0.1, 0.0], [0, 0], None),
        run(&losses, [0.1, 0.1, 0.0], [0, 1], None),
        run(&losses, [0.3, 0.7, 0.01], [1, 2], None),
        run(&[&[0.0; 4], &scores[..]].concat(), [0.1, 0.5, 0.0], [1, 0], None),
        run(&scores, [0.1, 0.5, 0.001], [1, 0], Some(3)),
        run(&scores, [0.1, 0.1, 0.0], [3, 0], Some(0)),
        run(&scores, [0.1, 0.5, 0.0], [0, 0], Some(6)),
    ];
    let text = serde_json::to_string(&runs).unwrap();
    let Some(found) = ask("timm", "plateau.py", &[text.as_ref()]) else { return };
    let theirs: Vec<Vec<f64>> = serde_json::from_str(&found).unwrap();
    assert_eq!(theirs.len(), runs.len());
    for (run, theirs) in runs.iter().zip(theirs) {
        let ours = rates_on_a_plateau(run);
        let is_close = ours.iter().zip(&theirs).all(|(ours, theirs)| (ours - theirs).abs() <= 1e-12 * theirs);
        assert!(is_close && ours.len() == theirs.len(), "{ours:?} and not {theirs:?}");
        assert!(ours[ours.len() - 1] < ours.iter().copied().fold(0.0, f64::max), "it is reduced: {run}");
    }
}

#[test]
fn the_loss_scale_doubles_after_two_thousand_good_steps_and_halves_after_a_bad_one() {
    let mut scale = LossScale::default();
    (0..1999).for_each(|_| scale.good());
    assert_eq!(scale.scale, 65536.0);
    scale.good();
    assert_eq!((scale.scale, scale.good_steps), (131072.0, 0));
    scale.good();
    assert!(scale.overflow());
    assert_eq!(scale, LossScale { scale: 65536.0, good_steps: 0, skipped: 1 });
    assert!((0..16).all(|_| scale.overflow()), "a scale above one is left to try");
    assert_eq!((scale.scale, scale.skipped), (1.0, 17));
    assert!(!scale.overflow());
}
