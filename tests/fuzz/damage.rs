//! Damage to good input, all of it drawn from one number.

/// SplitMix64 (Steele, Lea, Flood 2014): small, and the same everywhere.
pub struct Random(pub u64);

/// Numbers at which arithmetic goes wrong.
const EXTREMES: [u64; 12] =
    [0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, i32::MAX as u64, u32::MAX as u64, i64::MAX as u64, u64::MAX];
const DIGITS: [&str; 8] =
    ["0", "-1", "1e308", "4294967296", "18446744073709551615", "99999999999999999999", "nan", "1.5"];

/// Inputs do not grow beyond this.
const LONGEST: usize = 1 << 17;

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`; 0 if there is nothing.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// One of the corpus with some damage.
    pub fn damaged(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = self.pick(corpus).clone();
        for _ in 0..self.below(5) {
            self.damage(&mut bytes, corpus);
            bytes.truncate(LONGEST);
        }
        bytes
    }

    fn damage(&mut self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        if bytes.is_empty() {
            return bytes.clone_from(self.pick(corpus));
        }
        let at = self.below(bytes.len());
        let end = (at + 1 + self.length()).min(bytes.len());
        match self.below(10) {
            0 | 1 => bytes[at] ^= 1 << self.below(8),
            2 => bytes[at..end].fill(*self.pick(&[0, 0x7f, 0x80, 0xff])),
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..end)),
            5 => {
                let piece = bytes[at..end].repeat(1 + self.length());
                bytes.splice(at..at, piece);
            }
            6 => {
                let other = self.pick(corpus);
                let from = self.below(other.len());
                let piece = &other[from..(from + end - at).min(other.len())];
                let replaced = if self.chance(50) { at..at } else { at..end };
                bytes.splice(replaced, piece.iter().copied());
            }
            7 | 8 => self.number(&mut bytes[at..]),
            _ => self.digits(bytes, at),
        }
    }

    /// Mostly short.
    fn length(&mut self) -> usize {
        let most = *self.pick(&[4, 16, 64, 600]);
        self.below(most)
    }

    /// Writes an extreme number, or one close to what was there, in any width and order of bytes.
    fn number(&mut self, place: &mut [u8]) {
        let width = (*self.pick(&[1, 2, 4, 8])).min(place.len());
        let place = &mut place[..width];
        let is_little = self.chance(50);
        let mut number = [0; 8];
        number[..width].copy_from_slice(place);
        if !is_little {
            number[..width].reverse();
        }
        let value = if self.chance(30) {
            u64::from_le_bytes(number).wrapping_add(*self.pick(&[1, 2, u64::MAX, u64::MAX - 1]))
        } else {
            *self.pick(&EXTREMES)
        };
        place.copy_from_slice(&value.to_le_bytes()[..width]);
        if !is_little {
            place.reverse();
        }
    }

    /// Replaces the next number in digits.
    fn digits(&mut self, bytes: &mut Vec<u8>, from: usize) {
        let Some(start) = bytes[from..].iter().position(u8::is_ascii_digit) else { return };
        let start = from + start;
        let end = bytes[start..].iter().position(|byte| !byte.is_ascii_digit()).map_or(bytes.len(), |it| start + it);
        bytes.splice(start..end, self.pick(&DIGITS).bytes());
    }
}
