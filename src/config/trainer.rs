//! Lightning's words for devices and machines: `trainer.devices=8 trainer.num_nodes=2`.
//!
//! They say how many; Kiln's keys say which devices, how many processes, and how many replicas there are in all: one
//! per device.

use toml::Value;

use super::layer::{Complaints, Layer};

const DEVICES: &str = "trainer.devices";
const NODES: &str = "trainer.num_nodes";

/// Whether `key` is one of these words.
pub fn is_alias(key: &str) -> bool {
    [DEVICES, NODES].contains(&key)
}

/// Adds to `layer` what these words among the arguments mean.
pub fn add(arguments: &[String], layer: &mut Layer, complaints: &mut Complaints) {
    let mut count = |name: &str| {
        let argument = arguments.iter().rev().find(|argument| argument.split('=').next() == Some(name))?;
        let number = argument.split_once('=').and_then(|(_, text)| text.trim().parse().ok());
        let number = number.filter(|number| (1..=1024).contains(number));
        if number.is_none() {
            complaints.lines.push(format!("{name} must be a whole number, 1 to 1024 (argument '{argument}')"));
        }
        Some((number?, format!("argument '{argument}'")))
    };
    let (devices, nodes) = (count(DEVICES), count(NODES));
    let Some((_, place)) = devices.as_ref().or(nodes.as_ref()) else { return };
    let each: i64 = devices.as_ref().map_or(1, |(number, _)| *number);
    layer.set("parallel.world_size", each * nodes.as_ref().map_or(1, |(number, _)| *number), place);
    layer.set("parallel.gpu_ids", (0..each).map(Value::from).collect::<Vec<_>>(), place);
    if let Some((number, place)) = nodes {
        layer.set("parallel.nnodes", number, &place);
    }
}
