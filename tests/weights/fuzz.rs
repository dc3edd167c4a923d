//! Good files with random damage: whatever is read, nothing panics, recurses or grows beyond the file's own length.

use std::fs;
use std::path::Path;

use kiln::state::HostTensor;
use kiln::weights::pth::from_bytes;

use super::{assert_line, fixture};

/// Marsaglia's xorshift64: the same damage in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Changes, drops, repeats or inserts a few bytes.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(8)).min(bytes.len());
        match random.below(5) {
            0 => bytes[at] = random.below(256) as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at..end].fill([0, 0x7f, 0x80, 0xff][random.below(4)]),
            3 => drop(bytes.drain(at..end)),
            // An opcode, most likely: from elsewhere in the file.
            _ => {
                let from = random.below(bytes.len());
                let piece = bytes[from..(from + end - at).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
}

#[test]
fn thousands_of_damaged_files_are_read_or_refused_with_one_line() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for name in ["state.pth", "legacy.pth", "module.pth", "wrapped_legacy.pth"] {
        let good = fs::read(fixture(name)).unwrap();
        let mut read = 0;
        for _ in 0..4000 {
            let mut bytes = good.clone();
            damage(&mut bytes, &mut random);
            match from_bytes(&bytes, Path::new("damaged.pth")) {
                Ok(tensors) => {
                    read += 1;
                    assert!(tensors.values().map(HostTensor::len).sum::<usize>() <= bytes.len());
                    for tensor in tensors.values() {
                        assert_eq!(tensor.shape().iter().product::<usize>(), tensor.len());
                    }
                }
                Err(error) => assert_line(&error.to_string(), &["damaged.pth", "torch.save"]),
            }
        }
        // Damage between the entries of an archive, or in numbers of the old format, is harmless or cannot be seen.
        assert!((20..3000).contains(&read), "{read} of 4000 damaged copies of {name} were read");
    }
}
