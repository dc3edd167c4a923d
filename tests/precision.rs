//! Mixed precision: near to f32, exact where it must be, and safe when f16 overflows.

use burn::backend::Autodiff;
use burn::tensor::bf16;
use kiln_engine::nn::{initialize, state_dict};
use kiln_engine::optim::LossScale;
use kiln_engine::parallel::{HostBackend, Position, ReducePrecision, StartingPoint};
use kiln_engine::state::HostTensor;
use kiln_ops::Precision;
use kiln_system::Result;
use kiln_training::{ModelConfig, ResNet, Stem};

use crate::backends::computes_in;
use crate::reference::precision::{InPrecision, in_precision};
use crate::reference::run::{Recorded, Setup, run_from};
use crate::small;

on_every_backend! {
    gradients_in_bf16_point_where_those_in_f32_do
        => || near_f32::<TestBackend>(Precision::Bf16, [0.997, 0.990], 0.91);
    gradients_in_f16_point_where_those_in_f32_do => || near_f32::<TestBackend>(Precision::F16, [0.999, 1.0], 0.98);
    an_overflow_in_f16_is_left_out_and_training_goes_on => || overflow::<TestBackend>();
    a_loss_that_overflows_in_f16_hides_no_sample => || overflowing_loss::<TestBackend>();
    gradients_may_travel_in_bf16 => || reduced_in_bf16::<TestBackend>();
    values_are_rounded_to_the_nearest_bf16 => || rounded::<TestBackend>();
    a_gradient_that_overflows_at_every_scale_ends_the_run => || divergence::<TestBackend>();
}

/// The cosines of the 62 tensors' gradients with those in f32 reach `least` each, and on average those of torch 2.9.0's
/// own autocast with the CIFAR and the ImageNet stem, of three digits; devices may sum in other ways. Its least are
/// 0.984 and, with channels innermost, 0.913 in bf16 (`layer3.1.bn2.bias`; 0.922 on a matrix unit), 0.997 and 0.998 in
/// f16. A few units whose sign rounding decides make the least: in `layer2.0` of the ImageNet stem one lies at -0.002,
/// and if it passes the ReLU the 16 numbers of `bn2.bias` turn by 0.18.
fn near_f32<B: HostBackend>(precision: Precision, autocast: [f64; 2], least: f64) {
    if !computes_in::<B>(precision) {
        return;
    }
    for (stem, autocast) in [Stem::Cifar, Stem::Imagenet].into_iter().zip(autocast) {
        let mean = autocast - if B::is_processor() { 0.0005 } else { 0.01 };
        let full = in_precision::<B>(stem, Precision::F32);
        let half = in_precision::<B>(stem, precision);
        close_gradients(stem, &half, &full, mean, least);
        assert!((half.loss / full.loss - 1.0).abs() < 0.01, "{stem:?}: loss {} against {}", half.loss, full.loss);
        let [ours, theirs] = [&half, &full].map(|run| *run.losses.last().unwrap());
        assert!((ours / theirs - 1.0).abs() < 0.02, "{stem:?}: the trajectory ends at {ours}, not {theirs}");
    }
}

fn close_gradients(stem: Stem, half: &InPrecision, full: &InPrecision, mean: f64, least: f64) {
    assert_eq!(half.gradients.len(), 62);
    let norm = |values: &HostTensor| values.as_f32().unwrap().iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let cosine = |(name, ours): (&String, &HostTensor)| {
        let pairs = || ours.as_f32().unwrap().iter().zip(full.gradients[name].as_f32().unwrap());
        let product = |f: fn(f64, f64) -> f64| pairs().map(|(a, b)| f(f64::from(*a), f64::from(*b))).sum::<f64>();
        assert!(product(|a, b| (a - b).abs()) > 0.0, "{stem:?} {name}: the same bits as in f32");
        let [ours, theirs] = [ours, &full.gradients[name]].map(norm);
        let (cosine, ratio) = (product(|a, b| a * b) / (ours * theirs), ours / theirs);
        assert!(cosine >= least, "{stem:?} {name}: cosine {cosine:.4}");
        // A shift of all pixels cancels in the next batch-norm. What is left of a bias's gradient, 0 in 31 of 32 channels
        // of the worst tensor, is small beside the terms of its sum, whose size that of the scale shows.
        let terms = name.strip_suffix("bias").map_or(0.0, |layer| norm(&full.gradients[&format!("{layer}weight")]));
        let off = (ours - theirs).abs();
        assert!(off <= 0.25 * theirs || off <= 0.05 * terms, "{stem:?} {name}: {ratio:.4} of the norm in f32");
        cosine
    };
    let average = half.gradients.iter().map(cosine).sum::<f64>() / 62.0;
    assert!(average >= mean, "{stem:?}: mean cosine {average:.4}");
}

/// Two replicas in f16 that start with this loss scale and save after every step.
fn in_f16<B: HostBackend>(scale: f64, learning_rate: f64) -> Result<Recorded> {
    let mut setup = small::setup(2, 4, learning_rate);
    setup.precision = Precision::F16;
    let mut experiment = small::plan_of(&setup, 0..128);
    experiment.plan.save_every_steps = 1;
    let config = ModelConfig { stem: Stem::Cifar, width: 4, ..ModelConfig::default() };
    let device = B::open(0).unwrap();
    let model = initialize(ResNet::<Autodiff<B>>::new(&config, 10, 0.0, &device), 0).unwrap();
    let loss_scale = LossScale { scale, ..LossScale::default() };
    let start = StartingPoint { position: Position { loss_scale, ..Position::default() }, ..StartingPoint::default() };
    run_from::<B>(experiment, &config, 10, &state_dict(&model), start)
}

fn overflow<B: HostBackend>() {
    let done = in_f16::<B>(f64::from(1u32 << 22), 0.05).unwrap();
    let skipped: Vec<usize> = done.steps.iter().map(|step| step.skipped).collect();
    let first_good = skipped.iter().position(|skipped| *skipped == 0).expect("the scale comes down to one that fits");
    assert!(first_good > 0, "nothing overflowed");
    assert_eq!(skipped[..first_good], Vec::from_iter(1..=first_good));
    // The scale that fits is the largest one: a later step may overflow again, and then fits with half of it.
    assert!(skipped[first_good..].iter().all(|skipped| *skipped <= 1), "{skipped:?}");
    let state = |step: usize| &done.states[step];
    for step in 1..first_good {
        assert_eq!(state(step).weights, state(0).weights, "a step that is left out changes nothing");
        assert_eq!(state(step).optimizer, state(0).optimizer);
        assert_eq!(state(step).position.loss_scale.scale, state(step - 1).position.loss_scale.scale / 2.0);
    }
    let last = done.states.last().unwrap();
    assert_ne!(last.weights, state(0).weights);
    let last_skipped = skipped.iter().rposition(|skipped| *skipped > 0).unwrap();
    assert_eq!(last.position.loss_scale.good_steps, done.steps.len() - 1 - last_skipped);
    assert!(last.weights.values().all(finite), "infinity got into the weights");
    assert!(done.steps.iter().all(|step| step.skipped > 0 || step.gradient_norm.is_finite()));
}

/// Weights so large that the loss itself overflows: its steps are left out, and their samples are seen all the same,
/// because a resumed run goes on behind them.
fn overflowing_loss<B: HostBackend>() {
    let done = in_f16::<B>(65536.0, 1e30).unwrap();
    assert!(done.steps.iter().any(|step| !step.counts.loss.is_finite()), "no loss overflowed");
    let epoch = done.states.iter().filter(|state| state.position.epoch == 0);
    let seen: Vec<usize> = epoch.map(|state| state.position.running.samples).collect();
    assert_eq!(seen, (1..=seen.len()).map(|step| 8 * step).collect::<Vec<_>>());
    assert!(seen.len() >= 8 && done.states.iter().all(|state| state.position.running.loss.is_finite()));
}

fn finite(tensor: &HostTensor) -> bool {
    tensor.as_f32().is_none_or(|values| values.iter().all(|value| value.is_finite()))
}

/// Eight bits of mantissa: what travels is off by 2^-9 at most, and by about half of that on average.
fn reduced_in_bf16<B: HostBackend>() {
    let gradient = |reduce_precision| {
        let setup = Setup { reduce_precision, ..small::setup(2, 4, 0.0) };
        small::last_gradient::<B>(Stem::Cifar, &setup, 0..8)
    };
    let distance = small::distance(&gradient(ReducePrecision::Bf16), &gradient(ReducePrecision::F32));
    assert!(distance > 1e-4 && distance < 4e-3, "{distance:.2e}");
}

/// Against the `half` crate: numbers of both signs, halfway between two, too large, tiny and none.
fn rounded<B: HostBackend>() {
    let upper = (0..=0xffff_u32).step_by(7).map(|half| half << 16);
    let values: Vec<f32> =
        upper.flat_map(|half| [0, 0x7fff, 0x8000, 0x8001].map(|low| f32::from_bits(half + low))).collect();
    let shared = B::share(B::from_host(&values, &Default::default()));
    let mut found = Vec::new();
    B::append_to(B::adopt(B::rounded(shared), &Default::default()), &mut found);
    for (value, found) in values.iter().zip(found) {
        let expected = bf16::from_f32(*value).to_f32();
        assert!(found == expected || (found.is_nan() && expected.is_nan()), "{value:e}: {found:e}, not {expected:e}");
    }
}

fn divergence<B: HostBackend>() {
    let Err(error) = in_f16::<B>(2.0, 1e30) else { panic!("such a rate cannot work") };
    let error = error.to_string();
    assert!(error.contains("not finite") && error.contains("--learning-rate"), "{error}");
}
