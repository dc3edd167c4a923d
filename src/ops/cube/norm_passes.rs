//! The passes of batch-norm over memory on CubeCL: which kernels make them, on tensors below Burn's fusion.

use burn::tensor::TensorMetadata;
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::norm_kernels::{all_moments, all_sums, input_gradient, normalized, piece_moments, piece_sums};
use super::row_layout::{RowLayout, arguments, images, rows};
use crate::batch_norm::free;

/// Mean and sum of squared deviations; with `weight` and epsilon the mean and what `norm_kernels::factors` computes.
pub(super) fn whole_moments<R: CubeRuntime, const N: usize>(
    layout: &RowLayout<R>,
    x: CubeTensor<R>,
    weight: Option<(CubeTensor<R>, f64)>,
) -> [CubeTensor<R>; N] {
    let ([means, squares], made) = (layout.pieces(), layout.per_channel::<N>());
    let epsilon = weight.as_ref().map_or(0.0, |(_, epsilon)| *epsilon);
    piece_moments::launch::<R>(
        &layout.client,
        layout.piece_cubes(),
        layout.cube(),
        layout.vector,
        rows(x).into_tensor_arg(),
        means.clone().into_tensor_arg(),
        squares.clone().into_tensor_arg(),
        layout.rows,
        layout.columns(),
        layout.depth(),
        layout.lanes(),
        layout.dtype.into(),
    );
    all_moments::launch::<R>(
        &layout.client,
        layout.channel_cubes(),
        layout.cube(),
        layout.vector,
        means.into_tensor_arg(),
        squares.into_tensor_arg(),
        arguments(weight.into_iter().map(|(weight, _)| into_contiguous(weight))),
        made[0].clone().into_tensor_arg(),
        arguments(made[1..].iter().cloned()),
        layout.rows,
        layout.columns(),
        layout.depth(),
        free(layout.rows as f64) as f32,
        epsilon as f32,
        layout.lanes(),
    );
    made
}

/// `(x - mean) * scale + bias` by these `factors`, plus the shortcut if there is one, and ReLU if `relu`.
pub(super) fn normalize<R: CubeRuntime>(
    layout: &RowLayout<R>,
    x: CubeTensor<R>,
    factors: [CubeTensor<R>; 3],
    shortcut: Vec<CubeTensor<R>>,
    relu: bool,
) -> CubeTensor<R> {
    let output = layout.empty();
    let (count, dim) = layout.units();
    let [mean, scale, bias] = factors.map(|factor| into_contiguous(factor).into_tensor_arg());
    normalized::launch::<R>(
        &layout.client,
        count,
        dim,
        layout.vector,
        rows(x).into_tensor_arg(),
        mean,
        scale,
        bias,
        arguments(shortcut.into_iter().map(rows)),
        output.clone().into_tensor_arg(),
        layout.vectors(),
        layout.columns(),
        relu,
        layout.dtype.into(),
    );
    images(output)
}

/// Sums of the gradient, and of the gradient times the normalised input. `behind` is nothing, scale and bias of a ReLU,
/// or the ReLU's output: then the gradient that went through it is the third result.
pub(super) fn sums<R: CubeRuntime>(
    [gradient, x, mean, inv_std]: [CubeTensor<R>; 4],
    behind: Vec<CubeTensor<R>>,
) -> Vec<CubeTensor<R>> {
    let layout = RowLayout::of(&x);
    let (output, mask): (Vec<_>, Vec<_>) = behind.into_iter().partition(|it| it.shape().num_dims() == 4);
    let passed: Vec<_> = output.iter().map(|_| layout.empty()).collect();
    let ([sums, products], [sum, weighted]) = (layout.pieces(), layout.per_channel());
    piece_sums::launch::<R>(
        &layout.client,
        layout.piece_cubes(),
        layout.cube(),
        layout.vector,
        rows(gradient).into_tensor_arg(),
        rows(x).into_tensor_arg(),
        into_contiguous(mean).into_tensor_arg(),
        arguments(mask.into_iter().map(into_contiguous)),
        arguments(output.into_iter().map(rows)),
        arguments(passed.iter().cloned()),
        sums.clone().into_tensor_arg(),
        products.clone().into_tensor_arg(),
        layout.rows,
        layout.columns(),
        layout.depth(),
        layout.lanes(),
        layout.dtype.into(),
    );
    all_sums::launch::<R>(
        &layout.client,
        layout.channel_cubes(),
        layout.cube(),
        layout.vector,
        sums.into_tensor_arg(),
        products.into_tensor_arg(),
        into_contiguous(inv_std).into_tensor_arg(),
        sum.clone().into_tensor_arg(),
        weighted.clone().into_tensor_arg(),
        layout.piece_count(),
        layout.columns(),
        layout.lanes(),
    );
    [sum, weighted].into_iter().chain(passed.into_iter().map(images)).collect()
}

/// The gradient of the input; `channels` are mean, inverse standard deviation, weight, and the [`sums`] over the whole
/// batch.
pub(super) fn from_sums<R: CubeRuntime>(
    [gradient, x]: [CubeTensor<R>; 2],
    channels: [CubeTensor<R>; 5],
    mask: Vec<CubeTensor<R>>,
    share: f64,
) -> CubeTensor<R> {
    let layout = RowLayout::of(&x);
    let result = layout.empty();
    let (count, dim) = layout.units();
    let [mean, inv_std, weight, sum, weighted] = channels.map(|values| into_contiguous(values).into_tensor_arg());
    input_gradient::launch::<R>(
        &layout.client,
        count,
        dim,
        layout.vector,
        rows(gradient).into_tensor_arg(),
        rows(x).into_tensor_arg(),
        mean,
        inv_std,
        weight,
        sum,
        weighted,
        arguments(mask.into_iter().map(into_contiguous)),
        result.clone().into_tensor_arg(),
        share as f32,
        layout.vectors(),
        layout.columns(),
        layout.dtype.into(),
    );
    images(result)
}
