//! Weight gradient: transform tiles of input and gradient, sum their products over all tiles, transform back.
//!
//! The result depends on the order of sums, so the split of tiles follows from the size alone. If the sums are small,
//! each of a fixed number of tasks sums a part of the tiles, and their results are added in order. If they are large,
//! each task computes some of the sums over all tiles, which are transformed in blocks.

use std::ops::Range;

use super::form::Side;
use super::kernels::{FromFrequencies, Panel};
use super::product::{CHAIN, OverTiles};
use super::tiles::{Images, Slots, TileKind, ToFrequencies, plane};
use super::{Winograd, panel, part};
use crate::activation::Activation;
use crate::vector::scratch::{self, Kind};
use crate::vector::{LANES, Shared};

/// Largest `inputs * outputs` of small sums.
const SMALL: usize = 128 * 128;
/// Minimum of tiles per task with small sums: adding the task's sums to the others' takes as long as some tiles.
const ENOUGH: usize = 8 * CHAIN;
/// Most tasks with small sums.
const TASKS: usize = 16;
/// Tiles of a small block: whole chains. With stride 1 the size of blocks affects no sum; with stride 2 it is the order
/// in which a frequency adds its products.
const SMALL_BLOCK: usize = CHAIN;
/// Most values of a large block per frequency, of input or gradient, but at least a whole chain of tiles.
const LARGE_BLOCK: usize = 1 << 16;
/// Tiles of a large block that one task transforms.
const TRANSFORMED: usize = 16;
/// Most inputs per task with large sums.
const ROWS: usize = 4 * LANES;

#[derive(Clone, Copy)]
pub(super) struct WeightGradient<'a, T> {
    pub(super) plan: &'a Winograd,
    pub(super) x: Shared<T>,
    pub(super) gradient: Shared<T>,
    pub(super) kernels: Shared,
}

/// Some transformed tiles of input and gradient.
#[derive(Clone, Copy)]
struct Block {
    memory: [Shared; 2],
    slots: [Slots; 2],
}

/// The sums of some inputs and a panel of outputs, `[frequency][rows][panel]`.
struct Sums {
    at: *mut f32,
    /// Values from one frequency to the next.
    plane: usize,
    rows: Range<usize>,
    panel: usize,
}

impl<T: Activation> WeightGradient<'_, T> {
    /// # Safety
    ///
    /// The addresses are those of whole batches and kernels of the plan's size, and the kernels are not used elsewhere.
    pub(super) unsafe fn run(&self) {
        let tasks = (self.plan.tiles() / ENOUGH).min(TASKS);
        if self.plan.inputs * self.plan.outputs <= SMALL && tasks > 1 { self.small(tasks) } else { self.large() }
    }

    fn small(&self, tasks: usize) {
        let Winograd { inputs, parallel_for, .. } = *self.plan;
        let plane = plane(inputs * self.panel());
        let of_panel = self.plan.form.frequencies(Side::Kernel) * plane;
        let of_task = self.panels() * of_panel;
        scratch::with(Kind::Shared, [tasks * of_task], |[memory]| {
            let memory = Shared(memory.as_mut_ptr());
            let sums = |task: usize, panel: usize| Sums {
                at: memory.at(task * of_task + panel * of_panel),
                plane,
                rows: 0..inputs,
                panel,
            };
            parallel_for(tasks, &|task| {
                self.sum_alone(part(&(0..self.plan.tiles()), task, tasks), &|panel| sums(task, panel))
            });
            parallel_for(self.panels(), &|panel| {
                let total = sums(0, panel);
                for task in 1..tasks {
                    // SAFETY: the sums of two tasks do not overlap, and no other thread uses those of this panel.
                    let [total, more] = [&total, &sums(task, panel)]
                        .map(|sums| unsafe { std::slice::from_raw_parts_mut(sums.at, of_panel) });
                    total.iter_mut().zip(more).for_each(|(total, more)| *total += *more);
                }
                self.collect(&total);
            });
        });
    }

    /// Sums one task's part of the tiles, in small blocks.
    fn sum_alone(&self, tiles: Range<usize>, sums: &dyn Fn(usize) -> Sums) {
        let slots = self.slots(SMALL_BLOCK);
        scratch::with(Kind::Own, slots.map(|slots| slots.len()), |memory| {
            let block = Block { memory: memory.map(|values| Shared(values.as_mut_ptr())), slots };
            for first in tiles.clone().step_by(SMALL_BLOCK) {
                let these = first..tiles.end.min(first + SMALL_BLOCK);
                let next = these.end..tiles.end.min(these.end + SMALL_BLOCK);
                self.transform(these.clone(), &block, 0);
                for panel in 0..self.panels() {
                    self.add(&sums(panel), &block, these.len(), first == tiles.start, &next);
                }
            }
        });
    }

    fn large(&self) {
        let Winograd { inputs, outputs, parallel_for, .. } = *self.plan;
        let all = self.plan.tiles();
        let size = (LARGE_BLOCK / inputs.max(outputs)).max(1).next_multiple_of(CHAIN).min(all);
        let groups = inputs.div_ceil(ROWS);
        let tasks = groups * self.panels();
        let plane = plane(ROWS.min(inputs) * self.panel());
        let of_task = self.plan.form.frequencies(Side::Kernel) * plane;
        let slots = self.slots(size);
        // Sums over several blocks.
        let kept = if size < all { tasks * of_task } else { 0 };
        scratch::with(Kind::Shared, [slots[0].len(), slots[1].len(), kept], |[x, gradient, kept]| {
            let [x, gradient, kept] = [x, gradient, kept].map(|values| Shared(values.as_mut_ptr()));
            let block = Block { memory: [x, gradient], slots };
            for first in (0..all).step_by(size) {
                let tiles = first..all.min(first + size);
                self.transform_all(tiles.clone(), &block);
                parallel_for(tasks, &|task| {
                    let (panel, group) = (task / groups, task % groups);
                    let rows = group * ROWS..inputs.min((group + 1) * ROWS);
                    scratch::with(Kind::Own, [of_task], |[own]| {
                        let at = if size < all { kept.at(task * of_task) } else { own.as_mut_ptr() };
                        let sums = Sums { at, plane, rows, panel };
                        self.add(&sums, &block, tiles.len(), first == 0, &(0..0));
                        if tiles.end == all {
                            self.collect(&sums);
                        }
                    });
                });
            }
        });
    }

    /// [`Self::transform`] on all threads.
    fn transform_all(&self, tiles: Range<usize>, block: &Block) {
        let tasks = tiles.len().div_ceil(TRANSFORMED);
        (self.plan.parallel_for)(tasks, &|task| {
            let these = part(&tiles, task, tasks);
            self.transform(these.clone(), block, these.start - tiles.start);
        });
    }

    fn panels(&self) -> usize {
        self.plan.outputs / self.panel()
    }

    fn panel(&self) -> usize {
        panel(self.plan.outputs)
    }

    fn slots(&self, tiles: usize) -> [Slots; 2] {
        let [x, gradient] = [Side::Input, Side::Output].map(|side| self.plan.form.frequencies(side));
        [Slots::new(x, tiles, self.plan.inputs, LANES), Slots::new(gradient, tiles, self.plan.outputs, self.panel())]
    }

    fn images(&self) -> [Images<T>; 2] {
        [(self.x, self.plan.inputs), (self.gradient, self.plan.outputs)].map(|(values, channels)| Images {
            first: values.at(0),
            step: channels,
            channels,
        })
    }

    /// Transforms input and gradient of `tiles` to the slots of `block` from `slot` on.
    fn transform(&self, tiles: Range<usize>, block: &Block, slot: usize) {
        let Winograd { grids, set, .. } = *self.plan;
        let kinds = match self.plan.form.stride {
            1 => [TileKind::Input, TileKind::Gradient],
            _ => [TileKind::StridedInput, TileKind::StridedGradient],
        };
        for (side, kind) in kinds.into_iter().enumerate() {
            let (grid, images, tiles) = (grids[side], self.images()[side], tiles.clone());
            let (to, slots) = (block.memory[side].at(0), block.slots[side]);
            // SAFETY: `run`'s contract; the memory is large enough for the slots.
            unsafe { set.run(&ToFrequencies { grid, tiles, images, to, slots, slot, kind }) };
        }
    }

    /// Adds the products of the first `count` slots to `sums`, or overwrites them if `fresh`, and prefetches the tiles
    /// `next`.
    fn add(&self, sums: &Sums, block: &Block, count: usize, fresh: bool, next: &Range<usize>) {
        let (panel, [x, gradient]) = (self.panel(), block.slots);
        let frequencies = self.plan.form.frequencies(Side::Kernel);
        for frequency in 0..frequencies {
            let share = [sums.panel * frequencies + frequency, self.panels() * frequencies];
            let images = self.images().into_iter().zip(self.plan.grids);
            images.for_each(|(images, grid)| grid.fetch(images, next, share));
            for (term, &[of_x, _, of_gradient]) in self.plan.form.products(Side::Kernel, frequency).iter().enumerate() {
                let gradients = block.memory[1].at(of_gradient * gradient.plane + gradient.at(0, sums.panel * panel));
                let fresh = fresh && term == 0;
                for (i, row) in sums.rows.clone().step_by(LANES).enumerate() {
                    let tiles = block.memory[0].at(of_x * x.plane + x.at(0, row));
                    let sums = sums.at.wrapping_add(frequency * sums.plane + i * LANES * panel);
                    // SAFETY: the memory is large enough for the slots and the sums.
                    unsafe { self.plan.set.run(&OverTiles { tiles, gradients, count, sums, panel, fresh }) };
                }
            }
        }
    }

    /// Writes the gradients of kernels from their complete sums.
    fn collect(&self, Sums { at, plane, rows, panel }: &Sums) {
        let (channels, kernels) = (self.panel(), self.kernels.at(0));
        let (inputs, strided) = (self.plan.inputs, self.plan.form.stride > 1);
        let panel = Panel { inputs, first: panel * channels, channels, strided, turned: false };
        let (first, rows, from, plane) = (rows.start, rows.len(), *at, *plane);
        // SAFETY: `run`'s contract.
        unsafe { self.plan.set.run(&FromFrequencies { panel, first, rows, from, plane, kernels }) };
    }
}
