//! Convolutions on CubeCL: Burn's kernels, with sums in f32, and corrected for kernels narrower than their stride.

use burn::tensor::backend::Backend;
use burn::tensor::ops::{ConvOptions, ConvTransposeOptions, FloatTensor, FloatTensorOps, ModuleOps};
use burn::tensor::{DType, Slice, TensorMetadata};
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::Fusion;

use super::lift::{Lifted, queue};
use super::map::{images, rows};
use crate::ops::{ConvOps, PoolOps, Sliding, UpdateOps};

impl<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement> ConvOps for Fusion<CubeBackend<R, F, I, E>> {
    fn conv_forward(x: FloatTensor<Self>, weight: FloatTensor<Self>, sliding: Sliding) -> FloatTensor<Self> {
        in_f32::<R, F, I, E, 2>([x, weight], |[x, weight]| Self::conv2d(x, weight, None, sliding.options()))
    }

    fn conv_weight_gradient(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        sliding: Sliding,
    ) -> FloatTensor<Self> {
        in_f32::<R, F, I, E, 2>([x, gradient], |[x, gradient]| {
            Self::conv2d_weight_backward(x, weight, gradient, sliding.options())
        })
    }

    fn conv_input_gradient(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        sliding: Sliding,
    ) -> FloatTensor<Self> {
        let is_burns = sliding.stride > 1 || has_matrix_units::<R>(&Self::float_device(&x));
        in_f32::<R, F, I, E, 2>([weight, gradient], |[weight, gradient]| {
            if is_burns {
                corrected::<Self>(x, weight, gradient, sliding)
            } else {
                inverse::<Self>(weight, gradient, sliding)
            }
        })
    }
}

impl<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement> PoolOps for Fusion<CubeBackend<R, F, I, E>> {}

impl<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement> UpdateOps for Fusion<CubeBackend<R, F, I, E>> {}

/// The product of tensors, with sums in f32.
///
/// Matrix units sum so for every type. The kernels of burn-cubecl 0.21 for devices without them (`conv/direct.rs`,
/// `transpose_direct.rs`) sum in the type of the tensors: with f16 the gradient of a weight loses its direction. There
/// the product is computed of tensors in f32.
fn in_f32<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement, const N: usize>(
    tensors: [Lifted<R, F, I, E>; N],
    product: impl FnOnce([Lifted<R, F, I, E>; N]) -> Lifted<R, F, I, E>,
) -> Lifted<R, F, I, E> {
    let dtype = tensors[0].dtype();
    if dtype == DType::F32 || has_matrix_units::<R>(&Fusion::<CubeBackend<R, F, I, E>>::float_device(&tensors[0])) {
        return product(tensors);
    }
    cast::<R, F, I, E>(product(tensors.map(|tensor| cast::<R, F, I, E>(tensor, DType::F32))), dtype)
}

/// The tensor, `[batch, channels, height, width]`, in another type; channels stay innermost.
fn cast<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement>(
    tensor: Lifted<R, F, I, E>,
    dtype: DType,
) -> Lifted<R, F, I, E> {
    let like = (tensor.shape(), dtype);
    let [result] = queue::<CubeBackend<R, F, I, E>, _, _>("cast", [tensor], [like], move |[tensor]| {
        [images(CubeBackend::<R, F, I, E>::float_cast(rows(tensor), dtype.into()))]
    });
    result
}

fn has_matrix_units<R: CubeRuntime>(device: &R::Device) -> bool {
    let client = R::client(device);
    let units = &client.properties().features.matmul;
    !(units.cmma.is_empty() && units.mma.is_empty())
}

/// The input gradient of a convolution with stride 1, as a convolution of the gradient: the result has channels
/// innermost, that of Burn's kernels without matrix units has not.
fn inverse<B: Backend>(weight: FloatTensor<B>, gradient: FloatTensor<B>, sliding: Sliding) -> FloatTensor<B> {
    let padding = [2, 3].map(|axis| weight.shape()[axis] - 1 - sliding.padding);
    // Flipping writes the kernels anew: here in the layout that the convolution wants.
    let weight = B::float_flip(B::float_permute(weight, &[1, 2, 3, 0]), &[1, 2]);
    let weight = B::float_permute(weight, &[0, 3, 1, 2]);
    B::conv2d(gradient, weight, None, ConvOptions::new([1, 1], padding, [1, 1], 1))
}

/// Burn's input gradient, corrected for kernels narrower than their stride, as in a shortcut's 1x1 projection.
///
/// Burn 0.21 picks the faster of two algorithms. The direct one (burn-cubecl, `transpose_direct.rs`) visits
/// `kernel - stride + 1` positions per pixel: none for such a kernel, so it is fast and all gradients are zero. Padding
/// the kernel with zeros to the width of the stride makes both correct and changes no value.
fn corrected<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    sliding: Sliding,
) -> FloatTensor<B> {
    let Sliding { stride, padding, .. } = sliding;
    let kernel = weight.shape();
    if kernel[2] >= stride && kernel[3] >= stride {
        return B::conv2d_x_backward(x, weight, gradient, sliding.options());
    }
    let weight = widened::<B>(widened::<B>(weight, 2, stride), 3, stride);
    // The widened kernel may reach beyond the image, which is cut off below, or end before it.
    let reached = |axis: usize| (gradient.shape()[axis] - 1) * stride + weight.shape()[axis] - 2 * padding;
    let missing = [2, 3].map(|axis| x.shape()[axis].saturating_sub(reached(axis)));
    let options = ConvTransposeOptions::new([stride; 2], [padding; 2], missing, [1, 1], 1);
    let whole: Vec<_> = x.shape().iter().map(|size| Slice::from(0..*size)).collect();
    B::float_slice(B::conv_transpose2d(gradient, weight, None, options), &whole)
}

/// `values`, padded with zeros at the end of `axis` to a length of `size`.
fn widened<B: Backend>(values: FloatTensor<B>, axis: usize, size: usize) -> FloatTensor<B> {
    let mut shape = values.shape();
    if shape[axis] >= size {
        return values;
    }
    shape[axis] = size - shape[axis];
    let zeros = B::float_zeros(shape, &B::float_device(&values), values.dtype().into());
    B::float_cat(vec![values, zeros], axis)
}
