//! Kiln's primitives on Flex, the pure-Rust CPU backend: loops over NHWC images of f32, bf16 or f16, all arithmetic in
//! f32. Kernels and values per channel are f32.

mod pool;
mod update;

use std::mem::MaybeUninit;

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::ops::{FloatTensorOps, IntTensor, IntTensorOps};
use burn::tensor::{Bytes, DType, Element, FloatDType, Shape, TensorMetadata, bf16, f16};
use bytemuck::Pod;
use kiln_kernels::{Activation, BatchNorm, Convolution, Epilogue as HostEpilogue, Trim, transpose, update as updates};
use rayon::prelude::*;
use update::parallel_for;

use super::batch_norm::{BatchNormOps, free};
use super::branch::BranchOps;
use super::conv::{ConvOps, PreparedKernel, by_group};
use super::epilogue::{Epilogue, ReluState};
use super::gradient::GradientOps;
use super::pool::{PoolOps, Pooled};
use super::precision::as_type;
use super::sliding::Sliding;
use super::update::UpdateOps;

/// An element type of activations.
trait Value: Activation + Element + Pod {}

impl<T: Activation + Element + Pod> Value for T {}

/// An expression with `T` the type of activations of this `dtype`.
macro_rules! of_type {
    ($dtype:expr, $T:ident => $value:expr) => {
        match $dtype {
            DType::BF16 => {
                type $T = bf16;
                $value
            }
            DType::F16 => {
                type $T = f16;
                $value
            }
            _ => {
                type $T = f32;
                $value
            }
        }
    };
}

impl ConvOps for Flex {
    const CHANNELS_INNERMOST: bool = true;

    /// The kernels stay f32.
    fn conv_weight(weight: FlexTensor, _x: &FlexTensor, _sliding: Sliding) -> FlexTensor {
        weight
    }

    fn conv_forward([x, weight]: [FlexTensor; 2], sliding: Sliding) -> FlexTensor {
        let (plan, x, weight) = (plan(&x, &weight, sliding), to_nhwc(x), as_f32(weight));
        from_nhwc(of_type!(x.dtype(), T => new_tensor::<T>(plan.output().into(), |output| {
            plan.forward(values(&x), values(&weight), None, output);
        })))
    }

    fn convolution_normalized(
        x: FlexTensor,
        PreparedKernel { weight, sliding }: PreparedKernel<Self>,
        factors: [FlexTensor; 3],
        epilogue: Epilogue<FlexTensor>,
    ) -> FlexTensor {
        let plan = (sliding.groups == 1).then(|| plan(&x, &weight, sliding));
        let Some(plan) = plan.filter(Convolution::takes_epilogue) else {
            return Self::bn_normalize(
                by_group::<Self, 2>([x, weight], 1, sliding, Self::conv_forward),
                factors,
                epilogue,
            );
        };
        let (x, weight) = (to_nhwc(x), as_f32(weight));
        from_nhwc(of_type!(x.dtype(), T => with_epilogue::<T>(factors, epilogue, |epilogue| {
            new_tensor(plan.output().into(), |output| {
                plan.forward(values(&x), values(&weight), Some(epilogue), output);
            })
        })))
    }

    fn conv_weight_gradient([x, weight, gradient]: [FlexTensor; 3], sliding: Sliding) -> FlexTensor {
        let (plan, [x, gradient]) = (plan(&x, &weight, sliding), [x, gradient].map(to_nhwc));
        of_type!(x.dtype(), T => new_tensor(weight.shape(), |output| {
            plan.weight_gradient::<T>(values(&x), values(&gradient), output);
        }))
    }

    fn conv_input_gradient([x, weight, gradient]: [FlexTensor; 3], sliding: Sliding) -> FlexTensor {
        let (plan, weight, gradient) = (plan(&x, &weight, sliding), as_f32(weight), to_nhwc(gradient));
        from_nhwc(of_type!(gradient.dtype(), T => new_tensor::<T>(plan.input().into(), |x| {
            plan.input_gradient(values(&weight), values(&gradient), x);
        })))
    }

    fn conv_trimmed(weight: FlexTensor, trim: &Trim) -> FlexTensor {
        let (weight, part) = (contiguous(weight), Shape::new(trim.part()));
        of_type!(weight.dtype(), T => new_tensor::<T>(part, |part| trim.crop(values(&weight), part, parallel_for)))
    }

    fn conv_untrimmed(gradient: FlexTensor, trim: &Trim) -> FlexTensor {
        let (part, whole) = (contiguous(gradient), Shape::new(trim.whole));
        of_type!(part.dtype(), T => new_tensor::<T>(whole, |whole| trim.pad(values(&part), whole, parallel_for)))
    }
}

impl BatchNormOps for Flex {
    fn bn_moments(x: FlexTensor) -> (FlexTensor, FlexTensor) {
        let (norm, x) = (norm(&x), to_nhwc(x));
        let [mean, m2] = of_type!(x.dtype(), T => norm.moments::<T>(values(&x))).map(vector);
        (mean, m2)
    }

    fn bn_factors(m2: FlexTensor, weight: FlexTensor, count: f64, epsilon: f64) -> [FlexTensor; 3] {
        let [m2, weight] = [m2, weight].map(as_f32);
        BatchNorm::factors(values(&m2), values(&weight), [count, free(count), epsilon]).map(vector)
    }

    fn bn_weight_gradient(weighted: FlexTensor, inv_std: FlexTensor) -> FlexTensor {
        let [weighted, inv_std] = [weighted, inv_std].map(as_f32);
        let pairs = values::<f32>(&weighted).iter().zip(values::<f32>(&inv_std));
        vector(pairs.map(|(weighted, inv_std)| weighted * inv_std).collect())
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
        let x = contiguous(x);
        let [rows, columns, length] = x.shape().dims();
        of_type!(x.dtype(), T => new_tensor::<T>([columns, rows, length].into(), |output| {
            output.par_chunks_mut(rows * length).enumerate().for_each(|(column, to)| {
                let from = values(&x).chunks(length).skip(column).step_by(columns).flatten();
                to.iter_mut().zip(from).for_each(|(to, from)| *to = MaybeUninit::new(*from));
            });
        }))
    }

    fn bn_normalize(x: FlexTensor, factors: [FlexTensor; 3], epilogue: Epilogue<FlexTensor>) -> FlexTensor {
        let (norm, x) = (norm(&x), to_nhwc(x));
        from_nhwc(of_type!(x.dtype(), T => with_epilogue::<T>(factors, epilogue, |epilogue| {
            new_tensor(x.shape(), |output| norm.normalize(values(&x), &epilogue, output))
        })))
    }

    fn bn_gradient_sums(
        gradient: FlexTensor,
        x: FlexTensor,
        mean: FlexTensor,
        relu: Option<&ReluState<Self>>,
    ) -> [FlexTensor; 3] {
        let (norm, [mut gradient, x], mean, mask) = (norm(&x), [gradient, x].map(to_nhwc), as_f32(mean), mask(relu));
        let mask = mask.as_ref().map(|factors| factors.each_ref().map(values));
        let sums = of_type!(x.dtype(), T => {
            if let Some(relu) = relu.filter(|relu| relu.mask.is_none()) {
                // In place if this is the only reference to the gradient, else in a copy.
                norm.relu_backward::<T>(gradient.storage_mut(), values(&to_nhwc(relu.output.clone())));
            }
            norm.gradient_sums::<T>(values(&gradient), values(&x), values(&mean), mask)
        });
        let [sum, weighted] = sums.map(vector);
        [from_nhwc(gradient), sum, weighted]
    }

    fn bn_input_gradient(
        gradient: FlexTensor,
        x: FlexTensor,
        mean: FlexTensor,
        [k, q, r]: [FlexTensor; 3],
        relu: Option<&ReluState<Self>>,
    ) -> FlexTensor {
        let norm = norm(&x);
        let ([gradient, x], factors) = ([gradient, x].map(to_nhwc), [mean, k, q, r].map(as_f32));
        let (mask, factors) = (mask(relu), factors.each_ref().map(values));
        let mask = mask.as_ref().map(|factors| factors.each_ref().map(values));
        from_nhwc(of_type!(x.dtype(), T => new_tensor::<T>(x.shape(), |output| {
            norm.input_gradient(values(&gradient), values(&x), factors, mask, output);
        })))
    }
}

impl PoolOps for Flex {
    fn pool_forward(x: FlexTensor) -> (FlexTensor, Option<IntTensor<Self>>) {
        let (image, x) = (image(&x), to_nhwc(x));
        let pool::Image { height, width, channels } = image.pooled();
        let shape = [x.shape()[0], height, width, channels].into();
        let output = of_type!(x.dtype(), T => new_tensor::<T>(shape, |output| image.pool(values(&x), output)));
        (from_nhwc(output), None)
    }

    fn mean_forward(x: FlexTensor) -> FlexTensor {
        let (image, x) = (image(&x), to_nhwc(x));
        let shape = [x.shape()[0], image.channels].into();
        of_type!(x.dtype(), T => new_tensor::<T>(shape, |output| image.mean(values(&x), output)))
    }

    fn mean_gradient(gradient: FlexTensor, shape: Shape) -> FlexTensor {
        let [batch, channels, height, width] = shape.dims();
        let image = pool::Image { height, width, channels };
        let share = contiguous(Self::float_mul_scalar(gradient, (1.0 / (height * width) as f64).into()));
        let shape = [batch, height, width, channels].into();
        from_nhwc(of_type!(share.dtype(), T => new_tensor::<T>(shape, |dx| image.spread(values(&share), dx))))
    }

    fn pool_gradient(gradient: FlexTensor, pooled: Pooled<Self>) -> FlexTensor {
        let image = image(&pooled.x);
        let [gradient, x, output] = [gradient, pooled.x, pooled.output].map(to_nhwc);
        from_nhwc(of_type!(x.dtype(), T => new_tensor::<T>(x.shape(), |dx| {
            image.gradient(values(&gradient), values(&x), values(&output), dx);
        })))
    }
}

fn image(x: &FlexTensor) -> pool::Image {
    let shape = x.shape();
    pool::Image { height: shape[2], width: shape[3], channels: shape[1] }
}

/// In place if one of the two has no other reference, else in a copy.
impl GradientOps for Flex {
    fn relu_gradient(output: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        let (norm, mut gradient, output) = (norm(&gradient), to_nhwc(gradient), to_nhwc(output));
        of_type!(output.dtype(), T => norm.relu_backward::<T>(gradient.storage_mut(), values(&output)));
        from_nhwc(gradient)
    }

    fn sum(one: FlexTensor, other: FlexTensor) -> FlexTensor {
        let [mut one, other] = if one.is_unique() { [one, other] } else { [other, one] }.map(to_nhwc);
        of_type!(one.dtype(), T => updates::add::<T>(one.storage_mut(), values(&other), parallel_for));
        from_nhwc(one)
    }
}

impl BranchOps for Flex {
    fn branch_added(branch: FlexTensor, factors: FlexTensor, shortcut: FlexTensor) -> FlexTensor {
        let (factors, [branch, shortcut]) = (as_f32(factors), [branch, shortcut].map(to_nhwc));
        let image = branch.shape().num_elements() / factors.shape().num_elements();
        from_nhwc(of_type!(branch.dtype(), T => new_tensor::<T>(branch.shape(), |output| {
            let images = values::<T>(&branch).par_chunks(image).zip(values::<T>(&shortcut).par_chunks(image));
            images.zip(output.par_chunks_mut(image)).zip(values::<f32>(&factors)).for_each(|((from, to), factor)| {
                for ((branch, shortcut), to) in from.0.iter().zip(from.1).zip(to) {
                    let sum = branch.widened() * factor + shortcut.widened();
                    // Not `max`, which would hide NaN.
                    to.write(T::of(if sum < 0.0 { 0.0 } else { sum }));
                }
            });
        })))
    }

    fn branch_scaled(branch: FlexTensor, factors: FlexTensor) -> FlexTensor {
        let (factors, mut branch) = (as_f32(factors), to_nhwc(branch));
        let image = branch.shape().num_elements() / factors.shape().num_elements();
        // In place if this is the only reference to the tensor, else in a copy.
        of_type!(branch.dtype(), T => {
            let images = branch.storage_mut::<T>().par_chunks_mut(image).zip(values::<f32>(&factors));
            let scale = |(image, factor): (&mut [T], &f32)| {
                image.iter_mut().for_each(|value| *value = T::of(value.widened() * factor));
            };
            images.for_each(scale);
        });
        from_nhwc(branch)
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
fn with_epilogue<T: Value>(
    factors: [FlexTensor; 3],
    epilogue: Epilogue<FlexTensor>,
    work: impl FnOnce(HostEpilogue<T>) -> FlexTensor,
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

/// Images `[batch, channels, height, width]` as contiguous `[batch, height, width, channels]` in a type of activations,
/// the memory order of all results of these primitives.
fn to_nhwc(images: FlexTensor) -> FlexTensor {
    let dtype = of_type!(images.dtype(), T => T::dtype());
    let turned = permuted(images, [0, 2, 3, 1]);
    if turned.is_contiguous() {
        return contiguous(as_type::<Flex>(turned, dtype.into()));
    }
    let (shape, images) = (turned.shape(), as_f32(permuted(turned, [0, 3, 1, 2])));
    let channels = shape[3];
    let image = images.shape().num_elements() / images.shape()[0];
    let turned = new_tensor(shape, |output| {
        values(&images).par_chunks(image).zip(output.par_chunks_mut(image)).for_each(|(from, to)| {
            transpose(from, image / channels, to, channels, [channels, image / channels]);
        });
    });
    as_type::<Flex>(turned, dtype.into())
}

/// The inverse of [`to_nhwc`] as a view.
fn from_nhwc(images: FlexTensor) -> FlexTensor {
    permuted(images, [0, 3, 1, 2])
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

fn values<T: Value>(tensor: &FlexTensor) -> &[T] {
    tensor.as_slice().expect("the tensor is contiguous and of that type")
}

/// A tensor whose values are all written by `write`.
fn new_tensor<T: Value>(shape: Shape, write: impl FnOnce(&mut [MaybeUninit<T>])) -> FlexTensor {
    let mut values = Vec::with_capacity(shape.num_elements());
    write(&mut values.spare_capacity_mut()[..shape.num_elements()]);
    // SAFETY: the capacity is that many values, and the caller has written all of them.
    unsafe { values.set_len(shape.num_elements()) };
    of_values(values, shape)
}
