//! A stream of its own for NCCL or cuDNN on a CUDA device, by the driver's interface, which all runtimes share.
//!
//! Its work comes after that of a backend. LibTorch computes on the default stream, which can be marked. CubeCL keeps
//! its stream to itself: all streams of the device are marked, and wait, at once, as drivers from CUDA 12.5 on can.

use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use std::sync::{Arc, LazyLock};

use kiln_system::foreign::load;
use kiln_system::functions;

use super::Pointer;

/// `CUresult`.
type Code = c_int;

const SUCCESS: Code = 0;
const NOT_READY: Code = 600;
/// Work of the stream does not wait for the default stream, nor that for it.
const NON_BLOCKING: c_uint = 1;
/// An event without a time: recording it is cheaper.
const WITHOUT_TIME: c_uint = 2;

functions! {
    /// Those of cuda.h that a stream needs.
    Driver:
    init = b"cuInit": fn(c_uint) -> Code;
    device_get = b"cuDeviceGet": fn(*mut c_int, c_int) -> Code;
    context_retain = b"cuDevicePrimaryCtxRetain": fn(*mut Pointer, c_int) -> Code;
    context_release = b"cuDevicePrimaryCtxRelease_v2": fn(c_int) -> Code;
    context_get = b"cuCtxGetCurrent": fn(*mut Pointer) -> Code;
    context_set = b"cuCtxSetCurrent": fn(Pointer) -> Code;
    stream_create = b"cuStreamCreate": fn(*mut Pointer, c_uint) -> Code;
    stream_destroy = b"cuStreamDestroy_v2": fn(Pointer) -> Code;
    stream_query = b"cuStreamQuery": fn(Pointer) -> Code;
    stream_wait_event = b"cuStreamWaitEvent": fn(Pointer, Pointer, c_uint) -> Code;
    event_create = b"cuEventCreate": fn(*mut Pointer, c_uint) -> Code;
    event_record = b"cuEventRecord": fn(Pointer, Pointer) -> Code;
    event_destroy = b"cuEventDestroy_v2": fn(Pointer) -> Code;
}

functions! {
    /// Of CUDA 12.5.
    ContextEvents:
    record = b"cuCtxRecordEvent": fn(Pointer, Pointer) -> Code;
    wait = b"cuCtxWaitEvent": fn(Pointer, Pointer) -> Code;
}

/// Without those of 12.5 where the driver is older.
type Functions = (Driver, Option<ContextEvents>);

fn loaded() -> Result<Functions, String> {
    // SAFETY: CUDA's driver, whose constructors may run at any time.
    let library = unsafe { load("libcuda.so.1".as_ref()) }?;
    // SAFETY: the types are those of cuda.h.
    unsafe { Ok((Driver::of(library)?, ContextEvents::of(library).ok())) }
}

fn check(code: Code, what: &str) -> Result<(), String> {
    if code == SUCCESS { Ok(()) } else { Err(format!("CUDA's driver: error {code} when it was to {what}")) }
}

/// A device's primary context, which all users of its runtime share, and a stream of it.
pub struct Stream {
    driver: &'static Driver,
    context_events: Option<&'static ContextEvents>,
    device: c_int,
    context: Pointer,
    stream: Pointer,
}

// SAFETY: handles of CUDA may be used by any thread.
unsafe impl Send for Stream {}
// SAFETY: the driver locks what its calls share.
unsafe impl Sync for Stream {}

/// A point in the work that is queued.
pub struct Event {
    stream: Arc<Stream>,
    event: Pointer,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Event {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Event {}

impl Stream {
    /// A stream of the visible device `index`.
    ///
    /// # Errors
    /// What the driver says; so below.
    pub fn new(index: usize) -> Result<Arc<Self>, String> {
        static FUNCTIONS: LazyLock<Result<Functions, String>> =
            LazyLock::new(|| loaded().map_err(|error| format!("CUDA's driver: {error}")));
        let (driver, context_events) = FUNCTIONS.as_ref().map_err(Clone::clone)?;
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: they write one value each, as declared in cuda.h.
        unsafe {
            check((driver.init)(0), "start")?;
            check((driver.device_get)(&mut device, index as c_int), "find the device")?;
            check((driver.context_retain)(&mut context, device), "open the device")?;
        }
        let context_events = context_events.as_ref();
        let mut made = Self { driver, context_events, device, context, stream: null_mut() };
        let mut stream = null_mut();
        made.within(|| {
            // SAFETY: as above, in the context.
            check(unsafe { (driver.stream_create)(&mut stream, NON_BLOCKING) }, "make a stream")
        })?;
        made.stream = stream;
        Ok(Arc::new(made))
    }

    /// `CUstream`, which is `cudaStream_t`.
    pub fn handle(&self) -> Pointer {
        self.stream
    }

    /// Runs `work` with this device as the thread's current one.
    pub fn within<T>(&self, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let mut before = null_mut();
        // SAFETY: contexts that live: the thread's own, and the one that this value retains.
        unsafe {
            check((self.driver.context_get)(&mut before), "name the context")?;
            check((self.driver.context_set)(self.context), "enter the context")?;
            let result = work();
            check((self.driver.context_set)(before), "leave the context")?;
            result
        }
    }

    /// Marks the work that is queued on the default stream, LibTorch's, now.
    pub fn mark(self: &Arc<Self>) -> Result<Event, String> {
        self.within(|| {
            let event = self.event()?;
            // SAFETY: both handles live; null is the default stream.
            check(unsafe { (self.driver.event_record)(event.event, null_mut()) }, "record an event")?;
            Ok(event)
        })
    }

    /// Lets this stream's later work wait for what is queued on all streams of the device now.
    pub fn follow_all(self: &Arc<Self>) -> Result<(), String> {
        self.within(|| {
            let (events, event) = (self.context_events()?, self.event()?);
            // SAFETY: the context and the event live.
            check(unsafe { (events.record)(self.context, event.event) }, "mark all streams")?;
            self.wait_for(&event)
        })
    }

    /// Lets the later work of all streams of the device wait for what is queued on this one now.
    pub fn precede_all(self: &Arc<Self>) -> Result<(), String> {
        self.within(|| {
            let (events, event) = (self.context_events()?, self.event()?);
            // SAFETY: both handles live.
            check(unsafe { (self.driver.event_record)(event.event, self.stream) }, "record an event")?;
            // SAFETY: the context and the event live.
            check(unsafe { (events.wait)(self.context, event.event) }, "let all streams wait")
        })
    }

    fn context_events(&self) -> Result<&ContextEvents, String> {
        self.context_events.ok_or_else(|| "CUDA's driver is older than 12.5; update it".into())
    }

    fn event(self: &Arc<Self>) -> Result<Event, String> {
        let mut event = null_mut();
        // SAFETY: it writes one handle.
        check(unsafe { (self.driver.event_create)(&mut event, WITHOUT_TIME) }, "make an event")?;
        Ok(Event { stream: self.clone(), event })
    }

    /// Lets the stream's later work wait for `event`.
    pub fn wait_for(&self, event: &Event) -> Result<(), String> {
        // SAFETY: both handles live.
        check(unsafe { (self.driver.stream_wait_event)(self.stream, event.event, 0) }, "wait for an event")
    }

    /// Whether all work of the stream has ended.
    pub fn is_done(&self) -> Result<bool, String> {
        // SAFETY: the handle lives.
        match unsafe { (self.driver.stream_query)(self.stream) } {
            NOT_READY => Ok(false),
            code => check(code, "look at a stream").map(|()| true),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the handles live; nothing uses them any more. There is no remedy for an error.
        unsafe {
            if !self.stream.is_null() {
                let _ = (self.driver.stream_destroy)(self.stream);
            }
            let _ = (self.driver.context_release)(self.device);
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { (self.stream.driver.event_destroy)(self.event) };
    }
}
