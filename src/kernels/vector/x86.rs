//! [`Vector`] in the registers of x86 processors.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{LANES, Routine, Vector};

/// The contract is that of [`super::Set::run`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn avx512(routine: &impl Routine) {
    // SAFETY: passed on to the caller.
    unsafe { routine.run::<Whole>() }
}

/// The contract is that of [`super::Set::run`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn avx2(routine: &impl Routine) {
    // SAFETY: passed on to the caller.
    unsafe { routine.run::<Halves>() }
}

type Whole = __m512;

#[derive(Clone, Copy)]
pub(super) struct Halves(__m256, __m256);

const HALF: usize = LANES / 2;

// Functions, no closures: what is not always inlined calls each instruction as a function of its own.

#[inline(always)]
unsafe fn of_bf16(from: *const bf16) -> __m256 {
    unsafe {
        let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
    }
}

#[inline(always)]
unsafe fn rounded_to_bf16(half: __m256) -> __m256i {
    unsafe {
        let bits = _mm256_castps_si256(half);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(half, half));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(nearest, quiet, is_nan))
    }
}

#[inline(always)]
unsafe fn zipped(one: __m256, other: __m256) -> Halves {
    unsafe {
        // In each quarter: the lanes of its first half, and those of its second.
        let (low, high) = (_mm256_unpacklo_ps(one, other), _mm256_unpackhi_ps(one, other));
        Halves(_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
    }
}

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
            unsafe fn load_bf16(from: *const bf16) -> Self {
                unsafe {
                    let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
                }
            }

            #[inline(always)]
            unsafe fn store_bf16(self, to: *mut bf16) {
                unsafe {
                    let bits = _mm512_castps_si512(self);
                    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                    let nearest = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
                    let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self, self);
                    let rounded = _mm512_mask_or_epi32(nearest, is_nan, bits, _mm512_set1_epi32(0x40_0000));
                    let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded));
                    _mm256_storeu_si256(to.cast(), halves);
                }
            }

            #[inline(always)]
            unsafe fn load_f16(from: *const f16) -> Self {
                unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
            }

            #[inline(always)]
            unsafe fn store_f16(self, to: *mut f16) {
                unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self)) }
            }

            #[inline(always)]
            unsafe fn zip(self, other: Self) -> [Self; 2] {
                unsafe {
                    let first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                    let second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
                    [_mm512_permutex2var_ps(self, first, other), _mm512_permutex2var_ps(self, second, other)]
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
            unsafe fn load_bf16(from: *const bf16) -> Self {
                unsafe { Self(of_bf16(from), of_bf16(from.add(HALF))) }
            }

            #[inline(always)]
            unsafe fn store_bf16(self, to: *mut bf16) {
                unsafe {
                    // Packed by quarters: first, third, second, fourth.
                    let halves = _mm256_packus_epi32(rounded_to_bf16(self.0), rounded_to_bf16(self.1));
                    _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(halves));
                }
            }

            #[inline(always)]
            unsafe fn load_f16(from: *const f16) -> Self {
                let [first, second] = [from, from.wrapping_add(HALF)];
                unsafe { Self(_mm256_cvtph_ps(_mm_loadu_si128(first.cast())), _mm256_cvtph_ps(_mm_loadu_si128(second.cast()))) }
            }

            #[inline(always)]
            unsafe fn store_f16(self, to: *mut f16) {
                for (half, to) in [(self.0, to), (self.1, to.wrapping_add(HALF))] {
                    unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(half)) }
                }
            }

            #[inline(always)]
            unsafe fn zip(self, other: Self) -> [Self; 2] {
                unsafe { [zipped(self.0, other.0), zipped(self.1, other.1)] }
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
