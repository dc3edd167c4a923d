//! Loads weights of another training into a model's state: compares shapes, and drops a head for other classes.

use kiln_engine::state::{HostTensor, StateDict};
use kiln_system::{Error, Result};
use kiln_training::Architecture;

use super::list;

/// The tensors that were not loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The model's tensors that the weights lack and that keep their values, except counts of batches.
    pub missing: Vec<String>,
    /// Tensors that the model lacks.
    pub unexpected: Vec<String>,
    /// Numbers of classes of the given head and the model's, if they differ and the head was not loaded.
    pub dropped_head: Option<(usize, usize)>,
}

impl Report {
    /// Notes for the user, a line each; empty if everything was loaded.
    pub fn notes(&self) -> Vec<String> {
        let head = self.dropped_head.map(|(theirs, ours)| {
            format!("head of {theirs} classes dropped; the new one has {ours} and starts untrained")
        });
        let listed = |names: &[String], what: &str| (!names.is_empty()).then(|| format!("{what}: {}", list(names)));
        let missing = listed(&self.missing, "missing, so initialised");
        let unexpected = listed(&self.unexpected, "not used");
        [head, missing, unexpected].into_iter().flatten().collect()
    }
}

/// Loads the weights `from`, under torchvision's names, into a new model's state; `origin` names their source. An error
/// leaves `into` unchanged.
///
/// # Errors
/// [`Error::Checkpoint`] if no name matches, or if a shape other than the head's differs.
pub fn transplant(into: &mut StateDict, mut from: StateDict, origin: &str) -> Result<Report> {
    let dropped_head = drop_head(into, &mut from);
    check_blocks(into, &from, origin)?;
    // The first convolution first: its error names the flags that correct the others too.
    for name in ["conv1.weight"].into_iter().chain(into.keys().map(String::as_str)) {
        if let Some(theirs) = from.get(name) {
            check(name, &into[name], theirs, origin)?;
        }
    }
    let is_head = |name: &str| dropped_head.is_some() && name.starts_with("fc.");
    let is_optional = |name: &str| name.ends_with(".num_batches_tracked") || is_head(name);
    let missing = into.keys().filter(|name| !from.contains_key(*name) && !is_optional(name)).cloned().collect();
    let (fitting, unexpected): (StateDict, StateDict) = from.into_iter().partition(|(name, _)| into.contains_key(name));
    if fitting.is_empty() {
        let [theirs, ours] = [&unexpected, into].map(|state| list(state.keys()));
        return Err(Error::Checkpoint(format!(
            "no weight in {origin} has a name of this model: it has {theirs} where torchvision's ResNet has {ours}; \
             give weights of a ResNet with torchvision's names"
        )));
    }
    into.extend(fitting);
    Ok(Report { missing, unexpected: unexpected.into_keys().collect(), dropped_head })
}

/// Refuses blocks of another kind, with the flags that build them.
fn check_blocks(ours: &StateDict, theirs: &StateDict, origin: &str) -> Result<()> {
    let [ours, theirs] = [ours, theirs].map(Architecture::of_state);
    if ours.bottleneck == theirs.bottleneck || theirs.blocks.contains(&0) {
        return Ok(());
    }
    let flags = theirs.flags();
    Err(Error::Checkpoint(format!("{origin} holds a {theirs} where the model is a {ours}; set {flags}")))
}

/// Removes a head with another number of classes from `from`; returns both numbers.
fn drop_head(into: &StateDict, from: &mut StateDict) -> Option<(usize, usize)> {
    let [ours, theirs] = [into, from].map(|state| state.get("fc.weight").map(HostTensor::shape));
    let (&[ours, features], &[theirs, their_features]) = (ours?, theirs?) else { return None };
    if ours == theirs || features != their_features {
        return None;
    }
    from.retain(|name, _| name != "fc.weight" && name != "fc.bias");
    Some((theirs, ours))
}

fn check(name: &str, ours: &HostTensor, theirs: &HostTensor, origin: &str) -> Result<()> {
    if theirs.as_f32().is_some() != ours.as_f32().is_some() {
        let kind = if ours.as_f32().is_some() { "floating-point numbers" } else { "integers" };
        return Err(Error::Checkpoint(format!("'{name}' in {origin} should hold {kind}; give weights of a ResNet")));
    }
    if theirs.shape() == ours.shape() {
        return Ok(());
    }
    let flags = if name == "conv1.weight" { flags(ours.shape(), theirs.shape()) } else { None };
    let remedy = flags.unwrap_or_else(|| "give weights of a ResNet as torchvision builds it".into());
    Err(Error::Checkpoint(format!(
        "'{name}' in {origin} has shape {:?} where the model has {:?}; {remedy}",
        theirs.shape(),
        ours.shape()
    )))
}

/// The flags that give the model's first convolution `[width, 3, kernel, kernel]` their shape.
fn flags(ours: &[usize], theirs: &[usize]) -> Option<String> {
    let stem = match theirs {
        [0, ..] => return None,
        [_, 3, 3, 3] => "cifar",
        [_, 3, 7, 7] => "imagenet",
        _ => return None,
    };
    let width = (theirs[0] != ours[0]).then(|| format!("--width {}", theirs[0]));
    let stem = (theirs[1..] != ours[1..]).then(|| format!("--stem {stem}"));
    Some(format!("set {}", stem.into_iter().chain(width).collect::<Vec<_>>().join(" ")))
}
