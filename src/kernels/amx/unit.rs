//! The matrix unit: products of tiles of bf16, whose sums of f32 stay in its registers.
//!
//! A tile has sixteen rows of 64 bytes. One instruction (TDPBF16PS) adds to sixteen by sixteen sums the products of
//! sixteen rows of 32 values and of sixteen rows of sixteen pairs. A [`Block`] is two by two such tiles of sums: each
//! step loads two tiles of either factor for four products.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use std::arch::asm;
use std::sync::LazyLock;

use half::bf16;

use super::emulation;

/// Rows and columns of a block of sums.
pub(super) const SIDE: usize = 2 * TILE;
/// Values of one tile's row: what one step adds up.
pub(super) const DEPTH: usize = 32;
/// Rows of a tile.
pub(super) const TILE: usize = 16;

/// What multiplies tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixUnit {
    /// Intel's AMX.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx,
    /// Plain Rust with AMX's order of sums and rounding, for tests.
    Emulated,
}

/// `sums[row][column] += sum over steps and 32 values k of left[row][k] * right[k][column]`.
pub(super) struct Block<'a> {
    /// 32 rows, `left_row` values apart.
    pub(super) left: *const bf16,
    pub(super) left_row: usize,
    /// Sixteen rows of 32 columns of pairs, one after the other.
    pub(super) right: *const bf16,
    /// Where each step's factors lie behind `left` and `right`, in bytes.
    pub(super) steps: &'a [[isize; 2]],
    /// 32 rows of 32 values, `sums_row` values apart.
    pub(super) sums: *mut f32,
    pub(super) sums_row: usize,
    /// Overwrites the sums instead of adding.
    pub(super) fresh: bool,
}

impl MatrixUnit {
    /// The unit of this machine: if the processor has it, the system and `ONEDNN_MAX_CPU_ISA` allow it, and its product
    /// of small integers is that of the emulation.
    pub fn of_machine() -> Option<Self> {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        {
            static IS_USABLE: LazyLock<bool> = LazyLock::new(|| {
                let most = std::env::var("ONEDNN_MAX_CPU_ISA").unwrap_or_default();
                MatrixUnit::is_within(&most) && is_granted() && is_right(MatrixUnit::Amx)
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
            Self::Amx => configure(),
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
    /// The addresses are those of the block's values, and no other thread uses the sums.
    pub(super) unsafe fn multiply(&self, block: &Block) {
        // SAFETY: passed on to the caller; the unit is set up.
        unsafe {
            match self.0 {
                #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
                MatrixUnit::Amx => multiply(block),
                MatrixUnit::Emulated => emulation::multiply(block),
            }
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if self.0 == MatrixUnit::Amx {
            // SAFETY: the processor has the instruction, and nothing reads the tiles afterwards.
            unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
        }
    }
}

/// Whether processor and system have the unit and let this process use it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn is_granted() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // OSXSAVE; then AMX-BF16 and AMX-TILE.
    let has = |bits: u32, wanted: u32| bits & wanted == wanted;
    let has_states = __cpuid(0).eax >= 7 && has(__cpuid(1).ecx, 1 << 27);
    if !has_states || !has(__cpuid_count(7, 0).edx, 1 << 22 | 1 << 24) {
        return false;
    }
    let states: u32;
    // SAFETY: OSXSAVE says that the instruction is there.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") states, out("edx") _, options(nostack, nomem, preserves_flags)) };
    // What XCR0 calls the tiles' configuration and their data. Linux asks for a permission for the data, as they are
    // 8 KiB more in each thread's saved state.
    let (configuration, data) = (17, 18);
    if !has(states, 1 << configuration | 1 << data) {
        return false;
    }
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    let answer: i64;
    // SAFETY: a system call that writes no memory of this process.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") i64::from(data),
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

/// All eight tiles as large as they can be.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn configure() {
    /// The palette, the first row, bytes of each tile's rows, and numbers of rows.
    #[repr(C, align(64))]
    struct Configuration([u8; 2], [u8; 14], [u16; 8], [u16; 8], [u8; 8], [u8; 8]);
    static ALL: Configuration = Configuration([1, 0], [0; 14], [64; 8], [0; 8], [TILE as u8; 8], [0; 8]);
    // SAFETY: `of_machine` has found the unit; the configuration is 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &ALL, options(nostack, readonly, preserves_flags)) }
}

/// The contract is that of [`Tiles::multiply`]. Tiles 0 to 3 are sums, 4 and 5 left factors, 6 and 7 right ones.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
unsafe fn multiply(block: &Block) {
    let (left_row, sums_row) = (block.left_row * size_of::<bf16>(), block.sums_row * size_of::<f32>());
    // SAFETY: passed on to the caller.
    unsafe {
        asm!(
            // Whether the sums begin at zero.
            "test {from}, {from}",
            "jnz 2f",
            "tileloadd tmm0, [{sums} + {sums_row}]",
            "tileloadd tmm1, [{sums} + {sums_row} + 64]",
            "tileloadd tmm2, [{lower_sums} + {sums_row}]",
            "tileloadd tmm3, [{lower_sums} + {sums_row} + 64]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "3:",
            "test {count}, {count}",
            "jz 5f",
            "4:",
            "mov {from}, [{steps}]",
            "mov {with}, [{steps} + 8]",
            "add {from}, {left}",
            "add {with}, {right}",
            "tileloadd tmm6, [{with} + {right_row}]",
            "tileloadd tmm4, [{from} + {left_row}]",
            "tileloadd tmm7, [{with} + {right_row} + 64]",
            "add {from}, {lower}",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{from} + {left_row}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {steps}, 16",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {count}",
            "jnz 4b",
            "5:",
            "tilestored [{sums} + {sums_row}], tmm0",
            "tilestored [{sums} + {sums_row} + 64], tmm1",
            "tilestored [{lower_sums} + {sums_row}], tmm2",
            "tilestored [{lower_sums} + {sums_row} + 64], tmm3",
            sums = in(reg) block.sums,
            lower_sums = in(reg) block.sums.byte_add(TILE * sums_row),
            sums_row = in(reg) sums_row,
            count = inout(reg) block.steps.len() => _,
            steps = inout(reg) block.steps.as_ptr() => _,
            left = in(reg) block.left,
            left_row = in(reg) left_row,
            lower = in(reg) TILE * left_row,
            right = in(reg) block.right,
            right_row = in(reg) SIDE * 2 * size_of::<bf16>(),
            from = inout(reg) usize::from(block.fresh) => _,
            with = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
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
