//! Forward passes that keep what each unit of the model begins with, and no activations inside of units: a unit is
//! computed again before its backward pass. The kernels are the same, on the same numbers, so the bits are, too.
//!
//! The first pass has no graph, collects the statistics of batch-norm and exchanges them; the second one uses what the
//! first has exchanged. Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".

use burn::backend::Autodiff;
use burn::module::Module;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::ops::FloatTensor;
use kiln_ops::as_type;

use super::task::Activations;
use super::task_model::Pending;
use super::{HostBackend, Micro, ModelPart, Passage, Passed, Task, TrainingModel};
use crate::nn::{BatchStatistics, trained_parameters};

/// Some units between their forward and their backward pass.
pub(super) enum Segment<B: HostBackend, T: Task<B>> {
    Done(Pending<B, T>),
    /// One unit, to compute again.
    Again(Micro<Autodiff<B>, T::Input>, ModelPart<B>),
}

/// The forward pass of a stage's part of the model.
pub(super) struct Segments<B: HostBackend, T: Task<B>> {
    pub(super) all: Vec<Segment<B, T>>,
    /// Those that no segment has.
    pub(super) statistics: Vec<BatchStatistics<Autodiff<B>>>,
    /// For the next stage.
    pub(super) activations: Option<FloatTensor<B>>,
}

impl<B: HostBackend, T: Task<B>> Segments<B, T> {
    /// The forward pass with its graph.
    pub(super) fn kept(model: TrainingModel<B, T>, micro: Micro<Autodiff<B>, T::Input>, part: ModelPart<B>) -> Self {
        let pending = model.forward(micro, part);
        Self { activations: pending.activations(), all: vec![Segment::Done(pending)], statistics: Vec::new() }
    }

    /// One with the graph of the model's last unit alone, which comes next in the backward pass. The units before the
    /// first trained one have no backward pass.
    pub(super) fn outlined(
        model: TrainingModel<B, T>,
        mut micro: Micro<Autodiff<B>, T::Input>,
        part: ModelPart<B>,
        first_trained: usize,
    ) -> Self {
        let (untracked, last) = (model.clone().no_grad(), model.task.0.units().len() - 1);
        let kept = model.task.0.passes_on(micro.context.precision).dtype().into();
        let context = micro.context.again().untracked(trained_parameters(&model).map(|tensor| tensor.id).collect());
        let (mut all, mut x) = (Vec::new(), part.activations);
        for unit in part.units {
            micro.context = context.again();
            let part =
                |activations| ModelPart { units: unit..unit + 1, activations, is_trained_before: first_trained < unit };
            if unit == last {
                all.push(Segment::Done(model.forward(micro, part(x.take()))));
                break;
            }
            let activations = x.clone().map(<Autodiff<B> as AutodiffBackend>::from_inner).map(Activations);
            let passage = Passage { units: unit..unit + 1, input: micro.input.clone(), activations, context: &context };
            // Of the others it sees the second pass.
            let probe = micro.probe.as_ref().filter(|_| unit < first_trained);
            let Passed::Activations(Activations(y)) = untracked.through(passage, probe) else {
                unreachable!("the last unit has the losses")
            };
            let begin = x.replace(<Autodiff<B> as AutodiffBackend>::inner(y));
            if unit >= first_trained {
                all.push(Segment::Again(micro.clone(), part(begin.map(|x| as_type::<B>(x, kept)))));
            }
        }
        Self { all, statistics: context.into_statistics(), activations: x }
    }
}
