//! What multiplies blocks: the matrix unit of this machine, or its emulation.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::assembly;
use super::block::Block;
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
                MatrixUnit::is_within(&most) && assembly::is_usable()
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
