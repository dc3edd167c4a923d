//! The allocator of the whole process, including LibTorch.
//!
//! Every step needs activations of the same sizes, so freed memory is kept: new pages, which the kernel must clear,
//! cost a CPU run a good part of its time. Huge pages save walks through page tables, and with them jemalloc clears
//! memory itself.

use std::ffi::c_char;

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// What jemalloc reads at its first allocation; the environment variable `MALLOC_CONF` takes precedence. It asks the
/// system for no more than it needs (`retain`), which a limit on memory would count.
#[unsafe(export_name = "malloc_conf")]
static SETTINGS: Option<&'static c_char> = {
    let text = c"retain:false,dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0,thp:always";
    // SAFETY: the text is static and ends with a zero byte.
    Some(unsafe { &*text.as_ptr() })
};
