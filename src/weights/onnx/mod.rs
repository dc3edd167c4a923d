//! Export of a trained ResNet as an ONNX file.
//!
//! `network` derives the graph, in inference mode, from the shapes of the weights, with the layers of `builder` and the
//! messages of [`proto`]. Batch-norms are not folded and constants keep torchvision's names, so that the weights in the
//! file can be compared with others.

mod builder;
mod network;
pub mod proto;

use prost::Message;
use serde_json::json;

use self::proto::{ModelProto, OperatorSetIdProto, StringStringEntryProto};
use crate::error::{Error, Result};
use crate::state::StateDict;

/// The version of the messages, and of the operators (ONNX 1.12).
const IR_VERSION: i64 = 8;
const OPSET: i64 = 17;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Protobuf's limit, in bytes.
const LONGEST: usize = i32::MAX as usize;

/// The metadata of a file.
#[derive(Debug, Clone)]
pub struct Options {
    /// The source of the weights in errors, as in `'run/best'`.
    pub origin: String,
    /// The names of the classes, by label; empty if unknown.
    pub classes: Vec<String>,
    /// Height and width of the training images, in pixels; the graph accepts other sizes too.
    pub size: [usize; 2],
    /// Mean and standard deviation of each channel, for values in `[0, 1]`; `None` if unknown.
    pub normalization: Option<([f32; 3], [f32; 3])>,
}

/// The network as an ONNX file: input `images`, f32 `[batch, 3, height, width]`, normalised; output `logits`, f32
/// `[batch, classes]`.
///
/// The file describes the preprocessing of images in words (`doc_string`) and as JSON (`metadata_props`). The same
/// arguments always give the same bytes.
///
/// # Errors
/// [`Error::Checkpoint`] if `tensors` are not the weights of a ResNet with torchvision's names, if there is not one
/// class name per output, or if the file would exceed protobuf's limit of 2 GiB.
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
    let doc_string = description(&graph.name, options);
    let model = ModelProto {
        ir_version: IR_VERSION,
        producer_name: "kiln".into(),
        producer_version: VERSION.into(),
        doc_string,
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

fn description(network: &str, options: &Options) -> String {
    let [height, width] = options.size;
    let values = match options.normalization {
        Some((mean, std)) => format!("(byte / 255 - mean) / std by channel, mean {mean:?}, std {std:?}"),
        None => "normalised as in training".into(),
    };
    format!(
        "{network}, written by Kiln {VERSION}. 'images': RGB, float32 [batch, 3, height, width], {values}; trained on \
         images of {height}x{width} pixels (height x width). 'logits': float32 [batch, classes], before the softmax."
    )
}

/// The same for programs: `size`, `mean`, `std` and `classes` as JSON, if known.
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
