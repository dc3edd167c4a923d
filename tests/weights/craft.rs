//! Files made by hand, byte by byte, as no version of PyTorch writes them; and the line with which they are refused.

use std::path::Path;

use kiln::weights::pth;
use kiln_engine::state::StateDict;
use kiln_system::{Error, Result};

use super::assert_line;

pub const REMEDY: &str = "torch.save(model.state_dict(), FILE)";

pub fn from_bytes(bytes: &[u8]) -> Result<StateDict> {
    Ok(pth::from_bytes(bytes, Path::new("weights.pth"))?.0)
}

/// The line with which these bytes are refused.
#[track_caller]
pub fn refusal(bytes: &[u8]) -> String {
    let error = from_bytes(bytes).expect_err("should be refused");
    assert!(matches!(error, Error::Checkpoint(_)), "{error:?}");
    assert_line(&error.to_string(), &["'weights.pth'", REMEDY, ".safetensors"]);
    error.to_string()
}

/// A file of the old format around a pickled object (without protocol and stop), with one storage "0" of 8 floats.
pub fn around(object: &[u8]) -> Vec<u8> {
    let magic = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";
    let system = b"\x80\x02}X\x0d\x00\x00\x00little_endian\x88s.";
    let keys = b"\x80\x02]X\x01\x00\x00\x000a.";
    let floats = (0..8).flat_map(|it| (it as f32).to_le_bytes()).collect::<Vec<_>>();
    [magic.as_slice(), system, b"\x80\x02", object, b".", keys, &8_u64.to_le_bytes(), &floats].concat()
}

pub fn text(text: &str) -> Vec<u8> {
    [b"X", (text.len() as u32).to_le_bytes().as_slice(), text.as_bytes()].concat()
}

pub fn tuple(numbers: &[i64]) -> Vec<u8> {
    let numbers = numbers.iter().flat_map(|it| [b"\x8a\x08".as_slice(), &it.to_le_bytes()].concat());
    b"(".iter().copied().chain(numbers).chain(*b"t").collect()
}

/// An object `{"x": tensor}` over `elements` floats of the storage "0".
pub fn view(elements: i64, offset: i64, shape: &[i64], stride: &[i64]) -> Vec<u8> {
    let one = |number| tuple(&[number])[1..11].to_vec();
    let storage = [text("storage"), b"ctorch\nFloatStorage\n".to_vec(), text("0"), text("cpu"), one(elements)].concat();
    let call = [b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(), storage, b"tQ".to_vec(), one(offset)].concat();
    let rest = b"\x89ccollections\nOrderedDict\n)RtRs".to_vec();
    [b"}".to_vec(), text("x"), call, tuple(shape), tuple(stride), rest].concat()
}

/// An archive by hand, in which the directory may name the same bytes under many names.
pub fn archive(pickle: &[u8], names: &[String], data: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let starts = [pickle, data].map(|data| {
        let start = file.len() as u32;
        file.extend([b"PK\x03\x04".as_slice(), &[0; 26], data].concat());
        start
    });
    let directory = file.len() as u32;
    let pickled = std::iter::once(("a/data.pkl", starts[0], pickle));
    for (name, start, data) in pickled.chain(names.iter().map(|name| (name.as_str(), starts[1], data))) {
        let mut crc = flate2::Crc::new();
        crc.update(data);
        file.extend([b"PK\x01\x02".as_slice(), &[0; 12]].concat());
        file.extend([crc.sum(), data.len() as u32, data.len() as u32].iter().flat_map(|it| it.to_le_bytes()));
        file.extend([(name.len() as u16).to_le_bytes().as_slice(), &[0; 12], &start.to_le_bytes()].concat());
        file.extend(name.bytes());
    }
    let (count, length) = (names.len() as u16 + 1, file.len() as u32 - directory);
    file.extend([b"PK\x05\x06\0\0\0\0".as_slice(), &count.to_le_bytes(), &count.to_le_bytes()].concat());
    file.extend([length.to_le_bytes(), directory.to_le_bytes()].concat());
    file.extend([0; 2]);
    file
}
