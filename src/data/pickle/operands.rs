//! Reads the operands of a pickle's opcodes: numbers, strings and names.
//!
//! Lengths are checked against the available bytes; strings are borrowed.

#[derive(Debug)]
pub(super) struct Operands<'a> {
    pub(super) rest: &'a [u8],
}

/// An operand, or a reason as that of `Pickle::read`.
type Outcome<T> = Result<T, String>;

impl<'a> Operands<'a> {
    fn take(&mut self, count: usize) -> Outcome<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(too_short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Outcome<[u8; N]> {
        Ok(*self.take(N)?.first_chunk().expect("as many bytes as were asked for"))
    }

    pub(super) fn byte(&mut self) -> Outcome<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn index(&mut self, is_short: bool) -> Outcome<u32> {
        if is_short { self.byte().map(u32::from) } else { self.array().map(u32::from_le_bytes) }
    }

    /// An integer after its length, little-endian in two's complement; `None` if it has more than 64 bits.
    pub(super) fn long(&mut self) -> Outcome<Option<i64>> {
        let count = self.byte()?;
        let bytes = self.take(count.into())?;
        let sign = if bytes.last().is_some_and(|byte| *byte >= 0x80) { 0xff } else { 0 };
        let mut number = [sign; 8];
        let Some(low) = number.get_mut(..bytes.len()) else { return Ok(None) };
        low.copy_from_slice(bytes);
        Ok(Some(i64::from_le_bytes(number)))
    }

    /// Bytes after their length in `N` bytes.
    pub(super) fn bytes<const N: usize>(&mut self) -> Outcome<&'a [u8]> {
        let mut length = [0; 8];
        length[..N].copy_from_slice(&self.array::<N>()?);
        self.take(usize::try_from(u64::from_le_bytes(length)).map_err(|_| too_short())?)
    }

    /// The same as a text; `None` if it is not UTF-8.
    pub(super) fn text<const N: usize>(&mut self) -> Outcome<Option<&'a str>> {
        Ok(std::str::from_utf8(self.bytes::<N>()?).ok())
    }

    pub(super) fn line(&mut self) -> Outcome<&'a str> {
        let length = self.rest.iter().position(|byte| *byte == b'\n').ok_or_else(too_short)?;
        let line = self.take(length + 1)?;
        std::str::from_utf8(&line[..length]).map_err(|_| "it contains a name that is not UTF-8".into())
    }
}

fn too_short() -> String {
    "its pickle ends too early".into()
}
