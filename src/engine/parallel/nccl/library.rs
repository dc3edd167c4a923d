//! NCCL's functions, loaded at run time: nothing is linked, and a build runs on machines without NCCL.
//!
//! The types are those of nccl.h. The configuration of a communicator is that of NCCL 2.14, which later versions read,
//! too: they give what it lacks its default.

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

use burn::tensor::DType;
use kiln_system::foreign::{load, symbol};
use kiln_system::{functions, shown};

/// Names a library to load instead.
const VARIABLE: &str = "KILN_NCCL";
/// The names of distributions and of PyTorch's wheels, and of NVIDIA's development packages.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// The first version with communicators that do not block.
const OLDEST: Version = Version(2, 14, 0);
/// Exported by a library that adds in the host's memory, such as a stand-in for tests.
const TAKES_HOST_MEMORY: &[u8] = b"kilnTakesHostMemory";

/// `ncclComm_t`.
pub(super) type Communicator = *mut c_void;
/// `cudaStream_t`.
pub(super) type StreamHandle = *mut c_void;
/// `ncclResult_t`.
pub(super) type Code = c_int;

pub(super) const SUCCESS: Code = 0;
pub(super) const IN_PROGRESS: Code = 7;
/// `ncclSum`.
pub(super) const SUM: c_int = 0;

/// `ncclUniqueId`: what all ranks of a communicator must know.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// `ncclConfig_t` of version 2.14.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// `NCCL_CONFIG_INITIALIZER`, not blocking.
const NOT_BLOCKING: Config = Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21_400, blocking: 0 };

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32, u32, u32);

impl Version {
    /// The inverse of `NCCL_VERSION`, which changed with 2.9.
    fn of_code(code: u32) -> Self {
        let unit = if code < 10_000 { 1000 } else { 10_000 };
        Self(code / unit, code % unit / 100, code % 100)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

functions! {
    /// Those with the names and types of nccl.h.
    Functions:
    get_unique_id = b"ncclGetUniqueId": fn(*mut UniqueId) -> Code;
    comm_init_rank_config = b"ncclCommInitRankConfig": fn(*mut Communicator, c_int, UniqueId, c_int, *mut Config) -> Code;
    comm_get_async_error = b"ncclCommGetAsyncError": fn(Communicator, *mut Code) -> Code;
    comm_abort = b"ncclCommAbort": fn(Communicator) -> Code;
    get_error_string = b"ncclGetErrorString": fn(Code) -> *const c_char;
    get_last_error = b"ncclGetLastError": fn(Communicator) -> *const c_char;
    group_start = b"ncclGroupStart": fn() -> Code;
    group_end = b"ncclGroupEnd": fn() -> Code;
    all_reduce = b"ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Communicator, StreamHandle) -> Code;
    send = b"ncclSend": fn(*const c_void, usize, c_int, c_int, Communicator, StreamHandle) -> Code;
    recv = b"ncclRecv": fn(*mut c_void, usize, c_int, c_int, Communicator, StreamHandle) -> Code;
}

/// NCCL, as found on this machine.
pub struct Library {
    version: Version,
    takes_host_memory: bool,
    functions: Functions,
}

impl Library {
    /// The library that `KILN_NCCL` names, or the machine's.
    ///
    /// # Errors
    /// What is wrong and the remedy, in one line.
    pub fn find() -> Result<Arc<Self>, String> {
        if let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
            return Self::load(&name).map_err(|why| format!("{VARIABLE} names '{}': {why}", shown(&name)));
        }
        let missing = || {
            let remedy = "install NCCL, or set KILN_NCCL to the one in nvidia/nccl/lib beside PyTorch";
            Err(format!("NCCL ({}) was not found; {remedy}", NAMES[0]))
        };
        // SAFETY: as in `load`.
        let is_there = |name: &&str| unsafe { load(name.as_ref()) }.is_ok();
        NAMES.iter().find(|name| is_there(name)).map_or_else(missing, |name| Self::load(&OsString::from(name)))
    }

    /// The library with this path or name, which stays loaded.
    pub fn load(name: &OsString) -> Result<Arc<Self>, String> {
        // SAFETY: the library is NCCL or a stand-in.
        let library = unsafe { load(name) }.map_err(|error| format!("it does not load: {error}"))?;
        let foreign = |error| format!("it is not NCCL: {error}");
        let mut code = 0;
        // SAFETY: the type is that of nccl.h.
        let version = unsafe { symbol::<unsafe extern "C" fn(*mut c_int) -> Code>(library, b"ncclGetVersion") };
        // SAFETY: the function writes one integer.
        unsafe { version.map_err(foreign)?(&mut code) };
        let version = Version::of_code(code.unsigned_abs());
        if version < OLDEST {
            return Err(format!("NCCL {version} is too old, {OLDEST} is the oldest that will do; update NCCL"));
        }
        // SAFETY: the symbol is not called.
        let takes_host_memory = unsafe { symbol::<*const c_void>(library, TAKES_HOST_MEMORY) }.is_ok();
        // SAFETY: the types are those of nccl.h; the library stays loaded.
        let functions = unsafe { Functions::of(library) }.map_err(foreign)?;
        Ok(Arc::new(Self { version, takes_host_memory, functions }))
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub(super) fn takes_host_memory(&self) -> bool {
        self.takes_host_memory
    }

    pub(super) fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: it writes one identifier.
        let code = unsafe { (self.functions.get_unique_id)(&mut id) };
        if code == SUCCESS { Ok(id) } else { Err(self.words(code, null_mut())) }
    }

    /// Begins to make the communicator of `rank` among `size`, on the calling thread's CUDA device.
    pub(super) fn begin(&self, rank: usize, size: usize, id: UniqueId) -> (Code, Communicator) {
        let (mut communicator, mut config) = (null_mut(), NOT_BLOCKING);
        let (rank, size) = (rank as c_int, size as c_int);
        // SAFETY: it writes one pointer, and copies the configuration.
        let code = unsafe { (self.functions.comm_init_rank_config)(&mut communicator, size, id, rank, &mut config) };
        (code, communicator)
    }

    /// The state of a communicator: whether its last call has ended, and how.
    ///
    /// # Safety
    /// The communicator has begun and was not aborted; so below.
    pub(super) unsafe fn state(&self, communicator: Communicator) -> Code {
        let mut state = SUCCESS;
        // SAFETY: the caller's; it writes one integer.
        let code = unsafe { (self.functions.comm_get_async_error)(communicator, &mut state) };
        if code == SUCCESS { state } else { code }
    }

    /// Ends the work of a communicator and frees it.
    pub(super) unsafe fn abort(&self, communicator: Communicator) {
        // Nothing can be done about an error.
        // SAFETY: the caller's.
        let _ = unsafe { (self.functions.comm_abort)(communicator) };
    }

    /// `count` elements at `own`, added over all ranks, go to `sum`.
    ///
    /// # Safety
    /// The memory is valid until the work is done or aborted; so below.
    pub(super) unsafe fn sum(
        &self,
        [own, sum]: [*mut c_void; 2],
        count: usize,
        kind: c_int,
        communicator: Communicator,
        stream: StreamHandle,
    ) -> Code {
        // SAFETY: the caller's.
        unsafe { (self.functions.all_reduce)(own, sum, count, kind, SUM, communicator, stream) }
    }

    /// Runs the calls as one: none waits for another. Any of them may return before it has begun.
    pub(super) unsafe fn group(
        &self,
        calls: impl Iterator<Item = Call>,
        communicator: Communicator,
        stream: StreamHandle,
    ) -> Code {
        let is_error = |code: &Code| ![SUCCESS, IN_PROGRESS].contains(code);
        // SAFETY: the caller's.
        let one = |call| unsafe {
            match call {
                Call::Send { from, count, kind, to } => {
                    (self.functions.send)(from, count, kind, to as c_int, communicator, stream)
                }
                Call::Receive { to, count, kind, from } => {
                    (self.functions.recv)(to, count, kind, from as c_int, communicator, stream)
                }
            }
        };
        // SAFETY: as above; a group ends whatever happens in it.
        let [begun, called, ended] = unsafe {
            [
                (self.functions.group_start)(),
                calls.map(one).find(is_error).unwrap_or(SUCCESS),
                (self.functions.group_end)(),
            ]
        };
        [begun, called].into_iter().find(is_error).unwrap_or(ended)
    }

    /// An error in NCCL's words, with those about `communicator` unless it is null.
    pub(super) fn words(&self, code: Code, communicator: Communicator) -> String {
        let text = |words: *const c_char| {
            // SAFETY: NCCL's strings live until its next error, and end with a zero.
            let words = (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned());
            words.unwrap_or_default().replace('\n', " ").trim().to_string()
        };
        // SAFETY: both take any value; the second reads the communicator that is there.
        let (what, last) =
            unsafe { ((self.functions.get_error_string)(code), (self.functions.get_last_error)(communicator)) };
        match text(last) {
            last if last.is_empty() => format!("NCCL: {}", text(what)),
            last => format!("NCCL: {} ({last})", text(what)),
        }
    }
}

pub(super) enum Call {
    Send { from: *const c_void, count: usize, kind: c_int, to: usize },
    Receive { to: *mut c_void, count: usize, kind: c_int, from: usize },
}

/// `ncclDataType_t`.
pub(super) fn kind(dtype: DType) -> Result<c_int, String> {
    match dtype {
        DType::F32 => Ok(7),
        DType::BF16 => Ok(9),
        other => Err(format!("NCCL is not used for tensors of {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_in_both_forms() {
        let versions = [2_708, 21_304, 22_705].map(|code| Version::of_code(code).to_string());
        assert_eq!(versions, ["2.7.8", "2.13.4", "2.27.5"]);
        assert_eq!(size_of::<Config>(), 24);
    }
}
