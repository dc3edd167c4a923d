//! Vectors of sixteen lanes for each instruction set.
//!
//! Every kernel is written once, over [`Vector`]. All instruction sets execute the same operations in
//! the same order with the same fused multiply-adds, so results are bitwise equal. A routine and its callees are
//! inlined into one function that is compiled for the set.

mod conversion;
mod matrix;
mod memory;
pub(super) mod scratch;
mod square;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::cell::Cell;
use std::sync::LazyLock;

use half::{bf16, f16};

pub(super) use conversion::{bf16_of, f16_of, of_bf16, of_f16};
pub use matrix::transpose;
pub use memory::Memory;
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
            let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if has_avx2 && is_x86_feature_detected!("f16c") {
                sets.push(Self::Avx2);
            }
        }
        sets.push(Self::Portable);
        sets
    }

    /// The fastest set of this processor within `ONEDNN_MAX_CPU_ISA`, so that one variable restricts Kiln's kernels and
    /// oneDNN's, for comparisons.
    pub fn best() -> Self {
        static BEST: LazyLock<Set> = LazyLock::new(|| {
            let most = std::env::var("ONEDNN_MAX_CPU_ISA").unwrap_or_default();
            Set::available().into_iter().find(|set| set.is_within(&most)).unwrap_or(Set::Portable)
        });
        *BEST
    }

    /// Whether the value `most` of oneDNN's variable allows this set.
    pub fn is_within(self, most: &str) -> bool {
        let most = most.to_uppercase();
        let none = ["SSE41", "AVX"].contains(&most.as_str());
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => !none && !most.starts_with("AVX2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => !none,
            Self::Portable => true,
        }
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
pub trait Vector: Copy {
    /// Vectors per row of a block of sums.
    const WIDE: usize;
    /// Rows of a block of sums: sums and operands fit into the registers.
    const ROWS: usize;
    /// Rows of a block of sums whose addresses differ: each has a register of its own.
    const GATHERED: usize;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn load_bf16(from: *const bf16) -> Self;
    /// Rounds to the nearest, as in [`bf16_of`].
    unsafe fn store_bf16(self, to: *mut bf16);
    unsafe fn load_f16(from: *const f16) -> Self;
    /// Rounds to the nearest, as in [`f16_of`].
    unsafe fn store_f16(self, to: *mut f16);
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
pub(super) fn prefetch<T>(line: *const T) {
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
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: as above.
        each_lane(|i| of_bf16(unsafe { *from.add(i) }))
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        // SAFETY: as above.
        self.into_iter().enumerate().for_each(|(i, lane)| unsafe { *to.add(i) = bf16_of(lane) });
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: as above.
        each_lane(|i| of_f16(unsafe { *from.add(i) }))
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16) {
        // SAFETY: as above.
        self.into_iter().enumerate().for_each(|(i, lane)| unsafe { *to.add(i) = f16_of(lane) });
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
