//! The words of a panic of a replica or its device, and the remedy, chosen by the backend's message.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::panic_any;

use burn::tensor::backend::DeviceOps;
use kiln_system::Error;
use parking_lot::Mutex;

/// Where a backend's message ends and its stack begins, as LibTorch, CubeCL and Rust write them.
const STACK: [&str; 3] = ["Exception raised from", "frame #0", "backtrace"];
const FULL: [&str; 5] =
    ["out of memory", "out_of_memory", "can't allocate memory", "cannot allocate memory", "buffertoobig"];
const CARD: [&str; 4] = ["cuda error", "cuda_error", "cudnn error", "device lost"];

/// CubeCL's threads that build and launch a device's kernels.
#[cfg(any(feature = "cuda", feature = "wgpu", all(test, feature = "flex")))]
const DEVICE_THREADS: [&str; 2] = ["DSU-", "DSD-"];

/// What the first panic of such a thread said, by the end of its name, which is the device; until a replica is set up
/// there.
static DEVICE_PANICS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Notes what device threads panic with, from now on, and reports it as before. To those who wait for a result, CubeCL
/// says only that there is none; the others go on with whatever is in the memory.
#[cfg(any(feature = "cuda", feature = "wgpu", all(test, feature = "flex")))]
pub(super) fn note_device_panics() {
    static IS_NOTED: std::sync::Once = std::sync::Once::new();
    IS_NOTED.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let device = |prefix: &&str| thread.name()?.strip_prefix(prefix);
            if let Some(device) = DEVICE_THREADS.iter().find_map(device) {
                let mut first = DEVICE_PANICS.lock();
                first.entry(device.to_string()).or_insert_with(|| words(panic.payload()).to_string());
            }
            report(panic);
        }));
    });
}

/// What a thread of `device` panicked with, as a panic of this one.
pub(super) fn raise_device_panic<D: DeviceOps>(device: &D) {
    if let Some(words) = device_panic(device) {
        panic_any(words);
    }
}

/// What a thread of `device` panicked with first.
pub(super) fn device_panic<D: DeviceOps>(device: &D) -> Option<String> {
    DEVICE_PANICS.lock().get(&name(device)).cloned()
}

/// Forgets it: a replica begins on `device`. What failed there before is no fault of it.
pub(super) fn forget_device_panic<D: DeviceOps>(device: &D) {
    DEVICE_PANICS.lock().remove(&name(device));
}

/// The end of the names of a device's threads.
fn name<D: DeviceOps>(device: &D) -> String {
    let id = device.id();
    format!("{}-{}", id.type_id, id.index_id)
}

pub fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message")
}

/// The text of a panic up to the stack, in one line.
pub(super) fn without_stack(text: &str) -> String {
    let end = STACK.iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
    // A nested message has escaped line ends.
    let words = text[..end].replace("\\n", " ");
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = words.trim_end_matches([' ', '(', '{', ',']);
    // Its quotation mark may stand behind the stack.
    let quoted = words.split_once('"').filter(|_| words.matches('"').count() % 2 == 1);
    quoted.map_or(words, |(_, quoted)| quoted).to_string()
}

pub fn memory_error(panic: &(dyn Any + Send)) -> Option<Error> {
    let text = words(panic);
    let lower = text.to_lowercase();
    let is_full = FULL.iter().any(|word| lower.contains(word));
    is_full.then(|| Error::Training(format!("{}; {}", without_stack(text), remedy(text))))
}

/// What to do about a panic with this text.
pub(super) fn remedy(text: &str) -> &'static str {
    let text = text.to_lowercase();
    let speaks_of = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if speaks_of(&FULL) {
        "lower --batch-size ('train find batch-size' says which one fits) and raise --accumulation-steps for the same \
         global batch; if a checkpoint was written, go on with --resume latest"
    } else if speaks_of(&CARD) {
        "the card failed: 'nvidia-smi' shows whether it is still there, and 'dmesg' why (Xid); if a checkpoint was \
         written, go on with --resume latest, on other devices with --gpu-ids"
    } else {
        "if a checkpoint was written, go on with --resume latest"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "flex")]
    #[test]
    fn the_first_panic_of_a_device_is_kept_and_that_of_another_thread_is_not() {
        use std::thread::Builder;

        note_device_panics();
        let device = burn::backend::flex::FlexDevice;
        let own = name(&device);
        let panics = |thread: &str, words: &'static str| {
            let thread = Builder::new().name(thread.into()).spawn(move || panic_any(words)).expect("it starts");
            thread.join().expect_err("it panics");
        };
        panics("replica-0", "no device");
        panics("DSU-99-9", "another device");
        assert_eq!(device_panic(&device), None);
        panics(&format!("DSD-{own}"), "bf16 is not a WGSL type");
        panics(&format!("DSU-{own}"), "Should have handle");
        assert_eq!(device_panic(&device).as_deref(), Some("bf16 is not a WGSL type"));
        forget_device_panic(&device);
        assert_eq!(device_panic(&device), None);
        let panic: Box<dyn Any + Send> = Box::new(7);
        assert_eq!(words(&*panic), "no message");
    }

    #[test]
    fn a_backend_s_words_end_where_its_stack_begins() {
        let text = "Torch(\"CUDA out of memory. Tried to allocate 2 GiB.\\nException raised from malloc at a.cpp:1\\nframe #0: f\")";
        assert_eq!(without_stack(text), "CUDA out of memory. Tried to allocate 2 GiB.");
        assert_eq!(without_stack("BufferTooBig { size: 64, backtrace: <disabled> }"), "BufferTooBig { size: 64");
        assert_eq!(without_stack("no memory left\nfor this"), "no memory left for this");
    }

    #[test]
    fn what_failed_decides_what_to_do() {
        for full in ["CUDA out of memory. Tried to", "CUDA_ERROR_OUT_OF_MEMORY", "BufferTooBig { size: 64"] {
            assert!(remedy(full).starts_with("lower --batch-size"), "{full}");
        }
        for card in ["CUDA error: unspecified launch failure", "DriverError(CUDA_ERROR_ECC_UNCORRECTABLE, ..)"] {
            assert!(remedy(card).starts_with("the card failed"), "{card}");
        }
        assert!(remedy("index out of bounds").starts_with("if a checkpoint was written"));
    }
}
