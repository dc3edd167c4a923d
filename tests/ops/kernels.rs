//! The kernels that a backend picks for ResNet-18's layers, each shape held against the definition once.
//!
//! A backend that tunes picks by speed alone, and a kernel that computes nothing is the fastest of all. What it picks
//! depends on the shape, so the shapes are those of training: the CIFAR stem's with one image, or both stems' with the
//! batch sizes in `KILN_KERNEL_BATCH`. The largest errors and the times go to the file that `KILN_KERNEL_REPORT` names.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use burn::backend::Autodiff;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use kiln_engine::parallel::HostBackend;
use kiln_ops::{Epilogue, Precision, Sliding, batch_norm, conv2d};
use serde_json::json;

use super::batch_norm::Case as Norm;
use super::conv::Case;
use super::{noise, rounded, tensor, to_vec};
use crate::backends::computes_in;

/// How far a value may be off, relative to the largest one. TF32 keeps 10 bits of a fraction and bf16 7: their errors
/// stay below, and a kernel that leaves out a part of a sum does not.
const LIMIT: f64 = 1e-2;
/// Values of a product that are compared.
const PLACES: usize = 64;

/// Calls of a kernel whose time is taken, behind one whose time is not.
const TIMED: u32 = 10;

/// The largest error of each product of a kernel, and its time.
type Errors = Vec<(&'static str, f64, Option<f64>)>;

/// The milliseconds of a call, if the report asks for them.
fn milliseconds<B: HostBackend, R>(call: impl Fn() -> R) -> Option<f64> {
    std::env::var_os("KILN_KERNEL_REPORT")?;
    let device = B::open(0).unwrap();
    drop(call());
    B::sync(&device).unwrap();
    let start = Instant::now();
    for _ in 0..TIMED {
        drop(call());
    }
    B::sync(&device).unwrap();
    Some(1e3 * (start.elapsed() / TIMED).as_secs_f64())
}

impl Case {
    /// The value of the input under output `(y, x)` and weight `(ky, kx)`, as a place in its image.
    fn under(&self, output: [usize; 2], kernel: [usize; 2]) -> Option<usize> {
        let Sliding { stride, padding, .. } = self.sliding;
        let [y, x] = [0, 1].map(|axis| (output[axis] * stride + kernel[axis]).checked_sub(padding));
        let side = self.x[2];
        Some((y?, x?)).filter(|(y, x)| y.max(x) < &side).map(|(y, x)| y * side + x)
    }

    /// One value of the output, of the weight's gradient or of the input's, by the definition.
    fn definition(&self, product: usize, place: usize, [x, weight, gradient]: [&[f32]; 3]) -> f64 {
        let ([n, inputs, side, _], [outputs, _, kernel, _], [_, _, out, _]) =
            (self.x, self.weight_shape(), self.output_shape());
        let (image, filter, map) = (side * side, kernel * kernel, out * out);
        let x = |n: usize, i: usize, at: usize| f64::from(x[(n * inputs + i) * image + at]);
        let weight = |o: usize, i: usize, at: usize| f64::from(weight[(o * inputs + i) * filter + at]);
        let gradient = |n: usize, o: usize, at: usize| f64::from(gradient[(n * outputs + o) * map + at]);
        let under = |output: usize, tap: usize| self.under([output / out, output % out], [tap / kernel, tap % kernel]);
        let mut sum = 0.0;
        match product {
            0 => {
                let (n, o, at) = (place / map / outputs, place / map % outputs, place % map);
                for (tap, from) in (0..filter).filter_map(|tap| Some((tap, under(at, tap)?))) {
                    sum += (0..inputs).map(|i| x(n, i, from) * weight(o, i, tap)).sum::<f64>();
                }
            }
            1 => {
                let (o, i, tap) = (place / filter / inputs, place / filter % inputs, place % filter);
                for (at, from) in (0..map).filter_map(|at| Some((at, under(at, tap)?))) {
                    sum += (0..n).map(|n| x(n, i, from) * gradient(n, o, at)).sum::<f64>();
                }
            }
            _ => {
                let (n, i, from) = (place / image / inputs, place / image % inputs, place % image);
                let meets = |(at, tap): &(usize, usize)| under(*at, *tap) == Some(from);
                for (at, tap) in (0..map).flat_map(|at| (0..filter).map(move |tap| (at, tap))).filter(meets) {
                    sum += (0..outputs).map(|o| weight(o, i, tap) * gradient(n, o, at)).sum::<f64>();
                }
            }
        }
        sum
    }

    fn errors<B: HostBackend>(&self, precision: Precision) -> Errors {
        let shapes = [self.x, self.weight_shape(), self.output_shape()];
        let values = [0, 1, 2].map(|i| rounded(noise(shapes[i].iter().product(), i as u64 + 1), precision));
        let [x, weight] = [0, 1].map(|i| tensor::<Autodiff<B>, 4>(&values[i], shapes[i]).require_grad());
        let dtype = precision.dtype();
        let output = conv2d(x.clone().cast(dtype), weight.clone().cast(dtype), self.sliding, None);
        let output = output.cast(Precision::F32.dtype());
        let gradients = (output.clone() * tensor(&values[2], shapes[2])).sum().backward();
        let [x, weight] = [x, weight].map(|leaf| to_vec(leaf.grad(&gradients).expect("both are asked for")));
        let found = [("output", to_vec(output)), ("weight gradient", weight), ("input gradient", x)];
        let values = [0, 1, 2].map(|i| &values[i][..]);
        let times = self.times::<B>(values, dtype);
        let error = |(i, (what, found)): (usize, (_, Vec<f32>))| {
            (what, error_at(&found, places(found.len()), |place| self.definition(i, place, values)), times[i])
        };
        found.into_iter().enumerate().map(error).collect()
    }

    /// Of the output, of the weight's gradient and of the input's.
    fn times<B: HostBackend>(&self, values: [&[f32]; 3], dtype: DType) -> [Option<f64>; 3] {
        let shapes = [self.x, self.weight_shape(), self.output_shape()];
        let typed = |i: usize| tensor::<B, 4>(values[i], shapes[i]).cast(dtype).into_primitive().tensor();
        let [x, weight, gradient] = [0, 1, 2].map(typed);
        let [x, gradient] = [x, gradient].map(|images| B::arranged(images, false));
        let weight = B::conv_weight(weight, &x, self.sliding);
        let forward = milliseconds::<B, _>(|| B::conv_forward([x.clone(), weight.clone()], self.sliding));
        let operands = || [&x, &weight, &gradient].map(Clone::clone);
        let weight_gradient = milliseconds::<B, _>(|| B::conv_weight_gradient(operands(), self.sliding));
        let input_gradient = milliseconds::<B, _>(|| B::conv_input_gradient(operands(), self.sliding));
        [forward, weight_gradient, input_gradient]
    }
}

/// The largest error at `places`, relative to the largest value that is expected there.
fn error_at(found: &[f32], places: impl Iterator<Item = usize>, expected: impl Fn(usize) -> f64) -> f64 {
    let (mut off, mut scale) = (0.0_f64, 1e-6_f64);
    for (expected, found) in places.map(|place| (expected(place), f64::from(found[place]))) {
        off = off.max(if found.is_finite() { (found - expected).abs() } else { f64::INFINITY });
        scale = scale.max(expected.abs());
    }
    off / scale
}

/// Both ends, and places without a pattern between them.
fn places(length: usize) -> impl Iterator<Item = usize> {
    let last = (length - 1) as f64;
    noise(PLACES, 11).into_iter().map(move |value| (f64::from(value).abs() * last) as usize).chain([0, length - 1])
}

/// The convolutions of a network for images of this size, each shape once.
fn layers(batch: usize, pixels: usize) -> Vec<Case> {
    let large = pixels > 64;
    let mut side = if large { pixels / 4 } else { pixels };
    let mut layers = vec![if large { [3, pixels, 64, 7, 2, 3] } else { [3, pixels, 64, 3, 1, 1] }];
    layers.push([64, side, 64, 3, 1, 1]);
    for channels in [64, 128, 256] {
        let twice = 2 * channels;
        layers.extend([[channels, side, twice, 3, 2, 1], [channels, side, twice, 1, 2, 0]]);
        side /= 2;
        layers.push([twice, side, twice, 3, 1, 1]);
    }
    let case = |[inputs, side, outputs, kernel, stride, padding]: [usize; 6]| {
        Case::new([batch, inputs, side, side], outputs, kernel, stride, padding)
    };
    layers.into_iter().map(case).collect()
}

fn batch_norms<B: HostBackend>(shape: [usize; 4], precision: Precision) -> Errors {
    let mut case = Norm::new(shape, 0.3, 2.0);
    (case.x, case.gradient) = (rounded(case.x, precision), rounded(case.gradient, precision));
    let expected = case.naive();
    let x = tensor::<Autodiff<B>, 4>(&case.x, shape).require_grad();
    let [weight, bias] =
        [&case.weight, &case.bias].map(|values| tensor::<Autodiff<B>, 1>(values, [values.len()]).require_grad());
    let run = || {
        let x = x.clone().cast(precision.dtype());
        batch_norm(x, [weight.clone(), bias.clone()], 1e-5, None, Epilogue::Identity)
    };
    let done = run();
    let output = done.output.cast(Precision::F32.dtype());
    let factor = tensor::<Autodiff<B>, 4>(&case.gradient, shape);
    let multiplied = |output: Tensor<Autodiff<B>, 4>| (output * factor.clone()).sum().backward();
    let gradients = multiplied(output.clone());
    let gradient = |leaf: Tensor<Autodiff<B>, 1>| to_vec(leaf.grad(&gradients).expect("the leaf is tracked"));
    let forward = milliseconds::<B, _>(run);
    // With the forward pass and the product behind it.
    let backward = milliseconds::<B, _>(|| multiplied(run().output.cast(Precision::F32.dtype())));
    let found = [
        ("output", to_vec(output), expected.output, forward),
        ("variance", to_vec(done.variance), expected.variance, None),
        ("weight gradient", gradient(weight.clone()), expected.weight_gradient, None),
        ("bias gradient", gradient(bias.clone()), expected.bias_gradient, None),
        ("input gradient", to_vec(x.grad(&gradients).expect("the leaf is tracked")), expected.x_gradient, backward),
    ];
    let error = |(what, found, all, time): (_, Vec<f32>, Vec<f64>, _)| {
        (what, error_at(&found, 0..all.len(), |at| all[at]), time)
    };
    found.into_iter().map(error).collect()
}

/// What is summed over whole tensors: a gradient's squares for its norm, the pixels of a map, a batch.
fn reductions<B: HostBackend>(rows: usize) -> Errors {
    let flat = noise(512 * 512 * 9, 12);
    let squares = flat.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    let vector = tensor::<B, 1>(&flat, [flat.len()]).into_primitive().tensor();
    let time = milliseconds::<B, _>(|| B::norm(vector.clone()));
    let norm = B::norm(vector);
    let norm: Tensor<B, 1> = Tensor::from_primitive(TensorPrimitive::Float(norm));
    let norm = error_at(&to_vec(norm), 0..1, |_| squares.sqrt());
    let values = noise(rows * 16, 13);
    let sum = |from: usize, by: usize, count: usize| (0..count).map(|i| f64::from(values[from + i * by])).sum::<f64>();
    let x: Tensor<B, 2> = tensor(&values, [rows, 16]);
    let map = error_at(&to_vec(x.clone().sum_dim(1)), 0..rows, |row| sum(row * 16, 1, 16));
    let batch = error_at(&to_vec(x.sum_dim(0)), 0..16, |column| sum(column, 16, rows));
    vec![("norm", norm, time), ("sum over a map", map, None), ("sum over a batch", batch, None)]
}

/// Checks one kernel and writes it down; what is wrong with it, in a line each. A backend that panics is wrong, too.
fn check(kernel: &str, shape: &str, precision: Precision, errors: impl FnOnce() -> Errors) -> Vec<String> {
    let errors = catch_unwind(AssertUnwindSafe(errors)).unwrap_or_else(|_| vec![("panic", f64::INFINITY, None)]);
    let mut wrong = Vec::new();
    for (product, error, time) in errors {
        let right = error <= LIMIT;
        let row = json!({
            "kernel": kernel, "shape": shape, "precision": precision.name(), "product": product, "error": error,
            "right": right, "milliseconds": time,
        });
        if let Some(report) = std::env::var_os("KILN_KERNEL_REPORT") {
            let mut report = std::fs::File::options().append(true).create(true).open(report).unwrap();
            report.write_all(format!("{row}\n").as_bytes()).unwrap();
        }
        if !right {
            wrong.push(row.to_string());
        }
    }
    wrong
}

/// Every shape of a step: of 32 pixels with each batch size, of 224 with the first one.
fn picked<B: HostBackend>() {
    let asked = std::env::var("KILN_KERNEL_BATCH").ok();
    let batches: Vec<usize> = asked.as_deref().unwrap_or("1").split(',').map(|size| size.parse().unwrap()).collect();
    let large = asked.as_ref().map(|_| (batches[0], 224));
    // A processor's kernels of halves are not picked by speed.
    let halves = [Precision::Bf16, Precision::F16];
    let halves: Vec<_> = halves.into_iter().filter(|kind| !B::is_processor() && computes_in::<B>(*kind)).collect();
    let mut wrong = Vec::new();
    for (batch, pixels) in batches.iter().map(|batch| (*batch, 32)).chain(large) {
        for precision in std::iter::once(Precision::F32).chain(halves.iter().copied()) {
            for layer in layers(batch, pixels) {
                let shape = format!("{:?} by {:?}, stride {}", layer.x, layer.weight_shape(), layer.sliding.stride);
                wrong.extend(check("convolution", &shape, precision, || layer.errors::<B>(precision)));
            }
            let mut shapes: Vec<[usize; 4]> = layers(batch, pixels).iter().map(Case::output_shape).collect();
            shapes.sort_unstable();
            shapes.dedup();
            for shape in shapes {
                let errors = || batch_norms::<B>(shape, precision);
                wrong.extend(check("batch-norm", &format!("{shape:?}"), precision, errors));
            }
        }
        wrong.extend(check("reduction", &format!("batch {batch}"), Precision::F32, || reductions::<B>(batch * 512)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

on_every_backend! {
    the_kernels_picked_for_each_shape_compute_what_the_definition_says => || picked::<TestBackend>();
}
