//! Notification of gradients during the backward pass, so that they can be reduced while it continues.

use std::fmt::Debug;
use std::sync::Arc;

use burn::module::ParamId;

/// Is called with a parameter's gradient as soon as it is computed. Implemented in `parallel`.
pub trait GradientListener: Debug + Send + Sync {
    /// The gradient of `parameter` is complete. Each call of `append` appends its values to a vector, f32 in row-major
    /// order.
    fn ready(&self, parameter: ParamId, append: &dyn Fn(&mut Vec<f32>));
}

/// A listener for one parameter. The parameter must be used once per forward pass: its gradient is complete after that
/// use's backward step.
#[derive(Debug, Clone)]
pub struct ParameterListener {
    /// The listener.
    pub listener: Arc<dyn GradientListener>,
    /// The parameter.
    pub parameter: ParamId,
}
