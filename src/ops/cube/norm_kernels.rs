//! Kernels of batch-norm on CubeCL. Activations are rows of channels, the layout of Burn's convolutions; all arithmetic
//! is in f32.
//!
//! Sums over the rows come in two steps, in an order that only the shape decides: cubes add up pieces of rows, `depth`
//! rows per unit, and one cube per group of channels adds up the pieces. A unit has a place among its cube's columns
//! (x, channels) and lanes (y, rows).

use cubecl::prelude::*;

/// Units of a cube that adds up rows; a power of two.
pub(super) const UNITS: usize = 256;

/// Means and sums of squared deviations of pieces.
#[cube(launch)]
pub(super) fn piece_moments<E: Float, N: Size>(
    x: &Tensor<Vector<E, N>>,
    means: &mut Tensor<Vector<f32, N>>,
    squares: &mut Tensor<Vector<f32, N>>,
    rows: usize,
    columns: usize,
    depth: usize,
    #[comptime] lanes: usize,
    #[define(E)] _dtype: StorageType,
) {
    let column = ABSOLUTE_POS_X as usize;
    let first = CUBE_POS_Y as usize * depth * lanes;
    let size = f32::cast_from(min(rows - first, depth * lanes));

    let mut sum = Vector::<f32, N>::new(0.0);
    for i in 0..depth {
        let row = first + i * lanes + UNIT_POS_Y as usize;
        if row < rows && column < columns {
            sum += Vector::cast_from(x[row * columns + column]);
        }
    }
    let mean = over_lanes(sum, lanes) / Vector::new(size);

    let mut square = Vector::<f32, N>::new(0.0);
    for i in 0..depth {
        let row = first + i * lanes + UNIT_POS_Y as usize;
        if row < rows && column < columns {
            let deviation = Vector::cast_from(x[row * columns + column]) - mean;
            square += deviation * deviation;
        }
    }
    let square = over_lanes(square, lanes);

    if UNIT_POS_Y == 0 && column < columns {
        let piece = CUBE_POS_Y as usize * columns + column;
        means[piece] = mean;
        squares[piece] = square;
    }
}

/// The moments of all rows from those of their pieces: `mean`, and the sum of squared deviations as the only one of
/// `others`; or with a `weight` the three [`factors`] in its place.
#[cube(launch)]
pub(super) fn all_moments<N: Size>(
    means: &Tensor<Vector<f32, N>>,
    squares: &Tensor<Vector<f32, N>>,
    weight: &Sequence<Tensor<Vector<f32, N>>>,
    mean: &mut Tensor<Vector<f32, N>>,
    others: &mut Sequence<Tensor<Vector<f32, N>>>,
    rows: usize,
    columns: usize,
    depth: usize,
    free: f32,
    epsilon: f32,
    #[comptime] lanes: usize,
) {
    let column = ABSOLUTE_POS_X as usize;
    let pieces = rows.div_ceil(depth * lanes);

    let mut sum = Vector::<f32, N>::new(0.0);
    let mut piece = UNIT_POS_Y as usize;
    while piece < pieces && column < columns {
        let size = f32::cast_from(min(rows - piece * depth * lanes, depth * lanes));
        sum += means[piece * columns + column] * Vector::new(size);
        piece += lanes;
    }
    let whole = over_lanes(sum, lanes) / Vector::new(f32::cast_from(rows));

    let mut sum = Vector::<f32, N>::new(0.0);
    let mut piece = UNIT_POS_Y as usize;
    while piece < pieces && column < columns {
        let size = f32::cast_from(min(rows - piece * depth * lanes, depth * lanes));
        let between = means[piece * columns + column] - whole;
        sum += squares[piece * columns + column] + between * between * Vector::new(size);
        piece += lanes;
    }
    let sum = over_lanes(sum, lanes);

    if UNIT_POS_Y == 0 && column < columns {
        mean[column] = whole;
        if comptime!(weight.len() == 1) {
            let (inverse, scale, variance) = of_square(sum, weight[0][column], f32::cast_from(rows), free, epsilon);
            others.index_mut(0usize)[column] = inverse;
            others.index_mut(1usize)[column] = scale;
            others.index_mut(2usize)[column] = variance;
        } else {
            others.index_mut(0usize)[column] = sum;
        }
    }
}

/// The moments of two sets of values as those of one; `share` and `between` as in `MomentWeights`.
#[cube(launch)]
pub(super) fn added_moments<N: Size>(
    mean: &Tensor<Vector<f32, N>>,
    square: &Tensor<Vector<f32, N>>,
    other_mean: &Tensor<Vector<f32, N>>,
    other_square: &Tensor<Vector<f32, N>>,
    whole: &mut Tensor<Vector<f32, N>>,
    squares: &mut Tensor<Vector<f32, N>>,
    share: f32,
    between: f32,
    count: usize,
) {
    let place = ABSOLUTE_POS;
    if place >= count {
        terminate!();
    }
    let apart = other_mean[place] - mean[place];
    whole[place] = mean[place] + apart * Vector::new(share);
    squares[place] = square[place] + other_square[place] + apart * apart * Vector::new(between);
}

/// `1 / sqrt(square / count + epsilon)`, that times `weight`, and `square / free`.
#[cube(launch)]
pub(super) fn factors<N: Size>(
    square: &Tensor<Vector<f32, N>>,
    weight: &Tensor<Vector<f32, N>>,
    inv_std: &mut Tensor<Vector<f32, N>>,
    scale: &mut Tensor<Vector<f32, N>>,
    variance: &mut Tensor<Vector<f32, N>>,
    count: f32,
    free: f32,
    epsilon: f32,
    channels: usize,
) {
    let place = ABSOLUTE_POS;
    if place >= channels {
        terminate!();
    }
    let (inverse, product, unbiased) = of_square(square[place], weight[place], count, free, epsilon);
    inv_std[place] = inverse;
    scale[place] = product;
    variance[place] = unbiased;
}

/// See [`factors`].
#[cube]
fn of_square<N: Size>(
    square: Vector<f32, N>,
    weight: Vector<f32, N>,
    count: f32,
    free: f32,
    epsilon: f32,
) -> (Vector<f32, N>, Vector<f32, N>, Vector<f32, N>) {
    let deviation = (square / Vector::new(count) + Vector::new(epsilon)).sqrt();
    let inverse = Vector::<f32, N>::new(1.0) / deviation;
    (inverse, weight * inverse, square / Vector::new(free))
}

/// Sums of pieces, of the gradient and of the gradient times `x - mean`. `relu` has scale and bias of a ReLU through
/// which the gradient has to go, or nothing; `output` has that ReLU's output if they do not suffice, and then the
/// gradient that went through it is written to `passed`.
#[cube(launch)]
pub(super) fn piece_sums<E: Float, N: Size>(
    gradient: &Tensor<Vector<E, N>>,
    x: &Tensor<Vector<E, N>>,
    mean: &Tensor<Vector<f32, N>>,
    relu: &Sequence<Tensor<Vector<f32, N>>>,
    output: &Sequence<Tensor<Vector<E, N>>>,
    passed: &mut Sequence<Tensor<Vector<E, N>>>,
    sums: &mut Tensor<Vector<f32, N>>,
    products: &mut Tensor<Vector<f32, N>>,
    rows: usize,
    columns: usize,
    depth: usize,
    #[comptime] lanes: usize,
    #[define(E)] _dtype: StorageType,
) {
    let column = ABSOLUTE_POS_X as usize;
    let first = CUBE_POS_Y as usize * depth * lanes;
    let mut sum = Vector::<f32, N>::new(0.0);
    let mut product = Vector::<f32, N>::new(0.0);
    for i in 0..depth {
        let row = first + i * lanes + UNIT_POS_Y as usize;
        if row < rows && column < columns {
            let place = row * columns + column;
            let centred = Vector::cast_from(x[place]) - mean[column];
            let mut own = gradient[place];
            if comptime!(output.len() == 1) {
                let zero = Vector::<E, N>::new(E::new(0.0));
                own = select_many(output[0][place].greater_than(zero), own, zero);
                passed.index_mut(0usize)[place] = own;
            }
            let own = through_relu(Vector::cast_from(own), centred, relu, column);
            sum += own;
            product += own * centred;
        }
    }
    let sum = over_lanes(sum, lanes);
    let product = over_lanes(product, lanes);
    if UNIT_POS_Y == 0 && column < columns {
        let piece = CUBE_POS_Y as usize * columns + column;
        sums[piece] = sum;
        products[piece] = product;
    }
}

/// Two sums over all rows from those of their pieces, the second one times `inv_std`: of the gradient, and of the
/// gradient times the normalised input.
#[cube(launch)]
pub(super) fn all_sums<N: Size>(
    sums: &Tensor<Vector<f32, N>>,
    products: &Tensor<Vector<f32, N>>,
    inv_std: &Tensor<Vector<f32, N>>,
    sum: &mut Tensor<Vector<f32, N>>,
    weighted: &mut Tensor<Vector<f32, N>>,
    pieces: usize,
    columns: usize,
    #[comptime] lanes: usize,
) {
    let column = ABSOLUTE_POS_X as usize;
    let mut first = Vector::<f32, N>::new(0.0);
    let mut second = Vector::<f32, N>::new(0.0);
    let mut piece = UNIT_POS_Y as usize;
    while piece < pieces && column < columns {
        first += sums[piece * columns + column];
        second += products[piece * columns + column];
        piece += lanes;
    }
    let first = over_lanes(first, lanes);
    let second = over_lanes(second, lanes);
    if UNIT_POS_Y == 0 && column < columns {
        sum[column] = first;
        weighted[column] = second * inv_std[column];
    }
}

/// `(x - mean) * scale + bias`, plus the shortcut if there is one, and ReLU if `relu`.
#[cube(launch)]
pub(super) fn normalized<E: Float, N: Size>(
    x: &Tensor<Vector<E, N>>,
    mean: &Tensor<Vector<f32, N>>,
    scale: &Tensor<Vector<f32, N>>,
    bias: &Tensor<Vector<f32, N>>,
    shortcut: &Sequence<Tensor<Vector<E, N>>>,
    output: &mut Tensor<Vector<E, N>>,
    count: usize,
    columns: usize,
    #[comptime] relu: bool,
    #[define(E)] _dtype: StorageType,
) {
    let place = ABSOLUTE_POS;
    if place >= count {
        terminate!();
    }
    let column = place % columns;
    let mut value = (Vector::cast_from(x[place]) - mean[column]) * scale[column] + bias[column];
    if comptime!(shortcut.len() == 1) {
        value += Vector::cast_from(shortcut[0][place]);
    }
    if comptime!(relu) {
        value = max(value, Vector::new(0.0));
    }
    output[place] = Vector::cast_from(value);
}

/// The gradient where the output is positive, zero elsewhere.
#[cube(launch)]
pub(super) fn masked<E: Float, N: Size>(
    gradient: &Tensor<Vector<E, N>>,
    output: &Tensor<Vector<E, N>>,
    result: &mut Tensor<Vector<E, N>>,
    count: usize,
    #[define(E)] _dtype: StorageType,
) {
    let place = ABSOLUTE_POS;
    if place >= count {
        terminate!();
    }
    let zero = Vector::<E, N>::new(E::new(0.0));
    result[place] = select_many(output[place].greater_than(zero), gradient[place], zero);
}

/// `k (gradient - mean(gradient) - x_hat mean(gradient * x_hat))` with `k = weight * inv_std` and the normalised input
/// `x_hat`; `sum` and `weighted` as in [`all_sums`], over the whole batch, and `share` one over its number of values;
/// `relu` as in [`piece_sums`].
#[cube(launch)]
pub(super) fn input_gradient<E: Float, N: Size>(
    gradient: &Tensor<Vector<E, N>>,
    x: &Tensor<Vector<E, N>>,
    mean: &Tensor<Vector<f32, N>>,
    inv_std: &Tensor<Vector<f32, N>>,
    weight: &Tensor<Vector<f32, N>>,
    sum: &Tensor<Vector<f32, N>>,
    weighted: &Tensor<Vector<f32, N>>,
    relu: &Sequence<Tensor<Vector<f32, N>>>,
    result: &mut Tensor<Vector<E, N>>,
    share: f32,
    count: usize,
    columns: usize,
    #[define(E)] _dtype: StorageType,
) {
    let place = ABSOLUTE_POS;
    if place >= count {
        terminate!();
    }
    let column = place % columns;
    let k = weight[column] * inv_std[column];
    let q = k * inv_std[column] * (weighted[column] * Vector::new(share));
    let r = k * (sum[column] * Vector::new(share));
    let centred = Vector::cast_from(x[place]) - mean[column];
    let passed = through_relu(Vector::cast_from(gradient[place]), centred, relu, column);
    result[place] = Vector::cast_from(passed * k - centred * q - r);
}

/// The gradient where `centred * scale + bias` is positive, zero elsewhere; the gradient itself without a ReLU.
#[cube]
fn through_relu<N: Size>(
    gradient: Vector<f32, N>,
    centred: Vector<f32, N>,
    relu: &Sequence<Tensor<Vector<f32, N>>>,
    column: usize,
) -> Vector<f32, N> {
    let mut passed = gradient;
    if comptime!(relu.len() == 2) {
        let zero = Vector::<f32, N>::new(0.0);
        let input = centred * relu[0][column] + relu[1][column];
        passed = select_many(input.greater_than(zero), gradient, zero);
    }
    passed
}

/// The sum of a column's values over all lanes, in a tree; on every lane.
#[cube]
fn over_lanes<N: Size>(value: Vector<f32, N>, #[comptime] lanes: usize) -> Vector<f32, N> {
    let mut sums = SharedMemory::<Vector<f32, N>>::new(UNITS);
    let own = UNIT_POS as usize;
    let width = comptime!(UNITS / lanes);
    sums[own] = value;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(lanes.ilog2()) {
        let half = comptime!(lanes >> (step + 1));
        if (UNIT_POS_Y as usize) < half {
            sums[own] = sums[own] + sums[own + half * width];
        }
        sync_cube();
    }
    sums[UNIT_POS_X as usize]
}
