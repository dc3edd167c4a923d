//! A model's weights with the names and layout of torchvision, such as `layer1.0.conv1.weight`.
//!
//! Two layouts differ from Burn's: a linear layer's weight is `[outputs, inputs]`, and the count of batches is a
//! scalar. All export and import of weights (files, checkpoints, hashes) uses this form.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Int, Tensor, TensorData};
use kiln_ops::{HostOps, download_each, reading};
use kiln_system::{Error, Result};
use sha2::{Digest, Sha256};

use crate::state::{HostTensor, StateDict};

/// All parameters and buffers by name.
pub fn state_dict<B: HostOps, M: Module<B>>(model: &M) -> StateDict {
    part_of_state(model, &|_| true)
}

/// The parameters and buffers whose names `is_wanted` accepts.
pub fn part_of_state<B: HostOps, M: Module<B>>(model: &M, is_wanted: &dyn Fn(&str) -> bool) -> StateDict {
    let (floats, shapes, integers) = Default::default();
    let mut reader = Reader { is_wanted, path: Path::default(), floats, shapes, integers };
    model.visit(&mut reader);
    let floats = download_each(reader.floats).into_iter().zip(reader.shapes);
    let mut state: StateDict = floats.map(|(data, (name, shape))| (name, HostTensor::F32 { shape, data })).collect();
    let (names, integers): (Vec<_>, Vec<_>) = reader.integers.into_iter().unzip();
    if !integers.is_empty() {
        let _copy = reading(integers.len(), DType::I64);
        #[expect(clippy::disallowed_methods, reason = "all integers of a model in one read")]
        let data = Tensor::cat(integers, 0).into_data();
        let scalar = |number| HostTensor::I64 { shape: Vec::new(), data: vec![number] };
        state.extend(names.into_iter().zip(data.iter::<i64>().map(scalar)));
    }
    state
}

/// A float tensor of a model.
#[derive(Debug)]
pub struct Weights {
    pub name: String,
    /// The shape in the state dictionary.
    pub shape: Vec<usize>,
    pub id: ParamId,
    pub is_trained: bool,
}

/// All float tensors, in declaration order.
pub fn float_tensors<B: Backend, M: Module<B>>(model: &M) -> Vec<Weights> {
    Survey::of(model).floats
}

/// The tensors with gradients, in declaration order.
pub fn trained_parameters<B: Backend, M: Module<B>>(model: &M) -> impl Iterator<Item = Weights> + use<B, M> {
    float_tensors(model).into_iter().filter(|tensor| tensor.is_trained)
}

/// The names of [`trained_parameters`].
pub fn parameter_names<B: Backend, M: Module<B>>(model: &M) -> Vec<String> {
    trained_parameters(model).map(|tensor| tensor.name).collect()
}

/// The model with every tensor replaced by the one of the same name in `state`.
///
/// # Errors
/// [`Error::Checkpoint`] if names are missing or unknown, or if shapes differ; `origin` names the source of `state`.
pub fn load_state<B: Backend, M: Module<B>>(model: M, state: &StateDict, origin: &str) -> Result<M> {
    let expected = Survey::of(&model).shapes;
    let mut faults: Vec<String> = Vec::new();
    for (name, shape) in &expected {
        match state.get(name) {
            None => faults.push(format!("'{name}' is missing")),
            Some(given) if given.shape() != shape => {
                faults.push(format!("'{name}' has shape {:?} where the model has {shape:?}", given.shape()));
            }
            Some(_) => {}
        }
    }
    faults.extend(state.keys().filter(|name| !expected.contains_key(*name)).map(|name| format!("'{name}' is unknown")));
    if !faults.is_empty() {
        let more = if faults.len() > 3 { format!(" and {} more", faults.len() - 3) } else { String::new() };
        faults.truncate(3);
        let rule = "check --stem, --width, model.bn_parts and the number of classes";
        return Err(Error::Checkpoint(format!(
            "the weights in {origin} do not fit this model: {}{more}; {rule}",
            faults.join(", ")
        )));
    }
    Ok(model.map(&mut Writer { path: Path::default(), state }))
}

/// The position of a visitor in the module tree.
#[derive(Default)]
pub(super) struct Path {
    names: Vec<String>,
    containers: Vec<String>,
}

impl Path {
    pub(super) fn enter(&mut self, name: &str, container: &str) {
        self.names.push(name.into());
        self.containers.push(container.into());
    }

    pub(super) fn exit(&mut self) {
        self.names.pop();
        self.containers.pop();
    }

    pub fn name(&self) -> String {
        self.names.join(".")
    }

    /// Whether the current tensor is the weight matrix of a linear layer.
    fn is_linear_weight(&self) -> bool {
        self.containers.last().is_some_and(|container| container == "Struct:Linear")
            && self.names.last().is_some_and(|name| name == "weight")
    }
}

/// The methods of a visitor or mapper that update its field `path`.
macro_rules! tracked_path {
    () => {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.enter(name, container);
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.exit();
        }
    };
}
pub(super) use tracked_path;

#[derive(Default)]
struct Survey {
    path: Path,
    /// The shape of every tensor, as in the state dictionary.
    shapes: BTreeMap<String, Vec<usize>>,
    floats: Vec<Weights>,
}

impl Survey {
    fn of<B: Backend, M: Module<B>>(model: &M) -> Self {
        let mut survey = Self::default();
        model.visit(&mut survey);
        survey
    }
}

impl<B: Backend> ModuleVisitor<B> for Survey {
    tracked_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let mut shape = param.lazy_shape().to_vec();
        if self.path.is_linear_weight() {
            shape.reverse();
        }
        let (name, is_trained) = (self.path.name(), param.is_require_grad());
        self.shapes.insert(name.clone(), shape.clone());
        self.floats.push(Weights { name, shape, id: param.id, is_trained });
    }

    fn visit_int<const D: usize>(&mut self, _param: &Param<Tensor<B, D, Int>>) {
        self.shapes.insert(self.path.name(), Vec::new());
    }
}

struct Reader<'a, B: Backend> {
    is_wanted: &'a dyn Fn(&str) -> bool,
    path: Path,
    floats: Vec<Tensor<B, 1>>,
    /// Names and shapes of `floats` in the dictionary.
    shapes: Vec<(String, Vec<usize>)>,
    /// Names and values of counts.
    integers: Vec<(String, Tensor<B, 1, Int>)>,
}

impl<B: Backend> ModuleVisitor<B> for Reader<'_, B> {
    tracked_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let name = self.path.name();
        if !(self.is_wanted)(&name) {
            return;
        }
        let mut value = param.val();
        if self.path.is_linear_weight() {
            value = value.swap_dims(0, 1);
        }
        self.shapes.push((name, value.dims().to_vec()));
        self.floats.push(value.detach().flatten(0, D - 1));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        let name = self.path.name();
        if (self.is_wanted)(&name) {
            self.integers.push((name, param.val().flatten(0, D - 1)));
        }
    }
}

/// The model with parameter ids derived from names instead of drawn at random, so that another process finds the state
/// that an optimizer stores by id. The id of a tensor with two names is that of the first.
pub fn with_named_ids<B: Backend, M: Module<B>>(model: M) -> M {
    #[derive(Default)]
    struct Rename {
        path: Path,
        known: HashMap<ParamId, ParamId>,
    }
    impl<B: Backend> ModuleMapper<B> for Rename {
        tracked_path!();

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let (id, tensor, mapper) = param.consume();
            let digest = Sha256::digest(self.path.name());
            let named = *self.known.entry(id).or_insert_with(|| {
                ParamId::from(u64::from_le_bytes(*digest.first_chunk().expect("a digest has 32 bytes")))
            });
            Param::from_mapped_value(named, tensor, mapper)
        }
    }
    model.map(&mut Rename::default())
}

struct Writer<'a> {
    path: Path,
    state: &'a StateDict,
}

impl Writer<'_> {
    fn tensor(&self) -> &HostTensor {
        self.state.get(&self.path.name()).expect("names and shapes were compared before")
    }
}

impl<B: Backend> ModuleMapper<B> for Writer<'_> {
    tracked_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let HostTensor::F32 { shape, data } = self.tensor() else { return param };
        let (device, tracked) = (param.val().device(), param.is_require_grad());
        let mut value = Tensor::<B, D>::from_data(TensorData::new(data.clone(), shape.clone()), &device);
        if self.path.is_linear_weight() {
            // A copy in Burn's layout: a transposed view would slow every later matmul.
            let (rows, columns) = (shape[0], shape[1]);
            let turned: Vec<f32> = (0..rows * columns).map(|i| data[(i % rows) * columns + i / rows]).collect();
            value = Tensor::from_data(TensorData::new(turned, [columns, rows]), &device);
        }
        Param::initialized(param.id, value.set_require_grad(tracked))
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<B, D, Int>>) -> Param<Tensor<B, D, Int>> {
        let HostTensor::I64 { data, .. } = self.tensor() else { return param };
        let device = param.val().device();
        Param::initialized(param.id, Tensor::from_data(TensorData::new(data.clone(), [data.len()]), &device))
    }
}
