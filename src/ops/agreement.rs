//! Whether a kernel computes what a trusted one does.

/// The largest difference between two kernels that are right, as a share of the largest value: a rounding of bf16 is
/// 2^-9, the sum of those of TF32 smaller.
const TOLERANCE: f32 = 1.0 / 64.0;

/// Whether a kernel agrees with the trusted one, from the largest difference of their results and the largest value of
/// the trusted one, both [`f32::MAX`] if they overflow. `None` if the values prove nothing: those that overflow, and
/// zeros, which a kernel that computes nothing returns as well.
pub(super) fn agrees([difference, largest]: [f32; 2]) -> Option<bool> {
    let is_telling = largest > 0.0 && largest < f32::MAX;
    is_telling.then_some(difference <= TOLERANCE * largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_and_values_that_overflow_prove_nothing() {
        for difference in [0.0, 1e-9, 1.0, f32::MAX] {
            assert_eq!(agrees([difference, 0.0]), None, "the gradient behind a batch-norm whose scale is zero");
            assert_eq!(agrees([difference, f32::MAX]), None);
        }
    }

    #[test]
    fn other_values_agree_within_a_rounding() {
        for largest in [f32::MIN_POSITIVE, 1.0, 1e30] {
            assert_eq!(agrees([0.0, largest]), Some(true));
            assert_eq!(agrees([largest / 64.0, largest]), Some(true));
            assert_eq!(agrees([largest / 32.0, largest]), Some(false));
            assert_eq!(agrees([largest, largest]), Some(false), "a kernel that writes zeros");
            assert_eq!(agrees([f32::MAX, largest]), Some(false), "a kernel that overflows");
        }
    }
}
