//! A model's weights under the names and in the layout of torchvision: `layer1.0.conv1.weight` and so on.
//!
//! Two layouts differ from Burn's: a linear layer's weight is `[outputs, inputs]`, and the count of batches is a
//! scalar. Everything that leaves or enters a model (files, checkpoints, hashes) goes through here.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};

use crate::error::{Error, Result};
use crate::state::{HostTensor, StateDict};

/// All parameters and buffers by name.
pub fn state_dict<B: Backend, M: Module<B>>(model: &M) -> StateDict {
    let mut reader = Reader::default();
    model.visit(&mut reader);
    reader.state
}

/// The names of the tensors that are trained, in declaration order: those `model` tracks gradients for.
pub fn parameter_names<B: Backend, M: Module<B>>(model: &M) -> Vec<String> {
    let mut reader = Reader::default();
    model.visit(&mut reader);
    reader.trained
}

/// The model with every tensor replaced by the one of the same name in `state`.
///
/// Fails without a trace when names are missing or left over, or shapes differ; `origin` says where `state` comes from.
pub fn load_state<B: Backend, M: Module<B>>(model: M, state: &StateDict, origin: &str) -> Result<M> {
    let expected = state_dict(&model);
    let mut faults: Vec<String> = Vec::new();
    for (name, tensor) in &expected {
        match state.get(name) {
            None => faults.push(format!("'{name}' is missing")),
            Some(given) if given.shape() != tensor.shape() => {
                faults.push(format!("'{name}' has shape {:?} where the model has {:?}", given.shape(), tensor.shape()));
            }
            Some(_) => {}
        }
    }
    faults.extend(state.keys().filter(|name| !expected.contains_key(*name)).map(|name| format!("'{name}' is unknown")));
    if !faults.is_empty() {
        let more = if faults.len() > 3 { format!(" and {} more", faults.len() - 3) } else { String::new() };
        faults.truncate(3);
        let rule = "check --stem, --width and the number of classes";
        return Err(Error::Checkpoint(format!(
            "the weights in {origin} do not fit this model: {}{more}; {rule}",
            faults.join(", ")
        )));
    }
    Ok(model.map(&mut Writer { path: Path::default(), state }))
}

/// Where in the module tree a visitor is.
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

    pub(super) fn name(&self) -> String {
        self.names.join(".")
    }

    /// Whether the tensor at hand is the weight matrix of a linear layer.
    fn is_linear_weight(&self) -> bool {
        self.containers.last().is_some_and(|container| container == "Struct:Linear")
            && self.names.last().is_some_and(|name| name == "weight")
    }
}

#[derive(Default)]
struct Reader {
    path: Path,
    state: StateDict,
    trained: Vec<String>,
}

impl<B: Backend> ModuleVisitor<B> for Reader {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let mut value = param.val();
        if self.path.is_linear_weight() {
            value = value.swap_dims(0, 1);
        }
        let shape = value.dims().to_vec();
        let data = value.into_data().iter::<f32>().collect();
        self.state.insert(self.path.name(), HostTensor::F32 { shape, data });
        if param.is_require_grad() {
            self.trained.push(self.path.name());
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        let data = param.val().into_data().iter::<i64>().collect();
        self.state.insert(self.path.name(), HostTensor::I64 { shape: Vec::new(), data });
    }
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
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let HostTensor::F32 { shape, data } = self.tensor() else { return param };
        let (device, tracked) = (param.val().device(), param.is_require_grad());
        let mut value = Tensor::<B, D>::from_data(TensorData::new(data.clone(), shape.clone()), &device);
        if self.path.is_linear_weight() {
            // A copy in Burn's own layout: a transposed view would make every later matmul pay.
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
