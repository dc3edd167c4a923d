//! Gradients that are heard of while the backward pass goes on, so that somebody can send them meanwhile.

use std::fmt::Debug;
use std::sync::Arc;

use burn::module::ParamId;

/// Hears of a parameter's gradient as soon as it is there. Implemented in `parallel`.
pub trait GradientListener: Debug + Send + Sync {
    /// The gradient of `parameter` is whole; `append` adds its values to a vector, f32 in row-major order, as often as
    /// it is called.
    fn ready(&self, parameter: ParamId, append: &dyn Fn(&mut Vec<f32>));
}

/// Who hears of which parameter. The parameter must be used once in a forward pass: its gradient is whole after the one
/// backward step it has.
#[derive(Debug, Clone)]
pub struct Listened {
    /// Who hears of it.
    pub listener: Arc<dyn GradientListener>,
    /// Whose gradient it is.
    pub parameter: ParamId,
}
