//! Forward pass and input gradient: every pixel of the target gathers its terms from the source.
//!
//! Both are sums over source channels and kernel taps, `target[pixel] = sum source[pixel + tap] * weight[tap]`. Target
//! pixels with the same taps form a phase: the interior, each kind of edge and, in the input gradient of a strided
//! convolution, each position modulo the stride. So no product with a padding zero is computed.

use std::mem::MaybeUninit;

use super::copy::copy_rows;
use super::geometry::{Geometry, images_at_once, part};
use super::lanes::Lanes;
use super::planes::Images;
use super::tile::{Row, Step, Tiles};
use crate::activation::{Activation, narrow};
use crate::pieces::{ParallelFor, on_pieces};
use crate::vector::scratch::{self, Kind};
use crate::vector::{Memory, Shared, vectorized};

/// Minimum of target pixels per task and phase, if the batch has them: a phase fills whole tiles.
const PHASE_PIXELS: usize = 32;

/// Pixels of the target with the same taps.
struct Phase {
    /// Pixels of all images of a task, image by image.
    rows: Vec<Row>,
    /// Source channels summed by one tile.
    part: usize,
    /// Source channels of each tap in memory order, for a whole part of the channels and for the last part.
    steps: [Vec<Step>; 2],
}

/// Coordinates on one axis of the target with the same taps.
struct Line {
    /// Pairs of the source coordinate of the first tap and the target coordinate.
    places: Vec<[usize; 2]>,
    /// Pairs of the source offset from the first tap and the number of the kernel tap.
    taps: Vec<[usize; 2]>,
}

/// Images `[batch, pixels, channels]` that are computed.
struct Target {
    channels: usize,
    pixels: usize,
}

/// One pass over a batch: which source pixels each target pixel sums.
struct Gather<'a, T> {
    source: Images<'a, T>,
    /// Pixels of the kernel.
    taps: usize,
    target: Target,
    images: usize,
    is_single: bool,
    phases: Vec<Phase>,
    /// Target channels as lanes, a row for each source channel and tap.
    weight: Lanes,
    weights: &'a [f32],
    parallel_for: ParallelFor,
}

/// `output[n, o] = sum over i of x[n, i] * weight[o, i]`, into `output`.
pub(crate) fn forward<T: Activation>(g: &Geometry, x: &[T], weight: &[f32], output: &mut [MaybeUninit<T>]) {
    let depth = g.inputs * g.taps();
    let source = Images { values: x, channels: g.inputs, height: g.size[0], width: g.size[1] };
    let weights = Lanes::new(g.outputs, depth, depth);
    let lines = [0, 1].map(|axis| {
        let meets = |at: usize, tap: usize| (at * g.stride + tap).checked_sub(g.padding);
        lines([g.output()[axis], g.size[axis], g.kernel[axis]], meets)
    });
    run(g, source, g.output(), lines, (weights, weight), output);
}

/// `x[n, i] = sum over o of gradient[n, o] * weight[o, i]`, into `x`.
pub(crate) fn input_gradient<T: Activation>(g: &Geometry, weight: &[f32], gradient: &[T], x: &mut [MaybeUninit<T>]) {
    let [height, width] = g.output();
    let source = Images { values: gradient, channels: g.outputs, height, width };
    let weights = Lanes::new(g.inputs, g.taps(), g.outputs * g.taps());
    let lines = [0, 1].map(|axis| {
        let meets = |at: usize, tap: usize| {
            let from = (at + g.padding).checked_sub(tap)?;
            from.is_multiple_of(g.stride).then_some(from / g.stride)
        };
        lines([g.size[axis], g.output()[axis], g.kernel[axis]], meets)
    });
    run(g, source, g.size, lines, (weights, weight), x);
}

/// Groups the coordinates of a target axis by their taps; `meets` gives the source coordinate of a target coordinate
/// and a tap.
fn lines([target, source, kernel]: [usize; 3], meets: impl Fn(usize, usize) -> Option<usize>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for at in 0..target {
        let seen = (0..kernel).filter_map(|tap| Some([meets(at, tap).filter(|from| *from < source)?, tap]));
        let Some(first) = seen.clone().map(|[from, _]| from).min() else { continue };
        let taps: Vec<_> = seen.map(|[from, tap]| [from - first, tap]).collect();
        match lines.iter_mut().find(|line| line.taps == taps) {
            Some(line) => line.places.push([first, at]),
            None => lines.push(Line { places: vec![[first, at]], taps }),
        }
    }
    lines
}

/// All pairs, grouped by the first.
fn pairs<'a>(y: &'a [[usize; 2]], x: &'a [[usize; 2]]) -> impl Iterator<Item = ([usize; 2], [usize; 2])> {
    y.iter().flat_map(move |y| x.iter().map(|x| (*y, *x)))
}

/// A pass to targets of `size` with the kernel `weights` in the layout `weight`.
fn run<T: Activation>(
    g: &Geometry,
    source: Images<T>,
    size: [usize; 2],
    lines: [Vec<Line>; 2],
    (weight, weights): (Lanes, &[f32]),
    target: &mut [MaybeUninit<T>],
) {
    let pixels = size[0] * size[1];
    let images = images_at_once(g.batch, pixels, PHASE_PIXELS * lines[0].len() * lines[1].len());
    scratch::with(Kind::Shared, [weight.len()], |[panels]| {
        weight.pack_kernel(weights, g.parallel_for, panels);
        let mut gather = Gather {
            source,
            taps: g.taps(),
            target: Target { channels: weight.channels, pixels },
            images,
            is_single: images >= g.batch,
            phases: Vec::new(),
            weight,
            weights: panels,
            parallel_for: g.parallel_for,
        };
        for (y, x) in lines[0].iter().flat_map(|y| lines[1].iter().map(move |x| (y, x))) {
            gather.phases.push(gather.phase(y, x, size[1], g.kernel[1]));
        }
        gather.run(target);
    });
}

impl<T: Activation> Gather<'_, T> {
    fn phase(&self, y: &Line, x: &Line, width: usize, kernel_width: usize) -> Phase {
        let Images { channels, height, width: source_width, .. } = self.source;
        let from = |y: usize, x: usize| (y * source_width + x) * channels;
        let row = |image: usize, ([from_y, y], [from_x, x]): ([usize; 2], [usize; 2])| Row {
            from: from(image * height + from_y, from_x),
            to: (image * self.target.pixels + y * width + x) * self.target.channels,
        };
        let step = |channel: usize, ([off_y, y], [off_x, x]): ([usize; 2], [usize; 2])| Step {
            source: from(off_y, off_x) + channel,
            panel: channel * self.taps + y * kernel_width + x,
        };
        let part = part(channels, y.taps.len() * x.taps.len());
        Phase {
            part,
            rows: (0..self.images).flat_map(|i| pairs(&y.places, &x.places).map(move |at| row(i, at))).collect(),
            steps: [part, (channels - 1) % part + 1]
                .map(|part| pairs(&y.taps, &x.taps).flat_map(|tap| (0..part).map(move |c| step(c, tap))).collect()),
        }
    }

    fn run(&self, target: &mut [MaybeUninit<T>]) {
        let image = self.target.channels * self.target.pixels;
        let tasks =
            target.chunks_mut(self.images * image).zip(self.source.values.chunks(self.images * self.source.image()));
        on_pieces(tasks, self.parallel_for, |(target, source)| self.images(target.len() / image, source, target));
    }

    /// One task of `images` images. Values of other types than f32 are copied to f32, and sums from it.
    fn images(&self, images: usize, source: &[T], target: &mut [MaybeUninit<T>]) {
        if let (Some(source), Some(target)) = (T::as_f32(source), T::as_f32_mut(target)) {
            return self.sum(images, source, target);
        }
        scratch::with(Kind::Own, [source.len(), target.len()], |[values, sums]| {
            copy_rows(source, source.len(), values, source.len(), [1, source.len()]);
            self.sum(images, values, sums);
            vectorized(narrow, (&*sums, target));
        });
    }

    fn sum(&self, images: usize, source: &[f32], target: &mut [impl Memory<f32>]) {
        let reached: usize = self.phases.iter().map(|phase| phase.rows.len()).sum();
        if reached < self.images * self.target.pixels {
            target.iter_mut().for_each(|value| value.set(0.0));
        }
        let to = Shared(target.as_mut_ptr().cast());
        let fill = |panel: &mut usize| {
            for phase in &self.phases {
                let rows = &phase.rows[..phase.rows.len() / self.images * images];
                // SAFETY: rows write to this panel's channels of the target, which was split off for this task.
                unsafe { self.add(rows, phase, source, *panel, to) };
            }
        };
        let panels = 0..self.target.channels.div_ceil(self.weight.lanes);
        // A single task is parallel over its panels.
        if self.is_single {
            on_pieces(panels, self.parallel_for, fill);
        } else {
            panels.for_each(|mut panel| fill(&mut panel));
        }
    }

    unsafe fn add(&self, rows: &[Row], phase: &Phase, source: &[f32], panel: usize, to: Shared) {
        let (lanes, first_lane) = (self.weight.lanes, panel * self.weight.lanes);
        let weights = &self.weights[panel * self.weight.panel()..][..self.weight.panel()];
        let filled = lanes.min(self.target.channels - first_lane);
        for first in (0..self.source.channels).step_by(phase.part) {
            // Next, these rows read the following channels, or the first ones of the following images.
            let is_last = first + phase.part >= self.source.channels;
            let (steps, source) = (&phase.steps[usize::from(is_last)], &source[first..]);
            let panel = &weights[first * self.taps * lanes..];
            let ahead = if is_last { self.images * self.source.image() - first } else { phase.part };
            let (out, fresh) = (to.at(first_lane), first == 0);
            let tiles = Tiles { rows, steps, source, panel, lanes, filled, ahead, out, fresh };
            // SAFETY: passed on to the caller.
            unsafe { tiles.run() };
        }
    }
}
