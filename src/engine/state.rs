//! Named tensors on the host, the common format of models, optimizers, averages and files.
//!
//! A [`StateDict`] is copied from a device to be saved, and to a device to be loaded. It is an ordered map of plain
//! vectors, so the same numbers always give the same bytes. Files are safetensors, which Python reads as well.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use burn::tensor::{bf16, f16};
use kiln_system::{Error, Result, shown};
use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use sha2::{Digest, Sha256};

/// Named tensors, sorted by name.
pub type StateDict = BTreeMap<String, HostTensor>;

/// Free-form pairs in the header of a safetensors file, sorted by key when read.
pub type Metadata = Vec<(String, String)>;

/// A dense tensor in row-major order; a scalar has the shape `[]`.
///
/// The product of `shape` is the length of `data`.
#[derive(Debug, Clone, PartialEq)]
pub enum HostTensor {
    /// Single-precision numbers.
    F32 {
        shape: Vec<usize>,
        data: Vec<f32>,
    },
    I64 {
        shape: Vec<usize>,
        data: Vec<i64>,
    },
}

impl HostTensor {
    /// Length of each axis; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::F32 { shape, .. } | Self::I64 { shape, .. } => shape,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::F32 { data, .. } => data.len(),
            Self::I64 { data, .. } => data.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn as_f32(&self) -> Option<&[f32]> {
        match self {
            Self::F32 { data, .. } => Some(data),
            Self::I64 { .. } => None,
        }
    }

    pub fn as_i64(&self) -> Option<&[i64]> {
        match self {
            Self::I64 { data, .. } => Some(data),
            Self::F32 { .. } => None,
        }
    }

    fn dtype(&self) -> &'static str {
        match self {
            Self::F32 { .. } => "F32",
            Self::I64 { .. } => "I64",
        }
    }

    /// The elements as bytes, in the order of memory and files.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::F32 { data, .. } => bytemuck::cast_slice(data),
            Self::I64 { data, .. } => bytemuck::cast_slice(data),
        }
    }
}

#[cfg(target_endian = "big")]
compile_error!("files are little-endian, and tensors are written to them as they lie in memory");

/// The dictionary as a safetensors file, as by [`write_safetensors`].
pub fn to_safetensors(tensors: &StateDict, metadata: &[(String, String)]) -> Vec<u8> {
    let mut file = head(tensors, metadata);
    // Allocated once, since models are large.
    file.reserve_exact(tensors.values().map(|tensor| tensor.bytes().len()).sum());
    in_order(tensors).for_each(|(_, tensor)| file.extend(tensor.bytes()));
    file
}

/// Writes the dictionary as a safetensors file.
pub fn write_safetensors(tensors: &StateDict, metadata: &[(String, String)], to: &mut dyn Write) -> io::Result<()> {
    to.write_all(&head(tensors, metadata))?;
    in_order(tensors).try_for_each(|(_, tensor)| to.write_all(tensor.bytes()))
}

/// The tensors as they lie in a file: integers first, so that every tensor is aligned to its element.
fn in_order(tensors: &StateDict) -> impl Iterator<Item = (&String, &HostTensor)> {
    let (wide, narrow): (Vec<_>, Vec<_>) = tensors.iter().partition(|(_, tensor)| tensor.as_i64().is_some());
    wide.into_iter().chain(narrow)
}

/// The bytes in front of the tensors.
///
/// They are not written by the `safetensors` crate, whose metadata is a hash map: equal dictionaries would give files
/// with different headers.
fn head(tensors: &StateDict, metadata: &[(String, String)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        let sorted: BTreeMap<_, _> = metadata.iter().cloned().collect();
        header.insert("__metadata__".into(), json!(sorted));
    }
    let mut length = 0;
    for (name, tensor) in in_order(tensors) {
        let end = length + tensor.bytes().len();
        let entry = json!({ "dtype": tensor.dtype(), "shape": tensor.shape(), "data_offsets": [length, end] });
        header.insert(name.clone(), entry);
        length = end;
    }
    let mut header = serde_json::Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes(), header.as_slice()].concat()
}

/// Reads a safetensors file; `origin` is the path that errors name.
///
/// F16, BF16 and F64 become f32; U8 and I32 become i64.
///
/// # Errors
/// [`Error::Checkpoint`] if the bytes are damaged or hold a type that is not listed above.
pub fn from_safetensors(bytes: &[u8], origin: &Path) -> Result<(StateDict, Metadata)> {
    let damaged = |reason: String| {
        Error::Checkpoint(format!(
            "'{}' is not a readable safetensors file ({reason}); restore it or give another one",
            shown(origin)
        ))
    };
    let claimed = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    if claimed > LONGEST_HEADER.min(bytes.len() as u64) {
        let rule = format!("a header has at most {} MiB and lies in the file", LONGEST_HEADER >> 20);
        return Err(damaged(format!("its header claims {claimed} bytes of {}; {rule}", bytes.len())));
    }
    let (length, header) = SafeTensors::read_metadata(bytes).map_err(|e| damaged(e.to_string()))?;
    let data = &bytes[8 + length..];
    let metadata: BTreeMap<_, _> = header.metadata().clone().unwrap_or_default().into_iter().collect();
    let mut tensors = StateDict::new();
    for name in header.offset_keys() {
        let TensorInfo { dtype, shape, data_offsets: (start, end) } = header.info(&name).expect("the header lists it");
        let tensor = decode(*dtype, shape.clone(), &data[*start..*end])
            .ok_or_else(|| damaged(format!("tensor '{name}' has the type '{dtype}'; readable types are {READABLE}")))?;
        tensors.insert(name, tensor);
    }
    Ok((tensors, metadata.into_iter().collect()))
}

/// The largest header, in bytes, since parsing takes a multiple of them in memory. That of a ResNet-18 describes some
/// hundred tensors and names the classes.
const LONGEST_HEADER: u64 = 8 << 20;

/// The types that [`decode`] knows.
pub const READABLE: &str = "F16, BF16, F32, F64, U8, I32, I64";

/// One tensor from its little-endian bytes; `None` for an unsupported type.
pub fn decode(dtype: Dtype, shape: Vec<usize>, bytes: &[u8]) -> Option<HostTensor> {
    let f32s = |data| Some(HostTensor::F32 { shape: shape.clone(), data });
    let i64s = |data| Some(HostTensor::I64 { shape: shape.clone(), data });
    match dtype {
        Dtype::F16 => f32s(each(bytes, |b| f16::from_le_bytes(b).to_f32())),
        Dtype::BF16 => f32s(each(bytes, |b| bf16::from_le_bytes(b).to_f32())),
        Dtype::F32 => f32s(each(bytes, f32::from_le_bytes)),
        Dtype::F64 => f32s(each(bytes, |b| f64::from_le_bytes(b) as f32)),
        Dtype::U8 => i64s(each(bytes, |[b]: [u8; 1]| i64::from(b))),
        Dtype::I32 => i64s(each(bytes, |b| i64::from(i32::from_le_bytes(b)))),
        Dtype::I64 => i64s(each(bytes, i64::from_le_bytes)),
        _ => None,
    }
}

/// Maps every `N` bytes to one element.
fn each<const N: usize, T>(bytes: &[u8], element: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| element(*chunk)).collect()
}

/// A fingerprint of the dictionary: SHA-256, in hexadecimal, over names, types, shapes and little-endian elements.
///
/// Two dictionaries have the same fingerprint exactly if they are bit for bit the same (NaN included). Lengths are
/// hashed too, so that different dictionaries never give the same bytes.
pub fn sha256(tensors: &StateDict) -> String {
    let mut hash = Sha256::new();
    for (name, tensor) in tensors {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update(tensor.dtype());
        hash.update((tensor.shape().len() as u64).to_le_bytes());
        for axis in tensor.shape() {
            hash.update((*axis as u64).to_le_bytes());
        }
        hash.update(tensor.bytes());
    }
    format!("{:x}", hash.finalize())
}
