//! Brings the tensors of others under torchvision's names: removes what wrappers put before every name, and adds the
//! counts of batches that old files lack.

use kiln_engine::state::{HostTensor, StateDict};
use kiln_system::{Error, Result, quoted};

use super::list;

/// The end of a name that every ResNet has once. What is before it is the prefix of the network: of DDP (`module.`),
/// `torch.compile` (`_orig_mod.`), Lightning (`model.`), or of a part of a larger model.
const MARK: &str = "layer1.0.conv1.weight";
/// Parts of a network; some may lack the prefix, as a classifier next to `backbone.`.
const PARTS: [&str; 7] = ["conv1.", "bn1.", "layer1.", "layer2.", "layer3.", "layer4.", "fc."];

/// The tensors of the network in `state` under torchvision's names, and the names of the others; `origin` names their
/// source.
///
/// # Errors
/// [`Error::Checkpoint`] if there are several networks, or if a tensor is there twice.
pub(super) fn plain(state: StateDict, origin: &str) -> Result<(StateDict, Vec<String>)> {
    let prefix = prefix(&state, origin)?.to_owned();
    let (mut tensors, mut left_out) = (StateDict::new(), Vec::new());
    for (name, tensor) in state {
        let short = match name.strip_prefix(&prefix) {
            Some(short) => short.to_owned(),
            None if PARTS.iter().any(|part| name.starts_with(part)) => name,
            None => {
                left_out.push(name);
                continue;
            }
        };
        if tensors.contains_key(&short) {
            return Err(Error::Checkpoint(format!(
                "the weights in {origin} hold {} with and without the prefix '{prefix}'; save one of the two",
                quoted(&short)
            )));
        }
        tensors.insert(short, tensor);
    }
    count_batches(&mut tensors);
    Ok((tensors, left_out))
}

/// What is before the names of the network.
fn prefix<'a>(state: &'a StateDict, origin: &str) -> Result<&'a str> {
    let before = state.keys().filter_map(|name| name.strip_suffix(MARK));
    let found: Vec<&str> = before.filter(|prefix| prefix.is_empty() || prefix.ends_with('.')).collect();
    match found[..] {
        [] => Ok(""),
        [only] => Ok(only),
        _ if found.contains(&"") => Ok(""),
        _ => Err(Error::Checkpoint(format!(
            "{origin} holds {} networks, with names that begin with {}; save the state_dict of one of them",
            found.len(),
            list(&found)
        ))),
    }
}

/// Files from before PyTorch 0.4.1 have no counts; PyTorch reads them as 0.
fn count_batches(tensors: &mut StateDict) {
    let norms: Vec<String> =
        tensors.keys().filter_map(|name| Some(name.strip_suffix("running_mean")?.into())).collect();
    for norm in norms {
        let zero = HostTensor::I64 { shape: Vec::new(), data: vec![0] };
        tensors.entry(format!("{norm}num_batches_tracked")).or_insert(zero);
    }
}
