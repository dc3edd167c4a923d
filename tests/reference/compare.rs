//! Distances between tensors, whole or probed, and the features of a network that are compared.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use kiln_engine::nn::ForwardContext;
use kiln_engine::parallel::HostBackend;
use kiln_engine::state::StateDict;
use kiln_training::{ResNet, Through, Units};

use super::fixture::floats;

/// `max |a - b| / max |b|`.
pub fn relative_max(ours: &[f32], theirs: &[f32]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let largest = theirs.iter().fold(0.0f64, |max, x| max.max(f64::from(x.abs())));
    let distance = ours.iter().zip(theirs).fold(0.0f64, |max, (a, b)| max.max(f64::from((a - b).abs())));
    distance / largest
}

/// `|a - b| / |b|` in the Euclidean norm.
pub fn relative_l2(ours: &[f32], theirs: &[f32]) -> f64 {
    let (distance, norm) = squares(ours, theirs);
    // A probe may hold nothing but zeros: taps of a kernel that only ever see padding.
    if norm == 0.0 { distance.sqrt() } else { (distance / norm).sqrt() }
}

fn squares(ours: &[f32], theirs: &[f32]) -> (f64, f64) {
    assert_eq!(ours.len(), theirs.len());
    let distance = ours.iter().zip(theirs).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (distance, theirs.iter().map(|b| f64::from(*b).powi(2)).sum())
}

/// The elements that the fixture holds of a tensor, ours and theirs: all of them, or the probe `floor(i * n / K)`.
pub fn probed(ours: &StateDict, theirs: &StateDict, prefix: &str) -> BTreeMap<String, (Vec<f32>, Vec<f32>)> {
    let mut pairs = BTreeMap::new();
    for (name, tensor) in ours {
        let Some(values) = tensor.as_f32() else { continue };
        let whole = format!("{prefix}{name}");
        if let Some(full) = theirs.get(&whole) {
            pairs.insert(name.clone(), (values.to_vec(), floats(full).to_vec()));
        } else if let Some(probe) = theirs.get(&format!("{whole}#probe")) {
            let probe = floats(probe);
            let picked = (0..probe.len()).map(|i| values[i * values.len() / probe.len()]).collect();
            pairs.insert(name.clone(), (picked, probe.to_vec()));
        }
    }
    pairs
}

/// Holds the stored sums over whole tensors against ours: what a probe of a few elements would miss.
pub fn check_statistics(ours: &StateDict, theirs: &StateDict, prefix: &str) {
    for (name, tensor) in ours {
        let (Some(values), Some(stored)) = (tensor.as_f32(), theirs.get(&format!("{prefix}{name}#stats"))) else {
            continue;
        };
        let sums = statistics(values);
        for (ours, theirs) in sums.iter().zip(floats(stored)) {
            let distance = (ours - f64::from(*theirs)).abs() / sums[1].max(1e-6);
            assert!(distance < 1e-4, "{name}: statistics {sums:?} against {:?}", floats(stored));
        }
    }
}

/// Sum, sum of magnitudes, norm, alternating sum.
fn statistics(values: &[f32]) -> [f64; 4] {
    let wide = || values.iter().map(|x| f64::from(*x));
    let alternating = wide().enumerate().map(|(k, x)| if k % 2 == 0 { x } else { -x }).sum();
    [wide().sum(), wide().map(f64::abs).sum(), wide().map(|x| x * x).sum::<f64>().sqrt(), alternating]
}

pub fn is_buffer(name: &str) -> bool {
    name.contains("running_") || name.contains("num_batches")
}

/// Joint relative L2 over the tensors that `keep` selects.
pub fn joint_l2(pairs: &BTreeMap<String, (Vec<f32>, Vec<f32>)>, keep: impl Fn(&str) -> bool) -> f64 {
    let kept = pairs.iter().filter(|(name, _)| keep(name));
    let (distance, norm) = kept.fold((0.0, 0.0), |(distance, norm), (_, (ours, theirs))| {
        let (d, n) = squares(ours, theirs);
        (distance + d, norm + n)
    });
    assert!(norm > 0.0, "nothing to compare");
    (distance / norm).sqrt()
}

/// What the classifier sees of images in an evaluation, `[batch, channels]`.
pub fn features<B: HostBackend>(model: &ResNet<B>, images: Tensor<B, 4>) -> Tensor<B, 2> {
    let [_, _, height, width] = images.dims();
    let below = Units { range: 0..model.units() - 1, image: [height, width] };
    match model.forward_units(&below, images, None, &ForwardContext::evaluate()) {
        // Channels are innermost.
        Through::Maps(maps) => maps.mean_dim(1).mean_dim(2).squeeze_dims(&[1, 2]),
        Through::Logits(_) => panic!("only the classifier has logits"),
    }
}
