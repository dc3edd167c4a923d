//! Layers as ONNX nodes; every function takes the name of its input value and returns the name of its result.
//!
//! A node's result has the node's name, except the classifier's; a constant has the name of its tensor in torchvision.
//! Every tensor is taken from the state dictionary under its full name and must have the expected shape. An error says
//! why the dictionary is not a ResNet, as a clause.

use std::collections::BTreeSet;

use kiln_engine::state::{HostTensor, StateDict};

use super::proto::{AttributeProto, FLOAT, NodeProto, TensorProto};

const EPSILON: f32 = 1e-5;

/// A square window with a stride, padded by half its size, so that stride 1 keeps the size of a map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Side, in pixels; odd.
    pub kernel: usize,
    /// Step, in pixels.
    pub stride: usize,
    /// Groups of channels of a convolution.
    pub groups: usize,
}

impl Window {
    pub(crate) fn attributes(self) -> Vec<AttributeProto> {
        let [kernel, stride, groups] = [self.kernel, self.stride, self.groups].map(|number| number as i64);
        let groups = (groups > 1).then(|| AttributeProto::int("group", groups));
        let sides = [
            AttributeProto::ints("kernel_shape", &[kernel; 2]),
            AttributeProto::ints("pads", &[kernel / 2; 4]),
            AttributeProto::ints("strides", &[stride; 2]),
        ];
        groups.into_iter().chain(sides).collect()
    }
}

/// An unfinished graph, and the dictionary of its constants.
pub(crate) struct Builder<'a> {
    tensors: &'a StateDict,
    /// The operations so far, in forward order.
    pub nodes: Vec<NodeProto>,
    /// The constants so far, in the order of their use.
    pub constants: Vec<TensorProto>,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(tensors: &'a StateDict) -> Self {
        Self { tensors, nodes: Vec::new(), constants: Vec::new() }
    }

    pub(crate) fn find(&self, name: &str) -> Result<&'a HostTensor, String> {
        self.tensors.get(name).ok_or_else(|| format!("'{name}' is missing"))
    }

    /// A convolution without bias, from `inputs` to `outputs` channels.
    pub(crate) fn conv(&mut self, name: &str, x: &str, channels: [usize; 2], window: Window) -> Result<String, String> {
        let [inputs, outputs] = channels;
        let shape = [outputs, inputs / window.groups, window.kernel, window.kernel];
        let weight = self.constant(format!("{name}.weight"), &shape)?;
        Ok(self.node("Conv", name, &[x, &weight], window.attributes()))
    }

    /// Batch normalisation with running statistics.
    pub(crate) fn batch_norm(&mut self, name: &str, x: &str, channels: usize) -> Result<String, String> {
        let mut inputs = vec![x.to_string()];
        for part in ["weight", "bias", "running_mean", "running_var"] {
            inputs.push(self.constant(format!("{name}.{part}"), &[channels])?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        Ok(self.node("BatchNormalization", name, &inputs, vec![AttributeProto::float("epsilon", EPSILON)]))
    }

    /// Any operation with one result, which has the node's name.
    pub(crate) fn node(
        &mut self,
        op_type: &str,
        name: &str,
        inputs: &[&str],
        attribute: Vec<AttributeProto>,
    ) -> String {
        self.push(op_type, name, inputs, name, attribute);
        name.into()
    }

    /// The first tensor of the dictionary that is not in the graph, except counts of batches, which only training uses.
    pub(crate) fn left_over(&self) -> Option<&'a str> {
        let used: BTreeSet<&str> = self.constants.iter().map(|constant| constant.name.as_str()).collect();
        let counted = |name: &str| {
            let layer = name.strip_suffix(".num_batches_tracked");
            layer.is_some_and(|layer| used.contains(format!("{layer}.running_var").as_str()))
        };
        self.tensors.keys().map(String::as_str).find(|name| !used.contains(name) && !counted(name))
    }

    pub(crate) fn push(
        &mut self,
        op_type: &str,
        name: &str,
        inputs: &[&str],
        result: &str,
        attribute: Vec<AttributeProto>,
    ) {
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|input| input.to_string()).collect(),
            output: vec![result.into()],
            name: name.into(),
            op_type: op_type.into(),
            attribute,
        });
    }

    /// The tensor `name`, which must have `shape`, as a constant.
    pub(crate) fn constant(&mut self, name: String, shape: &[usize]) -> Result<String, String> {
        let tensor = self.find(&name)?;
        if tensor.shape() != shape {
            return Err(format!("'{name}' has shape {:?}, expected {shape:?}", tensor.shape()));
        }
        tensor.as_f32().ok_or_else(|| format!("'{name}' holds integers"))?;
        self.constants.push(TensorProto {
            dims: shape.iter().map(|axis| *axis as i64).collect(),
            data_type: FLOAT,
            name: name.clone(),
            raw_data: tensor.bytes().to_vec(),
        });
        Ok(name)
    }
}
