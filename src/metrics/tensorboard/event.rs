//! TensorBoard's protobuf messages, only the fields that are written.
//!
//! Names and numbers are from TensorBoard's `event.proto`, `summary.proto` and `tensor.proto`. The alternatives of a
//! `oneof` are optional fields, of which one is set.

use prost::Message;

/// `DataType::DT_STRING` of `types.proto`.
const DT_STRING: i32 = 7;
/// `SessionLog::START`: events of earlier files from this event's step on are invalid.
const START: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    /// The format of the file, in its first event.
    #[prost(string, optional, tag = "3")]
    pub file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    pub session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    /// The part before the first slash is its group.
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "4")]
    image: Option<Image>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<TensorProto>,
    /// The plugin it is for; scalars and images need none.
    #[prost(message, optional, tag = "9")]
    metadata: Option<SummaryMetadata>,
}

#[derive(Clone, PartialEq, Message)]
struct Image {
    #[prost(uint32, tag = "1")]
    height: u32,
    #[prost(uint32, tag = "2")]
    width: u32,
    /// The number of channels.
    #[prost(int32, tag = "3")]
    colorspace: i32,
    #[prost(bytes = "vec", tag = "4")]
    encoded_image_string: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(string, repeated, tag = "8")]
    string_val: Vec<String>,
}

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

impl SessionLog {
    pub(super) fn start() -> Self {
        Self { status: START }
    }
}

impl Value {
    /// A scalar; TensorBoard keeps single precision.
    pub(super) fn scalar(tag: &str, value: f64) -> Self {
        Self { tag: tag.into(), simple_value: Some(value as f32), ..Self::default() }
    }

    /// An RGB image as PNG, its size in pixels.
    pub(super) fn image(tag: &str, png: &[u8], [width, height]: [u32; 2]) -> Self {
        let image = Image { height, width, colorspace: 3, encoded_image_string: png.into() };
        Self { tag: tag.into(), image: Some(image), ..Self::default() }
    }

    /// A text in Markdown.
    pub(super) fn text(tag: &str, markdown: &str) -> Self {
        let tensor = TensorProto { dtype: DT_STRING, string_val: vec![markdown.into()] };
        let metadata = SummaryMetadata { plugin_data: Some(PluginData { plugin_name: "text".into() }) };
        Self { tag: tag.into(), tensor: Some(tensor), metadata: Some(metadata), ..Self::default() }
    }
}
