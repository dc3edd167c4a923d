//! TFRecord framing of event files.
//!
//! A record is the length of its payload as a little-endian `u64`, the masked CRC of these eight bytes, the payload,
//! and the masked CRC of the payload.

use std::io::{self, Write};

use crc::{CRC_32_ISCSI, Crc};

/// CRC-32C, also known as CRC-32/ISCSI.
const CASTAGNOLI: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Writes one record.
///
/// # Errors
/// Those of `out`.
pub fn write_record(out: &mut impl Write, payload: &[u8]) -> io::Result<()> {
    let length = (payload.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&masked_crc(&length).to_le_bytes())?;
    out.write_all(payload)?;
    out.write_all(&masked_crc(payload).to_le_bytes())
}

/// The format masks its CRCs because the CRC of data that holds CRCs is weak.
fn masked_crc(bytes: &[u8]) -> u32 {
    CASTAGNOLI.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}
