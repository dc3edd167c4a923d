//! Export of a trained ResNet as an ONNX file.
//!
//! `network` derives the graph, in inference mode, from the shapes of the weights, with the layers of `builder` and the
//! messages of [`proto`]. Batch-norms are not folded and constants keep torchvision's names, so that the weights in the
//! file can be compared with others.

mod builder;
mod network;
pub mod proto;

use kiln_data::Normalization;
use kiln_engine::state::StateDict;
use kiln_system::{Error, Result};
use prost::Message;
use serde_json::json;

use self::proto::{GraphProto, ModelProto, OperatorSetIdProto, StringStringEntryProto};
use super::Description;

/// The version of the messages, and of the operators (ONNX 1.12).
const IR_VERSION: i64 = 8;
const OPSET: i64 = 17;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Protobuf's limit, in bytes.
const LONGEST: usize = i32::MAX as usize;

/// Refuses weights that are not a whole ResNet; `origin` is their source in errors, as in `'run/best'`.
///
/// # Errors
/// [`Error::Checkpoint`] if a tensor is missing, unused, or has another shape than the network's.
pub fn check(tensors: &StateDict, origin: &str) -> Result<()> {
    graph(tensors, origin).map(drop)
}

fn graph(tensors: &StateDict, origin: &str) -> Result<GraphProto> {
    network::resnet(tensors).map_err(|fault| {
        Error::Checkpoint(format!(
            "cannot export the weights in {origin}: {fault}; only a whole ResNet with torchvision's names can be exported"
        ))
    })
}

/// The network as an ONNX file: input `images`, f32 `[batch, 3, height, width]`, normalised; output `logits`, f32
/// `[batch, classes]`.
///
/// The file describes the preprocessing of images in words (`doc_string`) and as JSON (`metadata_props`). The same
/// arguments always give the same bytes.
///
/// # Errors
/// Those of [`check`], and [`Error::Checkpoint`] if the file would exceed protobuf's limit of 2 GiB.
pub fn to_onnx(tensors: &StateDict, description: &Description, origin: &str) -> Result<Vec<u8>> {
    let graph = graph(tensors, origin)?;
    let doc_string = in_words(&graph.name, description);
    let model = ModelProto {
        ir_version: IR_VERSION,
        producer_name: "kiln".into(),
        producer_version: VERSION.into(),
        doc_string,
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { version: OPSET }],
        metadata_props: metadata(description, tensors["fc.bias"].len()),
    };
    if model.encoded_len() > LONGEST {
        return Err(Error::Checkpoint(format!(
            "cannot export the weights in {origin} to ONNX: the file would have {} bytes, more than protobuf's limit \
             of {LONGEST}; train with a smaller --width",
            model.encoded_len()
        )));
    }
    Ok(model.encode_to_vec())
}

fn in_words(network: &str, description: &Description) -> String {
    let Description { normalization: Normalization { mean, std }, size, .. } = description;
    format!(
        "{network}, written by Kiln {VERSION}. 'images': RGB, float32 [batch, 3, height, width], (byte / 255 - mean) / \
         std by channel, mean {mean:?}, std {std:?}; trained on images of {size}x{size} pixels (height x width){}. \
         'logits': float32 [batch, classes], before the softmax.",
        description.framing()
    )
}

/// The same for programs, lists as JSON. Names are given only if every one of the `outputs` has one.
fn metadata(description: &Description, outputs: usize) -> Vec<StringStringEntryProto> {
    let Description { classes, normalization: Normalization { mean, std }, size, .. } = description;
    let mut pairs = vec![("kiln_version", VERSION.to_string()), ("size", format!("{:?}", [size; 2]))];
    pairs.extend([("mean", format!("{mean:?}")), ("std", format!("{std:?}"))]);
    pairs.extend([("center_crop", description.center_crop.to_string()), ("exif", description.exif.to_string())]);
    pairs.push(("interpolation", description.interpolation.to_string()));
    if classes.len() == outputs {
        pairs.push(("classes", json!(classes).to_string()));
    }
    pairs.into_iter().map(|(key, value)| StringStringEntryProto { key: key.into(), value }).collect()
}
