//! Freezing a part of a network for transfer learning.
//!
//! A frozen tensor has no gradient, so neither the optimizer nor all-reduce processes it. A batch-norm with frozen
//! scale and shift normalises with its running statistics, leaves them unchanged and takes part in no collective.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use kiln_system::{Error, Result};

use super::named::{Path, parameter_names, tracked_path};

/// The name of the classifier, the only module that `backbone` does not freeze.
pub const HEAD: &str = "fc";

/// Freezes the tensors named by `pattern`: `none`, `backbone` (all but the classifier), or names of modules or tensors
/// separated by commas, such as `conv1,bn1,layer*.0`, where `*` matches any text.
///
/// # Errors
/// A usage error if a name matches nothing, or if nothing is left to train.
pub fn freeze<B: Backend, M: Module<B>>(model: M, pattern: &str) -> Result<M> {
    let names = parameter_names(&model);
    let parts = match pattern.trim() {
        "none" | "" => return Ok(model),
        "backbone" => names.iter().filter(|name| !covers(HEAD, name)).cloned().collect(),
        list => list.split(',').map(|part| part.trim().to_string()).collect::<Vec<_>>(),
    };
    let idle = parts.iter().find(|part| !names.iter().any(|name| covers(part, name)));
    if let Some(part) = idle {
        let some = names.iter().step_by(names.len().div_ceil(4)).cloned().collect::<Vec<_>>().join(", ");
        return Err(Error::usage(format!(
            "freeze '{part}' names no trained tensor of this model; use --freeze backbone, none, or names such as {some}"
        )));
    }
    let is_frozen = |name: &str| parts.iter().any(|part| covers(part, name));
    if names.iter().all(|name| is_frozen(name)) {
        return Err(Error::usage(format!(
            "freeze '{pattern}' leaves nothing to train; use --freeze backbone, which leaves the classifier"
        )));
    }
    Ok(model.map(&mut Freezer { path: Path::default(), is_frozen: &is_frozen }))
}

/// Whether `pattern` freezes all of `module`.
pub fn is_frozen(pattern: &str, module: &str) -> bool {
    match pattern.trim() {
        "backbone" => module != HEAD,
        list => list.split(',').any(|part| covers(part.trim(), module)),
    }
}

/// Whether `part` matches `name` or a module that contains it.
fn covers(part: &str, name: &str) -> bool {
    let ends = name.match_indices('.').map(|(end, _)| end).chain([name.len()]);
    ends.into_iter().any(|end| matches(part, &name[..end]))
}

/// Whether `pattern` matches all of `text`.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text
            .strip_prefix(start)
            .is_some_and(|text| (0..=text.len()).any(|at| text.is_char_boundary(at) && matches(rest, &text[at..]))),
    }
}

struct Freezer<'a> {
    path: Path,
    is_frozen: &'a dyn Fn(&str) -> bool,
}

impl<B: Backend> ModuleMapper<B> for Freezer<'_> {
    tracked_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if (self.is_frozen)(&self.path.name()) { param.set_require_grad(false) } else { param }
    }
}
