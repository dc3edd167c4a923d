//! The orientation that a camera stores with an image (EXIF 2.32, a TIFF), in any type of whole numbers, as PIL reads
//! it.

use image::metadata::Orientation;

/// What JPEGs, and some WebPs, write before the TIFF.
pub(super) const START: &[u8] = b"Exif\0\0";
const TAG: u32 = 0x0112;
/// Bytes of an entry of the directory: tag, type, count, value.
const ENTRY: usize = 12;

/// The orientation in a block of EXIF; `None` if there is none that is defined.
pub(super) fn orientation(block: &[u8]) -> Option<Orientation> {
    let tiff = block.strip_prefix(START).unwrap_or(block);
    let is_little = match tiff.first_chunk()? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let number = |at: usize, length: usize| {
        let bytes = tiff.get(at..)?.get(..length)?.iter();
        let join = |number: u32, byte: &u8| number << 8 | u32::from(*byte);
        Some(if is_little { bytes.rev().fold(0, join) } else { bytes.fold(0, join) })
    };
    let start = number(4, 4)? as usize;
    let mut entries = (0..number(start, 2)? as usize).map_while(|index| start.checked_add(2 + index * ENTRY));
    let at = entries.find(|at| number(*at, 2) == Some(TAG))?;
    // SHORT, LONG, and the same with a sign.
    let length = match number(at + 2, 2)? {
        3 | 8 => 2,
        4 | 9 => 4,
        _ => return None,
    };
    let is_one = number(at + 4, 4)? == 1;
    Orientation::from_exif(u8::try_from(number(at + 8, length)?).ok().filter(|_| is_one)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_whole_number_is_an_orientation_and_nothing_else() {
        let block = |is_little: bool, kind: u16, count: u32, value: u32| {
            let numbers: [(u32, usize); 6] = [(8, 4), (1, 2), (0x0112, 2), (kind.into(), 2), (count, 4), (value, 4)];
            let bytes = numbers.into_iter().flat_map(|(number, length)| {
                let bytes = if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
                if is_little { bytes[..length].to_vec() } else { bytes[4 - length..].to_vec() }
            });
            let start = if is_little { b"II*\0" } else { b"MM\0*" };
            START.iter().chain(start).copied().chain(bytes).collect::<Vec<u8>>()
        };
        for kind in [3, 4, 8, 9] {
            // In two bytes of four, the first are those that count.
            let big = if kind % 5 == 3 { 6 << 16 } else { 6 };
            assert_eq!(orientation(&block(true, kind, 1, 6)), Some(Orientation::Rotate90), "{kind}");
            assert_eq!(orientation(&block(false, kind, 1, big)), Some(Orientation::Rotate90), "{kind}");
            assert_eq!(orientation(&block(true, kind, 1, 6)[START.len()..]), Some(Orientation::Rotate90));
            assert_eq!([orientation(&block(true, kind, 2, 6)), orientation(&block(true, kind, 1, 9))], [None; 2]);
        }
        assert_eq!(orientation(&block(true, 2, 1, 6)), None);
        let whole = block(true, 4, 1, 6);
        assert!((0..whole.len()).all(|length| orientation(&whole[..length]).is_none()));
    }
}
