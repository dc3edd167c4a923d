//! A model's tensors as flat lists, the form used by optimizers, averages and all-reduce.
//!
//! The order is that of the module tree and equal on all replicas. Parameter ids, set Burn draws at random in each
//! process, are only used to look up gradients.

use std::collections::HashSet;
use std::ops::{Range, RangeFrom};

use burn::module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Int, Tensor};
use kiln_ops::{UpdateOps, primitive, tensor};

use super::named::{Weights, float_tensors, trained_parameters};

/// A selection of a model's float tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorSet {
    /// Tensors with gradients.
    Trained,
    /// All tensors, including frozen ones and running statistics, except for empty ones.
    All,
}

impl TensorSet {
    fn includes<B: Backend, const D: usize>(self, param: &Param<Tensor<B, D>>) -> bool {
        param.is_require_grad() || (self == Self::All && param.lazy_shape().num_elements() > 0)
    }
}

/// The tensors of `model`, each as `[elements]`, off the autodiff graph.
pub fn flat<B: AutodiffBackend, M: Module<B>>(model: &M, set: TensorSet) -> Vec<Tensor<B::InnerBackend, 1>> {
    struct Collect<B: AutodiffBackend>(TensorSet, Vec<Tensor<B::InnerBackend, 1>>);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if self.0.includes(param) {
                self.1.push(param.val().inner().flatten(0, D - 1));
            }
        }
    }
    let mut collect = Collect(set, Vec::new());
    model.visit(&mut collect);
    collect.1
}

/// The counts of batches of `model`, off the autodiff graph.
pub fn counts<B: AutodiffBackend, M: Module<B>>(model: &M) -> Vec<Tensor<B::InnerBackend, 1, Int>> {
    struct Collect<B: AutodiffBackend>(Vec<Tensor<B::InnerBackend, 1, Int>>);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<B> {
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
            self.0.push(param.val().inner().flatten(0, D - 1));
        }
    }
    let mut collect = Collect(Vec::new());
    model.visit(&mut collect);
    collect.0
}

/// The model with its tensors replaced by `values`, in the order of [`flat`], as fresh leaves of the graph.
pub fn with_flat<B: AutodiffBackend, M: Module<B>>(
    model: M,
    set: TensorSet,
    values: Vec<Tensor<B::InnerBackend, 1>>,
) -> M {
    struct Replace<B: AutodiffBackend>(TensorSet, std::vec::IntoIter<Tensor<B::InnerBackend, 1>>);
    impl<B: AutodiffBackend> ModuleMapper<B> for Replace<B> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            if !self.0.includes(&param) {
                return param;
            }
            let value = self.1.next().expect("the list holds one tensor for each of the model's");
            let value = Tensor::from_inner(value.reshape(param.val().shape()));
            Param::initialized(param.id, value.set_require_grad(param.is_require_grad()))
        }
    }
    model.map(&mut Replace(set, values.into_iter()))
}

/// The model in memory that nobody else holds, as [`UpdateOps::IN_PLACE`] demands of what is updated: of trained tensors
/// those at the places `own`, or all.
pub fn with_own_memory<B, M>(model: M, own: Option<Range<usize>>) -> M
where
    B: AutodiffBackend<InnerBackend: UpdateOps>,
    M: Module<B>,
{
    struct Own(Range<usize>, RangeFrom<usize>);
    impl<B: AutodiffBackend<InnerBackend: UpdateOps>> ModuleMapper<B> for Own {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let is_trained = param.is_require_grad();
            if is_trained && self.1.next().is_some_and(|place| !self.0.contains(&place)) {
                return param;
            }
            param.map(|values| {
                let own = <B::InnerBackend as UpdateOps>::own(primitive(values.inner()));
                Tensor::from_inner(tensor(own)).set_require_grad(is_trained)
            })
        }

        fn map_int<const D: usize>(&mut self, param: Param<Tensor<B, D, Int>>) -> Param<Tensor<B, D, Int>> {
            param.map(|count| count + 0)
        }
    }
    let own = own.unwrap_or(0..usize::MAX);
    if <B::InnerBackend as UpdateOps>::IN_PLACE { model.map(&mut Own(own, 0..)) } else { model }
}

/// The model with only the float tensors whose names `is_kept` accepts. The others become empty and have no gradient,
/// so that they take no memory and no part in training; no layer with such a tensor can compute.
pub fn only<B: Backend, M: Module<B>>(model: M, is_kept: &dyn Fn(&str) -> bool) -> M {
    struct Only(HashSet<ParamId>);
    impl<B: Backend> ModuleMapper<B> for Only {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            if self.0.contains(&param.id) {
                return param;
            }
            // Zeros would be filled in by a kernel, and CUDA refuses one without units.
            let empty = Tensor::empty([0; D], &param.lazy_device());
            Param::initialized(param.id, empty.set_require_grad(false))
        }
    }
    let kept = float_tensors(&model).into_iter().filter(|tensor| is_kept(&tensor.name)).map(|tensor| tensor.id);
    model.map(&mut Only(kept.collect()))
}

/// A trained convolution kernel, whose gradient a backward pass can report to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Index in the list of [`flat`].
    pub place: usize,
    /// Number of elements.
    pub length: usize,
    /// Burn's id, passed to the listener.
    pub id: ParamId,
}

/// The convolution kernels of `model`, in the order of [`flat`].
pub fn kernels<B: Backend, M: Module<B>>(model: &M) -> Vec<Kernel> {
    let kernels = trained_parameters(model).enumerate().filter(|(_, tensor)| tensor.shape.len() == 4);
    kernels.map(|(place, Weights { shape, id, .. })| Kernel { place, length: shape.iter().product(), id }).collect()
}

/// The weights of [`kernels`], off the autodiff graph.
pub fn kernel_weights<B: AutodiffBackend, M: Module<B>>(model: &M) -> Vec<(ParamId, FloatTensor<B::InnerBackend>)> {
    struct Collect<B: AutodiffBackend>(Vec<(ParamId, FloatTensor<B::InnerBackend>)>);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if D == 4 && param.is_require_grad() {
                self.0.push((param.id, primitive(param.val().inner())));
            }
        }
    }
    let mut collect = Collect(Vec::new());
    model.visit(&mut collect);
    collect.0
}

/// The inverse of [`flat_gradients`], for Burn's optimizers: `gradients` are those of trained tensors that follow each
/// other, from the one at place `first` on.
pub fn gradients_of<B: AutodiffBackend, M: AutodiffModule<B>>(
    model: &M,
    first: usize,
    gradients: Vec<Tensor<B::InnerBackend, 1>>,
) -> GradientsParams {
    struct Register<B: AutodiffBackend>(GradientsParams, usize, std::vec::IntoIter<Tensor<B::InnerBackend, 1>>);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Register<B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if !param.is_require_grad() {
                return;
            }
            if self.1 > 0 {
                self.1 -= 1;
            } else if let Some(gradient) = self.2.next() {
                self.0.register(param.id, gradient.reshape(param.lazy_shape()) as Tensor<B::InnerBackend, D>);
            }
        }
    }
    let mut register = Register::<B>(GradientsParams::new(), first, gradients.into_iter());
    model.visit(&mut register);
    assert!(register.2.next().is_none(), "there is a trained tensor for each gradient");
    register.0
}

/// The gradients of `model`'s trained tensors, each as `[elements]`; the index of the first missing one as an error.
pub fn flat_gradients<B: AutodiffBackend, M: AutodiffModule<B>>(
    model: &M,
    gradients: GradientsParams,
) -> Result<Vec<Tensor<B::InnerBackend, 1>>, usize> {
    let (found, missing) = found_gradients(model, gradients);
    missing.map_or(Ok(found), Err)
}

/// The gradients that there are, as in [`flat_gradients`], and the index of the first missing one.
pub fn found_gradients<B: AutodiffBackend, M: AutodiffModule<B>>(
    model: &M,
    gradients: GradientsParams,
) -> (Vec<Tensor<B::InnerBackend, 1>>, Option<usize>) {
    struct Collect<B: AutodiffBackend> {
        from: GradientsParams,
        found: Vec<Tensor<B::InnerBackend, 1>>,
        missing: Option<usize>,
    }
    impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if !param.is_require_grad() {
                return;
            }
            match self.from.remove::<B::InnerBackend, D>(param.id) {
                Some(gradient) => self.found.push(gradient.flatten(0, D - 1)),
                None => self.missing = self.missing.or(Some(self.found.len())),
            }
        }
    }
    let mut collect = Collect::<B> { from: gradients, found: Vec::new(), missing: None };
    model.visit(&mut collect);
    (collect.found, collect.missing)
}
