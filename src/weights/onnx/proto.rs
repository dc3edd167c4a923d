//! The messages of an ONNX file as Rust types, as far as they are written.
//!
//! Names and field numbers are those of `onnx.proto` (IR version 8).

use prost::{Message, Oneof};

/// A whole file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// The version of these messages.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// The program that wrote the file.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// Its version.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// A description.
    #[prost(string, tag = "6")]
    pub doc_string: String,
    /// The computation.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// The versions of the operators.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Free-form pairs, for programs.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// A version of the operators; without a domain, those of ONNX.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// The version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A pair of free-form metadata.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A computation: nodes between named values, in topological order.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// The operations.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The constants.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// The inputs.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// The outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
}

/// An operation.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of its inputs, by position.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of its results.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// The operator's settings.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
}

/// A setting of an operator, with one of the three values according to `type`.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// A number.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// An integer.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// Integers.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// `AttributeType`: 1 for `f`, 2 for `i`, 7 for `ints`.
    #[prost(int32, tag = "20")]
    pub r#type: i32,
}

impl AttributeProto {
    /// The setting `name` is a number.
    pub fn float(name: &str, value: f32) -> Self {
        Self { name: name.into(), f: Some(value), r#type: 1, ..Self::default() }
    }

    /// The setting `name` is an integer.
    pub fn int(name: &str, value: i64) -> Self {
        Self { name: name.into(), i: Some(value), r#type: 2, ..Self::default() }
    }

    /// The setting `name` is a list of integers.
    pub fn ints(name: &str, values: &[i64]) -> Self {
        Self { name: name.into(), ints: values.into(), r#type: 7, ..Self::default() }
    }
}

/// A constant.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// Length of each axis.
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// The type of the elements: [`FLOAT`].
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Its name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// The elements in row-major order, little-endian.
    #[prost(bytes = "vec", tag = "9")]
    pub raw_data: Vec<u8>,
}

/// `TensorProto.DataType.FLOAT`: single precision.
pub const FLOAT: i32 = 1;

/// The name and type of a value.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
    /// A description.
    #[prost(string, tag = "3")]
    pub doc_string: String,
}

/// The type of a value: a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// The tensor type.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
}

/// `TypeProto.Tensor`.
#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    /// The type of the elements: [`FLOAT`].
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// Its axes.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// The axes of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// The axes in row-major order.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// `TensorShapeProto.Dimension`: an axis.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    /// Its length.
    #[prost(oneof = "Length", tags = "1, 2")]
    pub value: Option<Length>,
}

/// The length of an axis.
#[derive(Clone, PartialEq, Oneof)]
pub enum Length {
    /// A fixed length.
    #[prost(int64, tag = "1")]
    Value(i64),
    /// Any length, equal wherever the name occurs.
    #[prost(string, tag = "2")]
    Param(String),
}
