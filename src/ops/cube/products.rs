//! The three products of a convolution, each by one kernel for its size and type.
//!
//! Burn tunes: for every size it compiles eight kernels, and those that they call, and keeps the fastest. Compiling
//! takes a second for most of them, which adds up to many minutes before the first step of ResNet-18. Here matrix units
//! compute where the device has them, by the kernel that was the fastest or close to it for most layers, and Burn's
//! direct convolution elsewhere; before both cuDNN, if the process uses it. Matrix units add up in f32 and take f32
//! rounded to TF32, unless the environment has `NVIDIA_TF32_OVERRIDE=0`, which LibTorch and cuDNN obey too.

use std::sync::LazyLock;

use burn::tensor::ops::{ConvOptions, FloatTensorOps};
use burn::tensor::{DType, Shape, Slice, TensorMetadata};
use burn_cubecl::kernel::conv::{ConvStrategy, conv_forward};
use burn_cubecl::kernel::{cast, slice};
use burn_cubecl::ops::numeric::{empty_device_contiguous_dtype, zeros_client};
use burn_cubecl::ops::{permute, permute_nchw_to_nhwc};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::client::ComputeClient;
use cubecl::prelude::TensorBinding;
use cubek::convolution::{self, AcceleratedTileKind, ConvAlgorithm, ConvolutionArgs, ConvolutionInputs, launch_ref};
use cubek::matmul::components::tile::TileMatmulKind;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::Strategy;
use cubek::matmul::routines::simple::SimpleArgs;
use cubek::matmul::routines::{BlueprintStrategy, Routine};
use cubek::std::InputBinding;

use super::checked::first_right;
use super::row_layout::{images, rows};
use super::weight_gradient::by_matrices;
use crate::Sliding;
use crate::nvidia::cudnn::{Convolution, Product};

/// The output `[batch, outputs, out_height, out_width]` for `x` `[batch, inputs, height, width]` and `weight`
/// `[outputs, inputs, kernel_height, kernel_width]`.
pub(super) fn output<R: CubeRuntime>(x: CubeTensor<R>, weight: CubeTensor<R>, sliding: Sliding) -> CubeTensor<R> {
    let [[batch, _, height, width], [outputs, _, down, across]] = [&x, &weight].map(|it| it.shape().dims());
    let (shape, dtype) = ([batch, sliding.positions(height, down), sliding.positions(width, across), outputs], x.dtype);
    let convolution = convolution(Product::Forward, x.shape().dims(), weight.shape().dims(), dtype, sliding);
    product(
        convolution,
        [x, weight],
        convolved(shape, sliding, |input, weight, out| ConvolutionInputs::Forward { input, weight, bias: None, out }),
        |[x, weight]| cast_as_laid(direct(x, weight, sliding.options()), dtype),
    )
}

/// The gradient of the weight, which has `shape`, in f32; the gradient of the output is shaped as that.
pub(super) fn weight_gradient<R: CubeRuntime>(
    x: CubeTensor<R>,
    shape: [usize; 4],
    gradient: CubeTensor<R>,
    sliding: Sliding,
) -> CubeTensor<R> {
    let [outputs, inputs, down, across] = shape;
    let convolution = convolution(Product::WeightGradient, x.shape().dims(), shape, x.dtype, sliding);
    product(
        convolution,
        [x, gradient],
        |[x, gradient], (algorithm, tile)| {
            let strategy = match (algorithm, tile) {
                (ConvAlgorithm::SimpleSyncStrided, _) => Strategy::SimpleStridedMma(simple(TileMatmulKind::Mma)),
                (_, AcceleratedTileKind::Mma) => Strategy::SimpleCyclicMma(simple(TileMatmulKind::Mma)),
                (_, AcceleratedTileKind::Cmma) => Strategy::SimpleCyclicCmma(simple(TileMatmulKind::Cmma)),
            };
            by_matrices(x, shape, gradient, sliding, &strategy)
        },
        |[x, gradient]| {
            // Images and channels change places: the gradient slides over the images.
            let [x, gradient] = [x, gradient].map(|it| permute(it, &[1, 0, 2, 3]));
            let Sliding { stride, padding, .. } = sliding;
            let found = direct(x, gradient, ConvOptions::new([1, 1], [padding; 2], [stride; 2], 1));
            let found = permute(found, &[1, 0, 2, 3]);
            // Rows and columns of the images that no position reached.
            slice(found, &[0..outputs, 0..inputs, 0..down, 0..across])
        },
    )
}

/// The gradient of the input, which has `shape`.
pub(super) fn input_gradient<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement>(
    shape: [usize; 4],
    weight: CubeTensor<R>,
    gradient: CubeTensor<R>,
    sliding: Sliding,
) -> CubeTensor<R> {
    let [_, _, down, across] = weight.shape().dims();
    let ([batch, inputs, height, width], dtype) = (shape, gradient.dtype);
    let dense = Sliding { stride: 1, ..sliding };
    let size = [dense.positions(height, down), dense.positions(width, across)];
    let spread = |gradient| match sliding.stride {
        1 => gradient,
        stride => spread::<R, F, I, E>(gradient, size, stride),
    };
    let by_units = convolved([batch, height, width, inputs], dense, |out_grad, weights, in_grad| {
        ConvolutionInputs::BackwardData { out_grad, weights, in_grad }
    });
    product(
        convolution(Product::InputGradient, shape, weight.shape().dims(), dtype, sliding),
        [gradient, weight],
        |[gradient, weight], kernel| by_units([spread(gradient), weight], kernel),
        |[gradient, weight]| {
            let gradient = spread(gradient);
            // The convolution of the gradient with the kernels turned round, from outputs to inputs.
            let weight = permute(weight, &[1, 0, 2, 3]);
            let weight = CubeBackend::<R, F, I, E>::float_flip(weight, &[2, 3]);
            let padding = [down, across].map(|size| (size - 1).saturating_sub(sliding.padding));
            // Kernels that lie on the padding alone made the rest.
            let [from_top, from_left] = [down, across].map(|size| (sliding.padding + 1).saturating_sub(size));
            let [_, outputs, rows, columns] = gradient.shape().dims();
            let inner = [0..batch, 0..outputs, from_top..rows - from_top, from_left..columns - from_left];
            let gradient = if from_top + from_left > 0 { slice(gradient, &inner) } else { gradient };
            cast_as_laid(direct(gradient, weight, ConvOptions::new([1, 1], padding, [1, 1], 1)), dtype)
        },
    )
}

/// The gradient with `stride - 1` zeros between its rows and between its columns, and zeros after them up to `size`:
/// that of a convolution with stride 1, which ignores the positions in between. Burn's kernels for stride 2 are slower
/// than one that adds these zeros.
fn spread<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement>(
    gradient: CubeTensor<R>,
    size: [usize; 2],
    stride: usize,
) -> CubeTensor<R> {
    let gradient = rows(gradient);
    let [batch, height, width, channels] = gradient.shape().dims();
    let shape = Shape::new([batch, size[0], size[1], channels]);
    let zeros = zeros_client(gradient.client.clone(), gradient.device.clone(), shape, gradient.dtype);
    let whole = |length: usize| Slice::from(0..length);
    let every = |count: usize| Slice::new(0, Some(((count - 1) * stride + 1) as isize), stride as isize);
    let places = [whole(batch), every(height), every(width), whole(channels)];
    images(CubeBackend::<R, F, I, E>::float_slice_assign(zeros, &places, gradient))
}

fn convolution(product: Product, x: [usize; 4], w: [usize; 4], dtype: DType, sliding: Sliding) -> Convolution {
    let result = if product == Product::WeightGradient { DType::F32 } else { dtype };
    Convolution { product, x, w, stride: sliding.stride, padding: sliding.padding, dtype, result }
}

/// A product of two tensors of one type: by cuDNN, if the process uses it, or `by_units`, on matrix units, where the
/// device has them for the type; if that is right. Else by `direct`, of factors in f32: with sums in f16 the gradient of
/// a weight loses its direction.
fn product<R: CubeRuntime>(
    convolution: Convolution,
    factors: [CubeTensor<R>; 2],
    by_units: impl Fn([CubeTensor<R>; 2], Kernel) -> Option<CubeTensor<R>>,
    direct: impl FnOnce([CubeTensor<R>; 2]) -> CubeTensor<R>,
) -> CubeTensor<R> {
    let (device, dtype) = (factors[0].device.clone(), factors[0].dtype);
    let units = kernels(&factors[0].client, dtype).iter().copied().map(Candidate::Units);
    let candidates: Vec<_> = cudnn().into_iter().chain(units).collect();
    let trusted = |factors: [_; 2]| direct(factors.map(|factor| cast_as_laid(factor, DType::F32)));
    if candidates.is_empty() {
        return trusted(factors);
    }
    let run = |candidate| match candidate {
        #[cfg(feature = "cuda")]
        Candidate::CuDnn => super::cudnn::product(&convolution, factors.clone()),
        Candidate::Units(kernel) => by_units(factors.clone(), kernel),
    };
    first_right(&device, convolution.clone(), &candidates, run, || trusted(factors.clone()))
}

fn cudnn() -> Option<Candidate> {
    #[cfg(feature = "cuda")]
    let found = super::cudnn::is_on().then_some(Candidate::CuDnn);
    #[cfg(not(feature = "cuda"))]
    let found = None;
    found
}

#[derive(Debug, Clone, Copy)]
enum Candidate {
    #[cfg(feature = "cuda")]
    CuDnn,
    /// A kernel of CubeCL's.
    Units(Kernel),
}

/// How a kernel reads its factors, and on which units it multiplies.
type Kernel = (ConvAlgorithm, AcceleratedTileKind);

/// One of CubeCL's convolutions of two tensors, whose result has `shape`.
fn convolved<R: CubeRuntime>(
    shape: [usize; 4],
    sliding: Sliding,
    inputs: impl Fn(InputBinding<R>, InputBinding<R>, TensorBinding<R>) -> ConvolutionInputs<R>,
) -> impl Fn([CubeTensor<R>; 2], Kernel) -> Option<CubeTensor<R>> {
    move |factors, (algorithm, tile_kind)| {
        let (client, device, dtype) = (factors[0].client.clone(), factors[0].device.clone(), factors[0].dtype);
        let made = empty_device_contiguous_dtype(client.clone(), device, Shape::new(shape), dtype);
        let [left, right] = factors.map(|it| InputBinding::new(rows(it).binding(), dtype.into()));
        let elements = MatmulGlobalElems { lhs: dtype.into(), rhs: dtype.into(), out: dtype.into() };
        let Sliding { stride, padding, .. } = sliding;
        let args = ConvolutionArgs { stride: [stride; 2], padding: [padding; 2], dilation: [1; 2] };
        let strategy = convolution::Strategy::Inferred { algorithm, tile_kind };
        let inputs = inputs(left, right, made.clone().binding());
        launch_ref::<R, 2>(&strategy, &client, inputs, args, MatmulElems::from_globals(&elements)).ok()?;
        Some(images(made))
    }
}

/// The size of tiles that CubeCL chooses for these units.
fn simple<A: Routine<(), Strategy = SimpleArgs>>(tile_matmul: TileMatmulKind) -> BlueprintStrategy<(), A> {
    BlueprintStrategy::Inferred(SimpleArgs { multi_rows: false, tile_matmul })
}

/// The kernels on a device's matrix units, the fastest first; none where it has no such units, or f32 must be exact.
fn kernels<R: CubeRuntime>(client: &ComputeClient<R>, dtype: DType) -> &'static [Kernel] {
    use AcceleratedTileKind::{Cmma, Mma};
    use ConvAlgorithm::{SimpleSyncCyclic, SimpleSyncStrided};
    static IS_EXACT: LazyLock<bool> =
        LazyLock::new(|| std::env::var("NVIDIA_TF32_OVERRIDE").is_ok_and(|value| value.trim() == "0"));
    let units = &client.properties().features.matmul;
    match (units.mma.is_empty(), units.cmma.is_empty()) {
        _ if dtype == DType::F32 && *IS_EXACT => &[],
        // The first refuses some small sizes.
        (false, _) => &[(SimpleSyncStrided, Mma), (SimpleSyncCyclic, Mma)],
        (true, false) => &[(SimpleSyncCyclic, Cmma)],
        (true, true) => &[],
    }
}

/// Burn's kernel of one multiplication after the other, which adds up in the type of the tensors.
fn direct<R: CubeRuntime>(x: CubeTensor<R>, weight: CubeTensor<R>, options: ConvOptions<2>) -> CubeTensor<R> {
    conv_forward(x, weight, None, options, ConvStrategy::Direct).expect("it takes every size")
}

/// The tensor in another type. Images whose channels are innermost stay so: Burn's cast would copy them to
/// `[batch, channels, height, width]`.
fn cast_as_laid<R: CubeRuntime>(x: CubeTensor<R>, dtype: DType) -> CubeTensor<R> {
    let rows = permute_nchw_to_nhwc(x.clone());
    if rows.is_contiguous() { images(cast(rows, dtype)) } else { cast(x, dtype) }
}
