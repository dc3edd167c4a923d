//! The remedy after a panic of a replica, chosen by the backend's message.

/// Where a backend's message ends and its stack begins, as LibTorch, CubeCL and Rust write them.
const STACK: [&str; 3] = ["Exception raised from", "frame #0", "backtrace"];
const FULL: [&str; 5] =
    ["out of memory", "out_of_memory", "can't allocate memory", "cannot allocate memory", "buffertoobig"];
const CARD: [&str; 4] = ["cuda error", "cuda_error", "cudnn error", "device lost"];

/// The text of a panic up to the stack, in one line.
pub(super) fn without_stack(text: &str) -> String {
    let end = STACK.iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
    // A nested message has escaped line ends.
    let words = text[..end].replace("\\n", " ");
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    words.trim_end_matches([' ', '(', '{', ',']).to_string()
}

/// What to do about a panic with this text.
pub(super) fn remedy(text: &str) -> &'static str {
    let text = text.to_lowercase();
    let speaks_of = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if speaks_of(&FULL) {
        "lower --batch-size ('train find batch-size' says which one fits) and raise --accumulation-steps for the same \
         global batch; checkpoints written before are intact, continue with --resume latest"
    } else if speaks_of(&CARD) {
        "the card failed: 'nvidia-smi' shows whether it is still there, and 'dmesg' why (Xid); checkpoints written \
         before are intact, continue with --resume latest, on other devices with --gpu-ids"
    } else {
        "checkpoints written before are intact, continue with --resume latest"
    }
}

#[cfg(test)]
mod tests {
    use super::{remedy, without_stack};

    #[test]
    fn a_backend_s_words_end_where_its_stack_begins() {
        let text = "Torch(\"CUDA out of memory. Tried to allocate 2 GiB.\\nException raised from malloc at a.cpp:1\\nframe #0: f\")";
        assert_eq!(without_stack(text), "Torch(\"CUDA out of memory. Tried to allocate 2 GiB.");
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
        assert!(remedy("index out of bounds").starts_with("checkpoints written before"));
    }
}
