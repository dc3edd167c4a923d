//! The linear maps of 3x3 convolutions of stride 2, decomposed as in "DWM: A Decomposable Winograd Method for
//! Convolution Acceleration", Huang et al., 2020 (arXiv 2002.00552).
//!
//! On an axis, `y[p] = g1 * x[2p] + (g0 * x[2p - 1] + g2 * x[2p + 1])`: one tap on the even pixels, by F(4, 1) with
//! four points, and two taps on the odd pixels, by F(4, 2) with the same points and infinity. Products at one point
//! are added before the map to pixels. Lines of pixels alternate between the phases; in lines of frequencies, the four
//! of one tap come before the five of two taps. The kernel of one tap is g1 at each point.
//!
//! The points are ±1/2 and ±5/4: their squares are exact in f32, and errors are about 0.7 of those with ±√½ and ±√2.

use super::transform::{Line, TILE, minus, pair, plus, times};
use crate::vector::Vector;

const A: f64 = 0.5;
const B: f64 = 1.25;
/// The product of the differences of `A` from the other points is `-1 / P`; that of `-A` is `1 / P`.
const P: f64 = 1.0 / (2.0 * A * (B * B - A * A));
/// The product of the differences of `B` from the other points is `1 / Q`; that of `-B` is `-1 / Q`.
const Q: f64 = 1.0 / (2.0 * B * (B * B - A * A));

/// Pixels on a side of a tile of the input.
pub(super) const SPAN: usize = 2 * TILE;
/// Pixels on a side of a tile's input patch, and frequencies on a side.
pub(super) const PATCH: usize = SPAN + 1;
/// Frequencies of the output on a side.
pub(super) const POINTS: usize = TILE + 1;

/// A patch of the input, from the pixel before the tile on, to frequencies.
pub(super) struct Input;
/// Frequencies to a tile of the output.
pub(super) struct Output;
/// A kernel to frequencies.
pub(super) struct Kernel;
/// The transpose of [`Output`]: the gradient of a tile to frequencies, for the gradient of the kernel.
pub(super) struct Gradient;
/// The transpose of [`Kernel`].
pub(super) struct KernelGradient;
/// A tile of the gradient and the pixel after it to frequencies, for the gradient of the input.
pub(super) struct GradientPatch;
/// Frequencies to a tile of the gradient of the input; there kernels are rotated.
pub(super) struct InputGradient;

impl Line<PATCH, PATCH> for Input {
    #[inline(always)]
    unsafe fn map<V: Vector>(d: [V; PATCH]) -> [V; PATCH] {
        // SAFETY: passed on to the caller, as in all of these maps.
        unsafe {
            let [a, b, c, e] = finite([d[1], d[3], d[5], d[7]]);
            let [p, q, r, s] = finite([d[0], d[2], d[4], d[6]]);
            [a, b, c, e, p, q, r, s, infinite(d[0], d[4], d[8])]
        }
    }
}

impl Line<POINTS, TILE> for Output {
    #[inline(always)]
    unsafe fn map<V: Vector>(m: [V; POINTS]) -> [V; TILE] {
        // SAFETY: as above.
        unsafe {
            let [p, q, r, s] = interpolated([m[0], m[1], m[2], m[3]]);
            [p, q, r, s.add(m[4])]
        }
    }
}

impl Line<3, 6> for Kernel {
    #[inline(always)]
    unsafe fn map<V: Vector>(g: [V; 3]) -> [V; 6] {
        // SAFETY: as above.
        unsafe {
            let ([p, q], [r, s]) = (pair(g[0], A, g[2]), pair(g[0], B, g[2]));
            [g[1], p, q, r, s, g[2]]
        }
    }
}

impl Line<TILE, POINTS> for Gradient {
    #[inline(always)]
    unsafe fn map<V: Vector>(y: [V; TILE]) -> [V; POINTS] {
        // SAFETY: as above.
        unsafe {
            let [p, q] = pair(times(-P * A, plus(y[1], A * A, y[3])), -P, plus(y[0], A * A, y[2]));
            let [r, s] = pair(times(Q * B, plus(y[1], B * B, y[3])), Q, plus(y[0], B * B, y[2]));
            [p, q, r, s, y[3]]
        }
    }
}

impl Line<6, 3> for KernelGradient {
    #[inline(always)]
    unsafe fn map<V: Vector>(s: [V; 6]) -> [V; 3] {
        // SAFETY: as above.
        unsafe {
            let (even, odd) = ([s[1].add(s[2]), s[3].add(s[4])], [s[1].sub(s[2]), s[3].sub(s[4])]);
            [even[0].add(even[1]), s[0], plus(plus(s[5], A, odd[0]), B, odd[1])]
        }
    }
}

impl Line<POINTS, POINTS> for GradientPatch {
    #[inline(always)]
    unsafe fn map<V: Vector>(d: [V; POINTS]) -> [V; POINTS] {
        // SAFETY: as above.
        unsafe {
            let [p, q, r, s] = finite([d[0], d[1], d[2], d[3]]);
            [p, q, r, s, infinite(d[0], d[2], d[4])]
        }
    }
}

impl Line<PATCH, SPAN> for InputGradient {
    #[inline(always)]
    unsafe fn map<V: Vector>(m: [V; PATCH]) -> [V; SPAN] {
        // SAFETY: as above.
        unsafe {
            let [a, b, c, e] = interpolated([m[0], m[1], m[2], m[3]]);
            let [p, q, r, s] = Output::map([m[4], m[5], m[6], m[7], m[8]]);
            [a, p, b, q, c, r, e, s]
        }
    }
}

/// Four adjacent values to the four points.
#[inline(always)]
unsafe fn finite<V: Vector>(d: [V; 4]) -> [V; 4] {
    // SAFETY: as above.
    unsafe {
        let [p, q] = pair(minus(d[3], B * B, d[1]), A, minus(d[2], B * B, d[0]));
        let [r, s] = pair(minus(d[3], A * A, d[1]), B, minus(d[2], A * A, d[0]));
        [p, q, r, s]
    }
}

/// The first, third and last of five adjacent values to infinity.
#[inline(always)]
unsafe fn infinite<V: Vector>(first: V, third: V, last: V) -> V {
    // SAFETY: as above.
    unsafe { minus(plus(last, A * A * B * B, first), A * A + B * B, third) }
}

/// What the products at the four points add to four outputs.
#[inline(always)]
unsafe fn interpolated<V: Vector>(m: [V; 4]) -> [V; TILE] {
    // SAFETY: as above.
    unsafe {
        let (even, odd) = ([m[0].add(m[1]), m[2].add(m[3])], [m[0].sub(m[1]), m[2].sub(m[3])]);
        [
            minus(times(Q, odd[1]), P, odd[0]),
            minus(times(Q * B, even[1]), P * A, even[0]),
            minus(times(Q * B * B, odd[1]), P * A * A, odd[0]),
            minus(times(Q * B * B * B, even[1]), P * A * A * A, even[0]),
        ]
    }
}
