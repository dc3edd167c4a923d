//! Tiles of images to and from frequencies.

use std::ops::Range;

use super::strided;
use super::transform::{Gradient, Input, Line, Output, Planes, square};
use crate::activation::Activation;
use crate::epilogue::Epilogue;
use crate::vector::{LANES, Routine, Vector, prefetch};

/// Bytes of a cache line.
const LINE: usize = 64;

/// The tiles of a batch, image by image and row by row. Tiles at the lower and right edges may extend beyond the image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    height: usize,
    width: usize,
    /// Pixels on a side of a tile.
    side: usize,
    rows: usize,
    columns: usize,
    /// Tiles of all images.
    pub(super) tiles: usize,
}

impl Grid {
    pub(super) fn new(batch: usize, [height, width]: [usize; 2], side: usize) -> Self {
        let (rows, columns) = (height.div_ceil(side), width.div_ceil(side));
        Self { height, width, side, rows, columns, tiles: batch * rows * columns }
    }

    /// The index of the pixel `y` below and `x` right of a tile's corner; `None` outside of the image.
    #[inline(always)]
    fn pixel(&self, tile: usize, y: isize, x: isize) -> Option<usize> {
        let (image, place) = (tile / (self.rows * self.columns), tile % (self.rows * self.columns));
        let (top, left) = (place / self.columns * self.side, place % self.columns * self.side);
        let (y, x) = (top.wrapping_add_signed(y), left.wrapping_add_signed(x));
        (y < self.height && x < self.width).then(|| (image * self.height + y) * self.width + x)
    }

    /// Prefetches part `number` of `parts` of the pixels of some tiles. Called between products, so that loads overlap
    /// with computation.
    pub(super) fn fetch<T>(&self, images: Images<T>, tiles: &Range<usize>, [number, parts]: [usize; 2]) {
        // Shifts: divisions by the side, a power of two, would take as long as some products.
        let bits = self.side.trailing_zeros();
        for wanted in super::part(&(0..tiles.len() << (2 * bits)), number, parts) {
            let (tile, y, x) = (tiles.start + (wanted >> (2 * bits)), wanted >> bits, wanted);
            if let Some(pixel) = self.pixel(tile, (y & (self.side - 1)) as isize, (x & (self.side - 1)) as isize) {
                for channel in (0..images.channels).step_by(LINE / size_of::<T>()) {
                    prefetch(images.first.wrapping_add(pixel * images.step + channel));
                }
            }
        }
    }
}

/// Some adjacent channels of the NHWC activations of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Images<T> {
    /// The first of these channels of the first pixel.
    pub(super) first: *mut T,
    /// Values from one pixel to the next.
    pub(super) step: usize,
    pub(super) channels: usize,
}

/// The layout of transformed tiles: `[frequency][channels / group][slots][group]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    /// Adjacent channels, a multiple of sixteen.
    pub(super) group: usize,
    /// Capacity in tiles.
    pub(super) count: usize,
    frequencies: usize,
    /// Values from one frequency to the next.
    pub(super) plane: usize,
}

impl Slots {
    pub(super) fn new(frequencies: usize, count: usize, channels: usize, group: usize) -> Self {
        Self { group, count, frequencies, plane: plane(count * channels) }
    }

    /// Values of all frequencies.
    pub(super) fn len(&self) -> usize {
        self.frequencies * self.plane
    }

    /// Offset of a tile's sixteen channels from `channel` on, at the first frequency.
    #[inline(always)]
    pub(super) fn at(&self, slot: usize, channel: usize) -> usize {
        (channel / self.group * self.count + slot) * self.group + channel % self.group
    }
}

/// The distance of planes of `values` values, an odd number of cache lines: planes a power of two apart would share few
/// cache sets.
pub(super) fn plane(values: usize) -> usize {
    (values.div_ceil(LANES) | 1) * LANES
}

/// The map of a tile to frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TileKind {
    Input,
    Gradient,
    StridedInput,
    StridedGradient,
    /// For the gradient of the input.
    StridedGradientPatch,
}

/// Transforms tiles of images to frequencies; the first is written to slot `slot`.
pub(super) struct ToFrequencies<T> {
    pub(super) grid: Grid,
    pub(super) tiles: Range<usize>,
    pub(super) images: Images<T>,
    pub(super) to: *mut f32,
    pub(super) slots: Slots,
    pub(super) slot: usize,
    pub(super) kind: TileKind,
}

impl<T: Activation> Routine for ToFrequencies<T> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        // SAFETY: passed on to the caller.
        unsafe {
            match self.kind {
                TileKind::Input => self.map::<V, Input, 6, 36, 6>(1),
                TileKind::Gradient => self.map::<V, Gradient, 4, 16, 6>(0),
                TileKind::StridedInput => self.map::<V, strided::Input, 9, 81, 9>(1),
                TileKind::StridedGradient => self.map::<V, strided::Gradient, 4, 16, 5>(0),
                TileKind::StridedGradientPatch => self.map::<V, strided::GradientPatch, 5, 25, 5>(0),
            }
        }
    }
}

/// The values of pixels outside of an image, of any type.
static ZEROS: [f32; LANES] = [0.0; LANES];

impl<T: Activation> ToFrequencies<T> {
    #[inline(always)]
    unsafe fn map<V: Vector, L: Line<N, M>, const N: usize, const PIXELS: usize, const M: usize>(&self, halo: isize) {
        for tile in self.tiles.clone() {
            let slot = self.slot + tile - self.tiles.start;
            let zeros = ZEROS.as_ptr().cast_mut().cast();
            let mut from = Square::<T, PIXELS>::new(&self.grid, tile, halo, self.images, zeros);
            for channel in (0..self.images.channels).step_by(LANES) {
                let to = Planes { first: self.to.wrapping_add(self.slots.at(slot, channel)), step: self.slots.plane };
                // SAFETY: passed on to the caller.
                unsafe { square::<V, L, N, M>(&from.places, &to) };
                from.advance();
            }
        }
    }
}

/// The map of frequencies to a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SumKind {
    Output,
    StridedOutput,
    StridedInputGradient,
}

/// Transforms sums at all frequencies to tiles of images.
pub(super) struct FromFrequencies<'a, T> {
    pub(super) grid: Grid,
    pub(super) tiles: Range<usize>,
    pub(super) images: Images<T>,
    /// `[frequency][tiles][channels]`.
    pub(super) from: *mut f32,
    /// Values from one frequency to the next.
    pub(super) plane: usize,
    pub(super) kind: SumKind,
    /// Applied to the values of a tile while they are in a cache, and the number of the first channel.
    pub(super) epilogue: Option<(Epilogue<'a, T>, usize)>,
}

impl<T: Activation> Routine for FromFrequencies<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        // SAFETY: passed on to the caller.
        unsafe {
            match self.kind {
                SumKind::Output => self.map::<V, Output, 6, 4, 16>(),
                SumKind::StridedOutput => self.map::<V, strided::Output, 5, 4, 16>(),
                SumKind::StridedInputGradient => self.map::<V, strided::InputGradient, 9, 8, 64>(),
            }
        }
    }
}

impl<T: Activation> FromFrequencies<'_, T> {
    #[inline(always)]
    unsafe fn map<V: Vector, L: Line<N, M>, const N: usize, const M: usize, const PIXELS: usize>(&self) {
        let mut outside = [T::default(); LANES];
        for tile in self.tiles.clone() {
            let mut to = Square::<T, PIXELS>::new(&self.grid, tile, 0, self.images, outside.as_mut_ptr());
            for channel in (0..self.images.channels).step_by(LANES) {
                let first = self.from.wrapping_add((tile - self.tiles.start) * self.images.channels + channel);
                // SAFETY: passed on to the caller.
                unsafe { square::<V, L, N, M>(&Planes { first, step: self.plane }, &to.places) };
                if let Some((epilogue, first)) = &self.epilogue {
                    // SAFETY: the places of the square have just been written.
                    unsafe { to.apply(epilogue, first + channel, self.images.first.wrapping_sub(*first)) };
                }
                to.advance();
            }
        }
    }
}

/// Addresses of sixteen channels of the pixels of a square.
struct Square<T, const N: usize> {
    places: [*mut T; N],
    /// Distance to the next sixteen channels; 0 outside of the image.
    steps: [usize; N],
}

impl<T: Activation, const N: usize> Square<T, N> {
    /// A square whose corner is `halo` above and left of a tile's; pixels outside of the image are at `outside`.
    #[inline(always)]
    fn new(grid: &Grid, tile: usize, halo: isize, images: Images<T>, outside: *mut T) -> Self {
        let side = N.isqrt();
        let mut square = Self { places: [outside; N], steps: [0; N] };
        for i in 0..N {
            if let Some(pixel) = grid.pixel(tile, (i / side) as isize - halo, (i % side) as isize - halo) {
                square.places[i] = images.first.wrapping_add(pixel * images.step);
                square.steps[i] = LANES;
            }
        }
        square
    }

    /// Applies the epilogue to sixteen channels from `channel` on; `first` is the address of the first pixel's channel
    /// 0.
    ///
    /// # Safety
    ///
    /// The places inside of the image hold values of the epilogue's size.
    #[inline(always)]
    unsafe fn apply(&self, epilogue: &Epilogue<T>, channel: usize, first: *const T) {
        for (place, _) in self.places.iter().zip(&self.steps).filter(|(_, step)| **step > 0) {
            // SAFETY: passed on to the caller; an array has the alignment of its values.
            unsafe {
                let at = place.cast_const().offset_from(first) as usize;
                let values = place.cast::<[T; LANES]>();
                values.write(epilogue.channels(values.read().map(T::widened), channel, at).map(T::of));
            }
        }
    }

    #[inline(always)]
    fn advance(&mut self) {
        for i in 0..N {
            self.places[i] = self.places[i].wrapping_add(self.steps[i]);
        }
    }
}
