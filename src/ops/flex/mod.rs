//! Kiln's primitives on the pure-Rust CPU backend: loops of its own over f32, Burn's operations for other types.
//!
//! Read `tile.rs` for the inner loop of all convolutions, `gather.rs` and `weight_gradient.rs` for what it is fed with,
//! `geometry.rs` for the rule that makes results independent of threads, `winograd.rs` for the convolutions that go another
//! way, `batch_norm.rs` for the fused loops.

mod batch_norm;
mod gather;
mod geometry;
mod lanes;
mod planes;
mod scratch;
mod tile;
mod update;
mod weight_gradient;
mod winograd;

use std::mem::MaybeUninit;

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::ops::{ActivationOps, ModuleOps};
use burn::tensor::{DType, FloatDType, Shape, TensorData, TensorMetadata};
use rayon::prelude::*;

use super::batch_norm::BatchNormOps;
use super::conv::{ConvOps, Sliding};
use super::host_trim::{put, take};
use super::pieces::PIECE;
use super::precision::as_type;
use super::relu::ReluOps;
use super::trim::Trim;
use batch_norm::Sizes;
use geometry::Geometry;
use update::each;
use winograd::ChannelsFirst;

impl ConvOps for Flex {
    fn conv_forward(x: FlexTensor, weight: FlexTensor, sliding: Sliding) -> FlexTensor {
        if !all_f32(&[&x, &weight]) {
            return Flex::conv2d(x, weight, None, sliding.options());
        }
        let g = geometry(&x.shape(), &weight.shape(), sliding);
        let [height, width] = g.output();
        let winograd = ChannelsFirst::new(&x.shape(), &weight.shape(), sliding);
        written([g.batch, g.outputs, height, width].into(), |output| {
            let (x, weight) = (x.to_contiguous(), weight.to_contiguous());
            match winograd {
                Some(winograd) => winograd.forward(values(&x), values(&weight), output),
                None => gather::forward(&g, values(&x), values(&weight), output),
            }
        })
    }

    fn conv_weight_gradient(x: FlexTensor, weight: FlexTensor, gradient: FlexTensor, sliding: Sliding) -> FlexTensor {
        if !all_f32(&[&x, &weight, &gradient]) {
            return Flex::conv2d_weight_backward(x, weight, gradient, sliding.options());
        }
        let g = geometry(&x.shape(), &weight.shape(), sliding);
        let winograd = ChannelsFirst::new(&x.shape(), &weight.shape(), sliding);
        filled(weight.shape(), |output| {
            let (x, gradient) = (x.to_contiguous(), gradient.to_contiguous());
            match winograd {
                Some(winograd) => winograd.weight_gradient(values(&x), values(&gradient), output),
                None => weight_gradient::weight_gradient(&g, values(&x), values(&gradient), output),
            }
        })
    }

    fn conv_input_gradient(x: FlexTensor, weight: FlexTensor, gradient: FlexTensor, sliding: Sliding) -> FlexTensor {
        if !all_f32(&[&x, &weight, &gradient]) {
            return Flex::conv2d_x_backward(x, weight, gradient, sliding.options());
        }
        let g = geometry(&x.shape(), &weight.shape(), sliding);
        let winograd = ChannelsFirst::new(&x.shape(), &weight.shape(), sliding);
        written(x.shape(), |output| {
            let (weight, gradient) = (weight.to_contiguous(), gradient.to_contiguous());
            match winograd {
                Some(winograd) => winograd.input_gradient(values(&weight), values(&gradient), output),
                None => gather::input_gradient(&g, values(&weight), values(&gradient), output),
            }
        })
    }

    fn conv_trimmed(weight: FlexTensor, trim: &Trim) -> FlexTensor {
        let (dtype, weight) = (weight.dtype(), as_f32(weight));
        as_type::<Flex>(filled(trim.part(), |part| take(trim, values(&weight), part, each)), dtype.into())
    }

    fn conv_untrimmed(gradient: FlexTensor, trim: &Trim) -> FlexTensor {
        let (dtype, gradient) = (gradient.dtype(), as_f32(gradient));
        as_type::<Flex>(filled(trim.whole.clone(), |whole| put(trim, values(&gradient), whole, each)), dtype.into())
    }
}

/// Other types are computed in f32; activations are rounded back to what they were, statistics stay.
impl BatchNormOps for Flex {
    fn bn_moments(x: FlexTensor) -> (FlexTensor, FlexTensor) {
        let (sizes, x) = (sizes(&x.shape()), as_f32(x));
        per_channel(sizes.moments(values(&x)))
    }

    fn bn_normalize(x: FlexTensor, mean: FlexTensor, scale: FlexTensor, bias: FlexTensor) -> FlexTensor {
        let (shape, dtype, x) = (x.shape(), x.dtype(), as_f32(x));
        let channels = [mean, scale, bias].map(as_f32);
        let channels = channels.each_ref().map(values);
        as_type::<Flex>(
            written(shape.clone(), |output| sizes(&shape).normalize(values(&x), channels, output)),
            dtype.into(),
        )
    }

    fn bn_gradient_sums(gradient: FlexTensor, x: FlexTensor, mean: FlexTensor) -> (FlexTensor, FlexTensor) {
        let sizes = sizes(&x.shape());
        let [gradient, x, mean] = [gradient, x, mean].map(as_f32);
        per_channel(sizes.gradient_sums(values(&gradient), values(&x), values(&mean)))
    }

    fn bn_input_gradient(
        gradient: FlexTensor,
        x: FlexTensor,
        mean: FlexTensor,
        [k, q, r]: [FlexTensor; 3],
    ) -> FlexTensor {
        let (sizes, dtype) = (sizes(&x.shape()), x.dtype());
        let ([mut gradient, x], channels) = ([gradient, x].map(as_f32), [mean, k, q, r].map(as_f32));
        // In place where nobody else holds the gradient, else in a copy.
        sizes.input_gradient(gradient.storage_mut(), values(&x), channels.each_ref().map(values));
        as_type::<Flex>(gradient, dtype.into())
    }
}

/// Burn's rectifier is one pass already; its gradient is not.
impl ReluOps for Flex {
    fn relu_gradient(output: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        if !all_f32(&[&output, &gradient]) {
            return Flex::relu_backward(output, gradient);
        }
        let (output, mut gradient) = (contiguous(output), contiguous(gradient));
        // In place where nobody else holds the gradient, else in a copy.
        let pieces = gradient.storage_mut::<f32>().par_chunks_mut(PIECE).zip(values(&output).par_chunks(PIECE));
        pieces.for_each(|(gradient, output)| {
            for (gradient, output) in gradient.iter_mut().zip(output) {
                *gradient = if *output > 0.0 { *gradient } else { 0.0 };
            }
        });
        gradient
    }
}

fn sizes(x: &Shape) -> Sizes {
    Sizes { batch: x[0], channels: x[1], area: x.num_elements() / (x[0] * x[1]) }
}

fn per_channel(lists: [Vec<f32>; 2]) -> (FlexTensor, FlexTensor) {
    let [first, second] = lists.map(|values| {
        let channels = values.len();
        FlexTensor::from_data(TensorData::new(values, [channels]))
    });
    (first, second)
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

/// A tensor that `fill` writes, zero where it does not.
fn filled(shape: Shape, fill: impl FnOnce(&mut [f32])) -> FlexTensor {
    // Cleared by all threads: memory that comes back every step is not cleared by the system.
    let mut values: Vec<f32> = rayon::iter::repeat_n(0.0, shape.num_elements()).with_min_len(PIECE).collect();
    fill(&mut values);
    FlexTensor::from_data(TensorData::new(values, shape))
}
