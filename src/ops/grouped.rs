//! The three products of a grouped convolution ("Aggregated Residual Transformations for Deep Neural Networks", Xie et
//! al., 2017): group by group, where a backend has no kernel for all groups at once.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{Slice, TensorMetadata};

use super::conv::ConvOps;
use super::sliding::Sliding;

/// [`ConvOps::conv_forward`] for any number of groups.
pub(super) fn forward<B: ConvOps>(x: FloatTensor<B>, weight: FloatTensor<B>, sliding: Sliding) -> FloatTensor<B> {
    let product = |[x, weight]: [_; 2], sliding| B::conv_forward(x, weight, sliding);
    by_group::<B, 2>([(x, 1), (weight, 0)], 1, sliding, product)
}

/// [`ConvOps::conv_weight_gradient`] for any number of groups.
pub(super) fn weight_gradient<B: ConvOps>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    sliding: Sliding,
) -> FloatTensor<B> {
    let product = |[x, weight, gradient]: [_; 3], sliding| B::conv_weight_gradient(x, weight, gradient, sliding);
    by_group::<B, 3>([(x, 1), (weight, 0), (gradient, 1)], 0, sliding, product)
}

/// [`ConvOps::conv_input_gradient`] for any number of groups.
pub(super) fn input_gradient<B: ConvOps>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    sliding: Sliding,
) -> FloatTensor<B> {
    let product = |[x, weight, gradient]: [_; 3], sliding| B::conv_input_gradient(x, weight, gradient, sliding);
    by_group::<B, 3>([(x, 1), (weight, 0), (gradient, 1)], 1, sliding, product)
}

/// The `product` of the operands, each divided into groups along its axis; the results are joined along `axis`.
fn by_group<B: ConvOps, const N: usize>(
    operands: [(FloatTensor<B>, usize); N],
    axis: usize,
    sliding: Sliding,
    product: impl Fn([FloatTensor<B>; N], Sliding) -> FloatTensor<B>,
) -> FloatTensor<B> {
    if sliding.groups == 1 || B::HAS_GROUPS {
        return product(operands.map(|(operand, _)| operand), sliding);
    }
    let part = |(operand, axis): &(FloatTensor<B>, usize), group: usize| {
        let mut ranges: [_; 4] = operand.shape().dims().map(|size: usize| 0..size);
        let size = ranges[*axis].end / sliding.groups;
        ranges[*axis] = group * size..(group + 1) * size;
        B::float_slice(operand.clone(), &ranges.map(Slice::from))
    };
    let of_one = Sliding { groups: 1, ..sliding };
    let of_group = |group: usize| product(operands.each_ref().map(|operand| part(operand, group)), of_one);
    B::float_cat((0..sliding.groups).map(of_group).collect(), axis)
}
