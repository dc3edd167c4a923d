//! The networks that torchvision has: sizes, names and the work of their parts.

use burn::backend::Flex;
use kiln_engine::nn::state_dict;
use kiln_training::{Architecture, Bottleneck, ModelConfig, ResNet, Stem, activation_elements, count_parameters};

/// Depth, groups, channels of a group; parameters in torchvision, in millions; both names.
const NETWORKS: [([usize; 3], f64, &str, &str); 10] = [
    ([18, 1, 64], 11.69, "ResNet-18", "resnet18"),
    ([34, 1, 64], 21.80, "ResNet-34", "resnet34"),
    ([50, 1, 64], 25.56, "ResNet-50", "resnet50"),
    ([101, 1, 64], 44.55, "ResNet-101", "resnet101"),
    ([152, 1, 64], 60.19, "ResNet-152", "resnet152"),
    ([50, 1, 128], 68.88, "Wide ResNet-50-2", "wide_resnet50_2"),
    ([101, 1, 128], 126.89, "Wide ResNet-101-2", "wide_resnet101_2"),
    ([50, 32, 4], 25.03, "ResNeXt-50 32x4d", "resnext50_32x4d"),
    ([101, 32, 8], 88.79, "ResNeXt-101 32x8d", "resnext101_32x8d"),
    ([101, 64, 4], 83.46, "ResNeXt-101 64x4d", "resnext101_64x4d"),
];

fn config([depth, groups, width_per_group]: [usize; 3]) -> ModelConfig {
    ModelConfig { stem: Stem::Imagenet, depth, groups, width_per_group, ..ModelConfig::default() }
}

#[test]
fn every_network_has_the_parameters_and_the_name_of_torchvision() {
    for (about, millions, name, theirs) in NETWORKS {
        let config = config(about);
        let model = ResNet::<Flex>::new(&config, 1000, 0.0, &Default::default());
        let count = count_parameters(&model);
        assert!((count.all as f64 / 1e6 - millions).abs() < 0.005, "{name}: {count:?}");
        let architecture = config.architecture();
        assert_eq!((architecture.to_string().as_str(), architecture.torchvision_name().as_str()), (name, theirs));
        assert!(kiln::weights::torchvision::file_of(theirs).unwrap().starts_with(&format!("{theirs}-")));
        let units = architecture.units();
        assert_eq!((units.len(), architecture.depth()), (model.units(), about[0]));
    }
    assert_eq!(kiln::weights::torchvision::file_of("resnet"), None);
    assert_eq!(config([50, 3, 20]).architecture().to_string(), "ResNeXt-50 3x20d");
}

/// Multiplications of each block, from the shapes of its kernels and the pixels of their outputs.
#[test]
fn the_work_of_a_bottleneck_is_that_of_its_convolutions() {
    for about in [[50, 1, 64], [101, 32, 8], [50, 1, 128], [50, 4, 16]] {
        let config = ModelConfig { width: 16, ..config(about) };
        let state = state_dict(&ResNet::<Flex>::new(&config, 10, 0.0, &Default::default()));
        assert_eq!(Architecture::of_state(&state), config.architecture());
        // A 3x3 convolution from and to 16 channels on the 32x32 pixels of the first stage.
        let one = (9 * 16 * 16 * 32 * 32) as f64;
        for (layers, work) in config.architecture().units() {
            let Some((stage, block)) = layers[0].strip_prefix("layer").and_then(|it| it.split_once('.')) else {
                continue;
            };
            let side = 64 >> stage.parse::<usize>().unwrap();
            let own =
                state.iter().filter(|(name, it)| name.starts_with(&format!("{}.", layers[0])) && it.shape().len() == 4);
            let products = own.map(|(name, it)| {
                let is_before = name.ends_with(".conv1.weight") && block == "0" && stage != "1";
                let side = if is_before { 2 * side } else { side };
                (it.shape().iter().product::<usize>() * side * side) as f64
            });
            let products: f64 = products.sum();
            assert!((products / one - work).abs() < 1e-9, "{about:?} {}: {} not {work}", layers[0], products / one);
        }
    }
}

/// By hand, for images of 8x8 pixels.
#[test]
fn activations_of_bottlenecks_are_counted_by_map() {
    let config = ModelConfig { stem: Stem::Cifar, width: 16, ..config([50, 32, 4]) };
    let elements = activation_elements(&config, [8, 8]);
    assert_eq!(elements.len(), 18);
    // Channels within a block: 32 in the first stage, 64 in the second; outputs of 64 and 128 channels.
    assert_eq!(elements[1], [(2 * 32 + 2 * 32 + 3 * 64) * 64, 64 * 64]);
    assert_eq!(elements[2], [(2 * 32 + 2 * 32 + 2 * 64) * 64, 64 * 64]);
    assert_eq!(elements[4], [2 * 64 * 64 + (2 * 64 + 3 * 128) * 16, 128 * 16]);
    assert_eq!(Bottleneck { groups: 32, width_per_group: 4 }.inner(32), 64);
}
