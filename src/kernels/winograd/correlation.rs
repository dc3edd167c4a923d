//! Output and input gradient: transform tiles, multiply at each frequency, transform back.
//!
//! A sum runs over the channels of one tile, so tiles can be processed in blocks of any size. The size of the kernels
//! decides what stays in a cache: small kernels are transformed once and shared by all blocks of tiles; of large
//! kernels, one panel at a time is transformed and used for all tiles of a large block.

use std::ops::Range;

use super::form::Side;
use super::kernels::{self, Panel};
use super::product::OverChannels;
use super::tiles::{FromFrequencies, Grid, Images, Slots, SumKind, TileKind, ToFrequencies, plane};
use super::{Winograd, panel, part};
use crate::activation::Activation;
use crate::epilogue::Epilogue;
use crate::vector::scratch::{self, Kind};
use crate::vector::{LANES, Shared};

/// Largest `inputs * outputs` of small kernels.
const SMALL: usize = 128 * 128;
const SMALL_BLOCK: usize = 14;
/// Most values of a large block.
const LARGE_BLOCK: usize = 36 << 16;
/// Most sums of a panel, which stay in a cache until they are transformed.
const SUMS: usize = 1 << 18;
/// Tiles of a large block that one task transforms.
const TRANSFORMED: usize = 16;

/// One product: `from` with `kernels`, to `to`.
#[derive(Clone, Copy)]
pub(super) struct Correlation<'a, T> {
    pub(super) plan: &'a Winograd,
    pub(super) from: Shared<T>,
    pub(super) channels: usize,
    pub(super) kernels: Shared,
    pub(super) to: Shared<T>,
    /// Channels of `to`.
    pub(super) outputs: usize,
    /// Whether `from` is the gradient of the output and `to` that of the input.
    pub(super) turned: bool,
    pub(super) epilogue: Option<Epilogue<'a, T>>,
}

impl<T: Activation> Correlation<'_, T> {
    /// # Safety
    ///
    /// The addresses are those of whole batches and kernels of the plan's size, and `to` is not used elsewhere.
    pub(super) unsafe fn run(&self) {
        if self.channels * self.outputs <= SMALL { self.small() } else { self.large() }
    }

    fn panels(&self) -> usize {
        self.outputs / self.panel()
    }

    /// Channels of a panel.
    fn panel(&self) -> usize {
        panel(self.outputs)
    }

    /// Values of a panel of kernels per frequency.
    fn kernel_plane(&self) -> usize {
        plane(self.channels * self.panel())
    }

    /// What is summed and what is written.
    fn sides(&self) -> [Side; 2] {
        if self.turned { [Side::Output, Side::Input] } else { [Side::Input, Side::Output] }
    }

    fn frequencies(&self) -> [usize; 2] {
        self.sides().map(|side| self.plan.form.frequencies(side))
    }

    fn grids(&self) -> [Grid; 2] {
        let [input, output] = self.plan.grids;
        if self.turned { [output, input] } else { [input, output] }
    }

    /// Values of a panel of kernels.
    fn kernels(&self) -> usize {
        self.plan.form.frequencies(Side::Kernel) * self.kernel_plane()
    }

    fn small(&self) {
        let (all, parallel_for) = (self.plan.tiles(), self.plan.parallel_for);
        let of_panel = self.kernels();
        scratch::with(Kind::Shared, [self.panels() * of_panel], |[kernels]| {
            let kernels = Shared(kernels.as_mut_ptr());
            parallel_for(self.panels(), &|panel| self.transform_kernels(panel, kernels.at(panel * of_panel)));
            let blocks = all.div_ceil(SMALL_BLOCK);
            let tiles = |block| part(&(0..all), block, blocks);
            parallel_for(blocks, &|block| {
                let (these, next) = (tiles(block), tiles((block + 1).min(blocks - 1)));
                let slots = self.slots(these.len());
                scratch::with(Kind::Own, [slots.len(), self.sums(these.len())], |memory| {
                    let [frequencies, sums] = memory.map(<[f32]>::as_mut_ptr);
                    self.transform_tiles(these.clone(), frequencies, slots, 0);
                    for panel in 0..self.panels() {
                        let memory = [frequencies, kernels.at(panel * of_panel), sums];
                        self.multiply(panel, these.clone(), memory, slots, &next);
                    }
                });
            });
        });
    }

    fn large(&self) {
        let (all, parallel_for) = (self.plan.tiles(), self.plan.parallel_for);
        let blocks = all.div_ceil((LARGE_BLOCK / (self.frequencies()[0] * self.channels)).max(1));
        let slots = self.slots(all.div_ceil(blocks));
        scratch::with(Kind::Shared, [slots.len()], |[frequencies]| {
            let frequencies = Shared(frequencies.as_mut_ptr());
            for tiles in (0..blocks).map(|block| part(&(0..all), block, blocks)) {
                let tasks = tiles.len().div_ceil(TRANSFORMED);
                parallel_for(tasks, &|task| {
                    let these = part(&tiles, task, tasks);
                    self.transform_tiles(these.clone(), frequencies.at(0), slots, these.start - tiles.start);
                });
                parallel_for(self.panels(), &|panel| {
                    let parts = self.sums(tiles.len()).div_ceil(SUMS);
                    let own = [self.kernels(), self.sums(tiles.len().div_ceil(parts))];
                    scratch::with(Kind::Own, own, |memory| {
                        let [kernels, sums] = memory.map(<[f32]>::as_mut_ptr);
                        self.transform_kernels(panel, kernels);
                        for these in (0..parts).map(|number| part(&tiles, number, parts)) {
                            let from = frequencies.at((these.start - tiles.start) * LANES);
                            self.multiply(panel, these, [from, kernels, sums], slots, &(0..0));
                        }
                    });
                });
            }
        });
    }

    fn slots(&self, tiles: usize) -> Slots {
        Slots::new(self.frequencies()[0], tiles, self.channels, LANES)
    }

    /// Values of a panel's sums at all frequencies.
    fn sums(&self, tiles: usize) -> usize {
        self.frequencies()[1] * plane(tiles * self.panel())
    }

    fn source(&self) -> Images<T> {
        Images { first: self.from.at(0), step: self.channels, channels: self.channels }
    }

    fn transform_kernels(&self, panel: usize, to: *mut f32) {
        let panel = Panel {
            inputs: if self.turned { self.outputs } else { self.channels },
            first: panel * self.panel(),
            channels: self.panel(),
            strided: self.plan.form.stride > 1,
            turned: self.turned,
        };
        let (rows, kernels, plane) = (self.channels, self.kernels.at(0).cast_const(), self.kernel_plane());
        // SAFETY: `run`'s contract; `to` is large enough for a panel.
        unsafe { self.plan.set.run(&kernels::ToFrequencies { panel, rows, kernels, to, plane }) };
    }

    fn transform_tiles(&self, tiles: Range<usize>, to: *mut f32, slots: Slots, slot: usize) {
        let ([grid, _], images) = (self.grids(), self.source());
        let kind = match (self.plan.form.stride, self.turned) {
            (1, _) => TileKind::Input,
            (_, false) => TileKind::StridedInput,
            (_, true) => TileKind::StridedGradientPatch,
        };
        // SAFETY: `run`'s contract; `to` is large enough for the slots.
        unsafe { self.plan.set.run(&ToFrequencies { grid, tiles, images, to, slots, slot, kind }) };
    }

    /// Computes a panel of the output of `tiles` from the frequencies of tiles and kernels, and prefetches the tiles
    /// `next`.
    fn multiply(
        &self,
        panel: usize,
        tiles: Range<usize>,
        [from, kernels, sums]: [*mut f32; 3],
        slots: Slots,
        next: &Range<usize>,
    ) {
        let (count, channels) = (tiles.len(), self.panel());
        let plane = plane(count * channels);
        let ([source, grid], [_, frequencies]) = (self.grids(), self.frequencies());
        let first = panel * channels;
        let images = |of: Shared<T>| Images { first: of.at(first), step: self.outputs, channels };
        let shortcut = self.epilogue.and_then(|epilogue| epilogue.shortcut).map(|values| images(Shared::of(values)));
        let (images, epilogue) = (images(self.to), self.epilogue.map(|epilogue| (epilogue, first)));
        let [side, to] = self.sides();
        let kind = match (self.plan.form.stride, self.turned) {
            (1, _) => SumKind::Output,
            (_, false) => SumKind::StridedOutput,
            (_, true) => SumKind::StridedInputGradient,
        };
        // SAFETY: the memory is large enough for `slots`, a panel of kernels and the sums of `tiles`.
        unsafe {
            for frequency in 0..frequencies {
                for images in [Some(images), shortcut].into_iter().flatten() {
                    grid.fetch(images, &tiles, [frequency, frequencies]);
                }
                let share = [panel * frequencies + frequency, self.panels() * frequencies];
                source.fetch(self.source(), next, share);
                for (term, product) in self.plan.form.products(to, frequency).iter().enumerate() {
                    self.plan.set.run(&OverChannels {
                        tiles: from.add(product[side as usize] * slots.plane),
                        step: slots.count * LANES,
                        count,
                        channels: self.channels,
                        kernels: kernels.add(product[Side::Kernel as usize] * self.kernel_plane()),
                        sums: sums.add(frequency * plane),
                        panel: channels,
                        fresh: term == 0,
                    });
                }
            }
            self.plan.set.run(&FromFrequencies { grid, tiles, images, from: sums, plane, kind, epilogue });
        }
    }
}
