//! `onnx/`: the trained network as an ONNX file, which other programs run.
//!
//! Exactly one graph: ResNet-18 in inference mode, derived from the shapes of its weights (`network`, of the parts in
//! `builder`, as the messages in [`proto`]). Batch-norms stay operations of their own and constants keep torchvision's
//! names, so that the weights in the file can be compared with others. Reading ONNX is left out, and so is where the
//! bytes go.

mod builder;
mod network;
pub mod proto;

use prost::Message;
use serde_json::json;

use self::proto::{ModelProto, OperatorSetIdProto, StringStringEntryProto};
use crate::error::{Error, Result};
use crate::state::StateDict;

/// The version of the messages, and that of the operators which came out with it (ONNX 1.12).
const IR_VERSION: i64 = 8;
const OPSET: i64 = 17;

/// Kiln's own.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The most bytes that a reader of protobuf takes.
const LONGEST: usize = i32::MAX as usize;

/// What a file says beside the weights.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the weights come from, for errors to name, as in `'run/best'`.
    pub origin: String,
    /// The names of the classes, by label; empty if they are not known.
    pub classes: Vec<String>,
    /// Height and width of the images of the training, in pixels. The graph takes others as well.
    pub size: [usize; 2],
    /// Mean and standard deviation of each channel, for values in `[0, 1]`; none if they are not known.
    pub normalization: Option<([f32; 3], [f32; 3])>,
}

/// The network as an ONNX file: input `images`, f32 `[batch, 3, height, width]`, normalised; output `logits`, f32
/// `[batch, classes]`.
///
/// How to prepare an image stands in the file, in words (`doc_string`) and as JSON (`metadata_props`). The same
/// arguments always give the same bytes.
///
/// # Errors
/// [`Error::Checkpoint`] if `tensors` are not the weights of a ResNet-18 under torchvision's names, if there is not one
/// class name per output, or if the file would pass protobuf's limit of 2 GiB.
pub fn to_onnx(tensors: &StateDict, options: &Options) -> Result<Vec<u8>> {
    let refused = |fault: String, remedy: &str| {
        Error::Checkpoint(format!("cannot export the weights in {} to ONNX: {fault}; {remedy}", options.origin))
    };
    let graph = network::resnet(tensors)
        .map_err(|fault| refused(fault, "only a ResNet with torchvision's names can be exported"))?;
    let (outputs, names) = (tensors["fc.bias"].len(), options.classes.len());
    if names != 0 && names != outputs {
        let fault = format!("{names} class names were given for a network of {outputs} classes");
        return Err(refused(fault, "give the data set that the network was trained on"));
    }
    let model = ModelProto {
        ir_version: IR_VERSION,
        producer_name: "kiln".into(),
        producer_version: VERSION.into(),
        doc_string: description(options),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { version: OPSET }],
        metadata_props: metadata(options),
    };
    if model.encoded_len() > LONGEST {
        let fault = format!("the file would have {} bytes, and protobuf ends at {LONGEST}", model.encoded_len());
        return Err(refused(fault, "train with a smaller --width"));
    }
    Ok(model.encode_to_vec())
}

/// How to use the file, for people.
fn description(options: &Options) -> String {
    let [height, width] = options.size;
    let values = match options.normalization {
        Some((mean, std)) => format!("(byte / 255 - mean) / std by channel, mean {mean:?}, std {std:?}"),
        None => "normalised as in training".into(),
    };
    format!(
        "ResNet-18, written by Kiln {VERSION}. 'images': RGB, float32 [batch, 3, height, width], {values}; trained on \
         images of {height}x{width} pixels (height x width). 'logits': float32 [batch, classes], before the softmax."
    )
}

/// The same for programs: `size`, `mean`, `std` and `classes` are JSON. What is not known is left out.
fn metadata(options: &Options) -> Vec<StringStringEntryProto> {
    let mut pairs = vec![("kiln_version", VERSION.to_string()), ("size", format!("{:?}", options.size))];
    if let Some((mean, std)) = options.normalization {
        pairs.extend([("mean", format!("{mean:?}")), ("std", format!("{std:?}"))]);
    }
    if !options.classes.is_empty() {
        pairs.push(("classes", json!(options.classes).to_string()));
    }
    pairs.into_iter().map(|(key, value)| StringStringEntryProto { key: key.into(), value }).collect()
}
