//! A stream of NCCL's own on a CUDA device, through the driver's interface, which LibTorch's and CUDA's runtimes share.
//! Its work comes after an event: LibTorch computes on the default stream; CubeCL keeps its streams to itself, so that
//! the event is one of the whole context, which drivers from CUDA 12.5 on have.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, LazyLock};

use super::library::StreamHandle;

type Pointer = *mut c_void;
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
}

fn load() -> Result<(Driver, Option<ContextEvents>), libloading::Error> {
    // SAFETY: the driver's library, whose constructors may run at any time; it stays loaded.
    let library = Box::leak(Box::new(unsafe { libloading::Library::new("libcuda.so.1") }?));
    // SAFETY: the types are those of cuda.h.
    unsafe { Ok((Driver::of(library)?, ContextEvents::of(library).ok())) }
}

fn check(code: Code, what: &str) -> Result<(), String> {
    if code == SUCCESS { Ok(()) } else { Err(format!("CUDA's driver: error {code} when it was to {what}")) }
}

/// A device's primary context, which all users of its runtime share, and a stream of it.
pub(super) struct Stream {
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
pub(super) struct Event {
    stream: Arc<Stream>,
    event: Pointer,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Event {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Event {}

impl Stream {
    /// A stream of the visible device `index`.
    pub(super) fn new(index: usize) -> Result<Arc<Self>, String> {
        static DRIVER: LazyLock<Result<(Driver, Option<ContextEvents>), String>> =
            LazyLock::new(|| load().map_err(|error| format!("CUDA's driver: {error}")));
        let (driver, context_events) = DRIVER.as_ref().map_err(Clone::clone)?;
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

    pub(super) fn handle(&self) -> StreamHandle {
        self.stream
    }

    /// Runs `work` with this device as the thread's current one.
    pub(super) fn within<T>(&self, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
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

    /// Marks the work that is queued now on the default stream, LibTorch's, or on all; `None` if the driver does not
    /// mark all of them.
    pub(super) fn mark(self: &Arc<Self>, all_streams: bool) -> Result<Option<Event>, String> {
        let mut event = null_mut();
        self.within(|| {
            // SAFETY: it writes one handle.
            check(unsafe { (self.driver.event_create)(&mut event, WITHOUT_TIME) }, "make an event")?;
            let event = Event { stream: self.clone(), event };
            if all_streams {
                // SAFETY: the context and the event live.
                let record = |events: &ContextEvents| unsafe { (events.record)(self.context, event.event) };
                return Ok((self.context_events.map(record) == Some(SUCCESS)).then_some(event));
            }
            // SAFETY: both handles live; null is the default stream.
            check(unsafe { (self.driver.event_record)(event.event, null_mut()) }, "record an event")?;
            Ok(Some(event))
        })
    }

    /// Lets the stream's later work wait for `event`.
    pub(super) fn wait_for(&self, event: &Event) -> Result<(), String> {
        // SAFETY: both handles live.
        check(unsafe { (self.driver.stream_wait_event)(self.stream, event.event, 0) }, "wait for an event")
    }

    pub(super) fn is_done(&self) -> Result<bool, String> {
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
