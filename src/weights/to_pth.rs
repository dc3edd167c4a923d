//! Writes a state dictionary as a file of `torch.save`, for `torch.load(FILE, weights_only=True)`.
//!
//! The pickle is an `OrderedDict` of `torch._utils._rebuild_tensor_v2` values with one storage each, in the opcodes of
//! Python's `pickletools`; `zip` writes the archive. The description is an attribute of the dictionary:
//! `load_state_dict` ignores it, and `torch.save` keeps it.

use kiln_engine::state::{HostTensor, StateDict};
use kiln_system::{Error, Result};
use serde_json::{Value, json};

use super::pth::ATTRIBUTE;
use super::{Description, zip};

/// The dictionary as a `.pth` file, sorted by name, with the description as its attribute `kiln`; the same arguments
/// always give the same bytes.
///
/// # Errors
/// [`Error::Checkpoint`] if they exceed 4 GiB, which are not read.
pub fn to_pth(tensors: &StateDict, description: Option<&Description>) -> Result<Vec<u8>> {
    let mut entries = vec![
        ("archive/data.pkl".to_owned(), pickle(tensors, description)),
        ("archive/byteorder".to_owned(), b"little".to_vec()),
        ("archive/version".to_owned(), b"3\n".to_vec()),
    ];
    entries.extend(tensors.values().enumerate().map(|(key, it)| (format!("archive/data/{key}"), it.bytes().to_vec())));
    let file = zip::write(&entries).ok().filter(|file| u32::try_from(file.len()).is_ok());
    file.ok_or_else(|| {
        Error::Checkpoint(
            "the weights take more than 4 GiB, too many for a .pth file; write .safetensors instead".into(),
        )
    })
}

/// The program that creates the dictionary; storages are named by the indices of their tensors.
fn pickle(tensors: &StateDict, description: Option<&Description>) -> Vec<u8> {
    let mut program = Program(b"\x80\x02".to_vec());
    program.ordered_dict();
    program.0.push(b'(');
    for (key, (name, tensor)) in tensors.iter().enumerate() {
        program.text(name);
        program.tensor(&key.to_string(), tensor);
    }
    program.0.push(b'u');
    if let Some(description) = description {
        program.value(&json!({ ATTRIBUTE: description.to_json() }));
        program.0.push(b'b');
    }
    program.0.push(b'.');
    program.0
}

struct Program(Vec<u8>);

impl Program {
    fn tensor(&mut self, key: &str, tensor: &HostTensor) {
        let storage = if tensor.as_f32().is_some() { "FloatStorage" } else { "LongStorage" };
        self.global("torch._utils", "_rebuild_tensor_v2");
        self.0.extend(b"((");
        self.text("storage");
        self.global("torch", storage);
        self.text(key);
        self.text("cpu");
        self.integer(tensor.len());
        self.0.extend(b"tQ");
        self.integer(0);
        self.tuple(tensor.shape());
        self.tuple(&row_major(tensor.shape()));
        // No gradient and no hooks.
        self.0.push(0x89);
        self.ordered_dict();
        self.0.extend(b"tR");
    }

    /// Plain text, numbers, lists and dictionaries.
    fn value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => {
                self.0.extend(b"](");
                items.iter().for_each(|item| self.value(item));
                self.0.push(b'e');
            }
            Value::Object(pairs) => {
                self.0.extend(b"}(");
                for (key, value) in pairs {
                    self.text(key);
                    self.value(value);
                }
                self.0.push(b'u');
            }
            value => match value.as_u64() {
                Some(whole) => self.integer(whole as usize),
                None => {
                    self.0.push(b'G');
                    self.0.extend(value.as_f64().unwrap_or(f64::NAN).to_be_bytes());
                }
            },
        }
    }

    fn ordered_dict(&mut self) {
        self.global("collections", "OrderedDict");
        self.0.extend(b")R");
    }

    fn global(&mut self, module: &str, name: &str) {
        self.0.extend(format!("c{module}\n{name}\n").bytes());
    }

    /// BINUNICODE, with the length in four bytes.
    fn text(&mut self, text: &str) {
        self.0.push(b'X');
        self.0.extend((text.len() as u32).to_le_bytes());
        self.0.extend(text.bytes());
    }

    /// LONG1, with the number in eight bytes.
    fn integer(&mut self, number: usize) {
        self.0.extend(b"\x8a\x08");
        self.0.extend((number as u64).to_le_bytes());
    }

    fn tuple(&mut self, numbers: &[usize]) {
        self.0.push(b'(');
        for number in numbers {
            self.integer(*number);
        }
        self.0.push(b't');
    }
}

/// The strides of a row-major tensor, in elements.
fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut stride = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        stride[axis - 1] = stride[axis] * shape[axis].max(1);
    }
    stride
}
