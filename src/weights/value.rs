//! The values that a pickle may create: dictionaries, tensors and their parts.

use safetensors::Dtype;

use super::quoted;
use super::view::{Storage, View};

/// The index of a value among all values of a program.
pub(super) type Id = usize;

#[derive(Debug)]
pub(super) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Tensor(Box<View<'a>>),
    Storage(Storage<'a>),
    /// A class of storages.
    Type(Dtype),
    Function(Function),
    /// A number that is not part of a tensor or dictionary.
    Other,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Function {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
}

/// The function or class of a name; refuses all others.
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
