//! The global norm of gradients, and clipping by it (Pascanu, Mikolov, Bengio 2013; `torch.nn.utils.clip_grad_norm_`).

use burn::tensor::Tensor;
use kiln_ops::{HostOps, UpdateOps, primitive, tensor};

/// The norms, `[1]`, of the parts of a gradient: on a processor of each tensor, elsewhere of all together.
pub fn norms<B: UpdateOps>(gradients: &[Tensor<B, 1>]) -> Vec<Tensor<B, 1>> {
    let norms: Vec<Tensor<B, 1>> = gradients.iter().map(|values| tensor(B::norm(primitive(values.clone())))).collect();
    if norms.is_empty() || B::is_processor() {
        return norms;
    }
    // The norm of norms: Burn's sum may add in another order on another device.
    vec![tensor(B::norm(primitive(Tensor::cat(norms, 0))))]
}

/// Euclidean norm of the whole from the norms of its parts; their squares are added in f64.
pub fn global_norm(norms: &[f32]) -> f64 {
    norms.iter().map(|norm| f64::from(*norm).powi(2)).sum::<f64>().sqrt()
}

/// The factor that scales a gradient of norm `norm` to `limit`; 1 if the norm is smaller or `limit` is 0.
pub fn clip_factor(norm: f64, limit: f64) -> f64 {
    if limit > 0.0 && norm > limit { limit / (norm + 1e-6) } else { 1.0 }
}

/// [`clip_factor`], `[1]`, of a norm on a device; `limit` is above 0.
pub fn clip_factor_there<B: HostOps>(norm: Tensor<B, 1>, limit: f64) -> Tensor<B, 1> {
    ((norm + 1e-6).recip() * limit).clamp_max(1.0)
}
