//! Snappy's raw format, decoded from the beginning of a page or from inside it.
//!
//! The crate `snap` decodes whole pages only, and a page may have a hundred megabytes where one image is wanted. Encoders
//! compress every 64 KiB on their own, so there are many points to begin at. The format: google/snappy,
//! format_description.txt.

use std::io::{Error, ErrorKind, Read, Result};

/// Bytes of a page between two points to begin at.
const FRAGMENT: usize = 64 << 10;

/// A step of decoding.
enum Element {
    /// So many bytes follow as they are.
    Literal(usize),
    /// Bytes that were decoded before are repeated.
    Copy { back: usize, length: usize },
}

/// A point to begin decoding at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    /// In the decoded page.
    pub(super) plain: usize,
    /// In the encoded page.
    pub(super) encoded: usize,
}

/// The points from which `page` can be decoded to its end; the first is its beginning.
///
/// # Errors
/// If it is damaged.
pub(super) fn starts(page: &[u8]) -> Result<Vec<Start>> {
    let mut rest = page;
    length(&mut rest)?;
    let mut starts = vec![Start { plain: 0, encoded: page.len() - rest.len() }];
    let mut plain = 0;
    while !rest.is_empty() {
        if plain - starts[starts.len() - 1].plain >= FRAGMENT {
            starts.push(Start { plain, encoded: page.len() - rest.len() });
        }
        plain += match element(&mut rest)? {
            Element::Literal(length) => {
                rest = rest.get(length..).ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))?;
                length
            }
            Element::Copy { back, length } => {
                let reach = plain.checked_sub(back).ok_or_else(damaged)?;
                // The first has nothing before it.
                while starts[starts.len() - 1].plain > reach {
                    starts.pop();
                }
                length
            }
        };
    }
    Ok(starts)
}

/// A decoded page of at most `limit` bytes.
///
/// # Errors
/// If it has more, or is damaged.
pub(super) fn whole(mut page: &[u8], limit: u64) -> Result<Vec<u8>> {
    let length = length(&mut page)?;
    // No element has fewer than two bytes or gives more than 64.
    if length / 32 > page.len() as u64 {
        return Err(damaged());
    }
    if length > limit {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("a page has {length} bytes, more than {limit}")));
    }
    let plain = decode(&mut page, length as usize)?;
    if page.is_empty() { Ok(plain) } else { Err(damaged()) }
}

/// The first `end` bytes from a point to begin at.
///
/// # Errors
/// If there are fewer, or they are damaged.
pub(super) fn decode(input: &mut impl Read, end: usize) -> Result<Vec<u8>> {
    let mut plain = Vec::with_capacity(end);
    while plain.len() < end {
        let left = end - plain.len();
        match element(input)? {
            Element::Literal(length) => {
                let length = length.min(left);
                if input.take(length as u64).read_to_end(&mut plain)? < length {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            }
            Element::Copy { back, length } => {
                let from = plain.len().checked_sub(back).filter(|_| back > 0).ok_or_else(damaged)?;
                // What is copied may be a part of the copy.
                (from..from + length.min(left)).for_each(|at| plain.push(plain[at]));
            }
        }
    }
    Ok(plain)
}

fn element(input: &mut impl Read) -> Result<Element> {
    let tag = number(input, 1)?;
    let upper = tag >> 2;
    Ok(match tag & 3 {
        0 if upper < 60 => Element::Literal(upper + 1),
        0 => Element::Literal(number(input, upper - 59)? + 1),
        1 => Element::Copy { length: 4 + (upper & 7), back: (upper >> 3 << 8) + number(input, 1)? },
        2 => Element::Copy { length: upper + 1, back: number(input, 2)? },
        _ => Element::Copy { length: upper + 1, back: number(input, 4)? },
    })
}

/// The length of the decoded page: seven bits a byte, the lowest first.
fn length(page: &mut &[u8]) -> Result<u64> {
    let mut length = 0;
    for shift in (0..35).step_by(7) {
        let byte = number(page, 1)? as u64;
        length |= (byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(length);
        }
    }
    Err(damaged())
}

/// A little-endian number of up to four bytes.
fn number(input: &mut impl Read, bytes: usize) -> Result<usize> {
    let mut number = [0; 4];
    input.read_exact(&mut number[..bytes])?;
    Ok(u32::from_le_bytes(number) as usize)
}

fn damaged() -> Error {
    Error::new(ErrorKind::InvalidData, "invalid Snappy data")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two fragments of literals, and a copy of four bytes from `back` bytes before their end.
    fn page(back: u32) -> (Vec<u8>, Vec<u8>) {
        let literals: Vec<u8> = (0..2 * FRAGMENT).map(|at| (at * at / 7 + at) as u8).collect();
        let from = literals.len().saturating_sub(back as usize);
        let plain = [&literals, &literals[from..from + 4]].concat();
        // 131076 in groups of seven bits, then literals of 65536 bytes.
        let mut page = vec![0x84, 0x80, 0x08];
        for fragment in literals.chunks(FRAGMENT) {
            page.extend([61 << 2, 0xff, 0xff]);
            page.extend(fragment);
        }
        page.push(3 | 3 << 2);
        page.extend(back.to_le_bytes());
        (page, plain)
    }

    #[test]
    fn decoding_begins_nowhere_behind_what_a_copy_needs() {
        for (back, expected) in [(4, 2), (FRAGMENT as u32, 2), (FRAGMENT as u32 + 1, 1), (2 * FRAGMENT as u32, 1)] {
            let (page, plain) = page(back);
            assert_eq!(whole(&page, 1 << 20).expect("the page is whole"), plain);
            let starts = starts(&page).expect("the page is whole");
            assert_eq!(starts.len(), expected, "{back}");
            for Start { plain: from, encoded } in starts {
                assert_eq!(
                    decode(&mut &page[encoded..], plain.len() - from).expect("the page is whole"),
                    plain[from..],
                    "{back}"
                );
            }
        }
        assert!(whole(&page(4).0, 131_075).is_err(), "the limit");
        let claim = whole(&[0xff, 0xff, 0xff, 0xff, 0x03, 0], 1 << 30).expect_err("1 GiB of a byte");
        assert_eq!(claim.kind(), ErrorKind::InvalidData, "before memory is taken for it");
        assert!(starts(&page(2 * FRAGMENT as u32 + 1).0[..]).is_err(), "before the beginning");
    }
}
