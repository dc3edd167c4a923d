//! Kiln's primitives on Flex, the pure-Rust CPU backend: f32 loops over NHWC images; other types are converted to f32
//! and back.

mod pool;
mod update;

use std::mem::MaybeUninit;

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::ops::{FloatTensorOps, IntTensor, IntTensorOps};
use burn::tensor::{Bytes, DType, Element, FloatDType, Shape, TensorMetadata};
use kiln_kernels::{BatchNorm, Convolution, Epilogue as HostEpilogue, Trim, transpose};
use rayon::prelude::*;
use update::parallel_for;

use super::batch_norm::{BatchNormOps, free};
use super::branch::BranchOps;
use super::conv::{ConvOps, PreparedKernel, by_group};
use super::epilogue::{Epilogue, ReluState};
use super::gradient::GradientOps;
use super::host::HostOps;
use super::pool::{PoolOps, Pooled, mean};
use super::precision::as_type;
use super::sliding::Sliding;
use super::update::UpdateOps;

impl ConvOps for Flex {
    const CHANNELS_INNERMOST: bool = true;

    fn conv_forward([x, weight]: [FlexTensor; 2], sliding: Sliding) -> FlexTensor {
        let (plan, dtype) = (plan(&x, &weight, sliding), x.dtype());
        let (x, weight) = (to_nhwc(x), as_f32(weight));
        let output = new_tensor(plan.output().into(), |output| plan.forward(values(&x), values(&weight), None, output));
        from_nhwc(output, dtype)
    }

    fn convolution_normalized(
        x: FlexTensor,
        PreparedKernel { weight, sliding }: PreparedKernel<Self>,
        factors: [FlexTensor; 3],
        epilogue: Epilogue<FlexTensor>,
    ) -> FlexTensor {
        let plan = (sliding.groups == 1).then(|| plan(&x, &weight, sliding));
        let Some(plan) = plan.filter(|plan| plan.takes_epilogue() && x.dtype() == DType::F32) else {
            return Self::bn_normalize(
                by_group::<Self, 2>([x, weight], 1, sliding, Self::conv_forward),
                factors,
                epilogue,
            );
        };
        let (x, weight) = (to_nhwc(x), as_f32(weight));
        let output = with_epilogue(factors, epilogue, |epilogue| {
            new_tensor(plan.output().into(), |output| {
                plan.forward(values(&x), values(&weight), Some(epilogue), output);
            })
        });
        from_nhwc(output, DType::F32)
    }

    fn conv_weight_gradient([x, weight, gradient]: [FlexTensor; 3], sliding: Sliding) -> FlexTensor {
        let plan = plan(&x, &weight, sliding);
        let (x, gradient) = (to_nhwc(x), to_nhwc(gradient));
        let output = new_tensor(weight.shape(), |output| plan.weight_gradient(values(&x), values(&gradient), output));
        as_type::<Flex>(output, weight.dtype().into())
    }

    fn conv_input_gradient([x, weight, gradient]: [FlexTensor; 3], sliding: Sliding) -> FlexTensor {
        let (plan, dtype) = (plan(&x, &weight, sliding), x.dtype());
        let (weight, gradient) = (as_f32(weight), to_nhwc(gradient));
        let output = new_tensor(plan.input().into(), |x| plan.input_gradient(values(&weight), values(&gradient), x));
        from_nhwc(output, dtype)
    }

    fn conv_trimmed(weight: FlexTensor, trim: &Trim) -> FlexTensor {
        let (dtype, weight) = (weight.dtype(), as_f32(weight));
        as_type::<Flex>(
            new_tensor(Shape::new(trim.part()), |part| trim.crop(values(&weight), part, parallel_for)),
            dtype.into(),
        )
    }

    fn conv_untrimmed(gradient: FlexTensor, trim: &Trim) -> FlexTensor {
        let (dtype, gradient) = (gradient.dtype(), as_f32(gradient));
        as_type::<Flex>(
            new_tensor(Shape::new(trim.whole), |whole| trim.pad(values(&gradient), whole, parallel_for)),
            dtype.into(),
        )
    }
}

/// Half types are computed in f32; activations are rounded back, statistics stay f32.
impl BatchNormOps for Flex {
    fn bn_moments(x: FlexTensor) -> (FlexTensor, FlexTensor) {
        let [mean, m2] = norm(&x).moments(values(&to_nhwc(x))).map(vector);
        (mean, m2)
    }

    fn bn_factors(m2: FlexTensor, weight: FlexTensor, count: f64, epsilon: f64) -> [FlexTensor; 3] {
        let [m2, weight] = [m2, weight].map(as_f32);
        BatchNorm::factors(values(&m2), values(&weight), [count, free(count), epsilon]).map(vector)
    }

    fn bn_weight_gradient(weighted: FlexTensor, inv_std: FlexTensor) -> FlexTensor {
        let [weighted, inv_std] = [weighted, inv_std].map(as_f32);
        vector(values(&weighted).iter().zip(values(&inv_std)).map(|(weighted, inv_std)| weighted * inv_std).collect())
    }

    fn bn_gradient_factors(
        weight: FlexTensor,
        inv_std: FlexTensor,
        [sum, weighted]: [FlexTensor; 2],
        share: f64,
    ) -> [FlexTensor; 3] {
        let of_channels = [weight, inv_std, sum, weighted].map(as_f32);
        BatchNorm::gradient_factors(of_channels.each_ref().map(values), share).map(vector)
    }

    fn bn_running(
        running: Vec<FlexTensor>,
        batch: Vec<FlexTensor>,
        counts: Vec<IntTensor<Self>>,
        momentum: f64,
    ) -> (Vec<FlexTensor>, Vec<IntTensor<Self>>) {
        let pairs = running.into_iter().zip(batch);
        let averages = pairs.map(|(running, batch)| Self::blend(running, batch, [1.0 - momentum, momentum])).collect();
        (averages, counts.into_iter().map(|count| Self::int_add_scalar(count, 1.into())).collect())
    }

    fn bn_swapped(x: FlexTensor) -> FlexTensor {
        let (dtype, x) = (x.dtype(), as_f32(x));
        let [rows, columns, length] = x.shape().dims();
        let swapped = zero_tensor([columns, rows, length].into(), |output| {
            output.par_chunks_mut(rows * length).enumerate().for_each(|(column, to)| {
                let from = values(&x).chunks(length).skip(column).step_by(columns);
                to.chunks_mut(length).zip(from).for_each(|(to, from)| to.copy_from_slice(from));
            });
        });
        as_type::<Flex>(swapped, dtype.into())
    }

    fn bn_normalize(x: FlexTensor, factors: [FlexTensor; 3], epilogue: Epilogue<FlexTensor>) -> FlexTensor {
        let (norm, dtype, x) = (norm(&x), x.dtype(), to_nhwc(x));
        let output = with_epilogue(factors, epilogue, |epilogue| {
            new_tensor(x.shape(), |output| norm.normalize(values(&x), &epilogue, output))
        });
        from_nhwc(output, dtype)
    }

    fn bn_gradient_sums(
        gradient: FlexTensor,
        x: FlexTensor,
        mean: FlexTensor,
        relu: Option<&ReluState<Self>>,
    ) -> [FlexTensor; 3] {
        let (norm, dtype) = (norm(&x), gradient.dtype());
        let [mut gradient, x] = [gradient, x].map(to_nhwc);
        if let Some(relu) = relu.filter(|relu| relu.mask.is_none()) {
            // In place if this is the only reference to the gradient, else in a copy.
            norm.relu_backward(gradient.storage_mut(), values(&to_nhwc(relu.output.clone())));
        }
        let (mean, mask) = (as_f32(mean), mask(relu));
        let mask = mask.as_ref().map(|factors| factors.each_ref().map(values));
        let [sum, weighted] = norm.gradient_sums(values(&gradient), values(&x), values(&mean), mask).map(vector);
        [from_nhwc(gradient, dtype), sum, weighted]
    }

    fn bn_input_gradient(
        gradient: FlexTensor,
        x: FlexTensor,
        mean: FlexTensor,
        [k, q, r]: [FlexTensor; 3],
        relu: Option<&ReluState<Self>>,
    ) -> FlexTensor {
        let (norm, dtype) = (norm(&x), x.dtype());
        let ([gradient, x], factors) = ([gradient, x].map(to_nhwc), [mean, k, q, r].map(as_f32));
        let mask = mask(relu);
        let mask = mask.as_ref().map(|factors| factors.each_ref().map(values));
        let output = new_tensor(x.shape(), |output| {
            norm.input_gradient(values(&gradient), values(&x), factors.each_ref().map(values), mask, output);
        });
        from_nhwc(output, dtype)
    }
}

impl PoolOps for Flex {
    fn pool_forward(x: FlexTensor) -> (FlexTensor, Option<IntTensor<Self>>) {
        let (image, dtype, x) = (image(&x), x.dtype(), to_nhwc(x));
        let pool::Image { height, width, channels } = image.pooled();
        let output =
            zero_tensor([x.shape()[0], height, width, channels].into(), |output| image.pool(values(&x), output));
        (from_nhwc(output, dtype), None)
    }

    /// f32 images are summed in Burn's order, by image.
    fn mean_forward(x: FlexTensor) -> FlexTensor {
        if x.dtype() != DType::F32 {
            return mean::<Self>(x);
        }
        let (image, batch, x) = (image(&x), x.shape()[0], to_nhwc(x));
        zero_tensor([batch, image.channels].into(), |output| image.mean(values(&x), output))
    }

    fn mean_gradient(gradient: FlexTensor, shape: Shape) -> FlexTensor {
        let [batch, channels, height, width] = shape.dims();
        let (dtype, image) = (gradient.dtype(), pool::Image { height, width, channels });
        let share = as_f32(Self::float_mul_scalar(gradient, (1.0 / (height * width) as f64).into()));
        let dx = zero_tensor([batch, height, width, channels].into(), |dx| image.spread(values(&share), dx));
        from_nhwc(dx, dtype)
    }

    fn pool_gradient(gradient: FlexTensor, pooled: Pooled<Self>) -> FlexTensor {
        let (image, dtype) = (image(&pooled.x), gradient.dtype());
        let [gradient, x, output] = [gradient, pooled.x, pooled.output].map(to_nhwc);
        let dx = zero_tensor(x.shape(), |dx| image.gradient(values(&gradient), values(&x), values(&output), dx));
        from_nhwc(dx, dtype)
    }
}

fn image(x: &FlexTensor) -> pool::Image {
    let shape = x.shape();
    pool::Image { height: shape[2], width: shape[3], channels: shape[1] }
}

/// In place if one of the two has no other reference, else in a copy.
impl GradientOps for Flex {
    fn relu_gradient(output: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        let (norm, dtype, mut gradient) = (norm(&gradient), gradient.dtype(), to_nhwc(gradient));
        norm.relu_backward(gradient.storage_mut(), values(&to_nhwc(output)));
        from_nhwc(gradient, dtype)
    }

    fn sum(one: FlexTensor, other: FlexTensor) -> FlexTensor {
        let dtype = one.dtype();
        let [one, other] = if one.is_unique() { [one, other] } else { [other, one] }.map(to_nhwc);
        from_nhwc(Self::add(one, other), dtype)
    }
}

impl BranchOps for Flex {
    fn branch_added(branch: FlexTensor, factors: FlexTensor, shortcut: FlexTensor) -> FlexTensor {
        let (dtype, factors) = (branch.dtype(), as_f32(factors));
        let [branch, shortcut] = [branch, shortcut].map(to_nhwc);
        let image = values(&branch).len() / values(&factors).len();
        let output = new_tensor(branch.shape(), |output| {
            let images = values(&branch).par_chunks(image).zip(values(&shortcut).par_chunks(image));
            images.zip(output.par_chunks_mut(image)).zip(values(&factors)).for_each(|((from, to), factor)| {
                for ((branch, shortcut), to) in from.0.iter().zip(from.1).zip(to) {
                    let sum = branch * factor + shortcut;
                    // Not `max`, which would hide NaN.
                    to.write(if sum < 0.0 { 0.0 } else { sum });
                }
            });
        });
        from_nhwc(output, dtype)
    }

    fn branch_scaled(branch: FlexTensor, factors: FlexTensor) -> FlexTensor {
        let (dtype, factors, mut branch) = (branch.dtype(), as_f32(factors), to_nhwc(branch));
        let image = values(&branch).len() / values(&factors).len();
        // In place if this is the only reference to the tensor, else in a copy.
        let images = branch.storage_mut::<f32>().par_chunks_mut(image).zip(values(&factors));
        images.for_each(|(image, factor)| image.iter_mut().for_each(|value| *value *= factor));
        from_nhwc(branch, dtype)
    }
}

fn norm(x: &FlexTensor) -> BatchNorm {
    BatchNorm { channels: x.shape()[1], parallel_for }
}

/// Scale and bias that give the sign of the output, if no shortcut was added.
fn mask(relu: Option<&ReluState<Flex>>) -> Option<[FlexTensor; 2]> {
    relu.and_then(|relu| relu.mask.clone()).map(|factors| factors.map(as_f32))
}

/// `work` with mean, scale and bias and an epilogue in the host's memory.
fn with_epilogue(
    factors: [FlexTensor; 3],
    epilogue: Epilogue<FlexTensor>,
    work: impl FnOnce(HostEpilogue) -> FlexTensor,
) -> FlexTensor {
    let relu = !matches!(epilogue, Epilogue::Identity);
    let shortcut = if let Epilogue::AddRelu(shortcut) = epilogue { Some(to_nhwc(shortcut)) } else { None };
    let factors = factors.map(as_f32);
    work(HostEpilogue { factors: factors.each_ref().map(values), shortcut: shortcut.as_ref().map(values), relu })
}

fn vector(values: Vec<f32>) -> FlexTensor {
    let shape = Shape::new([values.len()]);
    of_values(values, shape)
}

/// Images `[batch, channels, height, width]` as contiguous f32 `[batch, height, width, channels]`, the memory order of
/// all results of these primitives.
fn to_nhwc(images: FlexTensor) -> FlexTensor {
    let turned = permuted(images, [0, 2, 3, 1]);
    if turned.is_contiguous() {
        return as_f32(turned);
    }
    let (shape, images) = (turned.shape(), as_f32(permuted(turned, [0, 3, 1, 2])));
    let channels = shape[3];
    let image = values(&images).len() / images.shape()[0];
    new_tensor(shape, |output| {
        values(&images).par_chunks(image).zip(output.par_chunks_mut(image)).for_each(|(from, to)| {
            transpose(from, image / channels, to, channels, [channels, image / channels]);
        });
    })
}

/// The inverse of [`to_nhwc`] as a view, in type `dtype`.
fn from_nhwc(images: FlexTensor, dtype: DType) -> FlexTensor {
    permuted(as_type::<Flex>(images, dtype.into()), [0, 3, 1, 2])
}

// The next three do what functions of `FlexTensor` do, which the profiles of Kiln do not optimise.

/// A view.
fn permuted(images: FlexTensor, axes: [usize; 4]) -> FlexTensor {
    let layout = images.layout();
    let (shape, strides) = (axes.map(|axis| layout.shape()[axis]), axes.map(|axis| layout.strides()[axis]));
    let layout = Layout::new(Shape::new(shape), strides.into(), layout.start_offset());
    images.with_layout(layout)
}

fn of_values<E: Element>(values: Vec<E>, shape: Shape) -> FlexTensor {
    let mut strides = vec![1; shape.num_dims()];
    for axis in (1..strides.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as isize;
    }
    FlexTensor::new(Bytes::from_elems(values), Layout::new(shape, strides, 0), E::dtype())
}

fn as_f32(tensor: FlexTensor) -> FlexTensor {
    contiguous(as_type::<Flex>(tensor, FloatDType::F32))
}

fn plan(x: &FlexTensor, weight: &FlexTensor, sliding: Sliding) -> Convolution {
    sliding.plan(&x.shape(), &weight.shape(), parallel_for)
}

/// The tensor with its elements in order. It consumes the old handle: a second handle would turn every change into a
/// copy.
fn contiguous(tensor: FlexTensor) -> FlexTensor {
    let layout = tensor.layout();
    let is_whole = layout.start_offset() == 0 && tensor.bytes().len() == layout.num_elements() * tensor.dtype().size();
    if is_whole && layout.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("the tensor is contiguous and of type f32")
}

/// A tensor whose values are all written by `write`.
fn new_tensor(shape: Shape, write: impl FnOnce(&mut [MaybeUninit<f32>])) -> FlexTensor {
    let mut values = Vec::with_capacity(shape.num_elements());
    write(&mut values.spare_capacity_mut()[..shape.num_elements()]);
    // SAFETY: the capacity is that many values, and the caller has written all of them.
    unsafe { values.set_len(shape.num_elements()) };
    of_values(values, shape)
}

/// A tensor of zeros into which `write` writes.
fn zero_tensor(shape: Shape, write: impl FnOnce(&mut [f32])) -> FlexTensor {
    let mut values = vec![0.0; shape.num_elements()];
    write(&mut values);
    of_values(values, shape)
}
