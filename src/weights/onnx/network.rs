//! A ResNet in inference mode as an ONNX graph: the network of `model/resnet.rs`, derived from the shapes of its
//! weights.
//!
//! The first convolution determines the stem by its kernel and the width by its outputs, the classifier the classes.

use kiln_data::CHANNELS;
use kiln_engine::state::StateDict;
use kiln_training::{Architecture, Bottleneck};

use super::builder::{Builder, Window};
use super::proto::{
    AttributeProto, Dimension, FLOAT, GraphProto, TensorShapeProto, TensorType, TypeProto, ValueInfoProto,
};

/// Images `[batch, 3, height, width]`, of any such size, to logits `[batch, classes]`.
pub(crate) fn resnet(tensors: &StateDict) -> Result<GraphProto, String> {
    let mut builder = Builder::new(tensors);
    let classes = match *builder.find("fc.weight")?.shape() {
        [classes @ (1..), _] => classes,
        ref shape => return Err(format!("'fc.weight' has shape {shape:?}, expected [classes, features]")),
    };
    let (width, kernel) = match *builder.find("conv1.weight")?.shape() {
        [width @ (1..), CHANNELS, height @ (3 | 7), kernel] if height == kernel => (width, kernel),
        ref shape => {
            return Err(format!("'conv1.weight' has shape {shape:?}, expected [width, 3, 3, 3] or [width, 3, 7, 7]"));
        }
    };
    let pooled = kernel == 7;
    let window = Window { kernel, stride: if pooled { 2 } else { 1 }, groups: 1 };
    let mut x = builder.conv("conv1", "images", [CHANNELS, width], window)?;
    x = builder.batch_norm("bn1", &x, width)?;
    x = builder.node("Relu", "relu", &[&x], vec![]);
    if pooled {
        let window = Window { kernel: 3, stride: 2, groups: 1 };
        x = builder.node("MaxPool", "maxpool", &[&x], window.attributes());
    }
    let mut inputs = width;
    let architecture = Architecture::of_state(tensors);
    for (stage, blocks) in architecture.blocks.into_iter().enumerate() {
        let outputs = (width << stage) * architecture.expansion();
        for index in 0..blocks {
            let stride = if stage > 0 && index == 0 { 2 } else { 1 };
            let name = format!("layer{}.{index}", stage + 1);
            x = block(&mut builder, &name, &x, [inputs, outputs], stride, architecture.bottleneck)?;
            inputs = outputs;
        }
    }
    x = builder.node("GlobalAveragePool", "avgpool", &[&x], vec![]);
    x = builder.node("Flatten", "flatten", &[&x], vec![AttributeProto::int("axis", 1)]);
    let weight = builder.constant("fc.weight".into(), &[classes, inputs])?;
    let bias = builder.constant("fc.bias".into(), &[classes])?;
    builder.push("Gemm", "fc", &[&x, &weight, &bias], "logits", vec![AttributeProto::int("transB", 1)]);
    if let Some(name) = builder.left_over() {
        return Err(format!("'{}' is unknown", name.escape_debug()));
    }
    let any = |name: &str| Dimension { value: None, param: Some(name.into()) };
    let fixed = |length: usize| Dimension { value: Some(length as i64), param: None };
    let images = vec![any("batch"), fixed(CHANNELS), any("height"), any("width")];
    let logits = vec![any("batch"), fixed(classes)];
    Ok(GraphProto {
        node: builder.nodes,
        name: architecture.torchvision_name(),
        initializer: builder.constants,
        input: vec![value("images", "RGB images, normalised as in training", images)],
        output: vec![value("logits", "one score per class, before the softmax", logits)],
    })
}

/// Two 3x3 convolutions or a bottleneck, with a residual connection, projected if input and output differ in shape.
fn block(
    builder: &mut Builder,
    name: &str,
    x: &str,
    channels: [usize; 2],
    stride: usize,
    bottleneck: Option<Bottleneck>,
) -> Result<String, String> {
    let part = |part: &str| format!("{name}.{part}");
    let [inputs, outputs] = channels;
    let window = |kernel, stride, groups| Window { kernel, stride, groups };
    let convolutions = match bottleneck {
        None => vec![(channels, window(3, stride, 1)), ([outputs; 2], window(3, 1, 1))],
        Some(bottleneck) => {
            let inner = bottleneck.inner(outputs / Bottleneck::EXPANSION);
            let spatial = window(3, stride, bottleneck.groups);
            vec![([inputs, inner], window(1, 1, 1)), ([inner; 2], spatial), ([inner, outputs], window(1, 1, 1))]
        }
    };
    let mut y = x.to_string();
    for (number, (channels, window)) in (1..).zip(convolutions) {
        if number > 1 {
            y = builder.node("Relu", &part(&format!("relu{}", number - 1)), &[&y], vec![]);
        }
        y = builder.conv(&part(&format!("conv{number}")), &y, channels, window)?;
        y = builder.batch_norm(&part(&format!("bn{number}")), &y, channels[1])?;
    }
    let mut shortcut = x.to_string();
    if inputs != outputs {
        shortcut = builder.conv(&part("downsample.0"), x, channels, window(1, stride, 1))?;
        shortcut = builder.batch_norm(&part("downsample.1"), &shortcut, outputs)?;
    }
    y = builder.node("Add", &part("add"), &[&y, &shortcut], vec![]);
    let last = if bottleneck.is_some() { "relu3" } else { "relu2" };
    Ok(builder.node("Relu", &part(last), &[&y], vec![]))
}

fn value(name: &str, doc_string: &str, dim: Vec<Dimension>) -> ValueInfoProto {
    let tensor_type = TensorType { elem_type: FLOAT, shape: Some(TensorShapeProto { dim }) };
    let r#type = Some(TypeProto { tensor_type: Some(tensor_type) });
    ValueInfoProto { name: name.into(), r#type, doc_string: doc_string.into() }
}
