//! Names of samples in canonical order, each kept as what differs from the one before (front coding; Witten, Moffat and
//! Bell, *Managing Gigabytes*, 1999): neighbours of a class mostly differ in a few digits.
//!
//! Layout, little-endian: where each block of names starts after this table, in four bytes; then of each name how many
//! of its first bytes are those of the name before (one byte), how many others follow (two bytes), and those.

use kiln_system::{Error, Result};

/// Names of a block, whose first is whole.
const BLOCK: usize = 16;
/// Bytes before the rest of a name.
const LENGTHS: usize = 3;

/// Encodes `names`.
///
/// # Errors
/// If a name has more than 65,535 bytes, or all have more than 4 GiB.
pub(super) fn encode<'a>(names: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Vec<u8>> {
    let (mut starts, mut entries) = (Vec::with_capacity(names.len().div_ceil(BLOCK) * 4), Vec::new());
    let mut before: &[u8] = &[];
    for (id, name) in names.enumerate() {
        if id % BLOCK == 0 {
            let start = u32::try_from(entries.len());
            let start = start.map_err(|_| Error::Data("the names of the images have more than 4 GiB".into()))?;
            starts.extend(start.to_le_bytes());
            before = &[];
        }
        let shared = before.iter().zip(name).take(usize::from(u8::MAX)).take_while(|(a, b)| a == b).count();
        let rest = &name[shared..];
        let length = u16::try_from(rest.len()).map_err(|_| {
            let name = String::from_utf8_lossy(&name[..32]).escape_debug().to_string();
            Error::Data(format!("the name of an image, '{name}...', has '{}' bytes, more than 65535", rest.len()))
        })?;
        entries.push(shared as u8);
        entries.extend(length.to_le_bytes());
        entries.extend(rest);
        before = name;
    }
    starts.extend(entries);
    Ok(starts)
}

/// The name of sample `id` of `count`; empty if `bytes` are damaged.
pub(super) fn decode(bytes: &[u8], count: usize, id: usize) -> Vec<u8> {
    let mut name = Vec::new();
    let mut read = || {
        let start = bytes.get(id / BLOCK * 4..)?.first_chunk()?;
        let mut rest = bytes.get(count.div_ceil(BLOCK) * 4..)?.get(u32::from_le_bytes(*start) as usize..)?;
        for _ in 0..=id % BLOCK {
            let [shared, length @ ..] = *rest.first_chunk::<LENGTHS>()?;
            let (entry, behind) = rest[LENGTHS..].split_at_checked(u16::from_le_bytes(length).into())?;
            name.truncate(shared.into());
            name.extend(entry);
            rest = behind;
        }
        Some(())
    };
    let outcome = read();
    outcome.map_or_else(Vec::new, |()| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_comes_back() {
        let long = [b"a".repeat(300), b"a".repeat(299)].map(|name| [&name[..], b"end"].concat());
        let drawn = (0..100).map(|id: usize| format!("n0144{:04}_{}.JPEG", id / 7, id * id).into_bytes());
        let names: Vec<Vec<u8>> = drawn.chain([Vec::new(), b"x".to_vec(), b"x".to_vec()]).chain(long).collect();
        for count in [0, 1, 16, 17, names.len()] {
            let bytes = encode(names[..count].iter().map(Vec::as_slice)).expect("they are short");
            (0..count).for_each(|id| assert_eq!(decode(&bytes, count, id), names[id], "{id} of {count}"));
            (0..bytes.len()).for_each(|length| (0..count).for_each(|id| drop(decode(&bytes[..length], count, id))));
        }
        let endless = vec![0; 65_536];
        assert!(encode([&endless[1..]].into_iter()).is_ok());
        assert!(encode([&endless[..]].into_iter()).expect_err("it is too long").to_string().contains("65536"));
    }
}
