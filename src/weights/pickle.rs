//! The pickle of a state dictionary, read without running anything.
//!
//! A pickle is a program for a small stack machine. The only names a program may use are those in [`global`]: they make
//! dictionaries and tensors. Any other name refuses the file. Values lie in one vector and refer to each other by index:
//! nothing recurses, and nothing is copied. The machine itself is `machine`; what the values are for is seen in `pth`.

use safetensors::Dtype;

use super::machine::Machine;
use super::quoted;
use super::view::{Storage, View};

/// A value's place in a [`Pickle`].
pub(super) type Id = usize;

/// What a program can make.
#[derive(Debug)]
pub(super) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    Text(&'a str),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Tensor(Box<View<'a>>),
    Storage(Storage<'a>),
    /// A class of storages.
    Type(Dtype),
    Function(Function),
    /// A number that no tensor and no dictionary is made of.
    Other,
}

/// What a program can call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Function {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
}

/// What a finished program leaves.
pub(super) struct Pickle<'a> {
    /// Every value it made.
    pub values: Vec<Value<'a>>,
    /// Its result.
    pub root: Id,
    /// How many bytes it took; a file may go on behind it.
    pub length: usize,
}

impl<'a> Pickle<'a> {
    /// Runs the program that `bytes` start with.
    ///
    /// # Errors
    /// A reason that completes "... is not a readable PyTorch file".
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut machine = Machine::new(bytes);
        let root = machine.run()?;
        let length = bytes.len() - machine.operands.rest.len();
        Ok(Self { values: machine.values, root, length })
    }

    /// The result.
    pub fn result(&self) -> &Value<'a> {
        &self.values[self.root]
    }

    /// Every storage that a tensor may be in.
    pub fn storages(&self) -> impl Iterator<Item = Storage<'a>> {
        self.values.iter().filter_map(|value| if let Value::Storage(storage) = value { Some(*storage) } else { None })
    }

    /// The entry of a dictionary's items under the text `name`.
    pub fn entry(&self, items: &[(Id, Id)], name: &str) -> Option<&Value<'a>> {
        let is_it = |(key, _): &&(Id, Id)| matches!(self.values[*key], Value::Text(text) if text == name);
        items.iter().rev().find(is_it).map(|(_, value)| &self.values[*value])
    }
}

/// The names a program may use.
pub(super) fn global<'a>(module: &str, name: &str) -> Result<Value<'a>, String> {
    let dtype = match (module, name) {
        ("collections", "OrderedDict") => return Ok(Value::Function(Function::OrderedDict)),
        ("torch._utils", "_rebuild_tensor_v2") => return Ok(Value::Function(Function::RebuildTensor)),
        ("torch._utils", "_rebuild_parameter") => return Ok(Value::Function(Function::RebuildParameter)),
        ("torch", "DoubleStorage") => Dtype::F64,
        ("torch", "FloatStorage") => Dtype::F32,
        ("torch", "HalfStorage") => Dtype::F16,
        ("torch", "BFloat16Storage") => Dtype::BF16,
        ("torch", "LongStorage") => Dtype::I64,
        ("torch", "IntStorage") => Dtype::I32,
        ("torch", "ShortStorage") => Dtype::I16,
        ("torch", "CharStorage") => Dtype::I8,
        ("torch", "ByteStorage") => Dtype::U8,
        ("torch", "BoolStorage") => Dtype::BOOL,
        _ => {
            let name = quoted(&format!("{module}.{name}"));
            return Err(format!("its pickle asks for {name}, which no state_dict needs and which was not run"));
        }
    };
    Ok(Value::Type(dtype))
}
