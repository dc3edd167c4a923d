//! ONNX files: what stands in them, what they are made of, and that other programs find the same logits.

use std::collections::BTreeSet;
use std::path::Path;

use kiln::weights::Description;
use kiln::weights::onnx::proto::{FLOAT, GraphProto, ModelProto, NodeProto};
use kiln::weights::onnx::to_onnx;
use kiln_data::{Exif, Interpolation, Normalization};
use kiln_engine::state::{HostTensor, StateDict, to_safetensors};
use kiln_system::Error;
use prost::Message;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::python::ask;

/// Tensors of a ResNet-18 but the counts of batches: 20 convolutions, 20 batch-norms of four, a classifier of two.
const CONSTANTS: usize = 20 + 20 * 4 + 2;
/// 20 convolutions, 20 batch-norms, 17 rectifiers, 8 additions, pooling, flattening, the classifier.
const NODES: usize = 20 + 20 + 17 + 8 + 3;

/// Numbers that look random, uniform in `[-1, 1)`: the high bits of a linear congruential generator (Knuth's MMIX).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// The weights of a ResNet-18 of ten classes, written out independently of the export; none is a default value.
fn weights(kernel: usize, width: usize) -> StateDict {
    deep_weights(kernel, width, [2; 4])
}

/// The same with so many blocks in each stage.
fn deep_weights(kernel: usize, width: usize, blocks: [usize; 4]) -> StateDict {
    any_weights(kernel, width, blocks, None)
}

/// The same with bottlenecks, where their groups and the channels of each, per channel of the stage, are given.
fn any_weights(kernel: usize, width: usize, blocks: [usize; 4], groups: Option<[usize; 2]>) -> StateDict {
    let mut state = StateDict::new();
    let mut numbers = Numbers(1);
    let mut add = |name: String, shape: &[usize], centre: f32, spread: f32| {
        let data = (0..shape.iter().product()).map(|_| centre + spread * numbers.next()).collect();
        state.insert(name, HostTensor::F32 { shape: shape.to_vec(), data });
    };
    let mut layer = |conv: String, bn: String, [inputs, outputs]: [usize; 2], kernel: usize| {
        let spread = (3.0 / (inputs * kernel * kernel) as f32).sqrt();
        add(format!("{conv}.weight"), &[outputs, inputs, kernel, kernel], 0.0, spread);
        let parts = [("weight", 1.0, 0.5), ("bias", 0.0, 0.3), ("running_mean", 0.0, 0.3), ("running_var", 1.0, 0.5)];
        for (part, centre, spread) in parts {
            add(format!("{bn}.{part}"), &[outputs], centre, spread);
        }
    };
    layer("conv1".into(), "bn1".into(), [3, width], kernel);
    let mut inputs = width;
    for (stage, channels) in [(1, width), (2, 2 * width), (3, 4 * width), (4, 8 * width)] {
        let outputs = if groups.is_some() { 4 * channels } else { channels };
        for index in 0..blocks[stage - 1] {
            let part = |part: &str| format!("layer{stage}.{index}.{part}");
            if let Some([groups, divisor]) = groups {
                let inner = channels / divisor * groups;
                layer(part("conv1"), part("bn1"), [inputs, inner], 1);
                layer(part("conv2"), part("bn2"), [inner / groups, inner], 3);
                layer(part("conv3"), part("bn3"), [inner, outputs], 1);
            } else {
                layer(part("conv1"), part("bn1"), [inputs, outputs], 3);
                layer(part("conv2"), part("bn2"), [outputs, outputs], 3);
            }
            if inputs != outputs {
                layer(part("downsample.0"), part("downsample.1"), [inputs, outputs], 1);
            }
            inputs = outputs;
        }
    }
    add("fc.weight".into(), &[10, inputs], 0.0, 0.3);
    add("fc.bias".into(), &[10], 0.0, 0.3);
    let count = || HostTensor::I64 { shape: vec![], data: vec![7] };
    let names = state.keys().filter_map(|name| name.strip_suffix("running_mean"));
    let counts: Vec<_> = names.map(|layer| (format!("{layer}num_batches_tracked"), count())).collect();
    state.extend(counts);
    state
}

const ORIGIN: &str = "'run/best'";

fn description() -> Description {
    Description {
        classes: ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "\"truck\""]
            .map(Into::into)
            .into(),
        normalization: Normalization::IMAGENET,
        size: 48,
        center_crop: 0.875,
        exif: Exif::Apply,
        interpolation: Interpolation::Bicubic,
    }
}

fn exported(tensors: &StateDict) -> ModelProto {
    ModelProto::decode(to_onnx(tensors, &description(), ORIGIN).unwrap().as_slice()).unwrap()
}

fn graph(tensors: &StateDict) -> GraphProto {
    exported(tensors).graph.unwrap()
}

/// A node in one line: `name = Operator(inputs) attributes`.
fn line(node: &NodeProto) -> String {
    let settings = node.attribute.iter().map(|a| match a.r#type {
        1 => format!(" {}={:?}", a.name, a.f.unwrap()),
        2 => format!(" {}={}", a.name, a.i.unwrap()),
        7 => format!(" {}={:?}", a.name, a.ints),
        other => panic!("attribute '{}' has the type {other}", a.name),
    });
    let settings: String = settings.collect();
    format!("{} = {}({}){settings}", node.output.join(", "), node.op_type, node.input.join(", "))
}

fn lines(graph: &GraphProto, prefix: &str) -> Vec<String> {
    graph.node.iter().filter(|node| node.name.starts_with(prefix)).map(line).collect()
}

#[test]
fn every_node_of_an_onnx_graph_follows_what_it_reads_and_every_constant_is_read() {
    for (kernel, nodes) in [(3, NODES), (7, NODES + 1)] {
        let tensors = weights(kernel, 4);
        let graph = graph(&tensors);
        assert_eq!((graph.node.len(), graph.initializer.len()), (nodes, CONSTANTS));
        let constants: BTreeSet<&str> = graph.initializer.iter().map(|constant| constant.name.as_str()).collect();
        assert_eq!(constants.len(), CONSTANTS);
        let mut known = constants.clone();
        known.extend(graph.input.iter().map(|input| input.name.as_str()));
        let mut read = BTreeSet::new();
        for node in &graph.node {
            for input in &node.input {
                assert!(known.contains(input.as_str()), "'{}' reads '{input}'", node.name);
                read.insert(input.as_str());
            }
            for output in &node.output {
                assert!(known.insert(output), "'{output}' is written twice");
            }
        }
        assert!(known.contains("logits"));
        known.remove("logits");
        assert_eq!(read, known);
        let names: BTreeSet<&str> = graph.node.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names.len(), nodes);
    }
}

#[test]
fn the_constants_of_an_onnx_graph_are_the_weights_bit_for_bit() {
    let tensors = weights(7, 4);
    for constant in graph(&tensors).initializer {
        let tensor = &tensors[&constant.name];
        let shape: Vec<usize> = constant.dims.iter().map(|axis| *axis as usize).collect();
        assert_eq!((constant.data_type, shape.as_slice()), (FLOAT, tensor.shape()), "{}", constant.name);
        let (numbers, rest) = constant.raw_data.as_chunks::<4>();
        let numbers: Vec<f32> = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!((numbers.as_slice(), rest), (tensor.as_f32().unwrap(), [].as_slice()), "{}", constant.name);
    }
}

#[test]
fn a_block_of_an_onnx_graph_has_the_operators_of_a_basic_block() {
    let graph = graph(&weights(3, 4));
    let norm =
        |name: &str| format!("{name}.weight, {name}.bias, {name}.running_mean, {name}.running_var) epsilon=1e-5");
    let expected = [
        "layer2.0.conv1 = Conv(layer1.1.relu2, layer2.0.conv1.weight) kernel_shape=[3, 3] pads=[1, 1, 1, 1] \
         strides=[2, 2]",
        &format!("layer2.0.bn1 = BatchNormalization(layer2.0.conv1, {}", norm("layer2.0.bn1")),
        "layer2.0.relu1 = Relu(layer2.0.bn1)",
        "layer2.0.conv2 = Conv(layer2.0.relu1, layer2.0.conv2.weight) kernel_shape=[3, 3] pads=[1, 1, 1, 1] \
         strides=[1, 1]",
        &format!("layer2.0.bn2 = BatchNormalization(layer2.0.conv2, {}", norm("layer2.0.bn2")),
        "layer2.0.downsample.0 = Conv(layer1.1.relu2, layer2.0.downsample.0.weight) kernel_shape=[1, 1] \
         pads=[0, 0, 0, 0] strides=[2, 2]",
        &format!("layer2.0.downsample.1 = BatchNormalization(layer2.0.downsample.0, {}", norm("layer2.0.downsample.1")),
        "layer2.0.add = Add(layer2.0.bn2, layer2.0.downsample.1)",
        "layer2.0.relu2 = Relu(layer2.0.add)",
    ];
    assert_eq!(lines(&graph, "layer2.0"), expected);
    assert_eq!(lines(&graph, "layer2.1.add"), ["layer2.1.add = Add(layer2.1.bn2, layer2.0.relu2)"]);
}

#[test]
fn a_bottleneck_of_an_onnx_graph_has_its_stride_and_its_groups_in_the_second_convolution() {
    let graph = graph(&any_weights(7, 16, [3, 4, 6, 3], Some([32, 16])));
    let expected = [
        "layer2.0.conv1 = Conv(layer1.2.relu3, layer2.0.conv1.weight) kernel_shape=[1, 1] pads=[0, 0, 0, 0] \
         strides=[1, 1]",
        "layer2.0.conv2 = Conv(layer2.0.relu1, layer2.0.conv2.weight) group=32 kernel_shape=[3, 3] pads=[1, 1, 1, 1] \
         strides=[2, 2]",
        "layer2.0.conv3 = Conv(layer2.0.relu2, layer2.0.conv3.weight) kernel_shape=[1, 1] pads=[0, 0, 0, 0] \
         strides=[1, 1]",
    ];
    assert_eq!(lines(&graph, "layer2.0.conv"), expected);
    assert_eq!(graph.name, "resnext50_32x4d");
}

#[test]
fn the_ends_of_an_onnx_graph_follow_the_stem_and_the_classes() {
    let [cifar, imagenet] = [3, 7].map(|kernel| graph(&weights(kernel, 4)));
    let stem =
        |graph: &GraphProto| [lines(graph, "conv1"), lines(graph, "maxpool"), lines(graph, "layer1.0.conv1")].concat();
    let window = |kernel: usize, stride: usize| {
        let padding = kernel / 2;
        format!("kernel_shape={:?} pads={:?} strides={:?}", [kernel; 2], [padding; 4], [stride; 2])
    };
    let conv = |name: &str, x: &str, window: String| format!("{name} = Conv({x}, {name}.weight) {window}");
    let expected = [conv("conv1", "images", window(3, 1)), conv("layer1.0.conv1", "relu", window(3, 1))];
    assert_eq!(stem(&cifar), expected);
    let pool = format!("maxpool = MaxPool(relu) {}", window(3, 2));
    let expected = [conv("conv1", "images", window(7, 2)), pool, conv("layer1.0.conv1", "maxpool", window(3, 1))];
    assert_eq!(stem(&imagenet), expected);
    let end: Vec<String> = cifar.node[NODES - 3..].iter().map(line).collect();
    let expected = [
        "avgpool = GlobalAveragePool(layer4.1.relu2)",
        "flatten = Flatten(avgpool) axis=1",
        "logits = Gemm(flatten, fc.weight, fc.bias) transB=1",
    ];
    assert_eq!(end, expected);
    let axes = |value: &kiln::weights::onnx::proto::ValueInfoProto| -> Vec<String> {
        let tensor = value.r#type.clone().unwrap().tensor_type.unwrap();
        assert_eq!(tensor.elem_type, FLOAT);
        let axes = tensor.shape.unwrap().dim.into_iter();
        axes.map(|axis| axis.param.unwrap_or_else(|| axis.value.unwrap().to_string())).collect()
    };
    assert_eq!(axes(&cifar.input[0]), ["batch", "3", "height", "width"]);
    assert_eq!(axes(&cifar.output[0]), ["batch", "10"]);
}

#[test]
fn an_onnx_file_says_how_to_prepare_an_image() {
    let model = exported(&weights(3, 4));
    let says: Vec<(&str, &str)> = model.metadata_props.iter().map(|p| (p.key.as_str(), p.value.as_str())).collect();
    let version = env!("CARGO_PKG_VERSION");
    let expected = [
        ("kiln_version", version),
        ("size", "[48, 48]"),
        ("mean", "[0.485, 0.456, 0.406]"),
        ("std", "[0.229, 0.224, 0.225]"),
        ("center_crop", "0.875"),
        ("exif", "apply"),
        ("interpolation", "bicubic"),
        ("classes", r#"["plane","car","bird","cat","deer","dog","frog","horse","ship","\"truck\""]"#),
    ];
    assert_eq!(says, expected);
    for part in [
        "(byte / 255 - mean) / std",
        "mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225]",
        "48x48",
        "87.5 %",
        "resized by bicubic interpolation",
        version,
    ] {
        assert!(model.doc_string.contains(part), "'{part}' is not in '{}'", model.doc_string);
    }
    assert_eq!((model.ir_version, model.opset_import[0].version), (8, 17));

    // Names of some outputs only would shift under those of others.
    let unnamed = Description { classes: vec!["cat".into()], ..description() };
    let model = ModelProto::decode(to_onnx(&weights(3, 4), &unnamed, ORIGIN).unwrap().as_slice()).unwrap();
    assert!(model.metadata_props.iter().all(|pair| pair.key != "classes"));
}

#[test]
fn counts_of_batches_leave_no_trace_in_an_onnx_file() {
    let tensors = weights(3, 4);
    let mut uncounted = tensors.clone();
    uncounted.retain(|name, _| !name.ends_with("num_batches_tracked"));
    assert_eq!(tensors.len() - uncounted.len(), 20);
    assert!(to_onnx(&tensors, &description(), ORIGIN).unwrap() == to_onnx(&uncounted, &description(), ORIGIN).unwrap());
}

/// The one line with which the export refuses a dictionary that `change` made of a good one.
#[track_caller]
fn refusal(change: impl FnOnce(&mut StateDict)) -> String {
    let mut tensors = weights(3, 4);
    change(&mut tensors);
    let Err(Error::Checkpoint(line)) = to_onnx(&tensors, &description(), ORIGIN) else { panic!("it is not refused") };
    assert_eq!(line.lines().count(), 1);
    let line = line.strip_prefix("cannot export the weights in 'run/best': ").expect("it names the weights");
    line.strip_suffix("; only a whole ResNet with torchvision's names can be exported")
        .expect("it names the rule")
        .into()
}

fn zeros(shape: &[usize]) -> HostTensor {
    HostTensor::F32 { shape: shape.to_vec(), data: vec![0.0; shape.iter().product()] }
}

#[test]
fn a_dictionary_that_lacks_any_tensor_is_not_exported() {
    for name in weights(3, 4).into_keys().filter(|name| !name.ends_with("num_batches_tracked")) {
        assert_eq!(refusal(|tensors| drop(tensors.remove(&name))), format!("'{name}' is missing"));
    }
}

#[test]
fn a_dictionary_with_a_tensor_of_another_shape_is_not_exported() {
    let cases: [(&str, &[usize], &str); 9] = [
        ("conv1.weight", &[4, 3, 5, 5], "[width, 3, 3, 3] or [width, 3, 7, 7]"),
        ("conv1.weight", &[4, 1, 3, 3], "[width, 3, 3, 3] or [width, 3, 7, 7]"),
        ("conv1.weight", &[4, 3, 3, 7], "[width, 3, 3, 3] or [width, 3, 7, 7]"),
        ("conv1.weight", &[0, 3, 3, 3], "[width, 3, 3, 3] or [width, 3, 7, 7]"),
        ("layer3.0.conv1.weight", &[16, 8, 1, 1], "[16, 8, 3, 3]"),
        ("layer4.1.bn2.running_var", &[16], "[32]"),
        ("fc.weight", &[32], "[classes, features]"),
        ("fc.weight", &[0, 32], "[classes, features]"),
        ("fc.weight", &[32, 10], "[32, 32]"),
    ];
    for (name, shape, due) in cases {
        let line = refusal(|tensors| drop(tensors.insert(name.into(), zeros(shape))));
        assert_eq!(line, format!("'{name}' has shape {shape:?}, expected {due}"));
    }
}

#[test]
fn a_dictionary_with_more_than_the_network_has_is_not_exported() {
    for name in ["layer1.0.downsample.0.weight", "conv1.num_batches_tracked", "epoch"] {
        let line = refusal(|tensors| drop(tensors.insert(name.into(), zeros(&[4]))));
        assert_eq!(line, format!("'{name}' is unknown"));
    }
    // Half of a block more.
    let line = refusal(|tensors| drop(tensors.insert("layer1.2.conv1.weight".into(), zeros(&[4, 4, 3, 3]))));
    assert_eq!(line, "'layer1.2.bn1.weight' is missing");
    assert_eq!(refusal(|tensors| drop(tensors.insert("two\nlines".into(), zeros(&[4])))), "'two\\nlines' is unknown");
}

#[test]
fn integers_are_no_weights_of_an_onnx_file() {
    let line = refusal(|tensors| {
        tensors.insert("fc.bias".into(), HostTensor::I64 { shape: vec![10], data: vec![0; 10] });
    });
    assert_eq!(line, "'fc.bias' holds integers");
}

/// What onnxruntime makes of the files of a directory, and how far that is from PyTorch; `None` where they are not
/// installed.
fn run_by_onnxruntime(directory: &Path) -> Option<Value> {
    Some(serde_json::from_str(&ask("onnx, onnxruntime, torch", "weights/run_onnx.py", &[directory])?).unwrap())
}

#[test]
fn onnxruntime_finds_the_logits_of_pytorch() {
    let directory = tempdir().unwrap();
    const DEEP: [usize; 4] = [3, 4, 6, 3];
    let networks = [("cifar", 3, 16, [2; 4], None), ("deep", 3, 16, DEEP, None), ("imagenet", 7, 16, [2; 4], None)];
    let bottlenecks = [("bottlenecks", 3, 16, DEEP, Some([1, 1])), ("groups", 7, 16, DEEP, Some([32, 16]))];
    let networks = networks.into_iter().chain([("wide", 7, 64, [2; 4], None)]).chain(bottlenecks);
    for (name, kernel, width, blocks, groups) in networks {
        let tensors = any_weights(kernel, width, blocks, groups);
        let path = directory.path().join(name);
        std::fs::write(path.with_extension("onnx"), to_onnx(&tensors, &description(), ORIGIN).unwrap()).unwrap();
        std::fs::write(path.with_extension("safetensors"), to_safetensors(&tensors, &[])).unwrap();
    }
    let Some(found) = run_by_onnxruntime(directory.path()) else { return };
    assert_eq!(
        found.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["bottlenecks", "cifar", "deep", "groups", "imagenet", "wide"]
    );
    for (name, found) in found.as_object().unwrap() {
        let runs = found["runs"].as_array().unwrap();
        let shapes: Vec<&Value> = runs.iter().map(|run| &run["shape"]).collect();
        assert_eq!(shapes, [&json!([1, 10]), &json!([1, 10]), &json!([5, 10]), &json!([5, 10])]);
        for run in runs {
            assert!(run["error"].as_f64().unwrap() <= 1e-4, "{name}: {run}");
            assert!(run["scale"].as_f64().unwrap() > 0.1, "{name}: the logits say nothing: {run}");
        }
        let ends = json!({
            "images": ["tensor(float)", ["batch", 3, "height", "width"]],
            "logits": ["tensor(float)", ["batch", 10]],
        });
        assert_eq!(found["ends"], ends);
        let classes: Vec<String> = serde_json::from_str(found["metadata"]["classes"].as_str().unwrap()).unwrap();
        assert_eq!(classes, description().classes);
    }
}
