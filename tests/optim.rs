//! Update rules, clipping and averages against `torch.optim` (`tests/fixtures/optimizers.json`: five steps
//! of two tensors, torch 2.9.0; LARS by its formula in f64) and against their formulas.

use burn::tensor::{Tensor, TensorData};
use kiln_engine::optim::{
    Arenas, AveragedSteps, OptimConfig, Optimizer, OptimizerKind, Parameter, WeightAverage, clip_factor,
    clip_factor_there, global_norm, norms,
};
use kiln_engine::parallel::HostBackend;
use serde_json::Value;

use crate::files::file;
use crate::python::ask;

mod schedule;

pub const KINDS: [OptimizerKind; 7] = [
    OptimizerKind::Sgd,
    OptimizerKind::Adam,
    OptimizerKind::AdamW,
    OptimizerKind::NAdamW,
    OptimizerKind::RmsProp,
    OptimizerKind::Lars,
    OptimizerKind::Lamb,
];

fn fixture() -> Value {
    serde_json::from_str(include_str!("fixtures/optimizers.json")).unwrap()
}

fn tensors<B: HostBackend>(list: &Value) -> Vec<Tensor<B, 1>> {
    let device = B::open(0).unwrap();
    let tensor = |values: &Value| {
        let values: Vec<f32> = serde_json::from_value(values.clone()).unwrap();
        let length = values.len();
        Tensor::from_data(TensorData::new(values, [length]), &device)
    };
    list.as_array().unwrap().iter().map(tensor).collect()
}

fn assert_close<B: HostBackend>(what: &str, ours: &[Tensor<B, 1>], expected: &Value) {
    for (ours, theirs) in ours.iter().zip(tensors::<B>(expected)) {
        let distance: f32 = (ours.clone() - theirs).abs().max().into_data().iter::<f32>().next().unwrap();
        assert!(distance < 2e-6, "{what}: off by {distance:e}");
    }
}

fn optimizer<B: HostBackend>(config: &OptimConfig) -> Optimizer<B> {
    let parameter = |(name, length, vector): (&str, usize, bool)| Parameter {
        name: name.into(),
        length,
        vector,
        head: name.starts_with("fc"),
    };
    Optimizer::new(config, [("matrix", 12, false), ("bias", 5, true)].map(parameter).to_vec())
}

/// Trains the fixture's tensors in five steps, `rounds` times; after `reload` steps the optimizer is replaced by one
/// that is loaded from its state.
fn trained<B: HostBackend>(config: &OptimConfig, reload: usize, rounds: usize) -> Vec<Tensor<B, 1>> {
    let fixture = fixture();
    let mut params = tensors::<B>(&fixture["params"]);
    let mut own = optimizer::<B>(config);
    let steps = fixture["rates"].as_array().unwrap().iter().zip(fixture["gradients"].as_array().unwrap());
    let count = steps.len() * rounds;
    for (step, (rate, gradients)) in steps.cycle().take(count).enumerate() {
        if step == reload {
            let state = own.state_of(&|_| true);
            own = optimizer(config);
            own.load(&state, &B::open(0).unwrap()).unwrap();
        }
        params = own.step(rate.as_f64().unwrap(), params, tensors(gradients));
    }
    params
}

fn rules_of_torch<B: HostBackend>() {
    let sgd = OptimConfig { momentum: 0.0, weight_decay: 0.01, ..OptimConfig::default() };
    let momentum = OptimConfig { momentum: 0.9, ..sgd.clone() };
    let adamw = OptimConfig {
        optimizer: OptimizerKind::AdamW,
        beta1: 0.8,
        beta2: 0.99,
        eps: 1e-6,
        weight_decay: 0.05,
        ..OptimConfig::default()
    };
    let lars = OptimConfig { optimizer: OptimizerKind::Lars, trust_coefficient: 0.02, ..momentum.clone() };
    let nesterov = OptimConfig { nesterov: true, ..momentum.clone() };
    let rules = [("sgd", sgd), ("momentum", momentum), ("nesterov", nesterov), ("adamw", adamw), ("lars", lars)];
    for (name, config) in rules {
        for reload in [5, 2] {
            assert_close::<B>(name, &trained::<B>(&config, reload, 1), &fixture()["results"][name]);
        }
    }
}

/// As timm's LARS, which takes a trust of one there: the first step of a matrix of zeros is that of SGD.
fn lars_leaves_zero<B: HostBackend>() {
    let config =
        OptimConfig { optimizer: OptimizerKind::Lars, momentum: 0.0, weight_decay: 0.1, ..OptimConfig::default() };
    let device = B::open(0).unwrap();
    let values = |length: usize, value: f32| Tensor::<B, 1>::from_floats(&vec![value; length][..], &device);
    let stepped =
        optimizer::<B>(&config).step(0.5, vec![values(12, 0.0), values(5, 0.0)], vec![values(12, 3.0), values(5, 2.0)]);
    let stepped: Vec<f32> =
        stepped.into_iter().flat_map(|tensor| tensor.into_data().iter::<f32>().collect::<Vec<_>>()).collect();
    assert_eq!(stepped, [vec![-1.5; 12], vec![-1.0; 5]].concat());
}

/// The parameters after steps of timm's optimizers.
fn rules_of_timm() -> Option<Value> {
    let found = ask("timm", "timm_rules.py", &[&file("tests/fixtures/optimizers.json")])?;
    Some(serde_json::from_str(&found).unwrap())
}

/// Ten steps, of which the last are by an optimizer loaded from the state of the first.
fn factory_of_timm<B: HostBackend>() {
    let Some(theirs) = rules_of_timm() else { return };
    let moments = |optimizer| OptimConfig {
        optimizer,
        beta1: 0.8,
        beta2: 0.99,
        eps: 1e-6,
        weight_decay: 0.05,
        ..Default::default()
    };
    let rmsprop = OptimConfig { eps: 0.0316, alpha: 0.9, ..moments(OptimizerKind::RmsProp) };
    let plain = OptimConfig { eps: 1e-8, alpha: 0.99, momentum: 0.0, weight_decay: 0.0, ..rmsprop.clone() };
    for (name, config) in [
        ("adam", moments(OptimizerKind::Adam)),
        ("adamw", moments(OptimizerKind::AdamW)),
        ("nadamw", moments(OptimizerKind::NAdamW)),
        ("rmsprop", rmsprop),
        ("rmsprop without decay and momentum", plain),
    ] {
        for reload in [10, 4] {
            assert_close::<B>(name, &trained::<B>(&config, reload, 2), &theirs[name]);
        }
    }
}

fn lamb_of_timm<B: HostBackend>() {
    let Some(theirs) = rules_of_timm() else { return };
    for (name, weight_decay) in [("decay", 0.05), ("plain", 0.0)] {
        let config = OptimConfig {
            optimizer: OptimizerKind::Lamb,
            beta1: 0.8,
            beta2: 0.99,
            eps: 1e-6,
            weight_decay,
            ..OptimConfig::default()
        };
        for reload in [5, 2] {
            assert_close::<B>(name, &trained::<B>(&config, reload, 1), &theirs[name]);
        }
    }
}

fn clipping_of_torch<B: HostBackend>() {
    let fixture = fixture();
    let gradients = tensors::<B>(&fixture["gradients"][0]);
    let parts: Vec<f32> =
        norms(&gradients).into_iter().flat_map(|norm| norm.into_data().iter::<f32>().collect::<Vec<_>>()).collect();
    let norm = global_norm(&parts);
    assert!((norm - fixture["norm"].as_f64().unwrap()).abs() < 1e-6);
    let factor = clip_factor(norm, 0.5);
    let clipped: Vec<_> = gradients.into_iter().map(|gradient| gradient * factor).collect();
    assert_close::<B>("clipped", &clipped, &fixture["clipped"]);
    let there = |norm: f64, limit| {
        let norm = Tensor::<B, 1>::from_data([norm as f32], &B::open(0).unwrap());
        clip_factor_there(norm, limit).into_data().iter::<f64>().sum::<f64>()
    };
    assert!((there(norm, 0.5) - factor).abs() < 1e-6 * factor, "on the device");
    assert_eq!(there(0.4, 0.5), 1.0);
    assert_eq!(clip_factor(0.4, 0.5), 1.0);
    assert_eq!(clip_factor(7.0, 0.0), 1.0);
}

fn average_by_formula<B: HostBackend>() {
    let params = tensors::<B>(&fixture()["params"]);
    // After step `n` every weight is `n + 1` times its first value; so is the average a multiple of it.
    let follow = |steps: AveragedSteps, multiples: &[f64]| {
        let mut average = WeightAverage::new(0.9, steps, params.clone());
        for (step, multiple) in multiples.iter().enumerate() {
            average.update(step, || params.iter().map(|param| param.clone() * (step + 1) as f64).collect());
            for (ours, param) in average.values.iter().zip(&params) {
                let wanted = param.clone() * *multiple;
                let distance = (ours.clone() - wanted).abs().max().into_data().iter::<f32>().next().unwrap();
                assert!(distance < 1e-5, "{steps:?}, step {step}: off by {distance:e}");
            }
        }
    };
    let steps = AveragedSteps { every: 1, per_epoch: 10, copied_until: None };
    follow(steps, &[1.0, 1.1, 1.29]);
    // torchvision's loop with --model-ema-steps 2: two epochs of three steps, of which the first warms up.
    follow(AveragedSteps { every: 2, per_epoch: 3, copied_until: Some(3) }, &[1.0, 1.0, 3.0, 4.0, 4.0, 4.2]);
    follow(AveragedSteps { every: 2, per_epoch: 3, copied_until: Some(0) }, &[1.0, 1.0, 1.2, 1.48, 1.48, 1.932]);
}

/// torchvision's `set_weight_decay` on a network with batch-norm and a classifier.
#[test]
fn weight_decay_follows_the_kind_of_a_parameter() {
    let decays = |config: OptimConfig| {
        [("conv1.weight", false), ("bn1.weight", true), ("bn1.bias", true), ("bn1.beta", true), ("fc.bias", true)]
            .map(|(name, vector)| Parameter { name: name.into(), length: 1, vector, head: name.starts_with("fc") })
            .map(|parameter| config.weight_decay_of(&parameter))
    };
    let all = OptimConfig { weight_decay: 0.1, ..OptimConfig::default() };
    assert_eq!(decays(all.clone()), [0.1; 5]);
    assert_eq!(decays(OptimConfig { decay_norm_bias: false, ..all.clone() }), [0.1, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(decays(OptimConfig { norm_weight_decay: 0.0, ..all.clone() }), [0.1, 0.0, 0.0, 0.0, 0.1]);
    assert_eq!(decays(OptimConfig { bias_weight_decay: 0.2, ..all.clone() }), [0.1, 0.1, 0.2, 0.2, 0.2]);
    let both = OptimConfig { norm_weight_decay: 0.0, bias_weight_decay: 0.2, ..all };
    assert_eq!(decays(both), [0.1, 0.0, 0.2, 0.2, 0.2]);
}

/// Parameters that share vectors come back as they were, and take the same steps as alone.
fn arenas_change_nothing<B: HostBackend>() {
    let lengths = [130, 1, 64, 7, 200, 3];
    let parameter = |(place, length): (usize, &usize)| Parameter {
        name: format!("{place}"),
        length: *length,
        vector: place % 2 == 1,
        head: place > 3,
    };
    let parameters: Vec<Parameter> = lengths.iter().enumerate().map(parameter).collect();
    let device = B::open(0).unwrap();
    let values = |seed: usize| {
        let value = |at: usize| ((at * 37 + seed * 11) % 19) as f32 / 10.0 - 0.9;
        let tensor = |(place, length): (usize, &usize)| {
            let data: Vec<f32> = (0..*length).map(|at| value(at + place)).collect();
            Tensor::<B, 1>::from_data(TensorData::new(data, [*length]), &device)
        };
        lengths.iter().enumerate().map(tensor).collect::<Vec<_>>()
    };
    let numbers = |tensors: Vec<Tensor<B, 1>>| -> Vec<Vec<f32>> {
        tensors.into_iter().map(|it| it.into_data().iter::<f32>().collect()).collect()
    };
    let together = Arenas::together(&parameters, &OptimConfig::default());
    let packed = together.pack(values(0));
    assert_eq!(numbers(packed.clone()).iter().map(Vec::len).collect::<Vec<_>>(), [256, 128, 200, 3]);
    let sum = |values: Vec<Vec<f32>>| values.concat().iter().map(|value| f64::from(*value)).sum::<f64>();
    assert!((sum(numbers(packed.clone())) - sum(numbers(values(0)))).abs() < 1e-6, "the rest is zero");
    assert_eq!(numbers(together.unpack(packed)), numbers(values(0)));
    for optimizer in KINDS {
        let config = OptimConfig {
            optimizer,
            momentum: 0.9,
            weight_decay: 0.1,
            backbone_lr_scale: 0.5,
            ..OptimConfig::default()
        };
        let mut all = Optimizer::<B>::new(&config, parameters.clone());
        let mut ours = values(1);
        let mut alone: Vec<_> = parameters.iter().map(|it| Optimizer::<B>::new(&config, vec![it.clone()])).collect();
        let mut theirs = values(1);
        for step in 2..5 {
            ours = all.step(0.1, ours, values(step));
            let steps = alone.iter_mut().zip(theirs).zip(values(step));
            theirs = steps.flat_map(|((one, param), slope)| one.step(0.1, vec![param], vec![slope])).collect();
            if step == 3 {
                let state = all.state_of(&|_| true);
                all = Optimizer::new(&config, parameters.clone());
                all.load(&state, &device).unwrap();
            }
        }
        let pairs = numbers(ours).concat().into_iter().zip(numbers(theirs).concat());
        let off = pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(off < 1e-6, "{optimizer:?}: {off:e}");
    }
}

on_every_backend! {
    parameters_that_share_a_vector_take_the_steps_they_take_alone => || arenas_change_nothing::<TestBackend>();
    update_rules_are_those_of_torch_across_a_reload_too => || rules_of_torch::<TestBackend>();
    optimizers_of_timms_factory_take_its_steps_across_a_reload_too => || factory_of_timm::<TestBackend>();
    lamb_is_that_of_timm => || lamb_of_timm::<TestBackend>();
    a_matrix_of_zeros_is_trained_by_lars_too => || lars_leaves_zero::<TestBackend>();
    clipping_by_the_global_norm_is_that_of_torch => || clipping_of_torch::<TestBackend>();
    an_average_starts_at_the_initial_weights => || average_by_formula::<TestBackend>();
}

#[test]
fn a_state_of_another_optimizer_is_refused() {
    type B = burn::backend::Flex;
    let state = optimizer::<B>(&OptimConfig::default()).state_of(&|_| true);
    let mut other = state.clone();
    other.insert("stranger.0".into(), kiln_engine::state::HostTensor::F32 { shape: vec![1], data: vec![0.0] });
    let load = |state: &kiln_engine::state::StateDict| {
        optimizer::<B>(&OptimConfig::default()).load(state, &Default::default())
    };
    assert!(load(&state).is_ok());
    assert!(load(&other).unwrap_err().to_string().contains("another model or optimizer"));
    other.remove("step");
    assert!(load(&other).is_err());
}

/// Three steps of `torch.optim.SGD` and `AdamW` with a group for the backbone at half the rate, and one for the bias of
/// the head without weight decay (torch 2.9.0).
#[test]
fn the_backbone_may_have_a_rate_of_its_own_and_biases_no_decay() {
    type B = burn::backend::Flex;
    let sgd = OptimConfig {
        momentum: 0.9,
        weight_decay: 0.1,
        backbone_lr_scale: 0.5,
        decay_norm_bias: false,
        ..OptimConfig::default()
    };
    let adamw = OptimConfig { optimizer: OptimizerKind::AdamW, ..sgd.clone() };
    let tensor = |values: &[f32], times: f32| {
        let (length, values) = (values.len(), values.iter().map(|value| value * times).collect::<Vec<f32>>());
        Tensor::<B, 1>::from_data(TensorData::new(values, [length]), &Default::default())
    };
    let results = [
        (sgd, [[0.924_664_8, -2.038_95, 3.058_425_2].to_vec(), [0.2147, -0.1549].to_vec()]),
        (adamw, [[0.839_656, -2.115_569, 3.100_644].to_vec(), [0.207_682, 0.042_318].to_vec()]),
    ];
    for (config, expected) in results {
        let parameter =
            |(name, length, vector): (&str, usize, bool)| Parameter { name: name.into(), length, vector, head: vector };
        let parameters = [("conv1.weight", 3, false), ("fc.bias", 2, true)].map(parameter);
        let mut optimizer = Optimizer::<B>::new(&config, parameters.into());
        let mut params = vec![tensor(&[1.0, -2.0, 3.0], 1.0), tensor(&[0.5, -0.25], 1.0)];
        for step in 1..=3 {
            let gradients = vec![tensor(&[0.1, 0.2, -0.3], step as f32), tensor(&[0.3, -0.1], step as f32)];
            params = optimizer.step(0.1, params, gradients);
        }
        for (ours, theirs) in params.into_iter().zip(expected) {
            let ours: Vec<f32> = ours.into_data().iter::<f32>().collect();
            let close = ours.iter().zip(&theirs).all(|(a, b): (&f32, &f32)| (a - b).abs() < 2e-6);
            assert!(close, "{ours:?} and not {theirs:?}");
        }
    }
}
