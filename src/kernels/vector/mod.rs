//! Vectors of sixteen lanes for each instruction set.
//!
//! Every kernel is written once, over [`Vector`]. All instruction sets execute the same operations in
//! the same order with the same fused multiply-adds, so results are bitwise equal. A routine and its callees are
//! inlined into one function that is compiled for the set.

mod matrix;
mod memory;
pub(super) mod scratch;
mod square;

use std::cell::Cell;
use std::sync::LazyLock;

pub use matrix::transpose;
pub use memory::F32Memory;
pub(super) use memory::Shared;
pub(super) use square::{load, turned};

pub const LANES: usize = 16;

/// Instruction sets with an implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// 32 registers of 16 lanes.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 16 registers of 8 lanes.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Plain Rust.
    Portable,
}

impl Set {
    /// The sets of this processor, the fastest first.
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                sets.push(Self::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                sets.push(Self::Avx2);
            }
        }
        sets.push(Self::Portable);
        sets
    }

    /// The fastest set of this processor.
    pub fn best() -> Self {
        static BEST: LazyLock<Set> = LazyLock::new(|| Set::available()[0]);
        *BEST
    }

    /// Runs `routine` with this set.
    ///
    /// # Safety
    ///
    /// The processor has the set, and the caller keeps the routine's contract.
    pub(super) unsafe fn run(self, routine: &impl Routine) {
        // SAFETY: passed on to the caller.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Avx512 => x86::avx512(routine),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => x86::avx2(routine),
                Self::Portable => routine.run::<[f32; LANES]>(),
            }
        }
    }
}

/// A computation with its inputs and outputs.
pub(super) trait Routine {
    /// Every implementation must be `inline(always)`.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`, and the routine's addresses are valid for its reads and writes.
    unsafe fn run<V: Vector>(&self);
}

/// Runs `work` compiled for the fastest set of this processor. Plain Rust loops fuse no operations, so results are
/// bitwise equal on all sets. `work` must be `inline(always)`.
pub fn vectorized<T>(work: impl Fn(T), with: T) {
    struct Loops<W, T>(W, Cell<Option<T>>);
    impl<W: Fn(T), T> Routine for Loops<W, T> {
        #[inline(always)]
        unsafe fn run<V: Vector>(&self) {
            if let Some(with) = self.1.take() {
                (self.0)(with);
            }
        }
    }
    // SAFETY: `best` is a set of this processor, and the loops are safe.
    unsafe { Set::best().run(&Loops(work, Cell::new(Some(with)))) };
}

/// Sixteen values in registers.
///
/// # Safety
///
/// All functions need a processor with the set; `load` and `store` need the address of sixteen values.
pub(super) trait Vector: Copy {
    /// Vectors per row of a block of sums.
    const WIDE: usize;
    /// Rows of a block of sums: sums and operands fit into the registers.
    const ROWS: usize;
    /// Rows of a block of sums whose addresses differ: each has a register of its own.
    const GATHERED: usize;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// `self * factor + term`, rounded once.
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self;
    /// `term - self * factor`, rounded once.
    unsafe fn mul_sub_from(self, factor: Self, term: Self) -> Self;
    /// The interleaved lanes of both: of the first halves, and of the second.
    unsafe fn zip(self, other: Self) -> [Self; 2];
}

/// `sums[row] += left(row) * right`, a scalar times `VECTORS` adjacent vectors: the step of every product.
///
/// # Safety
///
/// The processor has the instructions of `V`, and the addresses are those of values.
#[inline(always)]
pub(super) unsafe fn add_products<V: Vector, const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[V; VECTORS]; ROWS],
    left: impl Fn(usize) -> *const f32,
    right: *const f32,
) {
    // SAFETY: passed on to the caller.
    unsafe {
        let mut vectors = [V::splat(0.0); VECTORS];
        for (v, vector) in vectors.iter_mut().enumerate() {
            *vector = V::load(right.add(v * LANES));
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            let left = V::splat(*left(row));
            for (sum, right) in sums.iter_mut().zip(&vectors) {
                *sum = left.mul_add(*right, *sum);
            }
        }
    }
}

#[inline(always)]
pub(super) fn prefetch(line: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, of any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

impl Vector for [f32; LANES] {
    const WIDE: usize = 1;
    const ROWS: usize = 4;
    const GATHERED: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's address is that of sixteen values; an array has the alignment of f32.
        unsafe { from.cast::<Self>().read() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { to.cast::<Self>().write(self) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        each_lane(|i| self[i] + other[i])
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        each_lane(|i| self[i] - other[i])
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        each_lane(|i| self[i] * other[i])
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
        each_lane(|i| self[i].mul_add(factor[i], term[i]))
    }

    #[inline(always)]
    unsafe fn mul_sub_from(self, factor: Self, term: Self) -> Self {
        each_lane(|i| (-self[i]).mul_add(factor[i], term[i]))
    }

    #[inline(always)]
    unsafe fn zip(self, other: Self) -> [Self; 2] {
        [0, LANES / 2].map(|half| each_lane(|i| [self, other][i % 2][half + i / 2]))
    }
}

#[inline(always)]
fn each_lane(value: impl Fn(usize) -> f32) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    for (i, lane) in lanes.iter_mut().enumerate() {
        *lane = value(i);
    }
    lanes
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Routine, Vector};

    /// The contract is that of [`super::Set::run`].
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(routine: &impl Routine) {
        // SAFETY: passed on to the caller.
        unsafe { routine.run::<Whole>() }
    }

    /// The contract is that of [`super::Set::run`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2(routine: &impl Routine) {
        // SAFETY: passed on to the caller.
        unsafe { routine.run::<Halves>() }
    }

    type Whole = __m512;

    #[derive(Clone, Copy)]
    pub(super) struct Halves(__m256, __m256);

    const HALF: usize = LANES / 2;

    /// The functions of [`Vector`] for one and for two registers.
    macro_rules! functions {
        ($($name:ident($($argument:ident),*) => $whole:ident, $half:ident;)*) => {
            impl Vector for Whole {
                const WIDE: usize = 2;
                const ROWS: usize = 14;
                const GATHERED: usize = 8;

                #[inline(always)]
                unsafe fn splat(value: f32) -> Self {
                    unsafe { _mm512_set1_ps(value) }
                }

                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    unsafe { _mm512_loadu_ps(from) }
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    unsafe { _mm512_storeu_ps(to, self) }
                }

                #[inline(always)]
                unsafe fn zip(self, other: Self) -> [Self; 2] {
                    unsafe {
                        let first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                        let second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
                        [first, second].map(|lanes| _mm512_permutex2var_ps(self, lanes, other))
                    }
                }

                $(#[inline(always)]
                unsafe fn $name(self, $($argument: Self),*) -> Self {
                    unsafe { $whole(self, $($argument),*) }
                })*
            }

            impl Vector for Halves {
                const WIDE: usize = 1;
                const ROWS: usize = 6;
                const GATHERED: usize = 6;

                #[inline(always)]
                unsafe fn splat(value: f32) -> Self {
                    unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
                }

                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(HALF))) }
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    unsafe {
                        _mm256_storeu_ps(to, self.0);
                        _mm256_storeu_ps(to.add(HALF), self.1);
                    }
                }

                #[inline(always)]
                unsafe fn zip(self, other: Self) -> [Self; 2] {
                    [(self.0, other.0), (self.1, other.1)].map(|(one, other)| unsafe {
                        // In each quarter: the lanes of its first half, and those of its second.
                        let (low, high) = (_mm256_unpacklo_ps(one, other), _mm256_unpackhi_ps(one, other));
                        Self(_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
                    })
                }

                $(#[inline(always)]
                unsafe fn $name(self, $($argument: Self),*) -> Self {
                    unsafe { Self($half(self.0, $($argument.0),*), $half(self.1, $($argument.1),*)) }
                })*
            }
        };
    }

    functions! {
        add(other) => _mm512_add_ps, _mm256_add_ps;
        sub(other) => _mm512_sub_ps, _mm256_sub_ps;
        mul(other) => _mm512_mul_ps, _mm256_mul_ps;
        mul_add(factor, term) => _mm512_fmadd_ps, _mm256_fmadd_ps;
        mul_sub_from(factor, term) => _mm512_fnmadd_ps, _mm256_fnmadd_ps;
    }
}
