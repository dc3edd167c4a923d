//! The global norm of gradients, and clipping by it (Pascanu, Mikolov, Bengio 2013; `torch.nn.utils.clip_grad_norm_`).

use burn::tensor::{DType, Tensor};

use crate::ops::{UpdateOps, primitive, reading, tensor};

/// Euclidean norm over all elements of all tensors; their squared norms are added in f64.
pub fn global_norm<B: UpdateOps>(tensors: &[Tensor<B, 1>]) -> f64 {
    let norms: Vec<Tensor<B, 1>> = tensors.iter().map(|values| tensor(B::norm(primitive(values.clone())))).collect();
    if norms.is_empty() {
        return 0.0;
    }
    let _copy = reading(norms.len(), DType::F32);
    Tensor::cat(norms, 0).into_data().iter::<f64>().map(|norm| norm * norm).sum::<f64>().sqrt()
}

/// The factor that scales a gradient of norm `norm` to `limit`; 1 if the norm is smaller or `limit` is 0.
pub fn clip_factor(norm: f64, limit: f64) -> f64 {
    if limit > 0.0 && norm > limit { limit / (norm + 1e-6) } else { 1.0 }
}
