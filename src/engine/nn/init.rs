//! Initial weights, drawn on the host: equal for every backend, device and world size.
//!
//! Each tensor has its own random stream, keyed by the seed and its name. Convolutions: Kaiming normal, fan-out,
//! gain of ReLU (He et al. 2015), `std = sqrt(2 / (outputs * kernel area))`. Linear layers: uniform in
//! `±1 / sqrt(inputs)`, as in PyTorch. Other tensors, such as those of batch-norm, keep their constants.

use std::collections::BTreeMap;

use burn::module::Module;
use kiln_ops::HostOps;
use kiln_system::Result;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, Normal, Uniform};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::named::{load_state, state_dict};
use crate::state::HostTensor;

/// The model with fresh weights.
pub fn initialize<B: HostOps, M: Module<B>>(model: M, seed: u64) -> Result<M> {
    let mut state = state_dict(&model);
    // Names of linear layers with their number of inputs, which also bounds their biases.
    let matrix = |(name, tensor): (&String, &HostTensor)| match tensor.shape() {
        [_, inputs] => Some((name.strip_suffix(".weight")?.to_string(), *inputs)),
        _ => None,
    };
    let linear: BTreeMap<String, usize> = state.iter().filter_map(matrix).collect();
    state.par_iter_mut().for_each(|(name, tensor)| {
        let HostTensor::F32 { shape, data } = tensor else { return };
        let mut random = stream(seed, name);
        if let [outputs, _, height, width] = shape[..] {
            let std = (2.0 / (outputs * height * width) as f32).sqrt();
            let normal = Normal::new(0.0, std).expect("a deviation of finite, positive size");
            data.fill_with(|| normal.sample(&mut random));
        } else if let Some(inputs) = name.rsplit_once('.').and_then(|(layer, _)| linear.get(layer)) {
            let bound = 1.0 / (*inputs as f32).sqrt();
            let uniform = Uniform::new(-bound, bound).expect("bounds that are finite and in order");
            data.fill_with(|| uniform.sample(&mut random));
        }
    });
    load_state(model, &state, "the initialisation")
}

fn stream(seed: u64, name: &str) -> ChaCha8Rng {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(name.as_bytes());
    ChaCha8Rng::from_seed(hash.finalize().into())
}
