//! Reads the operands of a pickle's opcodes: numbers, strings and names.
//!
//! Lengths are checked against the available bytes; strings are borrowed.

pub(super) struct Operands<'a> {
    pub rest: &'a [u8],
}

/// An operand, or a reason that completes "... is not a readable PyTorch file".
type Outcome<T> = Result<T, String>;

impl<'a> Operands<'a> {
    fn take(&mut self, count: usize) -> Outcome<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(too_short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Outcome<[u8; N]> {
        Ok(*self.take(N)?.first_chunk().expect("as many bytes as were asked for"))
    }

    pub(crate) fn byte(&mut self) -> Outcome<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn index(&mut self, is_short: bool) -> Outcome<u32> {
        if is_short { self.byte().map(u32::from) } else { self.array().map(u32::from_le_bytes) }
    }

    /// An integer after its length, little-endian in two's complement; `None` if it has more than 64 bits.
    pub(crate) fn long(&mut self) -> Outcome<Option<i64>> {
        let count = self.byte()?;
        let bytes = self.take(count.into())?;
        let sign = if bytes.last().is_some_and(|byte| *byte >= 0x80) { 0xff } else { 0 };
        let mut number = [sign; 8];
        let Some(low) = number.get_mut(..bytes.len()) else { return Ok(None) };
        low.copy_from_slice(bytes);
        Ok(Some(i64::from_le_bytes(number)))
    }

    /// A text after its length in `N` bytes; `None` if it is not UTF-8.
    pub(crate) fn text<const N: usize>(&mut self) -> Outcome<Option<&'a str>> {
        let mut length = [0; 8];
        length[..N].copy_from_slice(&self.array::<N>()?);
        let length = usize::try_from(u64::from_le_bytes(length)).map_err(|_| too_short())?;
        Ok(std::str::from_utf8(self.take(length)?).ok())
    }

    pub(crate) fn line(&mut self) -> Outcome<&'a str> {
        let length = self.rest.iter().position(|byte| *byte == b'\n').ok_or_else(too_short)?;
        let line = self.take(length + 1)?;
        std::str::from_utf8(&line[..length]).map_err(|_| "it contains a name that is not UTF-8".into())
    }
}

fn too_short() -> String {
    "its pickle ends too early".into()
}
