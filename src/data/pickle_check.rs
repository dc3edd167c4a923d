//! Checks a pickle before it is read.
//!
//! A pickle is a program, and a few bytes can create values of any size, for instance a list that contains itself
//! twice, or nesting that overflows the reader's stack. CIFAR's batches consist of a few containers and many plain
//! values; only such programs pass. Opcodes are those of Python's `pickletools`.

use std::collections::BTreeMap;

/// Most steps: 50,000 images have two labels and a name each.
const MOST_STEPS: usize = 1 << 20;
/// Most containers, which also bounds the nesting.
const MOST_CONTAINERS: usize = 256;
/// Most marks: a list is filled by a thousand elements per mark.
const MOST_MARKS: usize = 4096;

/// Fails unless reading `program` needs a bounded amount of memory in addition to its strings.
///
/// # Errors
/// A reason that completes "... is not a CIFAR pickle: ".
pub(super) fn check(program: &[u8]) -> Result<(), String> {
    let mut scan = Scan { rest: program, containers: 0, marks: 0, is_plain: false, memo: BTreeMap::new() };
    for _ in 0..MOST_STEPS {
        let opcode = scan.number(1)?;
        if opcode == u64::from(b'.') {
            return Ok(());
        }
        scan.step(opcode as u8)?;
    }
    Err(format!("it takes more than {MOST_STEPS} steps"))
}

struct Scan<'a> {
    rest: &'a [u8],
    containers: usize,
    marks: usize,
    /// Whether the value on top of the stack is not a container.
    is_plain: bool,
    /// `is_plain` of each memoized value, by its index.
    memo: BTreeMap<u64, bool>,
}

impl Scan<'_> {
    fn step(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            // Protocol and frames.
            0x80 => return self.skip(1),
            0x95 => return self.skip(8),
            b'q' | b'r' | 0x94 => return self.memoize(opcode),
            b'h' | b'j' => return self.recall(opcode),
            b'(' => self.marks += 1,
            b')' | b']' | b'}' | b't' | b'l' | b'd' | 0x85..=0x87 | b'R' | b'b' => self.containers += 1,
            b'a' | b'e' | b's' | b'u' => {}
            _ => {
                self.is_plain = true;
                return self.plain(opcode);
            }
        }
        self.is_plain = false;
        if self.containers > MOST_CONTAINERS || self.marks > MOST_MARKS {
            return Err(format!("it makes more than {MOST_CONTAINERS} containers or {MOST_MARKS} lists of arguments"));
        }
        Ok(())
    }

    /// Numbers, strings and names of functions.
    fn plain(&mut self, opcode: u8) -> Result<(), String> {
        let counted = match opcode {
            b'N' | 0x88 | 0x89 | 0x93 => return Ok(()),
            b'K' => return self.skip(1),
            b'M' => return self.skip(2),
            b'J' => return self.skip(4),
            b'G' => return self.skip(8),
            b'c' => return (0..2).try_for_each(|_| self.line()),
            b'U' | b'C' | 0x8a | 0x8c => 1,
            b'T' | b'B' | b'X' => 4,
            0x8d | 0x8e | 0x96 => 8,
            _ => return Err(format!("it has the opcode 0x{opcode:02x}, which no batch needs")),
        };
        let length = self.number(counted)?;
        self.skip(usize::try_from(length).map_err(|_| too_short())?)
    }

    fn memoize(&mut self, opcode: u8) -> Result<(), String> {
        let place = if opcode == 0x94 { self.memo.len() as u64 } else { self.place(opcode)? };
        self.memo.insert(place, self.is_plain);
        Ok(())
    }

    fn recall(&mut self, opcode: u8) -> Result<(), String> {
        let place = self.place(opcode)?;
        self.is_plain = *self.memo.get(&place).ok_or("it reads a memo entry that it never wrote")?;
        if self.is_plain { Ok(()) } else { Err("it uses one container in two places".into()) }
    }

    fn place(&mut self, opcode: u8) -> Result<u64, String> {
        self.number(if matches!(opcode, b'q' | b'h') { 1 } else { 4 })
    }

    /// Reads a little-endian number of `length` bytes, at most 8.
    fn number(&mut self, length: usize) -> Result<u64, String> {
        let bytes = self.rest.get(..length).ok_or_else(too_short)?;
        let number = bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        self.skip(length).map(|()| number)
    }

    fn skip(&mut self, length: usize) -> Result<(), String> {
        self.rest = self.rest.get(length..).ok_or_else(too_short)?;
        Ok(())
    }

    fn line(&mut self) -> Result<(), String> {
        let end = self.rest.iter().position(|byte| *byte == b'\n').ok_or_else(too_short)?;
        self.skip(end + 1)
    }
}

fn too_short() -> String {
    "it ends too early".into()
}
