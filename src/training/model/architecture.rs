//! What kind of ResNet: its blocks, its names, the work of its parts. Knows no width and no stem.

use std::fmt;

use kiln_engine::state::StateDict;

/// A block of three convolutions, 1x1, 3x3 and 1x1, whose output has four times the channels of its stage (He et al.,
/// 2015, figure 5). The 3x3 one has the stride, and groups (Xie et al., 2017).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bottleneck {
    /// Groups of the 3x3 convolution.
    pub groups: usize,
    /// Channels of a group in the first stage of a network of width 64.
    pub width_per_group: usize,
}

impl Bottleneck {
    /// Channels of the output per channel of the stage.
    pub const EXPANSION: usize = 4;
    /// That of ResNet-50, 101 and 152.
    pub const PLAIN: Self = Self { groups: 1, width_per_group: BASE };

    /// Inputs and outputs of the 3x3 convolution in a stage of `channels` channels.
    pub fn inner(self, channels: usize) -> usize {
        channels * self.width_per_group / BASE * self.groups
    }
}

/// The width that [`Bottleneck::width_per_group`] refers to.
const BASE: usize = 64;

/// Blocks by stage, and whether they are bottlenecks (He et al., 2015, table 1).
const TABLE: [([usize; 4], bool); 5] =
    [([2; 4], false), ([3, 4, 6, 3], false), ([3, 4, 6, 3], true), ([3, 4, 23, 3], true), ([3, 8, 36, 3], true)];

/// The number of blocks in each of the four stages, and their kind. Its text is its usual name, as in
/// `ResNeXt-50 32x4d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architecture {
    /// Blocks by stage, each at least 1.
    pub blocks: [usize; 4],
    /// `None` for blocks of two 3x3 convolutions.
    pub bottleneck: Option<Bottleneck>,
}

impl Architecture {
    pub const RESNET18: Self = Self { blocks: TABLE[0].0, bottleneck: None };

    /// The network of `depth` layers, with this bottleneck from 50 layers on; `None` if the paper has no such depth.
    pub fn of_depth(depth: usize, bottleneck: Bottleneck) -> Option<Self> {
        let all = TABLE.map(|(blocks, deep)| Self { blocks, bottleneck: deep.then_some(bottleneck) });
        all.into_iter().find(|it| it.depth() == depth)
    }

    /// The architecture of tensors with torchvision's names.
    pub fn of_state(state: &StateDict) -> Self {
        let count = |stage: usize| {
            let prefix = format!("layer{stage}.");
            let block = |name: &String| name.strip_prefix(&prefix)?.split('.').next()?.parse::<u16>().ok();
            state.keys().filter_map(block).max().map_or(0, |last| usize::from(last) + 1)
        };
        let shape = |name: &str| state.get(name).map(|tensor| tensor.shape()).unwrap_or_default();
        let bottleneck = || match (shape("layer1.0.conv2.weight"), shape("conv1.weight")) {
            (&[inner, in_group @ (1..), 3, 3], &[width @ (1..), ..]) => {
                let [groups, width_per_group] = [inner / in_group, BASE * in_group / width].map(|it| it.max(1));
                Bottleneck { groups, width_per_group }
            }
            _ => Bottleneck::PLAIN,
        };
        let blocks = [1, 2, 3, 4].map(count);
        Self { blocks, bottleneck: state.contains_key("layer1.0.conv3.weight").then(bottleneck) }
    }

    /// Layers with weights, projections not counted.
    pub fn depth(self) -> usize {
        let layers = if self.bottleneck.is_some() { 3 } else { 2 };
        2 + layers * self.blocks.iter().sum::<usize>()
    }

    /// Channels of a block's output per channel of its stage.
    pub fn expansion(self) -> usize {
        if self.bottleneck.is_some() { Bottleneck::EXPANSION } else { 1 }
    }

    /// The name by torchvision's pattern, as in `resnext50_32x4d`.
    pub fn torchvision_name(self) -> String {
        self.to_string().to_lowercase().replacen('-', "", 1).replace([' ', '-'], "_")
    }

    /// The flags of `train` that choose it.
    pub fn flags(self) -> String {
        let depth = format!("--depth {}", self.depth());
        match self.bottleneck {
            None | Some(Bottleneck::PLAIN) => depth,
            Some(Bottleneck { groups, width_per_group }) => {
                format!("{depth} --groups {groups} --width-per-group {width_per_group}")
            }
        }
    }

    /// The units of a forward pass: the stem, each block, the classifier. Each has its layers, by torchvision's names,
    /// and its work, in 3x3 convolutions of stride 1 from and to the channels of its stage. These cost the same in
    /// every stage: a later stage has twice the channels and a quarter of the pixels. The work of the stem and the
    /// classifier is small and depends on the images.
    pub fn units(self) -> Vec<(Vec<String>, f64)> {
        let block = |stage: usize, block: usize| (vec![format!("layer{}.{block}", stage + 1)], self.work(stage, block));
        let blocks = (0..4).flat_map(|stage| (0..self.blocks[stage]).map(move |number| block(stage, number)));
        let (stem, classifier) = ((vec!["conv1".into(), "bn1".into()], 0.25), (vec!["fc".into()], 0.05));
        std::iter::once(stem).chain(blocks).chain([classifier]).collect()
    }

    fn work(self, stage: usize, block: usize) -> f64 {
        let Some(bottleneck) = self.bottleneck else { return if stage > 0 && block == 0 { 1.5 } else { 2.0 } };
        let (groups, inner) = (bottleneck.groups as f64, bottleneck.inner(BASE) as f64 / BASE as f64);
        // Input channels and pixels, in those of the stage.
        let (inputs, pixels) = match (stage, block) {
            (0, 0) => (1.0, 1.0),
            (_, 0) => (2.0, 4.0),
            _ => (4.0, 1.0),
        };
        let projection = if block == 0 { 4.0 * inputs } else { 0.0 };
        (inputs * pixels * inner + 9.0 * inner * inner / groups + 4.0 * inner + projection) / 9.0
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let depth = self.depth();
        match self.bottleneck {
            None | Some(Bottleneck::PLAIN) => write!(f, "ResNet-{depth}"),
            Some(Bottleneck { groups: 1, width_per_group }) if width_per_group.is_multiple_of(BASE) => {
                write!(f, "Wide ResNet-{depth}-{}", width_per_group / BASE)
            }
            Some(Bottleneck { groups, width_per_group }) => write!(f, "ResNeXt-{depth} {groups}x{width_per_group}d"),
        }
    }
}
