//! What this processor has for products in each type, by its flags alone, so that the choice of an algorithm and its
//! rounding depend on no timing.

use std::sync::LazyLock;

use tch::Kind;

use crate::precision::Precision;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    None,
    Vector,
    /// Intel's AMX.
    Matrix,
}

/// Of bf16 and of f16. The instruction that asks for flags is slow in a virtual machine.
static HALVES: LazyLock<[Unit; 2]> = LazyLock::new(halves);

impl Unit {
    pub(super) fn of(kind: Kind) -> Self {
        match kind {
            Kind::BFloat16 => HALVES[0],
            Kind::Half => HALVES[1],
            _ => Self::Vector,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn halves() -> [Unit; 2] {
    use std::arch::x86_64::__cpuid_count;
    // A processor with the vector instructions has the leaf of these bits.
    let unit = |has_vectors: bool, has_tiles: fn() -> u32| match has_vectors {
        true if has_tiles() & 1 == 1 => Unit::Matrix,
        true => Unit::Vector,
        false => Unit::None,
    };
    let is_allowed = kiln_kernels::Set::best() == kiln_kernels::Set::Avx512;
    [
        unit(is_allowed && is_x86_feature_detected!("avx512bf16"), || __cpuid_count(7, 0).edx >> 22),
        unit(is_allowed && is_x86_feature_detected!("avx512fp16"), || __cpuid_count(7, 1).eax >> 21),
    ]
}

#[cfg(not(target_arch = "x86_64"))]
fn halves() -> [Unit; 2] {
    #[cfg(target_arch = "aarch64")]
    let has_bf16 = std::arch::is_aarch64_feature_detected!("bf16");
    #[cfg(not(target_arch = "aarch64"))]
    let has_bf16 = false;
    [if has_bf16 { Unit::Vector } else { Unit::None }, Unit::None]
}

/// Whether oneDNN, LibTorch's library for processors, finds instructions for `precision` on this one.
pub fn has_instructions(precision: Precision) -> bool {
    match precision {
        Precision::F32 => true,
        Precision::Bf16 => HALVES[0] != Unit::None,
        Precision::F16 => HALVES[1] != Unit::None,
    }
}
