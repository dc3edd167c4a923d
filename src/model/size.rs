//! How large a network is, computed and not measured.

use super::config::{ModelConfig, Stem};

/// Elements that the backward pass keeps per image: of each convolution its output (which is batch-norm's input), and
/// what a ReLU makes of batch-norm's output (which is the next convolution's input).
///
/// `size` is `[height, width]` of the image. An estimate: backends keep temporaries of their own.
pub fn activation_elements(config: &ModelConfig, [height, width]: [usize; 2]) -> usize {
    let halve = |side: usize| side.div_ceil(2);
    let (mut height, mut width, stem) = match config.stem {
        Stem::Cifar => (height, width, 2 * config.width * height * width),
        Stem::Imagenet => {
            let (h, w) = (halve(height), halve(width));
            (halve(h), halve(w), 2 * config.width * h * w + config.width * halve(h) * halve(w))
        }
    };
    let mut total = stem;
    for stage in 0..4 {
        if stage > 0 {
            (height, width) = (halve(height), halve(width));
        }
        let map = (config.width << stage) * height * width;
        // Two blocks of two convolutions, two maps each, and the projection's output.
        total += (2 * 2 * 2 + usize::from(stage > 0)) * map;
    }
    total
}
