//! CUDA graphs by LibTorch's own class, whose allocator keeps the memory of what was recorded.
//!
//! The class is in LibTorch's CUDA library, which is not linked: its functions are looked up when a graph is made.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use super::cuda::cuda_devices;
use super::result;
use crate::graph::Graph;

/// The members of `at::cuda::CUDAGraph` in LibTorch 2.9: constructor, begin and end of a capture, replay, destructor.
pub const GRAPH_SYMBOLS: [&CStr; 5] = [
    c"_ZN2at4cuda9CUDAGraphC1Eb",
    c"_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode",
    c"_ZN2at4cuda9CUDAGraph11capture_endEv",
    c"_ZN2at4cuda9CUDAGraph6replayEv",
    c"_ZN2at4cuda9CUDAGraphD1Ev",
];

unsafe extern "C" {
    fn kiln_graph_begin(graph: *mut *mut c_void, functions: *const *mut c_void, index: c_int) -> *mut c_char;
    fn kiln_graph_end(graph: *mut c_void) -> *mut c_char;
    fn kiln_graph_replay(graph: *mut c_void) -> *mut c_char;
    fn kiln_graph_forget(graph: *mut c_void);
}

/// A graph for the CUDA device `index`, with nothing in it.
///
/// # Errors
/// If LibTorch finds no CUDA device, or its library has no such class.
pub fn cuda_graph(index: usize) -> Result<Box<dyn Graph>, String> {
    if cuda_devices() == 0 {
        return Err("LibTorch finds no CUDA device".into());
    }
    let mut functions = [null_mut(); GRAPH_SYMBOLS.len()];
    for (function, symbol) in functions.iter_mut().zip(GRAPH_SYMBOLS) {
        // SAFETY: the symbol is a string that ends with zero.
        *function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) };
        if function.is_null() {
            return Err(format!("LibTorch's CUDA library has no {}", symbol.to_string_lossy()));
        }
    }
    Ok(Box::new(CudaGraph { functions, index, graph: null_mut() }))
}

struct CudaGraph {
    functions: [*mut c_void; GRAPH_SYMBOLS.len()],
    index: usize,
    /// Null until something is recorded.
    graph: *mut c_void,
}

// SAFETY: the class is used by one thread at a time, which may be any.
unsafe impl Send for CudaGraph {}

impl Graph for CudaGraph {
    fn record(&mut self, work: &mut dyn FnMut()) -> Result<(), String> {
        let (mut graph, index) = (null_mut(), self.index as c_int);
        // SAFETY: the functions are those that the shim expects; the graph is written before it returns no message.
        result(unsafe { kiln_graph_begin(&mut graph, self.functions.as_ptr(), index) })?;
        self.forget();
        self.graph = graph;
        work();
        // SAFETY: the graph has begun on this thread.
        result(unsafe { kiln_graph_end(graph) })
    }

    fn replay(&mut self, _work: &mut dyn FnMut()) -> Result<(), String> {
        // SAFETY: the graph was recorded: whoever failed to record one drops it.
        result(unsafe { kiln_graph_replay(self.graph) })
    }
}

impl CudaGraph {
    fn forget(&mut self) {
        // SAFETY: it takes null, and the graph is not used after this.
        unsafe { kiln_graph_forget(self.graph) };
        self.graph = null_mut();
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        self.forget();
    }
}
