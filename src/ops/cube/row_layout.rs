//! Activations as rows of channels, and how kernels divide them.

use burn::tensor::{DType, Shape, TensorMetadata};
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::ops::{permute_nchw_to_nhwc, permute_nhwc_to_nchw};
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::client::ComputeClient;
use cubecl::prelude::{CubeCount, CubeDim, LaunchArg, SequenceArg, TensorArg};

use super::norm_kernels::UNITS;

/// Rows that a unit adds up on its own, at least.
const FEWEST: usize = 8;

/// Pieces of the rows that are added up on their own, at most: enough for a large GPU, and few for the cube that adds
/// them up.
const MOST: usize = 1024;

/// A batch of images, and the way over it.
pub(super) struct RowLayout<R: CubeRuntime> {
    pub(super) client: ComputeClient<R>,
    device: R::Device,
    shape: [usize; 4],
    pub(super) dtype: DType,
    /// Pixels of all images.
    pub(super) rows: usize,
    channels: usize,
    /// Channels that a unit computes at once.
    pub(super) vector: usize,
}

impl<R: CubeRuntime> RowLayout<R> {
    /// `x` is `[batch, channels, height, width]`.
    pub(super) fn of(x: &CubeTensor<R>) -> Self {
        let shape: [usize; 4] = x.shape().dims();
        let [batch, channels, height, width] = shape;
        let vector = if channels.is_multiple_of(4) { 4 } else { 1 };
        let (client, device) = (x.client.clone(), x.device.clone());
        Self { client, device, shape, dtype: x.dtype, rows: batch * height * width, channels, vector }
    }

    /// Vectors of a row.
    pub(super) fn columns(&self) -> usize {
        self.channels / self.vector
    }

    /// Vectors of all rows.
    pub(super) fn vectors(&self) -> usize {
        self.rows * self.columns()
    }

    /// The division of all vectors among units that work alone.
    pub(super) fn units(&self) -> (CubeCount, CubeDim) {
        units(&self.client, self.vectors())
    }

    /// Columns of a cube that adds up rows.
    fn width(&self) -> usize {
        self.columns().next_power_of_two().min(32)
    }

    /// Rows that such a cube adds to at once.
    pub(super) fn lanes(&self) -> usize {
        UNITS / self.width()
    }

    pub(super) fn cube(&self) -> CubeDim {
        CubeDim::new_2d(self.width() as u32, self.lanes() as u32)
    }

    /// Rows of a chunk that one unit adds up.
    pub(super) fn depth(&self) -> usize {
        self.rows.div_ceil(MOST * self.lanes()).max(FEWEST)
    }

    /// Parts of the rows that are added up on their own.
    pub(super) fn piece_count(&self) -> usize {
        self.rows.div_ceil(self.depth() * self.lanes())
    }

    /// A cube per piece and group of columns.
    pub(super) fn piece_cubes(&self) -> CubeCount {
        CubeCount::Static(self.columns().div_ceil(self.width()) as u32, self.piece_count() as u32, 1)
    }

    /// A cube per group of columns.
    pub(super) fn channel_cubes(&self) -> CubeCount {
        CubeCount::Static(self.columns().div_ceil(self.width()) as u32, 1, 1)
    }

    /// Memory for rows of the same shape and type.
    pub(super) fn empty(&self) -> CubeTensor<R> {
        let [batch, channels, height, width] = self.shape;
        self.memory(Shape::new([batch, height, width, channels]), self.dtype)
    }

    /// Memory for two values per piece and channel.
    pub(super) fn pieces(&self) -> [CubeTensor<R>; 2] {
        std::array::from_fn(|_| self.memory(Shape::new([self.piece_count(), self.channels]), DType::F32))
    }

    /// Memory for so many values per channel.
    pub(super) fn per_channel<const N: usize>(&self) -> [CubeTensor<R>; N] {
        std::array::from_fn(|_| self.memory(Shape::new([self.channels]), DType::F32))
    }

    fn memory(&self, shape: Shape, dtype: DType) -> CubeTensor<R> {
        empty_device_contiguous_dtype(self.client.clone(), self.device.clone(), shape, dtype)
    }
}

/// The division of `count` elements among units that work alone.
pub(super) fn units<R: CubeRuntime>(client: &ComputeClient<R>, count: usize) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new(client, count);
    (calculate_cube_count_elemwise(client, count, dim), dim)
}

/// Images `[batch, channels, height, width]` as rows without gaps, `[batch, height, width, channels]`: a view of what a
/// convolution made, a copy of anything else.
pub(super) fn rows<R: CubeRuntime>(x: CubeTensor<R>) -> CubeTensor<R> {
    into_contiguous(permute_nchw_to_nhwc(x))
}

/// The inverse of [`rows`], a view.
pub(super) fn images<R: CubeRuntime>(rows: CubeTensor<R>) -> CubeTensor<R> {
    permute_nhwc_to_nchw(rows)
}

/// Tensors of which a kernel takes any number.
pub(super) fn arguments<R: CubeRuntime, T>(tensors: impl IntoIterator<Item = CubeTensor<R>>) -> SequenceArg<R, T>
where
    T: LaunchArg<RuntimeArg<R> = TensorArg<R>>,
{
    tensors.into_iter().map(CubeTensor::into_tensor_arg).collect()
}
