//! Which source coordinates the target coordinates of a product meet, and where the source's copy holds them.
//!
//! Sixteen rows of a tile are equally far apart in memory, so the rows of a block are successive places of a copy of
//! the images in which each kernel tap is one distance. Target coordinates with the same taps modulo the stride of an
//! input gradient form a phase; source coordinates with the same remainder modulo the stride of a forward pass form a
//! plane of the copy. Within phase and plane one step of the target is one step of the source: the tap of place `j` is
//! the source's place `j + shift`.

use std::ops::Range;

use crate::direct::Geometry;

/// One tap of the kernel along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tap {
    /// Its place in the kernel.
    pub(super) number: usize,
    pub(super) plane: usize,
    pub(super) shift: isize,
}

/// Height or width of a product.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    pub(super) source: usize,
    pub(super) target: usize,
    /// Source coordinates from one place of a plane to the next.
    pub(super) every: usize,
    /// The first source coordinate of each plane.
    pub(super) planes: Vec<usize>,
    /// The taps of each phase. A phase's number is its first target coordinate.
    pub(super) phases: Vec<Vec<Tap>>,
    /// Source places of a plane.
    pub(super) places: usize,
    /// Zeros before the source's places in a row of the copy.
    pub(super) margin: usize,
    /// Places of a row of the copy: the zeros before the next row serve as those behind this one.
    pub(super) pitch: usize,
}

impl Axis {
    pub(super) fn forward(g: &Geometry, axis: usize) -> Self {
        let taps = |_| (0..g.kernel[axis]).map(|tap| (tap, tap as isize - g.padding as isize)).collect();
        Self::new([g.size[axis], g.output()[axis]], [g.stride, 1], taps)
    }

    pub(super) fn input_gradient(g: &Geometry, axis: usize) -> Self {
        let stride = g.stride as isize;
        let taps = |phase: usize| {
            let from = (0..g.kernel[axis]).map(|tap| (tap, (phase + g.padding) as isize - tap as isize));
            from.filter(|(_, from)| from % stride == 0).map(|(tap, from)| (tap, from / stride)).collect()
        };
        Self::new([g.output()[axis], g.size[axis]], [1, g.stride], taps)
    }

    /// `met` gives a phase's pairs of tap and source coordinate less that of the place.
    fn new(
        [source, target]: [usize; 2],
        [every, phases]: [usize; 2],
        met: impl Fn(usize) -> Vec<(usize, isize)>,
    ) -> Self {
        let met: Vec<_> = (0..phases).map(met).collect();
        let first = |offset: isize| offset.rem_euclid(every as isize) as usize;
        let mut planes: Vec<_> = met.iter().flatten().map(|(_, offset)| first(*offset)).collect();
        planes.sort_unstable();
        planes.dedup();
        let tap = |&(number, offset): &(usize, isize)| {
            let plane = planes.partition_point(|plane| *plane < first(offset));
            Tap { number, plane, shift: offset.div_euclid(every as isize) }
        };
        let phases: Vec<Vec<_>> = met.iter().map(|taps| taps.iter().map(tap).collect()).collect();
        let shifts = phases.iter().flatten().map(|tap| tap.shift);
        let margin = -shifts.clone().min().unwrap_or(0).min(0);
        let (margin, behind) = (margin as usize, shifts.max().unwrap_or(0).max(0) as usize);
        let places = planes.iter().map(|plane| source.saturating_sub(*plane).div_ceil(every)).max().unwrap_or(0);
        let mut axis = Self { source, target, every, planes, phases, places, margin, pitch: 0 };
        axis.pitch = (places + margin).max(axis.count(0) + behind);
        axis
    }

    /// The axis of a copy of the target, with rows as long as those of the source's copy.
    pub(super) fn of_target(&self) -> Self {
        Self { source: self.target, every: 1, planes: vec![0], places: self.target, margin: 0, ..self.clone() }
    }

    /// Target places of a phase.
    pub(super) fn count(&self, phase: usize) -> usize {
        self.target.saturating_sub(phase).div_ceil(self.phases.len())
    }

    /// The source coordinate of a place of a plane.
    pub(super) fn coordinate(&self, plane: usize, place: usize) -> Option<usize> {
        Some(self.planes[plane] + self.every * place).filter(|coordinate| *coordinate < self.source)
    }

    /// The taps that lie on the source at a place of the target.
    pub(super) fn taps(&self, phase: usize, place: usize) -> Vec<Tap> {
        self.phases[phase].iter().copied().filter(|tap| self.meets(tap, place)).collect()
    }

    fn meets(&self, tap: &Tap, place: usize) -> bool {
        let place = place.checked_add_signed(tap.shift);
        place.and_then(|place| self.coordinate(tap.plane, place)).is_some()
    }

    /// The places of a phase at which a tap lies on the source, one after the other.
    pub(super) fn met(&self, phase: usize, tap: &Tap) -> Range<usize> {
        let count = self.count(phase);
        let first = (0..count).find(|place| self.meets(tap, *place)).unwrap_or(count);
        first..(first..count).find(|place| !self.meets(tap, *place)).unwrap_or(count)
    }

    /// Adjacent places of a phase with the same taps on the source.
    pub(super) fn runs(&self, phase: usize) -> Vec<(Range<usize>, Vec<Tap>)> {
        let mut runs: Vec<(Range<usize>, Vec<Tap>)> = Vec::new();
        for place in 0..self.count(phase) {
            let taps = self.taps(phase, place);
            match runs.last_mut().filter(|run| run.1 == taps) {
                Some(run) => run.0.end += 1,
                None => runs.push((place..place + 1, taps)),
            }
        }
        runs
    }
}
