//! The pools of a ResNet, each as one differentiable primitive: the stem's maximum, 3x3 with stride 2 and padding 1,
//! and the mean of whole maps.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{Shape, Tensor, TensorMetadata};

use super::node::tracked;
use super::{TrainBackend, primitive, tensor};

/// Width and height of a window.
pub(super) const SIDE: usize = 3;
/// Pixels from one window to the next.
pub(super) const STRIDE: usize = 2;
/// Padding on each side of the image.
pub(super) const PADDING: usize = 1;

/// Pools and their gradients.
pub trait PoolOps: Backend {
    /// The largest value of each window, `[batch, channels, out_height, out_width]`, and their indices if
    /// [`PoolOps::pool_gradient`] needs them.
    fn pool_forward(x: FloatTensor<Self>) -> (FloatTensor<Self>, Option<IntTensor<Self>>) {
        let done = Self::max_pool2d_with_indices(x, [SIDE; 2], [STRIDE; 2], [PADDING; 2], [1; 2], false);
        (done.output, Some(done.indices))
    }

    /// The gradient of the input: that of a window goes to the first of its largest values.
    fn pool_gradient(gradient: FloatTensor<Self>, pooled: Pooled<Self>) -> FloatTensor<Self> {
        let places = pooled.places.expect("`pool_forward` says where they are");
        let (sides, strides, paddings) = ([SIDE; 2], [STRIDE; 2], [PADDING; 2]);
        let x = pooled.x;
        Self::max_pool2d_with_indices_backward(x, sides, strides, paddings, [1; 2], false, gradient, places).x_grad
    }

    /// The mean over the pixels, `[batch, channels]`, added up in their order.
    fn mean_forward(x: FloatTensor<Self>) -> FloatTensor<Self> {
        mean::<Self>(x)
    }

    /// The gradient of maps of this shape.
    fn mean_gradient(gradient: FloatTensor<Self>, shape: Shape) -> FloatTensor<Self> {
        let [batch, channels, height, width] = shape.dims();
        let share = tensor::<Self, 2>(gradient) * (1.0 / (height * width) as f64);
        primitive(share.reshape([batch, 1, 1, channels]).expand([batch, height, width, channels]).permute([0, 3, 1, 2]))
    }
}

/// [`PoolOps::mean_forward`] in Burn's operations.
pub(super) fn mean<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let x = tensor::<B, 4>(x);
    let [batch, channels, height, width] = x.dims();
    let pixels = x.permute([0, 2, 3, 1]).reshape([batch, height * width, channels]);
    primitive::<B, 2>(pixels.mean_dim(1).reshape([batch, channels]))
}

/// Values saved for the backward pass.
#[derive(Debug, Clone)]
pub struct Pooled<B: Backend> {
    pub x: FloatTensor<B>,
    pub output: FloatTensor<B>,
    /// Indices of its values in the input, if the backend uses them.
    pub places: Option<IntTensor<B>>,
}

impl<B: PoolOps, C: CheckpointStrategy> PoolOps for Autodiff<B, C> {
    fn pool_forward(x: FloatTensor<Self>) -> (FloatTensor<Self>, Option<IntTensor<Self>>) {
        let inner = x.primitive.clone();
        let (output, places) = B::pool_forward(inner.clone());
        let pooled = Pooled { x: inner, output: output.clone(), places };
        (tracked::<B, C>(x, output, |gradient| B::pool_gradient(gradient, pooled)), None)
    }

    fn mean_forward(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let (output, shape) = (B::mean_forward(x.primitive.clone()), x.primitive.shape());
        tracked::<B, C>(x, output, |gradient| B::mean_gradient(gradient, shape))
    }
}

/// 3x3 max-pooling with stride 2 and padding 1 of `[batch, channels, height, width]`.
pub fn max_pool<B: PoolOps>(x: Tensor<B, 4>) -> Tensor<B, 4> {
    tensor(B::pool_forward(primitive(x)).0)
}

/// The mean over the pixels, `[batch, channels]`, of `[batch, channels, height, width]`.
pub fn mean_of_pixels<B: TrainBackend>(x: Tensor<B, 4>) -> Tensor<B, 2> {
    if B::CHANNELS_INNERMOST {
        return tensor(B::mean_forward(primitive(x)));
    }
    let [batch, channels, height, width] = x.dims();
    x.reshape([batch, channels, height * width]).mean_dim(2).reshape([batch, channels])
}
