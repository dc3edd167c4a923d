//! The network's input on CUDA: only the bytes of images travel, and ATen normalises, blanks and mixes them there.

use burn::backend::LibTorch;
use burn::backend::libtorch::{LibTorchDevice, TchTensor};
use tch::{Device, Kind, Tensor};

use super::cuda::upload;
use crate::images::{Area, ByteImages, CHANNELS, ImageOps, MixBy, Partners, Pixels, input_of_host};

/// The areas of a [`VisibleAreas`](crate::images::VisibleAreas).
const AREAS: i64 = 3;

impl ImageOps for LibTorch<f32> {
    fn input(images: &ByteImages, device: &LibTorchDevice) -> TchTensor {
        match device {
            LibTorchDevice::Cpu => input_of_host::<Self>(images, device),
            device => TchTensor::new(input_on(images, (*device).into())),
        }
    }
}

/// The values of [`ByteImages::on_host`], computed on `device`.
fn input_on(images: &ByteImages, device: Device) -> Tensor {
    let own = normalized(images, &images.own, device);
    let Some(Partners { pixels, by }) = &images.partners else { return own };
    let partner = normalized(images, pixels, device);
    match *by {
        MixBy::Share(share) => own * f64::from(share) + partner * f64::from(1.0 - share),
        MixBy::Area([top, bottom, left, right]) => {
            let part = |images: &Tensor| {
                let rows = images.narrow(2, top.into(), bottom.saturating_sub(top).into());
                rows.narrow(3, left.into(), right.saturating_sub(left).into())
            };
            part(&own).copy_(&part(&partner));
            own
        }
    }
}

/// `[n, 3, height, width]`; pixels without a value are 0.
fn normalized(images: &ByteImages, pixels: &Pixels, device: Device) -> Tensor {
    let ([height, width], count) = (images.size.map(|side| side as i64), pixels.shown.len() as i64);
    let constant = |values: &[f32]| upload(values, &[1, values.len() as i64, 1, 1], device);
    let values = upload(&pixels.bytes, &[count, CHANNELS as i64, height, width], device).to_kind(Kind::Float);
    // A tensor: by a number CUDA multiplies with its inverse, which rounds differently.
    let values = (values / constant(&[255.0]) - constant(&images.mean)) / constant(&images.std);
    let zero = Tensor::zeros([1], (Kind::Float, device));
    values.where_self(&is_shown(pixels, [height, width], device).unsqueeze(1), &zero)
}

/// Which pixels have a value, `[n, height, width]`.
fn is_shown(pixels: &Pixels, [height, width]: [i64; 2], device: Device) -> Tensor {
    let bounds: Vec<i32> =
        pixels.shown.iter().flat_map(|areas| areas.iter().flatten()).map(|at| (*at).into()).collect();
    let bounds = upload(&bounds, &[pixels.shown.len() as i64, AREAS, size_of::<Area>() as i64 / 2], device);
    // `[n, 3, length]`
    let within = |length: i64, first: i64| {
        let [from, to] = [first, first + 1].map(|at| bounds.select(2, at).unsqueeze(2));
        let places = Tensor::arange(length, (Kind::Int, device));
        places.ge_tensor(&from).logical_and(&places.lt_tensor(&to))
    };
    let areas = within(height, 0).unsqueeze(3).logical_and(&within(width, 2).unsqueeze(2));
    let [inside, blank, other] = [0, 1, 2].map(|area| areas.select(1, area));
    inside.logical_and(&blank.logical_or(&other).logical_not())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::VisibleAreas;

    fn pixels(shown: Vec<VisibleAreas>, area: usize, seed: usize) -> Pixels {
        let bytes = (0..shown.len() * CHANNELS * area).map(|at| (((at + seed) * 2_654_435_761) >> 7) as u8).collect();
        Pixels { bytes, shown }
    }

    #[test]
    fn a_device_of_libtorch_computes_the_bits_of_the_host() {
        let (height, width) = (7, 9);
        let whole = [[0, 7, 0, 9], [0; 4], [0; 4]];
        let shown = vec![whole, [[1, 6, 2, 9], [2, 4, 3, 5], [0, 7, 8, 9]], [[0; 4]; 3]];
        for by in [None, Some(MixBy::Share(0.3)), Some(MixBy::Area([1, 5, 0, 4])), Some(MixBy::Area([3, 3, 2, 2]))] {
            let partner = pixels(shown.iter().rev().copied().collect(), height * width, 11);
            let images = ByteImages {
                own: pixels(shown.clone(), height * width, 0),
                partners: by.map(|by| Partners { pixels: partner, by }),
                size: [height, width],
                mean: [0.49, 0.48, 0.45],
                std: [0.25, 0.2, 0.3],
            };
            let values = Vec::<f32>::try_from(input_on(&images, Device::Cpu).flatten(0, -1)).expect("they are f32");
            assert_eq!(values, images.on_host(), "{by:?}");
        }
    }
}
