//! The backward pass of batch-norm, and its place in the autodiff graph.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, OpsPrep};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, TensorMetadata};

use super::batch_norm::{BatchNormOps, Normalized, normalized};
use super::epilogue::{Epilogue, ReluState};
use super::exchange::sums;
use super::gradient::register;
use super::node::tracked;
use super::statistics::Synchronized;

#[derive(Debug)]
struct BatchNormBackward;

#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    mean: FloatTensor<B>,
    inv_std: FloatTensor<B>,
    count: f64,
    sync: Option<Synchronized>,
    relu: Option<ReluState<B>>,
}

/// The parents are input, weight, bias and, with a residual sum, the shortcut.
impl<B: BatchNormOps, const N: usize> Backward<B, N> for BatchNormBackward {
    type State = Saved<B>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let Saved { x, weight, mean, inv_std, count, sync, relu } = ops.state;
        let (statistics, relu) = ([mean, inv_std], relu.as_ref());
        let gradients = match sync {
            None => B::bn_local_gradients(gradient, x, weight, statistics, count, relu),
            Some(sync) => B::bn_gradients(gradient, x, weight, statistics, relu, |own| total::<B>(own, count, &sync)),
        };
        for (node, gradient) in ops.parents.into_iter().zip(gradients).filter_map(|(node, of)| Some((node?, of))) {
            let mut gradient = <Autodiff<B> as AutodiffBackend>::from_inner(gradient);
            gradient.node = node;
            register::<B>(grads, gradient);
        }
    }
}

/// Batch-norm with running statistics and frozen scale and shift. The parents are input and, with a residual sum, the
/// shortcut; the saved values are the scale and the output of a ReLU.
#[derive(Debug)]
struct FrozenBackward;

impl<B: BatchNormOps, const N: usize> Backward<B, N> for FrozenBackward {
    type State = (FloatTensor<B>, Option<FloatTensor<B>>);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let ((scale, output), gradient) = (ops.state, grads.consume::<B>(&ops.node));
        let gradient = output.into_iter().fold(gradient, |gradient, output| B::relu_gradient(output, gradient));
        let of_input = |gradient| {
            let zeros = B::float_zeros(scale.shape(), &B::float_device(&scale), FloatDType::F32);
            B::bn_normalize(gradient, [zeros.clone(), scale.clone(), zeros], Epilogue::Identity)
        };
        for (parent, node) in ops.parents.into_iter().enumerate().filter_map(|(parent, node)| Some((parent, node?))) {
            let found = if parent == 0 { of_input(gradient.clone()) } else { gradient.clone() };
            let mut found = <Autodiff<B> as AutodiffBackend>::from_inner(found);
            found.node = node;
            register::<B>(grads, found);
        }
    }
}

/// The sums of the whole group, and one over its number of values. Weight and bias keep this replica's gradients, which
/// are reduced later with those of all parameters.
///
/// Every replica takes part, even if it needs no input gradient: a missing message would stall the others.
fn total<B: BatchNormOps>(own: [FloatTensor<B>; 2], count: f64, sync: &Synchronized) -> ([FloatTensor<B>; 2], f64) {
    (sums::<B>(sync, own), if sync.is_present() { 1.0 / count } else { 0.0 })
}

impl<B: BatchNormOps, C: CheckpointStrategy> BatchNormOps for Autodiff<B, C> {
    fn bn_train(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
        sync: Option<&Synchronized>,
        epilogue: Epilogue<FloatTensor<Self>>,
    ) -> Normalized<Self> {
        let [x_node, weight_node, bias_node] = [&x, &weight, &bias].map(|tensor| tensor.node.clone());
        let inner = [&x, &weight, &bias].map(|tensor| tensor.primitive.clone());
        let (inner_epilogue, sync) = (epilogue.clone().map(|shortcut| shortcut.primitive), (epsilon, sync));
        let done = match &epilogue {
            Epilogue::AddRelu(shortcut) => {
                let nodes = [x_node, weight_node, bias_node, shortcut.node.clone()];
                train::<B, C, _>(BatchNormBackward.prepare::<C>(nodes), inner, sync, inner_epilogue)
            }
            _ => {
                let nodes = [x_node, weight_node, bias_node];
                train::<B, C, _>(BatchNormBackward.prepare::<C>(nodes), inner, sync, inner_epilogue)
            }
        };
        // The parents must live until this step is registered: otherwise another thread's clean-up of the autodiff
        // graph may remove it (tracel-ai/burn #5573).
        drop((x, weight, bias, epilogue));
        done
    }

    fn bn_normalize(
        x: FloatTensor<Self>,
        factors: [FloatTensor<Self>; 3],
        epilogue: Epilogue<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        if factors.iter().any(|factor| !factor.node.requirement.is_none()) {
            return normalized::<Self>(x, factors, epilogue);
        }
        let (factors, inner) = (factors.map(|factor| factor.primitive), epilogue.clone().map(|it| it.primitive));
        let has_relu = !matches!(epilogue, Epilogue::Identity);
        let saved = |output: &FloatTensor<B>| (factors[1].clone(), has_relu.then(|| output.clone()));
        let output = B::bn_normalize(x.primitive.clone(), factors.clone(), inner);
        let output = match &epilogue {
            Epilogue::AddRelu(shortcut) => {
                let nodes = [x.node.clone(), shortcut.node.clone()];
                match FrozenBackward.prepare::<C>(nodes).compute_bound().stateful() {
                    OpsKind::Tracked(step) => step.finish(saved(&output), output),
                    OpsKind::UnTracked(step) => step.finish(output),
                }
            }
            _ => match FrozenBackward.prepare::<C>([x.node.clone()]).compute_bound().stateful() {
                OpsKind::Tracked(step) => step.finish(saved(&output), output),
                OpsKind::UnTracked(step) => step.finish(output),
            },
        };
        // As above.
        drop((x, epilogue));
        output
    }

    fn bn_swapped(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let output = B::bn_swapped(x.primitive.clone());
        tracked::<B, C>(x, output, B::bn_swapped)
    }
}

/// The forward pass, and the registration of its backward step.
fn train<B: BatchNormOps, C: CheckpointStrategy, const N: usize>(
    prepared: OpsPrep<BatchNormBackward, B, Saved<B>, C, N>,
    [x, weight, bias]: [FloatTensor<B>; 3],
    (epsilon, sync): (f64, Option<&Synchronized>),
    epilogue: Epilogue<FloatTensor<B>>,
) -> Normalized<Autodiff<B, C>> {
    let (is_masked, has_relu) = (matches!(epilogue, Epilogue::Relu), !matches!(epilogue, Epilogue::Identity));
    let done = B::bn_train(x.clone(), weight.clone(), bias.clone(), epsilon, sync, epilogue);
    let output = match prepared.compute_bound().stateful() {
        OpsKind::Tracked(step) => {
            let mask = done.scale.clone().filter(|_| is_masked).map(|scale| [scale, bias]);
            let saved = Saved {
                x,
                weight,
                mean: done.mean.clone(),
                inv_std: done.inv_std.clone(),
                count: done.count,
                sync: sync.cloned(),
                relu: has_relu.then(|| ReluState { output: done.output.clone(), mask }),
            };
            step.finish(saved, done.output)
        }
        OpsKind::UnTracked(step) => step.finish(done.output),
    };
    let [mean, variance, inv_std] = [done.mean, done.variance, done.inv_std].map(Autodiff::<B, C>::from_inner);
    Normalized {
        output,
        mean,
        variance,
        inv_std,
        scale: done.scale.map(Autodiff::<B, C>::from_inner),
        count: done.count,
    }
}
