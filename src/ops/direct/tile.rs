//! The inner loop of all convolutions: a few gathered rows times a panel of lanes.
//!
//! `out[row.to][lane] += sum over steps of source[row.from + step.source] * panel[step.panel][lane]`. The left factor
//! is not copied into columns (no im2col): pixel and kernel tap are two offsets into a padded image, whose sum is the
//! address. It is read as a scalar and broadcast to the lanes; the right factor is read as vectors. The order of
//! additions depends on the tables alone.

use crate::ops::winograd::Set;

/// Rows of one tile; tables of rows have a multiple of this length.
pub(super) const ROWS: usize = 8;

/// Where a row reads and where it adds its result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Offset into the source, to which the steps are added.
    pub(super) from: usize,
    pub(super) to: usize,
}

/// One term of every row's sum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// Offset into the source, added to that of the row.
    pub(super) source: usize,
    pub(super) panel: usize,
}

/// Lanes of a panel for `channels`: 32 if the registers hold two vectors per row and both are used, else 16.
pub(super) fn lanes(channels: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if Set::best() == Set::Avx512 && channels > 16 {
        return 32;
    }
    let _ = channels;
    16
}

/// Adds the product of the gathered rows and `panel` `[any, lanes]` to `out` `[rows, lanes]`, or overwrites it if
/// `fresh`.
///
/// Panics if a table points outside of a slice, or if `rows` is not a multiple of [`ROWS`].
pub(super) fn multiply(
    rows: &[Row],
    steps: &[Step],
    source: &[f32],
    (panel, lanes): (&[f32], usize),
    out: &mut [f32],
    fresh: bool,
) {
    if rows.is_empty() || steps.is_empty() {
        return;
    }
    let (from, to) = rows.iter().fold((0, 0), |(from, to), row| (row.from.max(from), row.to.max(to)));
    let (step, line) = steps.iter().fold((0, 0), |(step, line), next| (next.source.max(step), next.panel.max(line)));
    assert!(from + step < source.len(), "a gathered row ends within its source");
    assert!((line + 1) * lanes <= panel.len() && (to + 1) * lanes <= out.len(), "the tables end within their slices");
    assert!(rows.len().is_multiple_of(ROWS), "rows come in whole tiles");
    let (source, panel, out) = (source.as_ptr(), panel.as_ptr(), out.as_mut_ptr());
    // SAFETY: the assertions bound every address that the tables can form, and the processor has the set.
    unsafe {
        match (Set::best(), lanes) {
            #[cfg(target_arch = "x86_64")]
            (Set::Avx512, 32) => avx512::<2, 32>(rows, steps, source, panel, out, fresh),
            #[cfg(target_arch = "x86_64")]
            (Set::Avx512, 16) => avx512::<1, 16>(rows, steps, source, panel, out, fresh),
            #[cfg(target_arch = "x86_64")]
            (Set::Avx2, 16) => avx2(rows, steps, source, panel, out, fresh),
            (_, 16) => plain::<4, 16, false>(rows, steps, source, panel, out, fresh),
            _ => unreachable!("`lanes` gives 16 or 32"),
        }
    }
}

/// Eight rows of `V` vectors: at most 16 sums, two vectors of the panel and one broadcast scalar in registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512<const V: usize, const L: usize>(
    rows: &[Row],
    steps: &[Step],
    source: *const f32,
    panel: *const f32,
    out: *mut f32,
    fresh: bool,
) {
    use std::arch::x86_64::{_mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_storeu_ps};
    for tile in rows.as_chunks::<ROWS>().0 {
        let mut sums = [[_mm512_set1_ps(0.0); V]; ROWS];
        // SAFETY: `multiply` has bounded source, panel and output for all rows and steps.
        unsafe {
            let from = tile.map(|row| source.add(row.from));
            for step in steps {
                let lanes = panel.add(step.panel * L);
                let right: [_; V] = std::array::from_fn(|v| _mm512_loadu_ps(lanes.add(16 * v)));
                for (sum, from) in sums.iter_mut().zip(&from) {
                    let left = _mm512_set1_ps(*from.add(step.source));
                    for v in 0..V {
                        sum[v] = _mm512_fmadd_ps(left, right[v], sum[v]);
                    }
                }
            }
            for (row, sum) in tile.iter().zip(sums) {
                for (v, sum) in sum.into_iter().enumerate() {
                    let to = out.add(row.to * L + 16 * v);
                    _mm512_storeu_ps(to, if fresh { sum } else { _mm512_add_ps(_mm512_loadu_ps(to), sum) });
                }
            }
        }
    }
}

/// As [`plain`], compiled for AVX2 with fused multiply-add.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(rows: &[Row], steps: &[Step], source: *const f32, panel: *const f32, out: *mut f32, fresh: bool) {
    // SAFETY: the caller's contract is that of `plain`.
    unsafe { plain::<4, 16, true>(rows, steps, source, panel, out, fresh) }
}

/// `R` rows of `L` lanes in plain Rust, vectorised by the compiler.
#[inline(always)]
unsafe fn plain<const R: usize, const L: usize, const FUSED: bool>(
    rows: &[Row],
    steps: &[Step],
    source: *const f32,
    panel: *const f32,
    out: *mut f32,
    fresh: bool,
) {
    for tile in rows.as_chunks::<R>().0 {
        let mut sums = [[0.0_f32; L]; R];
        // SAFETY: `multiply` has bounded source, panel and output for all rows and steps.
        unsafe {
            let from = tile.map(|row| source.add(row.from));
            for step in steps {
                let right = panel.add(step.panel * L).cast::<[f32; L]>().read();
                for (sum, from) in sums.iter_mut().zip(&from) {
                    let left = *from.add(step.source);
                    for (sum, right) in sum.iter_mut().zip(right) {
                        *sum = if FUSED { left.mul_add(right, *sum) } else { left * right + *sum };
                    }
                }
            }
            for (row, sum) in tile.iter().zip(sums) {
                let to = out.add(row.to * L);
                for (lane, sum) in sum.into_iter().enumerate() {
                    *to.add(lane) = if fresh { sum } else { *to.add(lane) + sum };
                }
            }
        }
    }
}
