//! The three products of a convolution, each as a graph of one operation, and the engine that computes it.
//!
//! The engine is the first of cuDNN's heuristics that gives the same bits every time. Nothing is timed: which engine
//! computes, and so the bits of a run, depends on the sizes, the card and cuDNN's version alone.

use std::ffi::c_int;
use std::fmt;

use burn::tensor::DType;

use super::descriptor::{Descriptor, Kind, Value};
use super::{Handle, Pointer};

/// Which product of images `x`, kernels `w` and outputs `y`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Product {
    /// `y` of `x` and `w`.
    Forward,
    /// The gradient of `w` from `x` and that of `y`.
    WeightGradient,
    /// The gradient of `x` from `w` and that of `y`.
    InputGradient,
}

/// A product of a convolution without groups, whose three tensors have the channels innermost in memory. Sums are in
/// f32.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Convolution {
    pub product: Product,
    /// `[batch, inputs, height, width]`.
    pub x: [usize; 4],
    /// `[outputs, inputs, kernel_height, kernel_width]`.
    pub w: [usize; 4],
    pub stride: usize,
    pub padding: usize,
    /// Of the factors.
    pub dtype: DType,
    pub result: DType,
}

/// `cudnnDataType_t`.
const F32: c_int = 0;
const F16: c_int = 2;
const BF16: c_int = 9;
/// The kernel is not turned round.
const CROSS_CORRELATION: c_int = 1;
/// `CUDNN_HEUR_MODE_A` and `CUDNN_HEUR_MODE_FALLBACK`.
const HEURISTICS: [c_int; 2] = [3, 2];
/// Engines that are looked at, of those that the heuristics name.
const ENGINES: usize = 24;
/// Sums in less than f32, and bits that differ between runs: `CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION` and
/// `CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC`. f32 may be rounded to TF32, unless the environment forbids that.
const UNWANTED: [c_int; 2] = [2, 4];
/// The most bytes that an engine may want beside the tensors.
const WORKSPACE: usize = 1 << 30;
/// Of memory, in bytes.
const ALIGNMENT: i64 = 16;

// `cudnnBackendAttributeName_t`.
const CONVOLUTION_TYPE: c_int = 100;
const CONVOLUTION_MODE: c_int = 101;
const DILATIONS: c_int = 102;
const STRIDES: c_int = 103;
const PADDING_AFTER: c_int = 104;
const PADDING_BEFORE: c_int = 105;
const SPATIAL_DIMENSIONS: c_int = 106;
const HEURISTIC_MODE: c_int = 200;
const HEURISTIC_GRAPH: c_int = 201;
const HEURISTIC_RESULTS: c_int = 202;
const CONFIG_ENGINE: c_int = 300;
const PLAN_HANDLE: c_int = 400;
const PLAN_CONFIG: c_int = 401;
const PLAN_WORKSPACE: c_int = 402;
const GRAPH_HANDLE: c_int = 800;
const GRAPH_OPERATIONS: c_int = 801;
const TENSOR_ALIGNMENT: c_int = 900;
const TENSOR_TYPE: c_int = 901;
const TENSOR_SIZES: c_int = 902;
const TENSOR_STRIDES: c_int = 903;
const TENSOR_NAME: c_int = 906;
const MEMORY_NAMES: c_int = 1000;
const MEMORY_POINTERS: c_int = 1001;
const MEMORY_WORKSPACE: c_int = 1003;
const ENGINE_NOTES: c_int = 1303;

/// Those of `x`, `w` and `y`.
const NAMES: [i64; 3] = [1, 2, 3];

impl Convolution {
    /// The shape of `y`, `[batch, outputs, out_height, out_width]`.
    pub fn y(&self) -> [usize; 4] {
        let positions = |axis: usize| (self.x[axis] + 2 * self.padding - self.w[axis]) / self.stride + 1;
        [self.x[0], self.w[0], positions(2), positions(3)]
    }

    /// The graph, and what it is made of.
    fn graph(&self, handle: &Handle) -> Result<Vec<Descriptor>, String> {
        let library = &handle.library;
        let tensor = |name: i64, product: Product, sizes: [usize; 4]| {
            let kind = match if product == self.product { self.result } else { self.dtype } {
                DType::F32 => F32,
                DType::F16 => F16,
                DType::BF16 => BF16,
                other => return Err(format!("cuDNN is not used for tensors of {other:?}")),
            };
            let [outer, channels, height, width] = sizes.map(|size| size as i64);
            let strides = [height * width * channels, 1, width * channels, channels];
            let attributes = [
                (TENSOR_NAME, Value::Integers(&[name])),
                (TENSOR_TYPE, Value::DataType(kind)),
                (TENSOR_ALIGNMENT, Value::Integers(&[ALIGNMENT])),
                (TENSOR_SIZES, Value::Integers(&[outer, channels, height, width])),
                (TENSOR_STRIDES, Value::Integers(&strides)),
            ];
            Descriptor::new(library, Kind::Tensor, &attributes)
        };
        let x = tensor(NAMES[0], Product::InputGradient, self.x)?;
        let w = tensor(NAMES[1], Product::WeightGradient, self.w)?;
        let y = tensor(NAMES[2], Product::Forward, self.y())?;
        let [stride, padding] = [self.stride, self.padding].map(|size| [size as i64; 2]);
        let sliding = [
            (CONVOLUTION_TYPE, Value::DataType(F32)),
            (CONVOLUTION_MODE, Value::ConvolutionMode(CROSS_CORRELATION)),
            (SPATIAL_DIMENSIONS, Value::Integers(&[2])),
            (DILATIONS, Value::Integers(&[1, 1])),
            (STRIDES, Value::Integers(&stride)),
            (PADDING_BEFORE, Value::Integers(&padding)),
            (PADDING_AFTER, Value::Integers(&padding)),
        ];
        let sliding = Descriptor::new(library, Kind::Convolution, &sliding)?;
        // The attributes of all three are alpha, beta, the convolution, w, x and y, from different numbers on.
        let (operation, first) = match self.product {
            Product::Forward => (Kind::Forward, 700),
            Product::InputGradient => (Kind::InputGradient, 706),
            Product::WeightGradient => (Kind::WeightGradient, 712),
        };
        let values = [
            Value::Float(1.0),
            Value::Float(0.0),
            Value::Descriptor(&sliding),
            Value::Descriptor(&w),
            Value::Descriptor(&x),
            Value::Descriptor(&y),
        ];
        let attributes: Vec<_> = (first..).zip(values).collect();
        let operation = Descriptor::new(library, operation, &attributes)?;
        let attributes =
            [(GRAPH_HANDLE, Value::Handle(handle.handle)), (GRAPH_OPERATIONS, Value::Descriptor(&operation))];
        let graph = Descriptor::new(library, Kind::Graph, &attributes)?;
        Ok(vec![graph, operation, sliding, x, w, y])
    }
}

impl fmt::Display for Convolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.product {
            Product::Forward => "convolution",
            Product::WeightGradient => "weight gradient",
            Product::InputGradient => "input gradient",
        };
        let Self { x, w, stride, dtype, .. } = self;
        write!(f, "the {name} of images {x:?} with kernels {w:?}, stride {stride}, in {dtype:?}")
    }
}

/// An engine for one product.
pub struct Plan {
    plan: Descriptor,
    workspace: usize,
    /// What the plan was made of, to which it may refer.
    _parts: Vec<Descriptor>,
}

impl Plan {
    /// Compiles the engine for a product, which takes a second at worst.
    ///
    /// # Errors
    /// Those of cuDNN, and that no deterministic engine takes the product.
    pub fn new(handle: &Handle, convolution: &Convolution) -> Result<Self, String> {
        handle.within(|| {
            let mut parts = convolution.graph(handle)?;
            for mode in HEURISTICS {
                let graph = Value::Descriptor(&parts[0]);
                let asked = [(HEURISTIC_GRAPH, graph), (HEURISTIC_MODE, Value::HeuristicMode(mode))];
                let Ok(heuristics) = Descriptor::new(&handle.library, Kind::Heuristics, &asked) else { continue };
                let configs = heuristics.descriptors(HEURISTIC_RESULTS, Kind::EngineConfig, ENGINES);
                for config in configs.unwrap_or_default() {
                    if is_wanted(&config).unwrap_or(false)
                        && let Ok((plan, workspace)) = compiled(handle, &config)
                        && workspace <= WORKSPACE
                    {
                        parts.extend([config, heuristics]);
                        return Ok(Self { plan, workspace, _parts: parts });
                    }
                }
            }
            Err("cuDNN has no engine for it that sums in f32 and gives the same bits every time".into())
        })
    }

    /// Bytes of memory that the engine needs beside the tensors.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// Queues the product of the tensors `x`, `w` and `y` on the stream of `handle`.
    ///
    /// # Errors
    /// Those of cuDNN, and memory that is not aligned to 16 bytes.
    ///
    /// # Safety
    /// The plan is of this handle; the memory has the sizes of the convolution and of the workspace, and stays until
    /// the work is done.
    pub unsafe fn run(&self, handle: &Handle, memory: [Pointer; 3], workspace: Pointer) -> Result<(), String> {
        if memory.iter().any(|pointer| pointer.align_offset(ALIGNMENT as usize) != 0) {
            return Err(format!("memory is not aligned to {ALIGNMENT} bytes"));
        }
        handle.within(|| {
            let attributes = [
                (MEMORY_NAMES, Value::Integers(&NAMES)),
                (MEMORY_POINTERS, Value::Pointers(&memory)),
                (MEMORY_WORKSPACE, Value::Pointers(&[workspace])),
            ];
            let memory = Descriptor::new(&handle.library, Kind::Memory, &attributes)?;
            // SAFETY: the caller's.
            let code = unsafe { (handle.library.0.execute)(handle.handle, self.plan.raw(), memory.raw()) };
            handle.library.check(code, "queue a convolution")
        })
    }
}

/// Whether its engine has none of the unwanted properties.
fn is_wanted(config: &Descriptor) -> Result<bool, String> {
    let engine = config.descriptors(CONFIG_ENGINE, Kind::Engine, 1)?;
    let notes = engine.first().ok_or("there is no engine")?.notes(ENGINE_NOTES)?;
    Ok(!notes.iter().any(|note| UNWANTED.contains(note)))
}

/// The engine's plan, and the bytes of its workspace; an error if it refuses the graph.
fn compiled(handle: &Handle, config: &Descriptor) -> Result<(Descriptor, usize), String> {
    let attributes = [(PLAN_HANDLE, Value::Handle(handle.handle)), (PLAN_CONFIG, Value::Descriptor(config))];
    let plan = Descriptor::new(&handle.library, Kind::Plan, &attributes)?;
    let workspace = plan.integer(PLAN_WORKSPACE)?.max(0) as usize;
    Ok((plan, workspace))
}
