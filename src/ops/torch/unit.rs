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

/// The instruction that asks for flags is slow in a virtual machine.
static BF16: LazyLock<Unit> = LazyLock::new(of_bf16);

impl Unit {
    pub(super) fn of(kind: Kind) -> Self {
        match kind {
            Kind::BFloat16 => *BF16,
            // oneDNN's arithmetic in f16 turns the gradients too far from those in f32: Kiln's kernels compute in f32.
            Kind::Half => Self::None,
            _ => Self::Vector,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn of_bf16() -> Unit {
    use std::arch::x86_64::__cpuid_count;
    let is_allowed = kiln_kernels::Set::best() == kiln_kernels::Set::Avx512;
    match is_allowed && is_x86_feature_detected!("avx512bf16") {
        // A processor with the vector instructions has the leaf of this bit.
        true if (__cpuid_count(7, 0).edx >> 22) & 1 == 1 => Unit::Matrix,
        true => Unit::Vector,
        false => Unit::None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn of_bf16() -> Unit {
    #[cfg(target_arch = "aarch64")]
    let has_bf16 = std::arch::is_aarch64_feature_detected!("bf16");
    #[cfg(not(target_arch = "aarch64"))]
    let has_bf16 = false;
    if has_bf16 { Unit::Vector } else { Unit::None }
}

/// Whether this processor has instructions for products in `precision`, of which use is made.
pub fn has_instructions(precision: Precision) -> bool {
    match precision {
        Precision::F32 => true,
        Precision::Bf16 => *BF16 != Unit::None,
        Precision::F16 => false,
    }
}
