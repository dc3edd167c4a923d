//! Images become the network's input on the device, by one kernel: only their bytes travel.

use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Shape, TensorData};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::Fusion;
use cubecl::prelude::*;

use super::fusion::queue;
use super::row_layout::{images as as_images, units};
use crate::host::HostOps;
use crate::images::{ByteImages, CHANNELS, ImageOps, MixBy, Pixels};
use crate::traffic::writing;

/// 32-bit words of a [`VisibleAreas`](crate::images::VisibleAreas).
const WORDS: usize = 6;

impl<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement> ImageOps for Fusion<CubeBackend<R, F, I, E>> {
    fn input(images: &ByteImages, device: &Self::Device) -> FloatTensor<Self> {
        let ([height, width], count) = (images.size, images.own.shown.len());
        let upload = |pixels: &Pixels| {
            [words::<Self>(&pixels.bytes, device), words::<Self>(bytemuck::cast_slice(&pixels.shown), device)]
        };
        let [own, own_shown] = upload(&images.own);
        let constants = Self::from_host(&[images.mean, images.std].concat(), device);
        // Without partners the kernel ignores these.
        let [other, other_shown] = match &images.partners {
            Some(partners) => upload(&partners.pixels),
            None => [own.clone(), own_shown.clone()],
        };
        let (mixes, share, [top, bottom, left, right]) = match images.partners.as_ref().map(|partners| partners.by) {
            None => (Mixes::Nothing, 1.0, [0; 4]),
            Some(MixBy::Share(share)) => (Mixes::Shares, share, [0; 4]),
            Some(MixBy::Area(area)) => (Mixes::Areas, 1.0, area.map(u32::from)),
        };
        let [input] = queue::<CubeBackend<R, F, I, E>, _, _>(
            "images",
            [own, own_shown, other, other_shown, constants],
            [(Shape::new([count, CHANNELS, height, width]), DType::F32)],
            move |[own, own_shown, other, other_shown, constants]| {
                let (client, pixels) = (own.client.clone(), count * height * width);
                let shape = Shape::new([count, height, width, CHANNELS]);
                let rows = empty_device_contiguous_dtype(client.clone(), own.device.clone(), shape, DType::F32);
                let (cubes, dim) = units(&client, pixels);
                network_input::launch::<R>(
                    &client,
                    cubes,
                    dim,
                    own.into_tensor_arg(),
                    own_shown.into_tensor_arg(),
                    other.into_tensor_arg(),
                    other_shown.into_tensor_arg(),
                    constants.into_tensor_arg(),
                    rows.clone().into_tensor_arg(),
                    share,
                    top,
                    bottom,
                    left,
                    right,
                    height,
                    width,
                    pixels,
                    mixes,
                );
                [as_images(rows)]
            },
        );
        input
    }
}

/// Bytes on the device, four in a number, the first lowest.
fn words<B: HostOps>(bytes: &[u8], device: &B::Device) -> IntTensor<B> {
    let mut words: Vec<i32> = vec![0; bytes.len().div_ceil(size_of::<i32>())];
    bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
    let length = words.len();
    let _copy = writing(length, DType::I32);
    B::int_from_data(TensorData::new(words, [length]), device)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Mixes {
    Nothing,
    Shares,
    Areas,
}

/// A pixel of all channels per unit. `share` and the area from `top` to `right` are those of `MixBy`.
#[cube(launch)]
fn network_input(
    own: &Tensor<u32>,
    own_shown: &Tensor<u32>,
    other: &Tensor<u32>,
    other_shown: &Tensor<u32>,
    constants: &Tensor<f32>,
    rows: &mut Tensor<f32>,
    share: f32,
    top: u32,
    bottom: u32,
    left: u32,
    right: u32,
    height: usize,
    width: usize,
    pixels: usize,
    #[comptime] mixes: Mixes,
) {
    let place = ABSOLUTE_POS;
    if place >= pixels {
        terminate!();
    }
    let area = height * width;
    let image = place / area;
    let pixel = place % area;
    let row = (pixel / width) as u32;
    let column = (pixel % width) as u32;
    #[unroll]
    for channel in 0..CHANNELS {
        let at = (image * CHANNELS + channel) * area + pixel;
        let mean = constants[channel];
        let std = constants[CHANNELS + channel];
        let mut value = normalized(own, own_shown, at, image, row, column, mean, std);
        if comptime!(mixes != Mixes::Nothing) {
            let partner = normalized(other, other_shown, at, image, row, column, mean, std);
            if comptime!(mixes == Mixes::Shares) {
                value = value * share + partner * (1.0 - share);
            } else {
                let is_theirs = row >= top && row < bottom && column >= left && column < right;
                value = select(is_theirs, partner, value);
            }
        }
        rows[place * CHANNELS + channel] = value;
    }
}

/// The value of the byte `at`, which belongs to this pixel of `image`.
#[cube]
fn normalized(
    bytes: &Tensor<u32>,
    shown: &Tensor<u32>,
    at: usize,
    image: usize,
    row: u32,
    column: u32,
    mean: f32,
    std: f32,
) -> f32 {
    let areas = image * WORDS;
    let is_shown = is_in(shown, areas, row, column)
        && !is_in(shown, areas + 2, row, column)
        && !is_in(shown, areas + 4, row, column);
    let byte = (bytes[at / 4] >> ((at % 4) as u32 * 8)) & 255;
    select(is_shown, (f32::cast_from(byte) / 255.0 - mean) / std, f32::new(0.0))
}

/// Whether a pixel lies in the area whose rows are the word `at` of `shown`, and its columns the next one.
#[cube]
fn is_in(shown: &Tensor<u32>, at: usize, row: u32, column: u32) -> bool {
    let rows = shown[at];
    let columns = shown[at + 1];
    row >= (rows & 0xffff) && row < (rows >> 16) && column >= (columns & 0xffff) && column < (columns >> 16)
}
