//! Operations fused with a batch-norm in a residual network: the sum with the shortcut, and ReLU.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

use super::gradient::GradientOps;

/// What is done to the normalised values in the same pass over memory.
#[derive(Debug, Clone)]
pub enum Epilogue<T> {
    Identity,
    /// ReLU, `max(x, 0)`.
    Relu,
    /// ReLU of the sum with a shortcut of the same shape.
    AddRelu(T),
}

impl<T> Epilogue<T> {
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> Epilogue<U> {
        match self {
            Self::Identity => Epilogue::Identity,
            Self::Relu => Epilogue::Relu,
            Self::AddRelu(shortcut) => Epilogue::AddRelu(map(shortcut)),
        }
    }
}

/// Values of a fused ReLU that its backward pass needs.
#[derive(Debug, Clone)]
pub struct ReluState<B: Backend> {
    /// Its output, `[batch, channels, height, width]`.
    pub output: FloatTensor<B>,
    /// Scale and shift of the batch-norm, `[channels]`, if the backend gave them and no shortcut was added: the output
    /// is positive exactly where `(x - mean) * scale + bias` is.
    pub mask: Option<[FloatTensor<B>; 2]>,
}

/// The epilogue in Burn's operations.
pub(super) fn apply_epilogue<B: Backend>(output: FloatTensor<B>, epilogue: Epilogue<FloatTensor<B>>) -> FloatTensor<B> {
    match epilogue {
        Epilogue::Identity => output,
        Epilogue::Relu => B::relu(output),
        Epilogue::AddRelu(shortcut) => B::relu(B::float_add(output, shortcut)),
    }
}

/// The gradient of the ReLU's input; the gradient itself without a ReLU.
pub(super) fn epilogue_backward<B: GradientOps>(
    gradient: FloatTensor<B>,
    relu: Option<&ReluState<B>>,
) -> FloatTensor<B> {
    match relu {
        Some(relu) => B::relu_gradient(relu.output.clone(), gradient),
        None => gradient,
    }
}
