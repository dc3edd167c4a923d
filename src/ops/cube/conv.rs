//! Convolutions on CubeCL as operations of the stream: see [`super::products`].

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::Fusion;

use super::fusion::queue;
use super::products;
use super::row_layout::{images, rows};
use super::weights;
use crate::{BranchOps, ConvOps, PoolOps, Sliding};

impl<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement> ConvOps for Fusion<CubeBackend<R, F, I, E>> {
    /// A matrix product would be tuned over 20 kernels for each of its three sizes, each compiled for a second.
    const CHANNELS_INNERMOST: bool = true;

    fn conv_weight(weight: FloatTensor<Self>, x: &FloatTensor<Self>, _sliding: Sliding) -> FloatTensor<Self> {
        if weight.dtype() != x.dtype() {
            return weights::laid::<R, F, I, E>(vec![weight], x.dtype()).swap_remove(0);
        }
        let (like, run) = ((weight.shape(), weight.dtype()), |[weight]: [_; 1]| [images(rows(weight))]);
        let [weight] = queue::<CubeBackend<R, F, I, E>, _, _>("rows of a weight", [weight], [like], run);
        weight
    }

    fn conv_weights(weights: impl FnOnce() -> Vec<FloatTensor<Self>>, dtype: DType) -> Option<Vec<FloatTensor<Self>>> {
        Some(weights::laid::<R, F, I, E>(weights(), dtype))
    }

    fn conv_forward([x, weight]: [FloatTensor<Self>; 2], sliding: Sliding) -> FloatTensor<Self> {
        let [[batch, _, height, width], [outputs, _, down, across]] = [&x, &weight].map(|it| it.shape().dims());
        let [height, width] = [sliding.positions(height, down), sliding.positions(width, across)];
        let like = (Shape::new([batch, outputs, height, width]), x.dtype());
        let run = move |[x, weight]: [_; 2]| [products::output(x, weight, sliding)];
        let [output] = queue::<CubeBackend<R, F, I, E>, _, _>("convolution", [x, weight], [like], run);
        output
    }

    fn conv_weight_gradient([x, weight, gradient]: [FloatTensor<Self>; 3], sliding: Sliding) -> FloatTensor<Self> {
        let shape = weight.shape();
        let like = (shape.clone(), DType::F32);
        let run = move |[x, gradient]: [_; 2]| [products::weight_gradient(x, shape.dims(), gradient, sliding)];
        let [found] = queue::<CubeBackend<R, F, I, E>, _, _>("weight gradient", [x, gradient], [like], run);
        found
    }

    fn conv_input_gradient([x, weight, gradient]: [FloatTensor<Self>; 3], sliding: Sliding) -> FloatTensor<Self> {
        let (shape, dtype) = (x.shape(), x.dtype());
        let like = (shape.clone(), dtype);
        let run = move |[weight, gradient]: [_; 2]| {
            [products::input_gradient::<R, F, I, E>(shape.dims(), weight, gradient, sliding)]
        };
        let [found] = queue::<CubeBackend<R, F, I, E>, _, _>("input gradient", [weight, gradient], [like], run);
        found
    }
}

impl<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement> PoolOps for Fusion<CubeBackend<R, F, I, E>> {}

impl<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement> BranchOps for Fusion<CubeBackend<R, F, I, E>> {}
