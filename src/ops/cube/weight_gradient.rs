//! The gradient of a convolution's weight by products of matrices, on matrix units.
//!
//! CubeCL has a kernel for it, in which few units add up all pixels of the batch, and which writes zeros into the
//! gradient if its size is not a multiple of the kernel's tile. Here the images, with their padding, and the gradient
//! of the output lie in equal grids, a matrix each with the channels of a position in a row. Then the images under one
//! tap of the kernel are the rows from another place on, and the tap's gradient is a product of the two matrices. Each
//! is cut into pieces, so that there is work for the whole device; their products are added up in the same order every
//! time.

use burn::tensor::{DType, Shape, TensorMetadata};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::zspace::Strides;
use cubecl::zspace::metadata::Metadata;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::{Strategy, launch_ref};
use cubek::std::InputBinding;

use super::row_layout::{rows, units};
use crate::Sliding;

/// Bytes that a unit loads at once, at most.
const LOAD: usize = 16;

/// Channels are filled up to a multiple of this, the most that a unit loads at once.
const VECTOR: usize = 8;

/// Tiles of this side, in this number, keep a large GPU busy.
const TILE: usize = 64;
const TILES: usize = 512;

/// Rows per chunk: a multiple of `ROWS`, and at least `FEWEST` unless the matrix is smaller.
const ROWS: usize = 64;
const FEWEST: usize = 512;

/// The gradient of a weight of `shape` `[outputs, inputs, kernel_height, kernel_width]`, contiguous and in f32, as the
/// update reads it; nothing if `strategy` does not take the size.
pub(super) fn by_matrices<R: CubeRuntime>(
    x: CubeTensor<R>,
    shape: [usize; 4],
    gradient: CubeTensor<R>,
    sliding: Sliding,
    strategy: &Strategy,
) -> Option<CubeTensor<R>> {
    let ([outputs, inputs, down, across], Sliding { stride, padding, .. }) = (shape, sliding);
    let ([batch, _, height, width], dtype) = (x.shape().dims(), x.dtype);
    let (client, device) = (x.client.clone(), x.device.clone());
    let grid = [height, width].map(|size| size + 2 * padding);
    let positions = batch * grid[0] * grid[1];
    let [left, right] = [outputs, inputs].map(|channels| channels.next_multiple_of(VECTOR));
    let pieces = (TILES / (left.div_ceil(TILE) * right.div_ceil(TILE))).clamp(1, positions.div_ceil(FEWEST));
    let length = positions.div_ceil(pieces).next_multiple_of(ROWS);
    let reach = (down - 1) * grid[1] + across - 1;
    let gradients = placed(gradient, grid, [pieces * length, left], 0, stride);
    let pixels = placed(x, grid, [pieces * length + reach, right], padding, 1);
    let [taps, size] = [down * across, left * right];
    let products = Shape::new([taps, pieces, left, right]);
    let products = empty_device_contiguous_dtype(client.clone(), device.clone(), products, DType::F32);
    let part = |whole: &CubeTensor<R>, from: usize, shape: [usize; 3], strides: [usize; 3]| {
        let handle = whole.handle.clone().offset_start((from * whole.elem_size()) as u64);
        let metadata = Metadata::new(shape, Strides::new(&strides));
        CubeTensor::new(client.clone(), handle, metadata, device.clone(), whole.dtype).binding()
    };
    let elements = MatmulGlobalElems { lhs: dtype.into(), rhs: dtype.into(), out: DType::F32.into() };
    for tap in 0..taps {
        let shift = tap / across * grid[1] + tap % across;
        let gradients = part(&gradients, 0, [pieces, left, length], [length * left, 1, left]);
        let pixels = part(&pixels, shift * right, [pieces, length, right], [length * right, right, 1]);
        let product = part(&products, tap * pieces * size, [pieces, left, right], [size, right, 1]);
        let [gradients, pixels] = [gradients, pixels].map(|it| InputBinding::new(it, dtype.into()));
        let mut elements = MatmulElems::from_globals(&elements);
        launch_ref(strategy, &client, gradients, pixels, product, &mut elements).ok()?;
    }
    let found = empty_device_contiguous_dtype(client.clone(), device, Shape::new(shape), DType::F32);
    let count = outputs * taps * inputs;
    let (cubes, dim) = units(&client, count);
    add_pieces::launch::<R>(
        &client,
        cubes,
        dim,
        products.into_tensor_arg(),
        found.clone().into_tensor_arg(),
        taps,
        inputs,
        count,
        pieces,
    );
    Some(found)
}

/// The images in grids of positions, `step` apart from `from` on in both directions: `[positions, channels]` of `size`,
/// one image after the other, and zeros.
fn placed<R: CubeRuntime>(
    images: CubeTensor<R>,
    grid: [usize; 2],
    size: [usize; 2],
    from: usize,
    step: usize,
) -> CubeTensor<R> {
    let images = rows(images);
    let ([batch, height, width, channels], dtype) = (images.shape().dims(), images.dtype);
    let client = images.client.clone();
    let made = empty_device_contiguous_dtype(client.clone(), images.device.clone(), Shape::new(size), dtype);
    let widest = LOAD / dtype.size();
    let vector = if channels.is_multiple_of(widest) { widest } else { 1 };
    let count = size[0] * size[1] / vector;
    let (cubes, dim) = units(&client, count);
    place::launch::<R>(
        &client,
        cubes,
        dim,
        vector,
        images.into_tensor_arg(),
        made.clone().into_tensor_arg(),
        batch,
        height,
        width,
        channels / vector,
        grid[0],
        grid[1],
        size[1] / vector,
        from,
        step,
        count,
        dtype.into(),
    );
    made
}

/// A vector per unit, of a row of `filled` vectors; `channels` counts vectors, too.
#[cube(launch)]
fn place<E: Float, N: Size>(
    images: &Tensor<Vector<E, N>>,
    made: &mut Tensor<Vector<E, N>>,
    batch: usize,
    height: usize,
    width: usize,
    channels: usize,
    grid_height: usize,
    grid_width: usize,
    filled: usize,
    from: usize,
    step: usize,
    count: usize,
    #[define(E)] _dtype: StorageType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let channel = ABSOLUTE_POS % filled;
    let position = ABSOLUTE_POS / filled;
    let across = position % grid_width;
    let down = position / grid_width % grid_height;
    let image = position / grid_width / grid_height;
    let mut value = Vector::<E, N>::new(E::from_int(0));
    if image < batch && channel < channels && down >= from && across >= from {
        let row = (down - from) / step;
        let column = (across - from) / step;
        let is_on = row * step + from == down && column * step + from == across;
        if is_on && row < height && column < width {
            value = images[((image * height + row) * width + column) * channels + channel];
        }
    }
    made[ABSOLUTE_POS] = value;
}

/// A value of the gradient `[output, input, tap]` per unit, from `products` `[tap, piece, output, input]`, which may
/// have more outputs and inputs: neighbours read neighbours.
#[cube(launch)]
fn add_pieces(
    products: &Tensor<f32>,
    found: &mut Tensor<f32>,
    taps: usize,
    inputs: usize,
    count: usize,
    pieces: usize,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let input = ABSOLUTE_POS % inputs;
    let tap = ABSOLUTE_POS / inputs % taps;
    let output = ABSOLUTE_POS / inputs / taps;
    let piece = products.stride(1);
    let mut at = tap * products.stride(0) + output * products.stride(2) + input;
    let mut sum = f32::new(0.0);
    for _ in 0..pieces {
        sum += products[at];
        at += piece;
    }
    found[(output * inputs + input) * taps + tap] = sum;
}

#[cfg(all(test, feature = "wgpu"))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod wgpu {
    use burn::backend::wgpu::{WgpuDevice, WgpuRuntime};
    use burn::tensor::TensorData;
    use burn::tensor::ops::FloatTensorOps;

    use super::*;
    use crate::Algorithm;

    type B = burn_cubecl::CubeBackend<WgpuRuntime, f32, i32, u32>;

    const BATCH: usize = 3;

    /// Whole numbers, of which sums are exact in f32.
    fn numbers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|at| (at * step % 7) as f32 - 3.0).collect()
    }

    fn made(values: Vec<f32>, shape: [usize; 4]) -> CubeTensor<WgpuRuntime> {
        B::float_from_data(TensorData::new(values, shape), &WgpuDevice::default())
    }

    /// The sum over batch and positions of `x` under a tap times `gradient`.
    fn definition(x: &[f32], shape: [usize; 4], gradient: &[f32], side: usize, sliding: Sliding) -> Vec<f32> {
        let [outputs, inputs, down, across] = shape;
        let reached = sliding.positions(side, down);
        let mut found = vec![0.0; shape.iter().product()];
        for (at, sum) in found.iter_mut().enumerate() {
            let [output, input] = [at / inputs / down / across, at / down / across % inputs];
            let [tap_row, tap_column] = [at / across % down, at % across];
            for position in 0..BATCH * reached * reached {
                let [image, row, column] =
                    [position / reached / reached, position / reached % reached, position % reached];
                let [row_in, column_in] = [row * sliding.stride + tap_row, column * sliding.stride + tap_column]
                    .map(|place| place.wrapping_sub(sliding.padding));
                if row_in < side && column_in < side {
                    *sum += x[((image * inputs + input) * side + row_in) * side + column_in]
                        * gradient[((image * outputs + output) * reached + row) * reached + column];
                }
            }
        }
        found
    }

    #[test]
    fn products_of_matrices_are_what_the_definition_says() {
        for [inputs, outputs, side, kernel, stride, padding] in
            [[16, 8, 8, 3, 1, 1], [16, 24, 8, 3, 2, 1], [8, 16, 6, 1, 2, 0], [3, 10, 9, 3, 1, 1], [3, 16, 12, 7, 2, 3]]
        {
            let sliding = Sliding { stride, padding, groups: 1, algorithm: Algorithm::Auto };
            let reached = sliding.positions(side, kernel);
            let (of_x, of_gradient) = ([BATCH, inputs, side, side], [BATCH, outputs, reached, reached]);
            let (x, gradient) = (numbers(of_x.iter().product(), 5), numbers(of_gradient.iter().product(), 3));
            let shape = [outputs, inputs, kernel, kernel];
            let expected = definition(&x, shape, &gradient, side, sliding);
            let found = by_matrices(made(x, of_x), shape, made(gradient, of_gradient), sliding, &Strategy::Naive);
            #[expect(clippy::disallowed_methods, reason = "a test may wait")]
            let found = burn::tensor::read_sync(B::float_into_data(found.expect("it takes every size"))).unwrap();
            assert_eq!(found.to_vec::<f32>().unwrap(), expected, "{shape:?}, {sliding:?}");
        }
    }
}
