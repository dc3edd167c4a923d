//! Small integers as Parquet packs them: runs of one value, and groups of eight in a fixed number of bits each. Levels and
//! places in a dictionary are stored so. The format: apache/parquet-format, Encodings.md, "RLE / Bit-Packing Hybrid".

/// The integers in some bytes; it ends where they end.
pub(super) struct Hybrid<'a> {
    rest: &'a [u8],
    /// Bits of a value, at most 32.
    width: u32,
    run: Run<'a>,
}

enum Run<'a> {
    Same { value: u32, left: u64 },
    Packed { bytes: &'a [u8], at: usize },
}

impl<'a> Hybrid<'a> {
    /// `None` if values cannot have so many bits.
    pub(super) fn new(bytes: &'a [u8], width: u32) -> Option<Self> {
        (width <= 32).then_some(Self { rest: bytes, width, run: Run::Same { value: 0, left: 0 } })
    }

    fn next_run(&mut self) -> Option<Run<'a>> {
        let mut head = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.take(1)?[0];
            head |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        if head & 1 == 0 {
            let mut value = [0; 4];
            let bytes = self.take(self.width.div_ceil(8) as usize)?;
            value[..bytes.len()].copy_from_slice(bytes);
            return Some(Run::Same { value: u32::from_le_bytes(value), left: head >> 1 });
        }
        if self.width == 0 {
            return Some(Run::Same { value: 0, left: (head >> 1) * 8 });
        }
        let length = usize::try_from((head >> 1) * u64::from(self.width)).ok()?;
        self.take(length).map(|bytes| Run::Packed { bytes, at: 0 })
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }
}

impl Iterator for Hybrid<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        loop {
            match &mut self.run {
                Run::Same { value, left } if *left > 0 => {
                    *left -= 1;
                    return Some(*value);
                }
                Run::Packed { bytes, at } if *at < bytes.len() * 8 => {
                    let bit = |bit: usize| u32::from(bytes[bit / 8] >> (bit % 8) & 1);
                    let value = (0..self.width).fold(0, |value, nth| value | bit(*at + nth as usize) << nth);
                    *at += self.width as usize;
                    return Some(value);
                }
                _ => self.run = self.next_run()?,
            }
        }
    }
}
