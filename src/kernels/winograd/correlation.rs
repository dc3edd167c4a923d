//! Output and input gradient: transform tiles, multiply at each frequency, transform back.
//!
//! A sum runs over the channels of one tile, so tiles can be processed in blocks of any size. The size of the kernels
//! decides what stays in a cache: small kernels are transformed once and shared by all blocks of tiles; of large
//! kernels, one panel at a time is transformed and used for all tiles of a large block.

use std::ops::Range;

use super::kernels::{self, Panel};
use super::product::OverChannels;
use super::tiles::{FromFrequencies, Images, Slots, TileKind, ToFrequencies, plane};
use super::transform::FREQUENCIES;
use super::{Winograd, panel, part};
use crate::activation::Activation;
use crate::epilogue::Epilogue;
use crate::vector::scratch::{self, Kind};
use crate::vector::{LANES, Shared};

/// Largest `inputs * outputs` of small kernels.
const SMALL: usize = 128 * 128;
const SMALL_BLOCK: usize = 14;
/// Most values of a large block per frequency.
const LARGE_BLOCK: usize = 1 << 16;
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

    fn small(&self) {
        let Winograd { grid, parallel_for, .. } = *self.plan;
        let of_panel = FREQUENCIES * self.kernel_plane();
        scratch::with(Kind::Shared, [self.panels() * of_panel], |[kernels]| {
            let kernels = Shared(kernels.as_mut_ptr());
            parallel_for(self.panels(), &|panel| self.transform_kernels(panel, kernels.at(panel * of_panel)));
            let blocks = grid.tiles.div_ceil(SMALL_BLOCK);
            let tiles = |block| part(&(0..grid.tiles), block, blocks);
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
        let Winograd { grid, parallel_for, .. } = *self.plan;
        let blocks = grid.tiles.div_ceil((LARGE_BLOCK / self.channels).max(1));
        let slots = self.slots(grid.tiles.div_ceil(blocks));
        scratch::with(Kind::Shared, [slots.len()], |[frequencies]| {
            let frequencies = Shared(frequencies.as_mut_ptr());
            for tiles in (0..blocks).map(|block| part(&(0..grid.tiles), block, blocks)) {
                let tasks = tiles.len().div_ceil(TRANSFORMED);
                parallel_for(tasks, &|task| {
                    let these = part(&tiles, task, tasks);
                    self.transform_tiles(these.clone(), frequencies.at(0), slots, these.start - tiles.start);
                });
                parallel_for(self.panels(), &|panel| {
                    let own = [FREQUENCIES * self.kernel_plane(), self.sums(tiles.len())];
                    scratch::with(Kind::Own, own, |memory| {
                        let [kernels, sums] = memory.map(<[f32]>::as_mut_ptr);
                        self.transform_kernels(panel, kernels);
                        self.multiply(panel, tiles.clone(), [frequencies.at(0), kernels, sums], slots, &(0..0));
                    });
                });
            }
        });
    }

    fn slots(&self, tiles: usize) -> Slots {
        Slots::new(tiles, self.channels, LANES)
    }

    /// Values of a panel's sums at all frequencies.
    fn sums(&self, tiles: usize) -> usize {
        FREQUENCIES * plane(tiles * self.panel())
    }

    fn source(&self) -> Images<T> {
        Images { first: self.from.at(0), step: self.channels, channels: self.channels }
    }

    fn transform_kernels(&self, panel: usize, to: *mut f32) {
        let panel = Panel {
            inputs: if self.turned { self.outputs } else { self.channels },
            first: panel * self.panel(),
            channels: self.panel(),
            turned: self.turned,
        };
        let (rows, kernels, plane) = (self.channels, self.kernels.at(0).cast_const(), self.kernel_plane());
        // SAFETY: `run`'s contract; `to` is large enough for a panel.
        unsafe { self.plan.set.run(&kernels::ToFrequencies { panel, rows, kernels, to, plane }) };
    }

    fn transform_tiles(&self, tiles: Range<usize>, to: *mut f32, slots: Slots, slot: usize) {
        let (grid, images) = (self.plan.grid, self.source());
        // SAFETY: `run`'s contract; `to` is large enough for the slots.
        unsafe { self.plan.set.run(&ToFrequencies { grid, tiles, images, to, slots, slot, kind: TileKind::Input }) };
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
        let grid = self.plan.grid;
        let first = panel * channels;
        let images = |of: Shared<T>| Images { first: of.at(first), step: self.outputs, channels };
        let shortcut = self.epilogue.and_then(|epilogue| epilogue.shortcut).map(|values| images(Shared::of(values)));
        let (images, epilogue) = (images(self.to), self.epilogue.map(|epilogue| (epilogue, first)));
        // SAFETY: the memory is large enough for `slots`, a panel of kernels and the sums of `tiles`.
        unsafe {
            for frequency in 0..FREQUENCIES {
                for images in [Some(images), shortcut].into_iter().flatten() {
                    grid.fetch(images, &tiles, [frequency, FREQUENCIES]);
                }
                let share = [panel * FREQUENCIES + frequency, self.panels() * FREQUENCIES];
                grid.fetch(self.source(), next, share);
                self.plan.set.run(&OverChannels {
                    tiles: from.add(frequency * slots.plane),
                    step: slots.count * LANES,
                    count,
                    channels: self.channels,
                    kernels: kernels.add(frequency * self.kernel_plane()),
                    sums: sums.add(frequency * plane),
                    panel: channels,
                });
            }
            self.plan.set.run(&FromFrequencies { grid, tiles, images, from: sums, plane, epilogue });
        }
    }
}
