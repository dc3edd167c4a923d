//! Intel's matrix unit (AMX) on Linux. The compiler has no stable functions for it, so its instructions are written
//! out.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};

use half::bf16;

use super::block::{Block, DEPTH, SIDE, TILE};
use super::emulation;

/// Whether the unit is there, may be used, and multiplies small integers, exact in any order, as its emulation does.
pub(super) fn is_usable() -> bool {
    let values = |first: usize| -> Vec<bf16> {
        let value = |i: usize| bf16::from_f32((i * 7919 % 1009 % 15) as f32 - 7.0);
        (first..first + 2 * SIDE * DEPTH).map(value).collect()
    };
    let (left, right) = (values(1), values(500));
    let steps =
        [0, 1].map(|i| [i * DEPTH * size_of::<bf16>(), i * SIDE * DEPTH * size_of::<bf16>()].map(|to| to as isize));
    let product = |multiply: unsafe fn(&Block)| {
        let mut sums = vec![f32::NAN; SIDE * SIDE];
        for fresh in [true, false] {
            let (left, right, left_row) = (left.as_ptr(), right.as_ptr(), 2 * DEPTH);
            let block = Block { left, left_row, right, steps: &steps, sums: sums.as_mut_ptr(), sums_row: SIDE, fresh };
            // SAFETY: two steps of 32 rows or columns of 32 values.
            unsafe { multiply(&block) };
        }
        sums
    };
    if !is_granted() {
        return false;
    }
    configure();
    let found = product(multiply);
    release();
    found == product(emulation::multiply)
}

/// Whether processor and system have the unit and let this process use it.
fn is_granted() -> bool {
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
pub(super) fn configure() {
    /// The palette, the first row, bytes of each tile's rows, and numbers of rows.
    #[repr(C, align(64))]
    struct Configuration([u8; 2], [u8; 14], [u16; 8], [u16; 8], [u8; 8], [u8; 8]);
    static ALL: Configuration = Configuration([1, 0], [0; 14], [64; 8], [0; 8], [TILE as u8; 8], [0; 8]);
    // SAFETY: `of_machine` has found the unit; the configuration is 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &ALL, options(nostack, readonly, preserves_flags)) }
}

/// The contract is that of [`Block`]. Tiles 0 to 3 are sums, 4 and 5 left factors, 6 and 7 right ones.
pub(super) unsafe fn multiply(block: &Block) {
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

/// Leaves the tiles, so that the system need not save them.
pub(super) fn release() {
    // SAFETY: as above; nothing reads the tiles afterwards.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
}
