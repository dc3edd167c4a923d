//! The products of a grouped convolution ("Aggregated Residual Transformations for Deep Neural Networks", Xie et al.,
//! 2017): group by group, where a backend has no kernel for all groups at once.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{Slice, TensorMetadata};

use super::conv::ConvOps;
use super::sliding::Sliding;

/// The axis along which groups divide each operand: images, kernels, the gradient of the output.
const AXES: [usize; 3] = [1, 0, 1];

/// One of the three products of [`ConvOps`] for any number of groups, whose results are joined along `axis`.
pub(super) fn by_group<B: ConvOps, const N: usize>(
    operands: [FloatTensor<B>; N],
    axis: usize,
    sliding: Sliding,
    product: impl Fn([FloatTensor<B>; N], Sliding) -> FloatTensor<B>,
) -> FloatTensor<B> {
    if sliding.groups == 1 || B::HAS_GROUPS {
        return product(operands, sliding);
    }
    let part = |operand: usize, group: usize| {
        let (operand, axis) = (&operands[operand], AXES[operand]);
        let mut ranges: [_; 4] = operand.shape().dims().map(|size: usize| 0..size);
        let size = ranges[axis].end / sliding.groups;
        ranges[axis] = group * size..(group + 1) * size;
        B::float_slice(operand.clone(), &ranges.map(Slice::from))
    };
    let of_one = Sliding { groups: 1, ..sliding };
    let of_group = |group: usize| product(std::array::from_fn(|operand| part(operand, group)), of_one);
    B::float_cat((0..sliding.groups).map(of_group).collect(), axis)
}
