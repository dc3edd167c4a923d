//! `train export`: writes the weights of a trained model for other programs.

use std::path::Path;

use kiln_engine::checkpoint::Which;
use kiln_engine::checkpoint::{check_writable, write_atomic};
use kiln_system::{Error, Result, shown};
use kiln_training::{ModelConfig, Stem};

use crate::config::ProgressKind;
use crate::trainer::loading::Notice;
use crate::trainer::model_file::ModelFile;
use crate::trainer::terminal::say;
use crate::weights::torchvision::file_of;
use crate::weights::{Format, Stated, onnx};

/// Writes the model in `path` (of a run, its checkpoint `which`) to the file `output`; with `averaged`, its averaged
/// weights if there are any. What is `given` about images and classes counts more than what the file says.
pub fn export(
    path: &Path,
    which: Option<Which>,
    to: Format,
    output: &Path,
    averaged: bool,
    given: Stated,
) -> Result<()> {
    let file = ModelFile::read(path, which, averaged)?;
    onnx::check(&file.tensors, &file.origin)?;
    let description = &file.describe(given)?;
    check_writable(output).map_err(|error| Error::usage(format!("{error}; give another --output")))?;
    let notice = Notice::new(ProgressKind::Auto, || format!("writing     {}", shown(output)));
    let bytes = to.encode(&file.tensors, description, &file.origin)?;
    write_atomic(output, &bytes)?;
    drop(notice);
    say(&format!("weights     {}", file.title));
    say(&format!("written     {} ({:.1} MB)", shown(output), bytes.len() as f64 / 1e6));
    let [mean, std] = [description.normalization.mean, description.normalization.std];
    let size = description.size;
    let framing = description.framing();
    say(&format!("images      RGB in 0..1, {size}x{size}{framing}, minus {mean:?}, divided by {std:?}"));
    if to != Format::Onnx {
        say(&torchvision(&file));
    }
    Ok(())
}

/// How torchvision's network is made that the weights fit.
fn torchvision(ModelFile { model, outputs, .. }: &ModelFile) -> String {
    let (architecture, depth, width) = (model.architecture(), model.depth, model.width);
    if width != ModelConfig::default().width || architecture.depth() != depth {
        return format!("torchvision has no network for these weights (ResNet-{depth}, width {width})");
    }
    let (name, mut blocks) = (architecture.torchvision_name(), String::new());
    let name = if file_of(&name).is_some() {
        name
    } else {
        blocks = format!("groups={}, width_per_group={}, ", model.groups, model.width_per_group);
        format!("resnet{depth}")
    };
    let mut lines = vec![format!("torchvision model = torchvision.models.{name}({blocks}num_classes={outputs})")];
    if model.stem == Stem::Cifar {
        lines.push(format!("            model.conv1 = torch.nn.Conv2d(3, {width}, 3, padding=1, bias=False)"));
        lines.push("            model.maxpool = torch.nn.Identity()".into());
    }
    lines.join("\n")
}
