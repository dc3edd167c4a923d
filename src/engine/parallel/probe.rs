//! What every unit of a model computes in training: a checksum and a norm of its output and of the gradient of that, of
//! each tensor's gradient on each replica, and of the weights after a step.
//!
//! Two runs that should be equal part at the first of these numbers that differs.

use std::cmp::Reverse;
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensor;
use kiln_ops::{HostOps, primitive, watched};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Checksum;
use super::task::{Unit, unit_of};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Observed {
    Output,
    /// The gradient of the output of a unit.
    Backward,
    /// A replica's summand of a tensor's gradient.
    Gradient,
    /// A tensor after the update.
    Weight,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// From 1.
    pub step: usize,
    /// From 0.
    pub micro_batch: usize,
    pub observed: Observed,
    pub unit: usize,
    pub name: String,
    /// From 0; for weights, which all replicas share, always 0.
    pub replica: usize,
    pub checksum: u64,
    /// The square root of the sum of squares; none if it is not finite.
    pub norm: Option<f64>,
}

impl Observation {
    /// The place in the order of computation: a gradient goes back from the last unit to the first.
    pub fn order(&self) -> impl Ord + use<> {
        let (forward, backward) = match self.observed {
            Observed::Backward => (0, Reverse(self.unit)),
            _ => (self.unit, Reverse(0)),
        };
        let is_last = self.observed == Observed::Weight;
        (self.step, is_last, self.micro_batch, self.observed, forward, backward, self.name.clone(), self.replica)
    }
}

/// The first of two runs' observations, both in their order, that differs, in words.
pub fn first_difference(one: &[Observation], other: &[Observation]) -> Option<String> {
    let is_same =
        |(one, other): &(&Observation, &Observation)| one.order() == other.order() && one.checksum == other.checksum;
    let at = one.iter().zip(other).take_while(is_same).count();
    let (first, second) = (one.get(at), other.get(at));
    let Observation { step, micro_batch, observed, unit, name, replica, .. } = first.or(second)?;
    let place = format!("step {step}, replica {replica}, micro-batch {micro_batch}");
    let how = match (first, second) {
        (Some(one), Some(other)) if one.order() == other.order() => match (one.norm, other.norm) {
            (Some(one), Some(other)) if one == other => {
                format!("its norm is {one} in both, but not all of its bits are")
            }
            (Some(one), Some(other)) => format!("its norm is {one} in the first and {other} in the second"),
            _ => "in one run it is not finite".into(),
        },
        _ => "only one run has computed it".into(),
    };
    // The samples are not observed.
    let input = if *unit == 0 { " or its input" } else { "" };
    Some(match observed {
        Observed::Output => format!("{place}, forward pass of {name}{input}: {how}"),
        Observed::Backward => format!("{place}, backward pass, gradient at the output of {name}: {how}"),
        Observed::Gradient => format!("{place}, backward pass, gradient of {name}: {how}"),
        Observed::Weight => format!("step {step}, sum or update of {name}: {how}"),
    })
}

/// The observations that nobody has taken yet, of all replicas of this process.
#[derive(Debug, Clone, Default)]
pub struct Probe(Arc<Mutex<Vec<Observation>>>);

impl Probe {
    pub fn take(&self) -> Vec<Observation> {
        std::mem::take(&mut *self.0.lock())
    }

    pub(super) fn at(&self, step: usize, micro_batch: usize, replica: usize) -> ProbePoint {
        ProbePoint { probe: self.clone(), step, micro_batch, replica }
    }
}

/// A probe in one micro-batch of one replica.
#[derive(Debug, Clone)]
pub(super) struct ProbePoint {
    probe: Probe,
    step: usize,
    micro_batch: usize,
    replica: usize,
}

impl ProbePoint {
    fn note<B: HostOps>(&self, observed: Observed, unit: usize, name: String, x: FloatTensor<B>) {
        let mut values = Vec::new();
        B::append_to(x, &mut values);
        let norm = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        let observation = Observation {
            step: self.step,
            micro_batch: self.micro_batch,
            observed,
            unit,
            name,
            replica: self.replica,
            checksum: Checksum::of(&values),
            norm: Some(norm).filter(|norm| norm.is_finite()),
        };
        self.probe.0.lock().push(observation);
    }

    /// Notes `tensors` of the model, which have these names.
    pub(super) fn tensors<B: HostOps>(
        &self,
        observed: Observed,
        units: &[Unit],
        names: Vec<String>,
        tensors: &[Tensor<B, 1>],
    ) {
        for (name, tensor) in names.into_iter().zip(tensors) {
            self.note::<B>(observed, unit_of(units, &name).unwrap_or_default(), name, primitive(tensor.clone()));
        }
    }

    /// Notes `x`, the output of a unit, and later its gradient.
    pub(super) fn output<B: HostOps>(
        &self,
        unit: usize,
        units: &[Unit],
        x: FloatTensor<Autodiff<B>>,
    ) -> FloatTensor<Autodiff<B>> {
        let name = units[unit].to_string();
        self.note::<B>(Observed::Output, unit, name.clone(), x.primitive.clone());
        let probe = self.clone();
        watched::<B>(x, move |gradient| probe.note::<B>(Observed::Backward, unit, name, gradient))
    }
}
