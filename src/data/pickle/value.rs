//! The values that a pickle may create: plain ones, dictionaries, tensors and their parts. Everything else is foreign:
//! it has a name and is not run.

use kiln_system::quoted;
use safetensors::Dtype;

use super::view::{Storage, View};

/// The index of a value among all values of a program.
pub type Id = usize;

#[derive(Debug)]
pub enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Tensor(Box<View<'a>>),
    Storage(Storage<'a>),
    /// A class of storages.
    Type(Dtype),
    Function(Function),
    /// An object, class or function by its module and name; objects have the name of what would make them.
    Foreign(&'a str, &'a str),
    /// A number or text that is not part of a tensor or dictionary.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Function {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    /// With a function of this list, the type of its result, and its arguments.
    RebuildTyped,
    /// The bytes of a text in Latin-1, as Python 3 writes them in protocol 2.
    Encode,
}

/// Modules that only a malicious file names; `torch.load` blocks the same.
const BLOCKED: [&str; 4] = ["sys", "os", "posix", "nt"];

/// The function or class of a name.
pub(super) fn global<'a>(module: &'a str, name: &'a str) -> Result<Value<'a>, String> {
    if BLOCKED.contains(&module) {
        let name = quoted(&format!("{module}.{name}"));
        return Err(format!("its pickle asks for {name}, which no such file needs; it was not executed"));
    }
    let function = match (module, name) {
        ("collections", "OrderedDict") => Function::OrderedDict,
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Function::RebuildTensor,
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state")
        | ("torch.nn.parameter", "Parameter") => Function::RebuildParameter,
        ("torch._tensor", "_rebuild_from_type_v2") => Function::RebuildTyped,
        ("_codecs", "encode") => Function::Encode,
        _ => return Ok(storage(module, name).map_or(Value::Foreign(module, name), Value::Type)),
    };
    Ok(Value::Function(function))
}

/// The elements of a class of storages, also of those that only have to be skipped.
fn storage(module: &str, name: &str) -> Option<Dtype> {
    Some(match (module, name) {
        ("torch", "DoubleStorage") => Dtype::F64,
        ("torch", "FloatStorage") => Dtype::F32,
        ("torch", "HalfStorage") => Dtype::F16,
        ("torch", "BFloat16Storage") => Dtype::BF16,
        ("torch", "LongStorage") => Dtype::I64,
        ("torch", "IntStorage" | "QInt32Storage") => Dtype::I32,
        ("torch", "ShortStorage") => Dtype::I16,
        ("torch", "CharStorage" | "QInt8Storage") => Dtype::I8,
        ("torch", "ByteStorage" | "QUInt8Storage") => Dtype::U8,
        ("torch", "BoolStorage") => Dtype::BOOL,
        ("torch", "ComplexFloatStorage") => Dtype::C64,
        _ => return None,
    })
}
