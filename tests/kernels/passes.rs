//! Batch-norm and updates: passes over memory, against f64.

use std::mem::MaybeUninit;

use kiln_kernels::update::{self, AdamW, Lars, Parameter, Sgd};
use kiln_kernels::{BatchNorm, Epilogue, ParallelFor};

use super::{alone, assert_close, backwards, noise};

#[test]
fn batch_norm_has_the_moments_and_gradients_of_f64() {
    let (channels, pixels) = (7, 3001);
    let [x, gradient] = [1, 2].map(|seed| noise(channels * pixels, seed));
    let sum = |of: &dyn Fn(usize) -> f64, c: usize| (0..pixels).map(|pixel| of(pixel * channels + c)).sum::<f64>();
    let mean: Vec<f64> = (0..channels).map(|c| sum(&|i| x[i].into(), c) / pixels as f64).collect();
    let m2: Vec<f64> = (0..channels).map(|c| sum(&|i| (f64::from(x[i]) - mean[c]).powi(2), c)).collect();
    let run = |parallel_for: ParallelFor| {
        let norm = BatchNorm { channels, parallel_for };
        let [found_mean, found_m2] = norm.moments(&x);
        let sums = norm.gradient_sums(&gradient, &x, &found_mean, None);
        let factors = [&found_mean[..], &vec![2.0; channels], &vec![0.5; channels]];
        let mut output = vec![MaybeUninit::new(f32::NAN); x.len()];
        norm.normalize(&x, &Epilogue { factors, shortcut: Some(&gradient), relu: true }, &mut output);
        // SAFETY: each value was initialised above.
        let output: Vec<f32> = output.into_iter().map(|value| unsafe { value.assume_init() }).collect();
        (found_mean, found_m2, sums, output)
    };
    let found = run(alone);
    assert_close(&found.0, &mean, "mean");
    assert_close(&found.1, &m2, "squared deviations");
    let sums: Vec<f64> = (0..channels).map(|c| sum(&|i| gradient[i].into(), c)).collect();
    assert_close(&found.2[0], &sums, "sums of gradients");
    let weighted = |c: usize| sum(&|i| f64::from(gradient[i]) * (f64::from(x[i]) - mean[c]), c);
    assert_close(&found.2[1], &(0..channels).map(weighted).collect::<Vec<_>>(), "weighted sums of gradients");
    let normalized = |i: usize| ((f64::from(x[i]) - mean[i % channels]) * 2.0 + 0.5 + f64::from(gradient[i])).max(0.0);
    assert_close(&found.3, &(0..x.len()).map(normalized).collect::<Vec<_>>(), "normalized");
    assert!(run(backwards) == found, "other bits on other threads");
}

#[test]
fn updates_are_those_of_the_rules() {
    let [param, gradient, state] = [1, 2, 3].map(|seed| noise(40_001, seed));
    let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
    let (p, g, v) = (wide(&param), wide(&gradient), wide(&state));
    let step = Sgd { rate: 0.1, momentum: 0.9, weight_decay: 0.01, nesterov: true };
    let (mut own, mut velocity) = (gradient.clone(), state.clone());
    update::sgd(Parameter::InGradient(&param, &mut own), Some(&mut velocity), &step, backwards);
    let decayed: Vec<f64> = g.iter().zip(&p).map(|(g, p)| g + 0.01 * p).collect();
    let moved: Vec<f64> = v.iter().zip(&decayed).map(|(v, g)| 0.9 * v + g).collect();
    assert_close(&velocity, &moved, "velocity");
    let expected = |i: usize| p[i] - 0.1 * (decayed[i] + 0.9 * moved[i]);
    assert_close(&own, &(0..p.len()).map(expected).collect::<Vec<_>>(), "SGD");
    let step = AdamW { rate: 0.01, betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.1, step: 3 };
    let second: Vec<f32> = state.iter().map(|value| value.abs()).collect();
    let (mut own, mut moments) = (gradient.clone(), [state.clone(), second.clone()]);
    let [first, squares] = &mut moments;
    update::adamw(Parameter::InGradient(&param, &mut own), [first, squares], &step, alone);
    let expected = |i: usize| {
        let m = (0.9 * v[i] + 0.1 * g[i]) / (1.0 - 0.9_f64.powi(3));
        let s = (0.99 * f64::from(second[i]) + 0.01 * g[i] * g[i]) / (1.0 - 0.99_f64.powi(3));
        p[i] * (1.0 - 0.01 * 0.1) - 0.01 * m / (s.sqrt() + 1e-8)
    };
    assert_close(&own, &(0..p.len()).map(expected).collect::<Vec<_>>(), "AdamW");
    let norm = g.iter().map(|value| value * value).sum::<f64>().sqrt();
    assert!((update::norm(&gradient, backwards) - norm).abs() < 1e-5 * norm);
    assert_eq!(update::norm(&gradient, alone), update::norm(&gradient, backwards));
}

/// In the parameter's own memory, in the gradient's, and in new memory.
#[test]
fn updates_have_the_same_bits_in_all_places() {
    let [param, gradient, state] = [1, 2, 3].map(|seed| noise(40_001, seed));
    let in_all_places = |update: &dyn Fn(Parameter<'_>, &mut [Vec<f32>; 2])| {
        let [mut own, mut taken] = [param.clone(), gradient.clone()];
        let mut new = vec![MaybeUninit::new(f32::NAN); param.len()];
        let mut states = [(); 3].map(|()| [state.clone(), state.iter().map(|value| value.abs()).collect()]);
        update(Parameter::InPlace(&mut own, &gradient), &mut states[0]);
        update(Parameter::InGradient(&param, &mut taken), &mut states[1]);
        update(Parameter::Apart(&param, &gradient, &mut new), &mut states[2]);
        // SAFETY: each value was initialised above.
        let new: Vec<f32> = new.into_iter().map(|value| unsafe { value.assume_init() }).collect();
        assert!(own != param && own == taken && own == new, "the parameter");
        assert!(states[0] == states[1] && states[0] == states[2], "the state");
    };
    let sgd = Sgd { rate: 0.1, momentum: 0.9, weight_decay: 0.01, nesterov: false };
    in_all_places(&|param, _| update::sgd(param, None, &Sgd { momentum: 0.0, ..sgd }, backwards));
    in_all_places(&|param, [velocity, _]| update::sgd(param, Some(velocity), &sgd, backwards));
    let adamw = AdamW { rate: 0.01, betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.1, step: 3 };
    in_all_places(&|param, [first, second]| update::adamw(param, [first, second], &adamw, backwards));
    let lars = Lars { rate: 0.1, momentum: 0.9, weight_decay: 0.01, trust_coefficient: 0.02, vector: false };
    in_all_places(&|param, [velocity, _]| update::lars(param, velocity, &lars, backwards));
}
