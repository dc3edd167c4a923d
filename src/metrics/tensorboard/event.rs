//! TensorBoard's protobuf messages as Rust types, as far as they are written.
//!
//! Names and field numbers are those of TensorBoard's `event.proto`, `summary.proto` and `tensor.proto`.

use prost::{Enumeration, Message, Oneof};

/// One record of an event file.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// When it was written, in seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    /// The global step it belongs to.
    #[prost(int64, tag = "2")]
    pub step: i64,
    /// Its content.
    #[prost(oneof = "What", tags = "3, 5, 7")]
    pub what: Option<What>,
}

/// The content of an event.
#[derive(Clone, PartialEq, Oneof)]
pub enum What {
    /// The format of the file, in its first event.
    #[prost(string, tag = "3")]
    FileVersion(String),
    /// Values to show.
    #[prost(message, tag = "5")]
    Summary(Summary),
    /// The start of a session.
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

/// A change of a session's status.
#[derive(Clone, PartialEq, Message)]
pub struct SessionLog {
    /// The new status.
    #[prost(enumeration = "SessionStatus", tag = "1")]
    pub status: i32,
}

/// The status of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum SessionStatus {
    /// Not given.
    Unspecified = 0,
    /// The session starts; earlier files' events from this event's step on are invalid.
    Start = 1,
}

/// Values of one step.
#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    /// The values.
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<Value>,
}

/// A value under its tag.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// The name; the part before the first slash is its group.
    #[prost(string, tag = "1")]
    pub tag: String,
    /// The plugin it is for; not needed for scalars and images.
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<SummaryMetadata>,
    /// The value; a message to a plugin is in the metadata.
    #[prost(oneof = "Content", tags = "2, 4, 8")]
    pub content: Option<Content>,
}

/// The kinds of values.
#[derive(Clone, PartialEq, Oneof)]
pub enum Content {
    /// A scalar.
    #[prost(float, tag = "2")]
    SimpleValue(f32),
    /// An image.
    #[prost(message, tag = "4")]
    Image(Image),
    /// A tensor.
    #[prost(message, tag = "8")]
    Tensor(TensorProto),
}

/// An encoded image.
#[derive(Clone, PartialEq, Message)]
pub struct Image {
    /// Height in pixels.
    #[prost(uint32, tag = "1")]
    pub height: u32,
    /// Width in pixels.
    #[prost(uint32, tag = "2")]
    pub width: u32,
    /// Channels: 3 is RGB.
    #[prost(int32, tag = "3")]
    pub colorspace: i32,
    /// The file, as PNG.
    #[prost(bytes = "vec", tag = "4")]
    pub encoded_image_string: Vec<u8>,
}

/// A tensor of strings without dimensions: a single string.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// The type of the elements: [`DT_STRING`].
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    /// The elements.
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub string_val: Vec<Vec<u8>>,
}

/// `DataType::DT_STRING` of `types.proto`.
pub const DT_STRING: i32 = 7;

/// Metadata of a tag.
#[derive(Clone, PartialEq, Message)]
pub struct SummaryMetadata {
    /// The plugin that shows it.
    #[prost(message, optional, tag = "1")]
    pub plugin_data: Option<PluginData>,
}

/// A message to a plugin.
#[derive(Clone, PartialEq, Message)]
pub struct PluginData {
    /// Its name.
    #[prost(string, tag = "1")]
    pub plugin_name: String,
    /// A message in its own format.
    #[prost(bytes = "vec", tag = "2")]
    pub content: Vec<u8>,
}

impl Value {
    /// A scalar; TensorBoard keeps single precision.
    pub fn scalar(tag: &str, value: f64) -> Self {
        Self { tag: tag.into(), metadata: None, content: Some(Content::SimpleValue(value as f32)) }
    }

    /// An RGB image as PNG, its size in pixels.
    pub fn image(tag: &str, png: &[u8], width: u32, height: u32) -> Self {
        let image = Image { height, width, colorspace: 3, encoded_image_string: png.into() };
        Self { tag: tag.into(), metadata: None, content: Some(Content::Image(image)) }
    }

    /// A text in Markdown.
    pub fn text(tag: &str, markdown: &str) -> Self {
        let tensor = TensorProto { dtype: DT_STRING, string_val: vec![markdown.into()] };
        Self { content: Some(Content::Tensor(tensor)), ..Self::plugin(tag, "text", Vec::new()) }
    }

    /// A message to a plugin.
    pub fn plugin(tag: &str, plugin: &str, content: Vec<u8>) -> Self {
        let plugin_data = Some(PluginData { plugin_name: plugin.into(), content });
        Self { tag: tag.into(), metadata: Some(SummaryMetadata { plugin_data }), content: None }
    }
}
