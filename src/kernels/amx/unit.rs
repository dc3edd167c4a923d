//! What multiplies blocks: the matrix unit of this machine, or its emulation.

use half::bf16;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::assembly;
use super::block::{Block, DEPTH, SIDE};
use super::emulation;

/// What multiplies tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixUnit {
    /// Intel's AMX.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx,
    /// Plain Rust with AMX's order of sums and rounding, for tests.
    Emulated,
}

impl MatrixUnit {
    /// The unit of this machine: if the processor has it, the system and `ONEDNN_MAX_CPU_ISA` allow it, and its product
    /// of small integers is that of the emulation.
    pub fn of_machine() -> Option<Self> {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        {
            static IS_USABLE: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
                let most = std::env::var("ONEDNN_MAX_CPU_ISA").unwrap_or_default();
                MatrixUnit::is_within(&most) && assembly::is_granted() && is_right(MatrixUnit::Amx)
            });
            IS_USABLE.then_some(Self::Amx)
        }
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
        None
    }

    /// Whether the value `most` of oneDNN's variable allows a matrix unit, as [`super::super::Set::is_within`].
    pub fn is_within(most: &str) -> bool {
        let most = most.to_uppercase();
        let names_instructions = ["SSE", "AVX"].iter().any(|family| most.starts_with(family));
        !names_instructions || most.contains("AMX")
    }

    /// The unit, set up for this thread.
    pub(super) fn tiles(self) -> Tiles {
        match self {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Amx => assembly::configure(),
            Self::Emulated => {}
        }
        Tiles(self)
    }
}

/// A unit that is set up for this thread, until it is dropped.
pub(super) struct Tiles(MatrixUnit);

impl Tiles {
    /// # Safety
    ///
    /// [`Block`]'s contract.
    pub(super) unsafe fn multiply(&self, block: &Block) {
        // SAFETY: passed on to the caller; the unit is set up.
        unsafe {
            match self.0 {
                #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
                MatrixUnit::Amx => assembly::multiply(block),
                MatrixUnit::Emulated => emulation::multiply(block),
            }
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            MatrixUnit::Amx => assembly::release(),
            MatrixUnit::Emulated => {}
        }
    }
}

/// Whether products of small integers, exact in any order, are those of the emulation.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn is_right(unit: MatrixUnit) -> bool {
    let values = |seed: usize| -> Vec<bf16> {
        let value = |i: usize| bf16::from_f32((i * 7919 % 1009 % 15) as f32 - 7.0);
        (seed..seed + 2 * SIDE * DEPTH).map(value).collect()
    };
    let (left, right) = (values(1), values(500));
    let product = |unit: MatrixUnit| {
        let mut sums = vec![f32::NAN; SIDE * SIDE];
        let tiles = unit.tiles();
        for fresh in [true, false] {
            let steps = &[[0, 0], [(DEPTH * size_of::<bf16>()) as isize, (SIDE * DEPTH * size_of::<bf16>()) as isize]];
            let (left, right, left_row) = (left.as_ptr(), right.as_ptr(), 2 * DEPTH);
            let block = Block { left, left_row, right, steps, sums: sums.as_mut_ptr(), sums_row: SIDE, fresh };
            // SAFETY: two steps of 32 rows or columns of 32 values.
            unsafe { tiles.multiply(&block) };
        }
        sums
    };
    product(unit) == product(MatrixUnit::Emulated)
}
