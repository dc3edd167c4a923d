//! Kiln's primitives on the pure-Rust CPU backend: loops of its own in f32, over images whose channels lie innermost; other
//! types are turned into f32 and back.
//!
//! Read `tile.rs` for the inner loop of all convolutions, `gather.rs` and `weight_gradient.rs` for what it is fed with,
//! `geometry.rs` for the rule that makes results independent of threads.

mod gather;
mod geometry;
mod lanes;
mod planes;
mod pool;
mod scratch;
mod tile;
mod update;
mod weight_gradient;

use std::mem::MaybeUninit;

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::ops::IntTensor;
use burn::tensor::{DType, FloatDType, Shape, TensorData, TensorMetadata};
use rayon::prelude::*;

use super::batch_norm::BatchNormOps;
use super::behind::{Behind, Rectified};
use super::conv::ConvOps;
use super::gradient::GradientOps;
use super::host_norm::HostNorm;
use super::host_trim::{put, take};
use super::pieces::PIECE;
use super::pool::{PoolOps, Pooled};
use super::precision::as_type;
use super::sliding::Sliding;
use super::trim::Trim;
use super::winograd::transpose;
use geometry::Geometry;
use update::each;

impl ConvOps for Flex {
    fn conv_forward(x: FlexTensor, weight: FlexTensor, sliding: Sliding) -> FlexTensor {
        let (g, dtype) = (geometry(&x.shape(), &weight.shape(), sliding), x.dtype());
        let plan = sliding.winograd(&x.shape(), &weight.shape(), each);
        let (x, weight) = (innermost(x), as_f32(weight));
        let [height, width] = g.output();
        let output = written([g.batch, height, width, g.outputs].into(), |output| match plan {
            Some(plan) => plan.forward(values(&x), values(&weight), output),
            None => gather::forward(&g, values(&x), values(&weight), output),
        });
        outermost(output, dtype)
    }

    fn conv_weight_gradient(x: FlexTensor, weight: FlexTensor, gradient: FlexTensor, sliding: Sliding) -> FlexTensor {
        let g = geometry(&x.shape(), &weight.shape(), sliding);
        let plan = sliding.winograd(&x.shape(), &weight.shape(), each);
        let (x, gradient) = (innermost(x), innermost(gradient));
        let output = written(weight.shape(), |output| match plan {
            Some(plan) => plan.weight_gradient(values(&x), values(&gradient), output),
            None => weight_gradient::weight_gradient(&g, values(&x), values(&gradient), output),
        });
        as_type::<Flex>(output, weight.dtype().into())
    }

    fn conv_input_gradient(x: FlexTensor, weight: FlexTensor, gradient: FlexTensor, sliding: Sliding) -> FlexTensor {
        let (g, dtype) = (geometry(&x.shape(), &weight.shape(), sliding), x.dtype());
        let plan = sliding.winograd(&x.shape(), &weight.shape(), each);
        let (weight, gradient) = (as_f32(weight), innermost(gradient));
        let output = written([g.batch, g.size[0], g.size[1], g.inputs].into(), |output| match plan {
            Some(plan) => plan.input_gradient(values(&gradient), values(&weight), output),
            None => gather::input_gradient(&g, values(&weight), values(&gradient), output),
        });
        outermost(output, dtype)
    }

    fn conv_trimmed(weight: FlexTensor, trim: &Trim) -> FlexTensor {
        let (dtype, weight) = (weight.dtype(), as_f32(weight));
        as_type::<Flex>(written(trim.part(), |part| take(trim, values(&weight), part, each)), dtype.into())
    }

    fn conv_untrimmed(gradient: FlexTensor, trim: &Trim) -> FlexTensor {
        let (dtype, gradient) = (gradient.dtype(), as_f32(gradient));
        as_type::<Flex>(written(trim.whole.clone(), |whole| put(trim, values(&gradient), whole, each)), dtype.into())
    }
}

/// Other types are computed in f32; activations are rounded back to what they were, statistics stay.
impl BatchNormOps for Flex {
    fn bn_moments(x: FlexTensor) -> (FlexTensor, FlexTensor) {
        let [mean, m2] = norm(&x).moments(values(&innermost(x))).map(per_channel);
        (mean, m2)
    }

    fn bn_normalize(x: FlexTensor, factors: [FlexTensor; 3], behind: Behind<FlexTensor>) -> FlexTensor {
        let (norm, dtype, x) = (norm(&x), x.dtype(), innermost(x));
        let rectified = !matches!(behind, Behind::Nothing);
        let shortcut = if let Behind::Sum(shortcut) = behind { Some(innermost(shortcut)) } else { None };
        let factors = factors.map(as_f32);
        let output = written(x.shape(), |output| {
            norm.normalize(values(&x), factors.each_ref().map(values), shortcut.as_ref().map(values), rectified, output)
        });
        outermost(output, dtype)
    }

    fn bn_gradient_sums(
        gradient: FlexTensor,
        x: FlexTensor,
        mean: FlexTensor,
        rectified: Option<&Rectified<Self>>,
    ) -> [FlexTensor; 3] {
        let (norm, dtype) = (norm(&x), gradient.dtype());
        let [mut gradient, x] = [gradient, x].map(innermost);
        if let Some(rectified) = rectified.filter(|rectified| rectified.summed) {
            // In place where nobody else holds the gradient, else in a copy.
            norm.rectify(gradient.storage_mut(), values(&innermost(rectified.output.clone())));
        }
        let (mean, sign) = (as_f32(mean), sign(rectified));
        let sign = sign.as_ref().map(|factors| factors.each_ref().map(values));
        let [sum, weighted] = norm.gradient_sums(values(&gradient), values(&x), values(&mean), sign).map(per_channel);
        [outermost(gradient, dtype), sum, weighted]
    }

    fn bn_input_gradient(
        gradient: FlexTensor,
        x: FlexTensor,
        mean: FlexTensor,
        [k, q, r]: [FlexTensor; 3],
        rectified: Option<&Rectified<Self>>,
    ) -> FlexTensor {
        let (norm, dtype) = (norm(&x), x.dtype());
        let ([gradient, x], factors) = ([gradient, x].map(innermost), [mean, k, q, r].map(as_f32));
        let sign = sign(rectified);
        let sign = sign.as_ref().map(|factors| factors.each_ref().map(values));
        let output = written(x.shape(), |output| {
            norm.input_gradient(values(&gradient), values(&x), factors.each_ref().map(values), sign, output);
        });
        outermost(output, dtype)
    }
}

impl PoolOps for Flex {
    fn pool_forward(x: FlexTensor) -> (FlexTensor, Option<IntTensor<Self>>) {
        let (image, dtype, x) = (image(&x), x.dtype(), innermost(x));
        let pool::Image { height, width, channels } = image.pooled();
        let output = zeroed([x.shape()[0], height, width, channels].into(), |output| image.pool(values(&x), output));
        (outermost(output, dtype), None)
    }

    fn pool_gradient(gradient: FlexTensor, pooled: Pooled<Self>) -> FlexTensor {
        let (image, dtype) = (image(&pooled.x), gradient.dtype());
        let [gradient, x, output] = [gradient, pooled.x, pooled.output].map(innermost);
        let dx = zeroed(x.shape(), |dx| image.gradient(values(&gradient), values(&x), values(&output), dx));
        outermost(dx, dtype)
    }
}

fn image(x: &FlexTensor) -> pool::Image {
    let shape = x.shape();
    pool::Image { height: shape[2], width: shape[3], channels: shape[1] }
}

/// In place where nobody else holds the first gradient, else in a copy.
impl GradientOps for Flex {
    fn sum(one: FlexTensor, other: FlexTensor) -> FlexTensor {
        let dtype = one.dtype();
        let [mut one, other] = if one.is_unique() { [one, other] } else { [other, one] }.map(innermost);
        let pieces = one.storage_mut::<f32>().par_chunks_mut(PIECE).zip(values(&other).par_chunks(PIECE));
        pieces.for_each(|(one, other)| one.iter_mut().zip(other).for_each(|(one, other)| *one += other));
        outermost(one, dtype)
    }
}

fn norm(x: &FlexTensor) -> HostNorm {
    HostNorm { channels: x.shape()[1], each }
}

/// What the sign of the output follows from, where no shortcut has a say.
fn sign(rectified: Option<&Rectified<Flex>>) -> Option<[FlexTensor; 2]> {
    let rectified = rectified.filter(|rectified| !rectified.summed)?;
    Some([&rectified.scale, &rectified.bias].map(|factor| as_f32(factor.clone())))
}

fn per_channel(values: Vec<f32>) -> FlexTensor {
    let channels = values.len();
    FlexTensor::from_data(TensorData::new(values, [channels]))
}

/// Images `[batch, channels, height, width]` in f32 as `[batch, height, width, channels]`, the order in memory that all of
/// these primitives leave them in.
fn innermost(images: FlexTensor) -> FlexTensor {
    let turned = as_type::<Flex>(images.permute(&[0, 2, 3, 1]), FloatDType::F32);
    if turned.is_contiguous() || images.dtype() != DType::F32 {
        return contiguous(turned);
    }
    let (channels, images) = (images.shape()[1], contiguous(images));
    let image = values(&images).len() / images.shape()[0];
    written(turned.shape(), |output| {
        values(&images).par_chunks(image).zip(output.par_chunks_mut(image)).for_each(|(from, to)| {
            transpose(from, image / channels, to, channels, [channels, image / channels]);
        });
    })
}

/// The inverse of [`innermost`], which moves nothing, in type `dtype`.
fn outermost(images: FlexTensor, dtype: DType) -> FlexTensor {
    as_type::<Flex>(images, dtype.into()).permute(&[0, 3, 1, 2])
}

/// The tensor in f32, contiguous.
fn as_f32(tensor: FlexTensor) -> FlexTensor {
    contiguous(as_type::<Flex>(tensor, FloatDType::F32))
}

fn geometry(x: &Shape, weight: &Shape, sliding: Sliding) -> Geometry {
    let size = [x[2], x[3]];
    Geometry { batch: x[0], inputs: x[1], outputs: weight[0], size, kernel: [weight[2], weight[3]], sliding }
}

fn all_f32(tensors: &[&FlexTensor]) -> bool {
    tensors.iter().all(|tensor| tensor.dtype() == DType::F32)
}

/// The only handle on the tensor with its elements in order: a second one would make every change a copy.
fn contiguous(tensor: FlexTensor) -> FlexTensor {
    tensor.to_contiguous()
}

/// The values of a contiguous f32 tensor.
fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("the tensor is contiguous and of type f32")
}

/// A tensor of which `write` writes every value.
fn written(shape: Shape, write: impl FnOnce(&mut [MaybeUninit<f32>])) -> FlexTensor {
    let mut values = Vec::with_capacity(shape.num_elements());
    write(&mut values.spare_capacity_mut()[..shape.num_elements()]);
    // SAFETY: there is room for so many values, and the caller has written them.
    unsafe { values.set_len(shape.num_elements()) };
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// A tensor that is zero where `write` does not write.
fn zeroed(shape: Shape, write: impl FnOnce(&mut [f32])) -> FlexTensor {
    let mut values = vec![0.0; shape.num_elements()];
    write(&mut values);
    FlexTensor::from_data(TensorData::new(values, shape))
}
