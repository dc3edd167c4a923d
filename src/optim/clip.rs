//! The global norm of gradients, and clipping by it (Pascanu, Mikolov, Bengio 2013; `torch.nn.utils.clip_grad_norm_`).

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

/// Euclidean norm over all elements of all tensors; the tensors' shares are added in f64.
pub fn global_norm<B: Backend>(tensors: &[Tensor<B, 1>]) -> f64 {
    let squares: Vec<Tensor<B, 1>> = tensors.iter().map(|tensor| (tensor.clone() * tensor.clone()).sum()).collect();
    if squares.is_empty() {
        return 0.0;
    }
    Tensor::cat(squares, 0).into_data().iter::<f64>().sum::<f64>().sqrt()
}

/// The factor that brings a gradient of norm `norm` down to `limit`; 1 when it is shorter or `limit` is 0.
pub fn clip_factor(norm: f64, limit: f64) -> f64 {
    if limit > 0.0 && norm > limit { limit / (norm + 1e-6) } else { 1.0 }
}
