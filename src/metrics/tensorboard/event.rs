//! TensorBoard's protobuf messages as Rust types, only the fields that are written.
//!
//! Names and field numbers are from TensorBoard's `event.proto`, `summary.proto` and `tensor.proto`.

use prost::{Enumeration, Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// When it was written, in seconds since 1970.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    pub(super) what: Option<What>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum What {
    /// The format of the file, in its first event.
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionLog {
    #[prost(enumeration = "SessionStatus", tag = "1")]
    pub(super) status: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum SessionStatus {
    Unspecified = 0,
    /// The session starts; earlier files' events from this event's step on are invalid.
    Start = 1,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(super) value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    /// The name; the part before the first slash is its group.
    #[prost(string, tag = "1")]
    tag: String,
    /// The plugin it is for; not needed for scalars and images.
    #[prost(message, optional, tag = "9")]
    metadata: Option<SummaryMetadata>,
    #[prost(oneof = "Content", tags = "2, 4, 8")]
    content: Option<Content>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Content {
    #[prost(float, tag = "2")]
    SimpleValue(f32),
    #[prost(message, tag = "4")]
    Image(Image),
    #[prost(message, tag = "8")]
    Tensor(TensorProto),
}

#[derive(Clone, PartialEq, Message)]
struct Image {
    #[prost(uint32, tag = "1")]
    height: u32,
    #[prost(uint32, tag = "2")]
    width: u32,
    /// Channels: 3 is RGB.
    #[prost(int32, tag = "3")]
    colorspace: i32,
    #[prost(bytes = "vec", tag = "4")]
    encoded_image_string: Vec<u8>,
}

/// A tensor without dimensions: a single string.
#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(bytes = "vec", repeated, tag = "8")]
    string_val: Vec<Vec<u8>>,
}

/// `DataType::DT_STRING` of `types.proto`.
const DT_STRING: i32 = 7;

#[derive(Clone, PartialEq, Message)]
struct SummaryMetadata {
    #[prost(message, optional, tag = "1")]
    plugin_data: Option<PluginData>,
}

#[derive(Clone, PartialEq, Message)]
struct PluginData {
    #[prost(string, tag = "1")]
    plugin_name: String,
}

impl Value {
    /// A scalar; TensorBoard keeps single precision.
    pub(super) fn scalar(tag: &str, value: f64) -> Self {
        Self { tag: tag.into(), metadata: None, content: Some(Content::SimpleValue(value as f32)) }
    }

    /// An RGB image as PNG, its size in pixels.
    pub(super) fn image(tag: &str, png: &[u8], width: u32, height: u32) -> Self {
        let image = Image { height, width, colorspace: 3, encoded_image_string: png.into() };
        Self { tag: tag.into(), metadata: None, content: Some(Content::Image(image)) }
    }

    /// A text in Markdown.
    pub(super) fn text(tag: &str, markdown: &str) -> Self {
        let tensor = TensorProto { dtype: DT_STRING, string_val: vec![markdown.into()] };
        let plugin_data = Some(PluginData { plugin_name: "text".into() });
        let metadata = Some(SummaryMetadata { plugin_data });
        Self { tag: tag.into(), metadata, content: Some(Content::Tensor(tensor)) }
    }
}
