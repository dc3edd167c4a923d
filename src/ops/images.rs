//! Images from bytes to the network's input: normalisation, pixels without a value, mixing.
//!
//! The host does it by default. A backend that does it on its device receives bytes, a quarter of the size.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, TensorData};
use rayon::prelude::*;

use super::host::HostOps;
use super::traffic::writing;

/// Red, green and blue.
pub const CHANNELS: usize = 3;

/// Fewest images per thread.
const FEW: usize = 8;

/// Pixels of an image: rows from the first number to the second, columns from the third to the fourth, ends excluded.
pub type Area = [u16; 4];

/// The pixels that have a value: those in the first area, but not in the other two. All others become 0, which is the
/// mean after normalisation.
pub type VisibleAreas = [Area; 3];

/// Images of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Pixels {
    /// `[n, 3, height, width]`.
    pub bytes: Vec<u8>,
    pub shown: Vec<VisibleAreas>,
}

/// Images to mix into others, one into each.
#[derive(Debug, Clone, PartialEq)]
pub struct Partners {
    pub pixels: Pixels,
    pub by: MixBy,
}

/// How two images are mixed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MixBy {
    /// This share of the own image, 0 to 1, and the rest of the partner.
    Share(f32),
    /// The partner's pixels replace the own ones in this area.
    Area(Area),
}

/// A batch of images before normalisation.
#[derive(Debug, Clone, PartialEq)]
pub struct ByteImages {
    pub own: Pixels,
    /// The images mixed into them after normalisation, if any.
    pub partners: Option<Partners>,
    /// `[height, width]`, in pixels.
    pub size: [usize; 2],
    /// A pixel `p` becomes `(p / 255 - mean) / std`.
    pub mean: [f32; CHANNELS],
    /// See `mean`.
    pub std: [f32; CHANNELS],
}

/// Makes the network's input of images.
pub trait ImageOps: HostOps {
    /// The images as `[n, 3, height, width]`, normalised and mixed.
    fn input(images: &ByteImages, device: &Self::Device) -> FloatTensor<Self> {
        input_of_host::<Self>(images, device)
    }
}

/// [`ByteImages::on_host`] as a tensor, `[n, 3, height, width]`.
pub(super) fn input_of_host<B: Backend>(images: &ByteImages, device: &B::Device) -> FloatTensor<B> {
    let values = images.on_host();
    let _copy = writing(values.len(), DType::F32);
    let [height, width] = images.size;
    B::float_from_data(TensorData::new(values, [images.own.shown.len(), CHANNELS, height, width]), device)
}

impl ByteImages {
    /// The values of [`ImageOps::input`], computed by the host in parallel.
    pub fn on_host(&self) -> Vec<f32> {
        let stride = CHANNELS * self.size[0] * self.size[1];
        let table = self.table();
        let mut values = vec![0.0; self.own.bytes.len()];
        let each = values.par_chunks_exact_mut(stride.max(1)).with_min_len(FEW).enumerate();
        each.for_each(|(image, values)| {
            self.normalize(&self.own, image, &table, values);
            if let Some(Partners { pixels, by }) = &self.partners {
                let mut partner = vec![0.0; stride];
                self.normalize(pixels, image, &table, &mut partner);
                self.mix(values, &partner, *by);
            }
        });
        values
    }

    fn table(&self) -> [[f32; 256]; CHANNELS] {
        let value = |channel, byte| (byte as f32 / 255.0 - self.mean[channel]) / self.std[channel];
        std::array::from_fn(|channel| std::array::from_fn(|byte| value(channel, byte)))
    }

    fn normalize(&self, pixels: &Pixels, image: usize, table: &[[f32; 256]; CHANNELS], out: &mut [f32]) {
        let ([height, width], [inside, blanks @ ..]) = (self.size, pixels.shown[image]);
        let area = height * width;
        let planes = pixels.bytes[image * out.len()..][..out.len()].chunks_exact(area);
        for ((plane, out), table) in planes.zip(out.chunks_exact_mut(area)).zip(table) {
            out.iter_mut().zip(plane).for_each(|(value, byte)| *value = table[usize::from(*byte)]);
            let [top, bottom, left, right] = inside.map(usize::from);
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                if (top..bottom).contains(&row) {
                    out[..left].fill(0.0);
                    out[right..].fill(0.0);
                } else {
                    out.fill(0.0);
                }
            }
            blanks.into_iter().flat_map(|blank| rows(blank, width)).for_each(|row| out[row].fill(0.0));
        }
    }

    fn mix(&self, own: &mut [f32], partner: &[f32], by: MixBy) {
        let [height, width] = self.size;
        match by {
            MixBy::Share(share) => {
                own.iter_mut().zip(partner).for_each(|(own, partner)| *own = *own * share + partner * (1.0 - share));
            }
            MixBy::Area(area) => {
                let planes = own.chunks_exact_mut(height * width).zip(partner.chunks_exact(height * width));
                for (own, partner) in planes {
                    rows(area, width).for_each(|row| own[row.clone()].copy_from_slice(&partner[row]));
                }
            }
        }
    }
}

/// The rows of an area as indices into a plane with rows of `width`.
fn rows([top, bottom, left, right]: Area, width: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let at = move |row: u16, column: u16| usize::from(row) * width + usize::from(column);
    (top..bottom).map(move |row| at(row, left)..at(row, right))
}
