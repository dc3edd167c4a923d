//! Networks whose 3x3 convolutions all have channels in sixteens, the real width among them, held against PyTorch's
//! gradients in f64. Their weights follow from their names, on both sides alike.

use burn::backend::Autodiff;
use kiln_engine::nn::state_dict;
use kiln_engine::parallel::HostBackend;
use kiln_engine::state::{HostTensor, StateDict};
use kiln_ops::Algorithm;
use kiln_training::{ModelConfig, ResNet, Stem};

use super::compare::{check_statistics, is_buffer, probed, relative_l2};
use super::fixture::{Reference, floats};
use super::run::{Recorded, Setup, plan, run};
use super::{Variant, images, named_gradients, normalization, setup};

/// How many times as far from f64 as PyTorch's own gradient in f32, which oneDNN computes by the definition, a tensor's
/// gradient may be.
const FURTHER: f64 = 10.0;

/// Every gradient, on one replica and two.
pub fn gradients<B: HostBackend>() {
    let reference = Reference::own();
    let wide = reference.json("wide.json");
    for (width, about) in wide["widths"].as_object().unwrap() {
        let width = width.parse().unwrap();
        let expected = reference.tensors(&format!("wide.{width}"));
        let weights = weights::<B>(width, &expected);
        let batch = wide["batch"].as_u64().unwrap() as usize;
        let run = |replicas, conv| train::<B>(&reference, [width, batch, replicas], &weights, conv);
        for replicas in [1, 2] {
            let done = run(replicas, Algorithm::Auto);
            let loss = done.steps[0].counts.mean_loss();
            let theirs = f64::from(floats(&expected["@loss"])[0]);
            assert!((loss - theirs).abs() < 2e-5, "width {width}, W={replicas}: loss {loss} against {theirs}");
            let gradients = gradients_of(&done);
            check_statistics(&gradients, &expected, "grad.");
            let pairs = probed(&gradients, &expected, "grad.");
            assert_eq!(pairs.len(), 62, "every parameter has a reference");
            for (name, (ours, theirs)) in &pairs {
                let (off, allowed) = (relative_l2(ours, theirs), FURTHER * about["errors"][name].as_f64().unwrap());
                assert!(off < allowed, "width {width}, W={replicas} {name}: {off:.2e}, allowed {allowed:.2e}");
            }
        }
        if B::is_processor() {
            let [auto, direct] = [Algorithm::Auto, Algorithm::Direct].map(|conv| gradients_of(&run(1, conv)));
            let name = "layer1.0.conv1.weight";
            assert_ne!(auto[name], direct[name], "the kernels of `auto` are not those of `direct`");
        }
    }
}

fn gradients_of(done: &Recorded) -> StateDict {
    let state = done.states.last().unwrap();
    named_gradients(&state.optimizer, &state.weights)
}

/// One step on the first images of the pool that changes no weight.
fn train<B: HostBackend>(
    reference: &Reference,
    [width, batch, replicas]: [usize; 3],
    weights: &StateDict,
    conv: Algorithm,
) -> Recorded {
    let setup = Setup { batch_size: batch / replicas, ..setup(reference, Variant::Sync(replicas), Some(0.0)) };
    let rows: Vec<usize> = (0..batch).collect();
    let config = ModelConfig { conv, ..model(width) };
    run::<B>(plan(&setup, images(reference, &rows), normalization(reference, 0)), &config, 10, weights)
}

fn model(width: usize) -> ModelConfig {
    ModelConfig { stem: Stem::Cifar, width, ..ModelConfig::default() }
}

/// Those of `make.py`: drawn by name, with the shifted biases of the fixture in place of some.
fn weights<B: HostBackend>(width: usize, shifted: &StateDict) -> StateDict {
    let device = B::open(0).unwrap();
    let mut weights = state_dict(&ResNet::<Autodiff<B>>::new(&model(width), 10, 0.0, &device));
    for (name, weight) in weights.iter_mut().filter(|(name, _)| !is_buffer(name)) {
        match shifted.get(&format!("bias.{name}")) {
            Some(bias) => *weight = bias.clone(),
            None => *weight = drawn(name, weight.shape().to_vec()),
        }
    }
    weights
}

fn drawn(name: &str, shape: Vec<usize>) -> HostTensor {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    let scaled = |unit: f32| match shape.len() {
        4 => 2.0 * unit - 1.0,
        _ if name.starts_with("fc") => (2.0 * unit - 1.0) / 8.0,
        _ if name.ends_with("weight") => unit + 0.5,
        _ => (2.0 * unit - 1.0) / 4.0,
    };
    let data = (1..=shape.iter().product::<usize>() as u64).map(|i| scaled(unit(hash, i))).collect();
    HostTensor::F32 { shape, data }
}

/// 24 bits of SplitMix64, as a number in `[0, 1)`.
fn unit(state: u64, number: u64) -> f32 {
    let z = state.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32
}
