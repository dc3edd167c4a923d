//! The inner loop of all direct convolutions: a few gathered rows times a panel of lanes.
//!
//! `out[row.to + lane] += sum over steps of source[row.from + step.source] * panel[step.panel][lane]`. The left factor
//! is not copied into columns (no im2col): pixel and kernel tap are two offsets into an image, whose sum is the
//! address. It is read as a scalar and broadcast to the lanes; the right factor is read as vectors. A sum is one chain
//! of fused multiply-adds in the order of the steps on every instruction set, whatever the number of rows of a block.

use crate::vector::{LANES, Routine, Set, Vector, add_products, prefetch};

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

/// Lanes of a panel for `channels`: two vectors if both are used, else one.
pub(super) fn lanes(channels: usize) -> usize {
    if channels > LANES { 2 * LANES } else { LANES }
}

/// The product of the gathered rows and a panel.
pub(super) struct Tiles<'a> {
    pub(super) rows: &'a [Row],
    pub(super) steps: &'a [Step],
    pub(super) source: &'a [f32],
    /// `[any, lanes]`.
    pub(super) panel: &'a [f32],
    pub(super) lanes: usize,
    /// Lanes that are written.
    pub(super) filled: usize,
    pub(super) out: *mut f32,
    /// The distance from what the rows read to what they will read next, which is prefetched.
    pub(super) ahead: usize,
    /// Overwrites the output instead of adding.
    pub(super) fresh: bool,
}

impl Tiles<'_> {
    /// Adds the product to the output. Panics if a table points outside of source or panel.
    ///
    /// # Safety
    ///
    /// No other thread uses the `filled` values at each row's place in the output.
    pub(super) unsafe fn run(&self) {
        let (step, line) =
            self.steps.iter().fold((0, 0), |(step, line), next| (next.source.max(step), next.panel.max(line)));
        let from = self.rows.iter().fold(0, |from, row| row.from.max(from));
        if self.rows.is_empty() || self.steps.is_empty() {
            return;
        }
        assert!(from + step < self.source.len(), "a gathered row ends within its source");
        assert!((line + 1) * self.lanes <= self.panel.len(), "the steps end within the panel");
        // SAFETY: the assertions bound the reads, the caller the writes; `best` is a set of this processor.
        unsafe { Set::best().run(self) };
    }
}

impl Routine for Tiles<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        for rows in self.rows.chunks(V::GATHERED) {
            macro_rules! of_rows {
                ($($rows:literal)*) => {
                    match rows.len() {
                        $($rows if $rows <= V::GATHERED => {
                            let rows = rows.first_chunk::<$rows>().expect("as matched");
                            // SAFETY: passed on to the caller.
                            unsafe {
                                if V::WIDE == 2 && self.filled > LANES {
                                    self.block::<V, $rows, 2>(rows, 0);
                                } else {
                                    for column in (0..self.filled).step_by(LANES) {
                                        self.block::<V, $rows, 1>(rows, column);
                                    }
                                }
                            }
                        })*
                        _ => unreachable!("blocks have at most `GATHERED` rows"),
                    }
                };
            }
            of_rows!(1 2 3 4 5 6 7 8);
        }
    }
}

impl Tiles<'_> {
    #[inline(always)]
    unsafe fn block<V: Vector, const ROWS: usize, const VECTORS: usize>(&self, rows: &[Row; ROWS], column: usize) {
        // SAFETY: passed on to the caller.
        unsafe {
            let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
            let from = rows.map(|row| self.source.as_ptr().add(row.from));
            let panel = self.panel.as_ptr().add(column);
            for (i, step) in self.steps.iter().enumerate() {
                if i % LANES < ROWS {
                    prefetch(from[i % LANES].wrapping_add(self.steps[i - i % LANES].source + self.ahead));
                }
                let lanes = panel.add(step.panel * self.lanes);
                add_products(&mut sums, |row| from[row].add(step.source), lanes);
            }
            for (row, sums) in rows.iter().zip(sums) {
                for (v, sum) in sums.into_iter().enumerate() {
                    let first = column + v * LANES;
                    self.add(sum, self.out.add(row.to + first), self.filled - first);
                }
            }
        }
    }

    /// Adds up to sixteen values.
    #[inline(always)]
    unsafe fn add<V: Vector>(&self, sum: V, to: *mut f32, filled: usize) {
        // SAFETY: passed on to the caller.
        unsafe {
            if filled >= LANES {
                return if self.fresh { sum } else { V::load(to).add(sum) }.store(to);
            }
            let mut values = [0.0; LANES];
            sum.store(values.as_mut_ptr());
            for (lane, value) in values.into_iter().enumerate().take(filled) {
                let to = to.add(lane);
                *to = if self.fresh { value } else { *to + value };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let value = |i: usize| (i * 7919 % 1009) as f32 / 1009.0 - 0.5;
        let [source, panel]: [Vec<f32>; 2] = [400, 2 * LANES * 70].map(|length| (0..length).map(value).collect());
        let steps: Vec<Step> = (0..70).map(|i| Step { source: 3 * i, panel: 69 - i }).collect();
        for (rows, filled, fresh) in [(1, 32, true), (8, 20, false), (19, 7, false), (9, 16, true)] {
            let rows: Vec<Row> = (0..rows).map(|i| Row { from: 5 * i, to: filled * i }).collect();
            let products = Set::available().into_iter().map(|set| {
                let mut out: Vec<f32> = (0..rows.len() * filled).map(value).collect();
                let (rows, steps, source, panel) = (&rows[..], &steps[..], &source[..], &panel[..]);
                let (lanes, to) = (2 * LANES, out.as_mut_ptr());
                let tiles = Tiles { rows, steps, source, panel, lanes, filled, out: to, ahead: 0, fresh };
                // SAFETY: rows write one after the other, and the processor has the set.
                unsafe { set.run(&tiles) };
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            let mut products = products.collect::<Vec<_>>().into_iter();
            let first = products.next();
            let begun = if fresh { 0.0 } else { value(0) };
            let sum =
                steps.iter().fold(0.0, |sum, step| source[step.source].mul_add(panel[step.panel * 2 * LANES], sum));
            assert_eq!(first.as_ref().map(|bits| bits[0]), Some((begun + sum).to_bits()));
            assert!(products.all(|bits| Some(bits) == first), "{} rows, {filled} lanes", rows.len());
        }
    }
}
