//! Libraries for NVIDIA's devices that are loaded at run time: streams of the driver, and convolutions by cuDNN.
//!
//! Nothing here knows backends or their tensors: memory is a pointer and a shape.

pub mod cudnn;
mod stream;

pub use stream::{Event, Stream};

type Pointer = *mut std::ffi::c_void;
