//! The linear maps of F(4x4, 3x3): Winograd's minimal filtering, as in "Fast Algorithms for Convolutional Neural
//! Networks", Lavin and Gray, 2015, with the points 0, ±√½, ±√2 and infinity in place of 0, ±1, ±2 and infinity.
//!
//! Output and input gradient are `At [(G g Gt) * (Bt d B)] A`, an elementwise product at 36 frequencies; the weight
//! gradient `Gt [sum over tiles of (Bt d B) * (A y At)] G` is its adjoint. The map of a square applies the map of a
//! line to all columns and then to all rows.

use std::f64::consts::{FRAC_1_SQRT_2 as A, SQRT_2 as B};

use crate::activation::Activation;
use crate::vector::Vector;

/// Pixels on a side of a tile of the output.
pub(super) const TILE: usize = 4;
/// Pixels on a side of a tile's input patch, which is also the number of frequencies on a side.
pub(super) const PATCH: usize = TILE + 2;
pub(super) const TAPS: usize = 9;

/// A map from lines of `N` values to lines of `M`.
pub(super) trait Line<const N: usize, const M: usize> {
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    unsafe fn map<V: Vector>(line: [V; N]) -> [V; M];
}

/// `Bt`: an input patch to frequencies.
pub(super) struct Input;
/// `A`, the transpose of [`Output`]: the gradient of a tile to frequencies.
pub(super) struct Gradient;
/// `At`: frequencies to a tile.
pub(super) struct Output;
/// `G`: a kernel to frequencies.
pub(super) struct Kernel;
/// `Gt`: frequencies to the gradient of a kernel.
pub(super) struct KernelGradient;

/// `factor * x + term`.
#[inline(always)]
pub(super) unsafe fn plus<V: Vector>(term: V, factor: f64, x: V) -> V {
    // SAFETY: passed on to the caller, as in all of these maps.
    unsafe { V::splat(factor as f32).mul_add(x, term) }
}

/// `term - factor * x`.
#[inline(always)]
pub(super) unsafe fn minus<V: Vector>(term: V, factor: f64, x: V) -> V {
    // SAFETY: as above.
    unsafe { V::splat(factor as f32).mul_sub_from(x, term) }
}

#[inline(always)]
pub(super) unsafe fn times<V: Vector>(factor: f64, x: V) -> V {
    // SAFETY: as above.
    unsafe { V::splat(factor as f32).mul(x) }
}

/// The values at a point and its negative: `even ± point * odd`.
#[inline(always)]
pub(super) unsafe fn pair<V: Vector>(even: V, point: f64, odd: V) -> [V; 2] {
    // SAFETY: as above.
    unsafe { [plus(even, point, odd), minus(even, point, odd)] }
}

impl Line<PATCH, PATCH> for Input {
    #[inline(always)]
    unsafe fn map<V: Vector>(d: [V; PATCH]) -> [V; PATCH] {
        // SAFETY: as above.
        unsafe {
            let [p, q] = pair(minus(d[4], 2.0, d[2]), A, minus(d[3], 2.0, d[1]));
            let [r, s] = pair(minus(d[4], 0.5, d[2]), B, minus(d[3], 0.5, d[1]));
            [minus(d[0].add(d[4]), 2.5, d[2]), p, q, r, s, minus(d[1].add(d[5]), 2.5, d[3])]
        }
    }
}

impl Line<TILE, PATCH> for Gradient {
    #[inline(always)]
    unsafe fn map<V: Vector>(y: [V; TILE]) -> [V; PATCH] {
        // SAFETY: as above.
        unsafe {
            let [p, q] = pair(plus(y[0], 0.5, y[2]), A, plus(y[1], 0.5, y[3]));
            let [r, s] = pair(plus(y[0], 2.0, y[2]), B, plus(y[1], 2.0, y[3]));
            [y[0], p, q, r, s, y[3]]
        }
    }
}

impl Line<PATCH, TILE> for Output {
    #[inline(always)]
    unsafe fn map<V: Vector>(m: [V; PATCH]) -> [V; TILE] {
        // SAFETY: as above.
        unsafe {
            let (even, odd) = ([m[1].add(m[2]), m[3].add(m[4])], [m[1].sub(m[2]), m[3].sub(m[4])]);
            [
                m[0].add(even[0].add(even[1])),
                plus(times(B, odd[1]), A, odd[0]),
                plus(times(2.0, even[1]), 0.5, even[0]),
                plus(plus(m[5], 2.0 * B, odd[1]), 0.5 * A, odd[0]),
            ]
        }
    }
}

impl Line<3, PATCH> for Kernel {
    #[inline(always)]
    unsafe fn map<V: Vector>(g: [V; 3]) -> [V; PATCH] {
        // SAFETY: as above.
        unsafe {
            let [p, q] = pair(plus(times(-2.0 / 3.0, g[0]), -1.0 / 3.0, g[2]), A * -2.0 / 3.0, g[1]);
            let [r, s] = pair(plus(times(1.0 / 6.0, g[0]), 1.0 / 3.0, g[2]), B / 6.0, g[1]);
            [g[0], p, q, r, s, g[2]]
        }
    }
}

impl Line<PATCH, 3> for KernelGradient {
    #[inline(always)]
    unsafe fn map<V: Vector>(s: [V; PATCH]) -> [V; 3] {
        // SAFETY: as above.
        unsafe {
            let (even, odd) = ([s[1].add(s[2]), s[3].add(s[4])], [s[1].sub(s[2]), s[3].sub(s[4])]);
            [
                plus(plus(s[0], 1.0 / 6.0, even[1]), -2.0 / 3.0, even[0]),
                plus(times(B / 6.0, odd[1]), A * -2.0 / 3.0, odd[0]),
                plus(plus(s[5], 1.0 / 3.0, even[1]), -1.0 / 3.0, even[0]),
            ]
        }
    }
}

/// Addresses of the values of a square, sixteen channels each, by their index.
pub(super) trait Places {
    type Value: Activation;

    fn place(&self, number: usize) -> *mut Self::Value;

    /// # Safety
    ///
    /// The processor has the instructions of `V`, and the address is that of sixteen values.
    #[inline(always)]
    unsafe fn load<V: Vector>(&self, number: usize) -> V {
        // SAFETY: passed on to the caller.
        unsafe { Self::Value::load(self.place(number)) }
    }

    /// # Safety
    ///
    /// As [`Places::load`].
    #[inline(always)]
    unsafe fn store<V: Vector>(&self, number: usize, values: V) {
        // SAFETY: passed on to the caller.
        unsafe { Self::Value::store(values, self.place(number)) }
    }
}

/// Addresses at equal distances of `step` values.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) first: *mut f32,
    pub(super) step: usize,
}

impl Places for Planes {
    type Value = f32;

    #[inline(always)]
    fn place(&self, number: usize) -> *mut f32 {
        self.first.wrapping_add(number * self.step)
    }
}

impl<T: Activation, const N: usize> Places for [*mut T; N] {
    type Value = T;

    #[inline(always)]
    fn place(&self, number: usize) -> *mut T {
        self[number]
    }
}

/// Maps a square of `N` x `N` to one of `M` x `M`.
///
/// # Safety
///
/// The processor has the instructions of `V`, and each address is that of sixteen values.
#[inline(always)]
pub(super) unsafe fn square<V: Vector, L: Line<N, M>, const N: usize, const M: usize>(
    from: &impl Places,
    to: &impl Places,
) {
    // SAFETY: passed on to the caller.
    unsafe {
        let zero = V::splat(0.0);
        let mut rows = [[zero; N]; M];
        for column in 0..N {
            let mut line = [zero; N];
            for (row, value) in line.iter_mut().enumerate() {
                *value = from.load(row * N + column);
            }
            for (row, value) in rows.iter_mut().zip(&L::map(line)) {
                row[column] = *value;
            }
        }
        for (i, row) in rows.iter().enumerate() {
            for (j, value) in L::map(*row).iter().enumerate() {
                to.store(i * M + j, *value);
            }
        }
    }
}
