//! Every number held against PyTorch: logits, gradients, buffers, losses, whole trajectories.

pub mod bottleneck;
mod compare;
mod fixture;
pub mod precision;
#[cfg(feature = "gloo")]
pub mod processes;
pub mod run;
pub mod wide;

use burn::backend::Autodiff;
use burn::tensor::{Int, Tensor, TensorData};
pub use compare::features;
use compare::{check_statistics, is_buffer, joint_l2, probed, relative_l2, relative_max};
use fixture::{Reference, floats, integers, name_of, numbers};
use kiln_data::{ImageSet, Normalization};
use kiln_engine::nn::{ForwardContext, cross_entropy, load_state, ranks_of_targets, state_dict};
use kiln_engine::optim::{OptimConfig, Schedule, ScheduleConfig, ScheduleKind};
use kiln_engine::parallel::{HostBackend, ReducePrecision};
use kiln_engine::state::{HostTensor, StateDict};
use kiln_ops::Precision;
use kiln_training::{ModelConfig, ResNet, Stem, TOP1};
use run::{Recorded, Setup, plan, run};

const STEMS: [Stem; 2] = [Stem::Cifar, Stem::Imagenet];

/// How a reference batch is divided.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Variant {
    Sync(usize),
    Accumulated,
    Local(usize),
}

impl Variant {
    fn name(self) -> String {
        match self {
            Self::Sync(_) => "sync".into(),
            Self::Accumulated => "accum2".into(),
            Self::Local(replicas) => format!("local{replicas}"),
        }
    }
}

fn model<B: HostBackend>(reference: &Reference, stem: Stem, weights: &StateDict) -> ResNet<B> {
    let config: ModelConfig = reference.model(stem);
    let device = B::open(0).unwrap();
    load_state(ResNet::new(&config, reference.count("num_classes"), 0.0, &device), weights, "the fixture").unwrap()
}

fn inputs<B: HostBackend>(reference: &Reference) -> Tensor<B, 4> {
    tensor::<B, 4>(&reference.tensors("inputs")["inputs"])
}

fn tensor<B: HostBackend, const D: usize>(host: &HostTensor) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(floats(host).to_vec(), host.shape().to_vec()), &B::open(0).unwrap())
}

fn values<B: HostBackend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn close(what: &str, ours: &[f32], theirs: &HostTensor, limit: f64) {
    let distance = relative_max(ours, floats(theirs));
    assert!(distance < limit, "{what}: {distance:.2e} of the largest, limit {limit:.0e}");
}

/// Evaluation: logits of three image sizes and the features below them.
pub fn logits_at_evaluation<B: HostBackend>() {
    let reference = Reference::load();
    for stem in STEMS {
        let expected = reference.tensors(&format!("{}.logits", name_of(stem)));
        let model = model::<B>(&reference, stem, &reference.tensors(name_of(stem)));
        let images = inputs::<B>(&reference);
        let context = ForwardContext::evaluate();
        close("features", &values(features(&model, images.clone())), &expected["features_eval"], 1e-4);
        close("logits", &values(model.forward(images.clone(), &context)), &expected["logits_eval"], 1e-4);
        let [n, c, h, w] = images.dims();
        let doubled = images.clone().reshape([n * c * h, w, 1]).repeat_dim(2, 2).reshape([n * c, h, 1, 2 * w]);
        let doubled = doubled.repeat_dim(2, 2).reshape([n, c, 2 * h, 2 * w]);
        close("logits of 64x64", &values(model.forward(doubled, &context)), &expected["logits_eval_64"], 1e-4);
        let cropped = images.slice([0..n, 0..c, 0..29, 3..32]);
        close("logits of 29x29", &values(model.forward(cropped, &context)), &expected["logits_eval_crop29"], 1e-4);
    }
}

/// Losses with and without smoothing, their gradients, and ranks.
pub fn losses<B: HostBackend>() {
    let reference = Reference::load();
    let expected = reference.tensors("losses");
    let device = B::open(0).unwrap();
    let ints = |name: &str| -> Tensor<Autodiff<B>, 1, Int> {
        let labels = integers(&expected[name]);
        Tensor::from_data(TensorData::new(labels.to_vec(), [labels.len()]), &device)
    };
    for (smoothing, name) in [(0.0, "ls0"), (reference.number("label_smoothing"), "ls01")] {
        let logits = Tensor::<Autodiff<B>, 2>::from_inner(tensor::<B, 2>(&expected["logits"])).require_grad();
        let loss = cross_entropy(logits.clone(), ints("targets"), smoothing);
        close("loss", &values(loss.clone().inner()), &expected[&format!("loss_{name}_each")], 1e-5);
        let gradient = logits.grad(&loss.mean().backward()).unwrap();
        close("gradient", &values(gradient), &expected[&format!("grad_{name}_mean")], 1e-5);
        let extreme = Tensor::from_inner(tensor::<B, 2>(&expected["extreme_logits"]));
        let loss = cross_entropy(extreme, ints("extreme_targets"), smoothing);
        close("extreme loss", &values(loss.inner()), &expected[&format!("extreme_loss_{name}_each")], 1e-5);
    }
    let ranks = ranks_of_targets(tensor::<B, 2>(&expected["logits"]), ints("targets").inner());
    assert_eq!(ranks.into_data().iter::<i64>().collect::<Vec<_>>(), integers(&expected["rank_of_target"]));
    // Of equal logits the lower class ranks first; a NaN ranks last.
    let odd = [[1.0, 2.0, 2.0, 0.0], [f32::NAN, 1.0, 2.0, 3.0], [f32::NAN, 1.0, 2.0, 3.0]];
    let targets = Tensor::<B, 1, Int>::from_data([2, 0, 3], &device);
    let ranks = ranks_of_targets(Tensor::<B, 2>::from_data(odd, &device), targets);
    assert_eq!(ranks.into_data().iter::<i64>().collect::<Vec<_>>(), [1, 4, 0]);
}

/// Runs a check: once, if the fixture says how far the inputs of its ReLUs are from zero (see `make.py` beside it).
///
/// Another fixture may hold one that is zero to within rounding. Whichever way it falls, the gradients below it move: a
/// correct implementation need not meet the reference at once, but does with some rounding or other. So it has more
/// attempts, each of which that fails prints why. Attempt `k` rotates the rows of a batch by `k`, which the mean
/// gradient does not notice, and scales the images by `1 + k * 1e-6`, which the first batch-norm undoes.
fn in_some_attempt(reference: &Reference, check: impl Fn(usize)) {
    const ATTEMPTS: usize = 32;
    let attempts = if reference.config.get("margin").is_some() { 1 } else { ATTEMPTS };
    for attempt in 0..attempts - 1 {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(attempt))).is_ok() {
            return;
        }
        eprintln!("attempt {attempt} of {attempts} does not meet the reference, which promises no margin of its ReLUs");
    }
    check(attempts - 1);
}

/// Rotates the rows of each of `parts` equal parts of a batch: what is computed on a part stays the same.
fn rotated(batch: &[usize], parts: usize, by: usize) -> Vec<usize> {
    let rotate = |part: &[usize]| {
        let mut part = part.to_vec();
        let by = by % part.len();
        part.rotate_left(by);
        part
    };
    batch.chunks(batch.len() / parts).flat_map(rotate).collect()
}

/// The pool's images in the order of `rows`.
fn images(reference: &Reference, rows: &[usize]) -> ImageSet {
    let pixels = integers(&reference.pool["images_u8"]);
    let labels = integers(&reference.pool["labels"]);
    let size = 3 * 32 * 32;
    let bytes = rows.iter().flat_map(|row| &pixels[row * size..][..size]).map(|byte| *byte as u8).collect();
    let classes = (0..reference.count("num_classes")).map(|class| class.to_string()).collect();
    ImageSet::new(bytes, rows.iter().map(|row| labels[*row] as u32).collect(), classes, [32, 32]).unwrap()
}

/// Puts a batch in the order in which strided shards of `replicas` are its contiguous parts.
fn contiguous_shards(batch: &[usize], replicas: usize) -> Vec<usize> {
    let part = batch.len() / replicas;
    (0..batch.len()).map(|i| batch[(i % replicas) * part + i / replicas]).collect()
}

fn setup(reference: &Reference, variant: Variant, learning_rate: Option<f64>) -> Setup {
    let batch = reference.count("batch");
    let (world_size, accumulation_steps) = match variant {
        Variant::Sync(replicas) | Variant::Local(replicas) => (replicas, 1),
        Variant::Accumulated => (1, 2),
    };
    let optim = OptimConfig {
        momentum: reference.number("momentum"),
        nesterov: reference.config["nesterov"].as_bool().unwrap(),
        weight_decay: if learning_rate.is_some() { 0.0 } else { reference.number("weight_decay") },
        ema_decay: reference.number("ema_decay"),
        ..OptimConfig::default()
    };
    let peak = learning_rate.unwrap_or_else(|| reference.number("peak_lr"));
    let schedule = Schedule {
        config: ScheduleConfig { kind: ScheduleKind::Cosine, final_lr: 0.0, ..ScheduleConfig::default() },
        base: 0.1 * peak,
        warmup_steps: reference.count("warmup"),
        ..Schedule::constant(peak, reference.count("steps"))
    };
    Setup {
        world_size,
        devices: (0..world_size).collect(),
        batch_size: batch / world_size / accumulation_steps,
        accumulation_steps,
        precision: Precision::F32,
        reduce_precision: ReducePrecision::F32,
        sync_bn: !matches!(variant, Variant::Local(_)),
        optim,
        schedule,
    }
}

fn train<B: HostBackend>(
    reference: &Reference,
    stem: Stem,
    variant: Variant,
    setup: &Setup,
    rows: &[Vec<usize>],
    attempt: usize,
) -> Recorded {
    let plan = plan(setup, ordered_images(reference, variant, rows, attempt), normalization(reference, attempt));
    run::<B>(plan, &reference.model(stem), reference.count("num_classes"), &reference.tensors(name_of(stem)))
}

/// The images of batches, each in the order that its variant and attempt ask for.
fn ordered_images(reference: &Reference, variant: Variant, rows: &[Vec<usize>], attempt: usize) -> ImageSet {
    let arrange = |row: &Vec<usize>| match variant {
        Variant::Local(replicas) => contiguous_shards(&rotated(row, replicas, attempt), replicas),
        Variant::Accumulated => rotated(row, 2, attempt),
        Variant::Sync(_) => rotated(row, 1, attempt),
    };
    images(reference, &rows.iter().flat_map(arrange).collect::<Vec<_>>())
}

fn normalization(reference: &Reference, attempt: usize) -> Normalization {
    let three = |name: &str| -> [f32; 3] { floats(&reference.pool[name]).try_into().unwrap() };
    let scale = 1.0 + attempt as f32 * 1e-6;
    Normalization { mean: three("mean"), std: three("std").map(|std| std * scale) }
}

/// The worlds that share the `sync` reference: all equal splits of its batch into 1, 2, 3 and 4 replicas.
fn worlds(reference: &Reference) -> Vec<usize> {
    (1..=4).filter(|replicas| reference.count("batch").is_multiple_of(*replicas)).collect()
}

/// The gradient of every parameter, as the momentum after one step without weight decay, for every world size.
pub fn gradients<B: HostBackend>() {
    let reference = Reference::load();
    for stem in STEMS {
        let expected = reference.tensors(&format!("{}.grads", name_of(stem)));
        let rows: Vec<usize> = integers(&expected["@batch_indices"]).iter().map(|row| *row as usize).collect();
        for replicas in worlds(&reference) {
            in_some_attempt(&reference, |attempt| {
                gradients_of::<B>(&reference, stem, replicas, &rows, &expected, attempt)
            });
        }
    }
}

fn gradients_of<B: HostBackend>(
    reference: &Reference,
    stem: Stem,
    replicas: usize,
    rows: &[usize],
    expected: &StateDict,
    attempt: usize,
) {
    let variant = Variant::Sync(replicas);
    let setup = setup(reference, variant, Some(0.0));
    let done = train::<B>(reference, stem, variant, &setup, &[rows.to_vec()], attempt);
    let loss = done.steps[0].counts.mean_loss();
    let theirs = f64::from(floats(&expected["@loss"])[0]);
    assert!((loss - theirs).abs() < 2e-5, "{stem:?} W={replicas}: loss {loss} against {theirs}");
    let state = done.states.last().unwrap();
    let gradients = named_gradients(&state.optimizer, &state.weights);
    check_statistics(&gradients, expected, "grad.");
    let pairs = probed(&gradients, expected, "grad.");
    assert_eq!(pairs.len(), 62, "every parameter has a reference");
    for (name, (ours, theirs)) in &pairs {
        let distance = relative_l2(ours, theirs);
        assert!(distance < 1e-4, "{stem:?} W={replicas} {name}: {distance:.2e}");
    }
    let norm = done.steps[0].gradient_norm;
    let theirs = f64::from(floats(&expected["@grad_norm"])[0]);
    assert!((norm / theirs - 1.0).abs() < 1e-4, "{stem:?} W={replicas}: norm {norm} against {theirs}");
}

/// Optimizer slot 0 in the names, shapes and layout of the weights.
fn named_gradients(optimizer: &StateDict, weights: &StateDict) -> StateDict {
    let mut gradients = StateDict::new();
    for (name, weight) in weights {
        let Some(slot) = optimizer.get(&format!("{name}.0")) else { continue };
        let (shape, mut data) = (weight.shape().to_vec(), floats(slot).to_vec());
        if name == "fc.weight" {
            let (rows, columns) = (shape[0], shape[1]);
            data = (0..rows * columns).map(|i| data[(i % columns) * rows + i / columns]).collect();
        }
        gradients.insert(name.clone(), HostTensor::F32 { shape, data });
    }
    gradients
}

/// Training-mode logits and the buffers after one forward.
pub fn training_forward<B: HostBackend>() {
    let reference = Reference::load();
    for stem in STEMS {
        let expected = reference.tensors(&format!("{}.logits", name_of(stem)));
        let weights = reference.tensors(name_of(stem));
        let device = B::open(0).unwrap();
        let plain = ResNet::<Autodiff<B>>::new(&reference.model(stem), reference.count("num_classes"), 0.0, &device);
        let plain = load_state(plain, &weights, "the fixture").unwrap();
        let logits = plain.forward(Tensor::from_inner(inputs::<B>(&reference)), &ForwardContext::local());
        close("training logits", &values(logits.inner()), &expected["logits_train"], 1e-4);
        for replicas in [1, 2, 4] {
            let variant = Variant::Sync(replicas);
            let mut setup = setup(&reference, variant, Some(0.0));
            setup.batch_size = 8 / replicas;
            let done = train::<B>(&reference, stem, variant, &setup, &[(0..8).collect()], 0);
            let state = &done.states.last().unwrap().weights;
            for (name, ours) in state.iter().filter(|(name, _)| is_buffer(name)) {
                match (ours, &expected[&format!("after_train_forward.{name}")]) {
                    (HostTensor::F32 { data, .. }, theirs) => close(name, data, theirs, 1e-4),
                    (ours, theirs) => assert_eq!(ours, theirs, "{name}"),
                }
            }
        }
    }
}

/// Whole trajectories: learning rate, loss, gradient norm, hits, final weights and buffers, averaged weights.
pub fn trajectories<B: HostBackend>(stem: Stem) {
    let reference = Reference::load();
    let trajectory = reference.json(&format!("{}.trajectory.json", name_of(stem)));
    let local: Vec<usize> = numbers(&reference.config["replicas"]).iter().map(|r| *r as usize).collect();
    let mut variants: Vec<Variant> = worlds(&reference).into_iter().map(Variant::Sync).collect();
    variants.push(Variant::Accumulated);
    variants.extend(local.into_iter().map(Variant::Local));
    for variant in variants.into_iter().filter(|variant| trajectory["variants"].get(variant.name()).is_some()) {
        let setup = setup(&reference, variant, None);
        in_some_attempt(&reference, |attempt| {
            let done = train::<B>(&reference, stem, variant, &setup, &reference.batches(), attempt);
            follows(&done, &trajectory["variants"][variant.name()], variant);
            ends_there::<B>(&reference, stem, variant, &done);
        });
    }
}

fn follows(done: &Recorded, expected: &serde_json::Value, variant: Variant) {
    let lists = ["lr", "loss", "grad_norm", "correct"].map(|key| numbers(&expected[key]));
    assert_eq!(done.steps.len(), lists[0].len());
    for (i, step) in done.steps.iter().enumerate() {
        let [lr, loss, norm, correct] = [0, 1, 2, 3].map(|list: usize| lists[list][i]);
        assert!((step.learning_rate - lr).abs() < 1e-9, "{variant:?} step {i}: lr {} not {lr}", step.learning_rate);
        let distance = (step.counts.mean_loss() - loss).abs();
        let limit = if i < 3 { 2e-5 } else { 2e-3 };
        assert!(distance < limit, "{variant:?} step {i}: loss {} not {loss}", step.counts.mean_loss());
        let distance = (step.gradient_norm / norm - 1.0).abs();
        assert!(i >= 3 || distance < 1e-4, "{variant:?} step {i}: gradient norm {} not {norm}", step.gradient_norm);
        assert!(i >= 3 || step.counts.counted[TOP1] == correct, "{variant:?} step {i}: hits of {:?}", step.counts);
    }
}

fn ends_there<B: HostBackend>(reference: &Reference, stem: Stem, variant: Variant, done: &Recorded) {
    let state = done.states.last().unwrap();
    let file = |variant: Variant| reference.tensors(&format!("{}.{}.final", name_of(stem), variant.name()));
    let own = file(variant);
    // `local` has the weights of the same number of accumulated micro-batches; only its buffers are stored.
    let weights = if variant == Variant::Local(2) { file(Variant::Accumulated) } else { own.clone() };
    let distance = |expected: &StateDict, buffers: bool| {
        let pairs = probed(&state.weights, expected, "");
        joint_l2(&pairs, |name| is_buffer(name) == buffers)
    };
    check_statistics(&state.weights, &weights, "");
    let has_weights = weights.keys().any(|name| name.ends_with("conv1.weight"));
    if has_weights {
        assert!(distance(&weights, false) < 1e-4, "{variant:?}: parameters {:.2e}", distance(&weights, false));
    }
    assert!(distance(&own, true) < 1e-4, "{variant:?}: buffers {:.2e}", distance(&own, true));
    for (name, tensor) in state.weights.iter().filter(|(name, _)| name.ends_with("num_batches_tracked")) {
        assert_eq!(tensor, &own[name], "{variant:?} {name}");
    }
    let other = if matches!(variant, Variant::Sync(_)) { Variant::Accumulated } else { Variant::Sync(1) };
    let other = file(other);
    for buffers in [false, true] {
        let near = distance(if buffers { &own } else { &weights }, buffers);
        if buffers || has_weights {
            assert!(5.0 * near < distance(&other, buffers), "{variant:?} is as near to another variant");
        }
    }
    let logits = |weights: &StateDict| {
        values(model::<B>(reference, stem, weights).forward(inputs::<B>(reference), &ForwardContext::evaluate()))
    };
    close("final logits", &logits(&state.weights), &own["@final_logits_eval"], 1e-3);
    let average = state.average.as_ref().expect("averaging was on");
    close("averaged logits", &logits(average), &own["@ema_logits_eval"], 1e-3);
    if matches!(variant, Variant::Sync(_)) && reference.has(&format!("{}.sync.ema.safetensors", name_of(stem))) {
        let expected = reference.tensors(&format!("{}.sync.ema", name_of(stem)));
        let pairs = probed(average, &expected, "");
        assert!(joint_l2(&pairs, |name| !is_buffer(name)) < 1e-4, "{variant:?}: averaged parameters");
        assert!(joint_l2(&pairs, is_buffer) < 1e-4, "{variant:?}: averaged buffers");
    }
}

/// Weights written and read keep every bit and every name of torchvision.
pub fn weights_round_trip<B: HostBackend>() {
    let reference = Reference::load();
    for stem in STEMS {
        let weights = reference.tensors(name_of(stem));
        assert_eq!(state_dict(&model::<B>(&reference, stem, &weights)), weights);
    }
}
