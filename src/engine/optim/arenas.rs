//! Parameters side by side in few vectors, so that a step of the optimizer takes few operations on a device.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use kiln_ops::{ARENA_ALIGNMENT, HostOps, primitive, tensor};

use super::config::OptimConfig;
use super::parameter::Parameter;

/// Which of a model's parameters share a vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arenas {
    /// The parameters of each vector, as places in the list of all.
    groups: Vec<Vec<usize>>,
    lengths: Vec<usize>,
}

impl Arenas {
    pub fn apart(parameters: &[Parameter]) -> Self {
        Self { groups: (0..parameters.len()).map(|place| vec![place]).collect(), lengths: lengths(parameters) }
    }

    /// Those together that have the same learning rate and weight decay.
    pub fn together(parameters: &[Parameter], config: &OptimConfig) -> Self {
        let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (place, parameter) in parameters.iter().enumerate() {
            let Parameter { vector, head, .. } = *parameter;
            groups.entry((head, vector, config.weight_decay_of(parameter).to_bits())).or_default().push(place);
        }
        Self { groups: groups.into_values().collect(), lengths: lengths(parameters) }
    }

    /// Whether there are vectors of several parameters.
    pub fn is_shared(&self) -> bool {
        self.groups.len() < self.lengths.len()
    }

    pub(super) fn first(&self) -> impl Iterator<Item = usize> {
        self.groups.iter().map(|group| group[0])
    }

    /// The vectors of `tensors`, which are one for each parameter.
    pub fn pack<B: HostOps>(&self, tensors: Vec<Tensor<B, 1>>) -> Vec<Tensor<B, 1>> {
        let mut tensors: Vec<_> = tensors.into_iter().map(Some).collect();
        let mut group = |places: &Vec<usize>| {
            let mut group: Vec<_> = places.iter().filter_map(|place| tensors[*place].take()).map(primitive).collect();
            tensor(if group.len() == 1 { group.swap_remove(0) } else { B::side_by_side(group) })
        };
        self.groups.iter().map(&mut group).collect()
    }

    /// The inverse of [`Arenas::pack`].
    pub fn unpack<B: HostOps>(&self, vectors: Vec<Tensor<B, 1>>) -> Vec<Tensor<B, 1>> {
        let mut tensors: Vec<Option<Tensor<B, 1>>> = vec![None; self.lengths.len()];
        for (places, vector) in self.groups.iter().zip(vectors) {
            if let [alone] = places[..] {
                tensors[alone] = Some(vector);
                continue;
            }
            let mut start = 0;
            for place in places {
                let part = B::part(primitive(vector.clone()), start, self.lengths[*place]);
                tensors[*place] = Some(tensor(part));
                start += self.lengths[*place].next_multiple_of(ARENA_ALIGNMENT);
            }
        }
        tensors.into_iter().map(|tensor| tensor.expect("every parameter is in a group")).collect()
    }
}

fn lengths(parameters: &[Parameter]) -> Vec<usize> {
    parameters.iter().map(|parameter| parameter.length).collect()
}
