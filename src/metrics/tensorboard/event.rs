//! TensorBoard's protobuf messages, only the fields that are written.
//!
//! Field numbers are from TensorBoard's `event.proto`, `summary.proto` and `tensor.proto`.

use prost::encode_length_delimiter;

use self::Field::{Bytes, Double, Float, Integer};

/// The field of an event with the format of the file, in the first one.
pub(super) const FILE_VERSION: u8 = 3;
/// The field of an event with values, one after the other.
pub(super) const SUMMARY: u8 = 5;
/// The field of an event that starts a session: earlier files' events from this event's step on are invalid.
pub(super) const SESSION_LOG: u8 = 7;
/// `DataType::DT_STRING` of `types.proto`.
const DT_STRING: usize = 7;

/// The content of a field; a string or a message is its bytes.
enum Field<'a> {
    Integer(usize),
    Double(f64),
    Bytes(&'a [u8]),
    Float(f32),
}

/// An event at `time`, in seconds since 1970, with the content of its field `what`.
pub(super) fn event(time: f64, step: usize, what: u8, content: &[u8]) -> Vec<u8> {
    message(&[(1, Double(time)), (2, Integer(step)), (what, Bytes(content))])
}

/// A session log with the status `START`.
pub(super) fn session_start() -> Vec<u8> {
    message(&[(1, Integer(1))])
}

/// A scalar; TensorBoard keeps single precision.
pub(super) fn scalar(tag: &str, value: f64) -> Vec<u8> {
    tagged(tag, &[(2, Float(value as f32))])
}

/// An RGB image as PNG, its size in pixels.
pub(super) fn image(tag: &str, png: &[u8], width: usize, height: usize) -> Vec<u8> {
    let channels = Integer(3);
    let image = message(&[(1, Integer(height)), (2, Integer(width)), (3, channels), (4, Bytes(png))]);
    tagged(tag, &[(4, Bytes(&image))])
}

/// A text in Markdown.
pub(super) fn text(tag: &str, markdown: &str) -> Vec<u8> {
    let tensor = message(&[(1, Integer(DT_STRING)), (8, Bytes(markdown.as_bytes()))]);
    let plugin = message(&[(1, Bytes(b"text"))]);
    tagged(tag, &[(8, Bytes(&tensor)), (9, Bytes(&message(&[(1, Bytes(&plugin))])))])
}

/// A value of a summary. The part of its tag before the first slash is its group.
fn tagged(tag: &str, content: &[(u8, Field<'_>)]) -> Vec<u8> {
    let value = [message(&[(1, Bytes(tag.as_bytes()))]), message(content)].concat();
    message(&[(1, Bytes(&value))])
}

/// A message of fields by their numbers, which are below 16.
fn message(fields: &[(u8, Field<'_>)]) -> Vec<u8> {
    let mut message = Vec::new();
    for (number, field) in fields {
        let (wire_type, content) = match field {
            Integer(value) => (0, varint(*value)),
            Double(value) => (1, value.to_le_bytes().to_vec()),
            Bytes(bytes) => (2, [&varint(bytes.len()), *bytes].concat()),
            Float(value) => (5, value.to_le_bytes().to_vec()),
        };
        message.push(number << 3 | wire_type);
        message.extend(content);
    }
    message
}

fn varint(value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_length_delimiter(value, &mut bytes).expect("memory takes it");
    bytes
}
