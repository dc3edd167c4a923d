//! The network's input from bytes, against its definition pixel by pixel.

use burn::tensor::{Tensor, TensorPrimitive};
use kiln_ops::ImageOps;
use kiln_ops::images::{Area, ByteImages, MixBy, Partners, Pixels, VisibleAreas};

use super::{assert_close, noise, to_vec};

const MEAN: [f32; 3] = [0.49, 0.48, 0.45];
const STD: [f32; 3] = [0.25, 0.2, 0.3];

fn pixels(count: usize, size: [usize; 2], shown: VisibleAreas, seed: u64) -> Pixels {
    let bytes = noise(count * 3 * size[0] * size[1], seed).iter().map(|value| (127.5 * (value + 1.0)) as u8).collect();
    // Some images are shown whole.
    let whole = [[0, size[0] as u16, 0, size[1] as u16], [0; 4], [0; 4]];
    Pixels { bytes, shown: (0..count).map(|image| if image % 3 == 1 { whole } else { shown }).collect() }
}

fn is_in([top, bottom, left, right]: Area, row: usize, column: usize) -> bool {
    (usize::from(top)..usize::from(bottom)).contains(&row) && (usize::from(left)..usize::from(right)).contains(&column)
}

fn expected(images: &ByteImages) -> Vec<f64> {
    let ([height, width], mut values) = (images.size, Vec::new());
    for image in 0..images.own.shown.len() {
        for channel in 0..3 {
            for row in 0..height {
                for column in 0..width {
                    let value = |pixels: &Pixels| {
                        let [inside, blanks @ ..] = pixels.shown[image];
                        let is_blank = blanks.iter().any(|blank| is_in(*blank, row, column));
                        let byte = pixels.bytes[((image * 3 + channel) * height + row) * width + column];
                        let value = (f64::from(byte) / 255.0 - f64::from(MEAN[channel])) / f64::from(STD[channel]);
                        if is_in(inside, row, column) && !is_blank { value } else { 0.0 }
                    };
                    let own = value(&images.own);
                    values.push(match &images.partners {
                        None => own,
                        Some(Partners { pixels, by: MixBy::Share(share) }) => {
                            own * f64::from(*share) + value(pixels) * (1.0 - f64::from(*share))
                        }
                        Some(Partners { pixels, by: MixBy::Area(area) }) if is_in(*area, row, column) => value(pixels),
                        Some(_) => own,
                    });
                }
            }
        }
    }
    values
}

fn definition<B: ImageOps>() {
    let cases: [(usize, [usize; 2], VisibleAreas); 5] = [
        (1, [1, 1], [[0, 1, 0, 1], [0; 4], [0; 4]]),
        (3, [5, 3], [[1, 5, 0, 2], [2, 3, 0, 3], [0; 4]]),
        (2, [4, 4], [[0; 4], [0; 4], [0; 4]]),
        (5, [32, 32], [[0, 30, 4, 32], [10, 18, 10, 18], [0, 32, 31, 32]]),
        (2, [7, 300], [[0, 7, 1, 299], [0, 7, 256, 257], [3, 4, 0, 300]]),
    ];
    for (count, size, shown) in cases {
        for by in [None, Some(MixBy::Share(0.3)), Some(MixBy::Area([0, size[0] as u16, 0, size[1].div_ceil(2) as u16]))]
        {
            let partners = by.map(|by| Partners { pixels: pixels(count, size, shown, 2), by });
            let own = pixels(count, size, shown, 1);
            let images = ByteImages { own, partners, size, mean: MEAN, std: STD };
            let input = Tensor::<B, 4>::from_primitive(TensorPrimitive::Float(B::input(&images, &Default::default())));
            assert_eq!(input.dims(), [count, 3, size[0], size[1]]);
            assert_close(&format!("{count} of {size:?}, {by:?}"), &to_vec(input), &expected(&images), 1e-6);
        }
    }
}

on_every_backend! {
    bytes_become_normalised_and_mixed_images => || definition::<TestBackend>();
}
