//! Convolutions by cuDNN's graph interface, the only one with engines for bf16: its functions, which are loaded at run
//! time, and its handle of a device.
//!
//! Source: NVIDIA cuDNN documentation, "Graph API" and "Backend descriptor types", version 9.

mod descriptor;
mod plan;

use std::ffi::{CStr, OsString, c_char, c_int};
use std::ptr::null_mut;
use std::sync::Arc;

use kiln_system::foreign::load;
use kiln_system::{functions, shown};

use super::{Pointer, Stream};

pub use plan::{Convolution, Plan, Product};

/// Names a library to load instead.
const VARIABLE: &str = "KILN_CUDNN";
const NAME: &str = "libcudnn.so.9";
/// The first whose interface has this name.
const OLDEST: usize = 90_000;

/// `cudnnStatus_t`.
type Code = c_int;
const SUCCESS: Code = 0;

functions! {
    /// Those with the names and types of cudnn_graph.h.
    Functions:
    get_version = b"cudnnGetVersion": fn() -> usize;
    get_error_string = b"cudnnGetErrorString": fn(Code) -> *const c_char;
    create = b"cudnnCreate": fn(*mut Pointer) -> Code;
    destroy = b"cudnnDestroy": fn(Pointer) -> Code;
    set_stream = b"cudnnSetStream": fn(Pointer, Pointer) -> Code;
    create_descriptor = b"cudnnBackendCreateDescriptor": fn(c_int, *mut Pointer) -> Code;
    destroy_descriptor = b"cudnnBackendDestroyDescriptor": fn(Pointer) -> Code;
    set_attribute = b"cudnnBackendSetAttribute": fn(Pointer, c_int, c_int, i64, Pointer) -> Code;
    get_attribute = b"cudnnBackendGetAttribute": fn(Pointer, c_int, c_int, i64, *mut i64, Pointer) -> Code;
    finalize = b"cudnnBackendFinalize": fn(Pointer) -> Code;
    execute = b"cudnnBackendExecute": fn(Pointer, Pointer, Pointer) -> Code;
}

/// cuDNN, as found on this machine.
pub struct Library(Functions);

impl Library {
    /// The library that `KILN_CUDNN` names, or the machine's.
    ///
    /// # Errors
    /// What is wrong and the remedy, in one line.
    pub fn find() -> Result<Arc<Self>, String> {
        match std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
            Some(name) => Self::load(&name).map_err(|why| format!("{VARIABLE} names '{}': {why}", shown(&name))),
            None => Self::load(&OsString::from(NAME)).map_err(|why| {
                let remedy = "install cuDNN 9, or set KILN_CUDNN to the one in nvidia/cudnn/lib beside PyTorch";
                format!("cuDNN ({NAME}) was not found ({why}); {remedy}")
            }),
        }
    }

    fn load(name: &OsString) -> Result<Arc<Self>, String> {
        // SAFETY: the library is cuDNN or a stand-in.
        let library = unsafe { load(name) }?;
        // SAFETY: the types are those of the header; the library stays loaded.
        let functions = unsafe { Functions::of(library) }.map_err(|error| format!("it is not cuDNN: {error}"))?;
        let found = Self(functions);
        match found.version() >= OLDEST {
            true => Ok(Arc::new(found)),
            false => Err(format!("cuDNN's version is {}, {OLDEST} is the oldest that will do", found.version())),
        }
    }

    /// 91002 is 9.10.2.
    pub fn version(&self) -> usize {
        // SAFETY: it only returns a number.
        unsafe { (self.0.get_version)() }
    }

    fn check(&self, code: Code, what: &str) -> Result<(), String> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: it takes any number, and its strings are constants.
        let words = unsafe { CStr::from_ptr((self.0.get_error_string)(code)) };
        Err(format!("cuDNN: {} when it was to {what}", words.to_string_lossy()))
    }
}

/// cuDNN on one device, whose work goes to one stream.
pub struct Handle {
    library: Arc<Library>,
    handle: Pointer,
    stream: Option<Arc<Stream>>,
}

// SAFETY: a handle may be used by any thread, one at a time.
unsafe impl Send for Handle {}

impl Handle {
    /// On the device of `stream`; without one on the thread's device and its default stream.
    ///
    /// # Errors
    /// Those of cuDNN.
    pub fn new(library: Arc<Library>, stream: Option<Arc<Stream>>) -> Result<Self, String> {
        let mut made = Self { library, handle: null_mut(), stream };
        made.handle = made.within(|| {
            let mut handle = null_mut();
            // SAFETY: it writes one handle.
            made.library.check(unsafe { (made.library.0.create)(&mut handle) }, "start").map(|()| handle)
        })?;
        if let Some(stream) = &made.stream {
            let take = || {
                // SAFETY: both handles live.
                made.library
                    .check(unsafe { (made.library.0.set_stream)(made.handle, stream.handle()) }, "take a stream")
            };
            made.within(take)?;
        }
        Ok(made)
    }

    /// Runs `work` with the device as the thread's current one.
    fn within<T>(&self, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        match &self.stream {
            Some(stream) => stream.within(work),
            None => work(),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // There is no remedy for an error.
            // SAFETY: the handle lives, and nothing uses it any more.
            let _ = self.within(|| Ok(unsafe { (self.library.0.destroy)(self.handle) }));
        }
    }
}
