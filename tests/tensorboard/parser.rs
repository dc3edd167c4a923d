//! A reader of event files that shares nothing with their writer: records, checksums, protobuf fields by number.

/// The payloads of whole records whose checksums agree.
pub fn unframe(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_at(8);
        let (length_crc, rest) = rest.split_at(4);
        let (payload, rest) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
        let (payload_crc, rest) = rest.split_at(4);
        assert_eq!(length_crc, mask(crc32c(length)).to_le_bytes(), "the checksum of a length");
        assert_eq!(payload_crc, mask(crc32c(payload)).to_le_bytes(), "the checksum of a payload");
        payloads.push(payload.to_vec());
        bytes = rest;
    }
    payloads
}

/// CRC-32C by its definition: the remainder by the reflected polynomial of Castagnoli, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let shift = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shift(crc)))
}

fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The fields of a protobuf message in their order: number and content; of a varint and of a fixed-size number the
/// bytes, little-endian.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let size = match key & 7 {
            0 => {
                fields.push((key >> 3, varint(&mut bytes).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (content, rest) = bytes.split_at(size);
        fields.push((key >> 3, content.to_vec()));
        bytes = rest;
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let (digits, rest) = bytes.split_at(length);
    *bytes = rest;
    digits.iter().rev().fold(0, |value, digit| value << 7 | u64::from(digit & 0x7f))
}

/// The contents of all fields at a path of field numbers.
pub fn at(message: &[u8], path: &[u64]) -> Vec<Vec<u8>> {
    let Some((number, rest)) = path.split_first() else { return vec![message.to_vec()] };
    fields(message).into_iter().filter(|field| field.0 == *number).flat_map(|field| at(&field.1, rest)).collect()
}

pub fn text(bytes: &[Vec<u8>]) -> Vec<String> {
    bytes.iter().map(|bytes| String::from_utf8(bytes.clone()).unwrap()).collect()
}

pub fn integers(bytes: &[Vec<u8>]) -> Vec<u64> {
    bytes.iter().map(|bytes| u64::from_le_bytes(bytes[..].try_into().unwrap())).collect()
}

pub fn doubles(bytes: &[Vec<u8>]) -> Vec<f64> {
    bytes.iter().map(|bytes| f64::from_le_bytes(bytes[..].try_into().unwrap())).collect()
}

#[test]
fn the_checksum_that_the_tests_compute_is_crc32c() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
}
