//! Colours of curves, for the page, which follows the reader's light or dark scheme, and for pictures, which are light.
//!
//! All curves have a contrast of at least 3 to 1 with their background (WCAG 2.2, 1.4.11), and neighbours in the list
//! differ in their dashes too, so that curves can be distinguished without colour.

use std::fmt::Write;

/// Colours of a curve in the light and in the dark scheme; the ninth curve repeats the first colour with other dashes.
const SERIES: [(u32, u32); 8] = [
    (0x1f6fb5, 0x6cb6ff),
    (0xc2500a, 0xffa657),
    (0x1b7f4d, 0x56d08a),
    (0x8250b0, 0xd2a8ff),
    (0xb8336a, 0xff85b3),
    (0x0b7a8a, 0x4fd1e0),
    (0x7d6200, 0xe3c341),
    (0x5c6570, 0xaab4be),
];

/// Lengths of dashes and gaps; the first is a solid line.
const DASHES: [&[f32]; 4] = [&[], &[7.0, 3.0], &[2.0, 3.0], &[9.0, 3.0, 2.0, 3.0]];

/// Opacity of a curve behind its moving average.
pub const FAINT: f64 = 0.35;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    Grid,
    /// Axes and vertical marks.
    Axis,
    /// Numbers and names.
    Label,
    Title,
    /// The curve with this index.
    Series(usize),
    /// The same curve behind its moving average.
    Faint(usize),
    /// A solid line in the colour of that curve.
    Whole(usize),
}

impl Ink {
    /// The colour on white paper, as `0xRRGGBB`.
    pub fn colour(self) -> u32 {
        match self {
            Self::Grid => 0xe1e5ea,
            Self::Axis => 0x7a838e,
            Self::Label => 0x4a535e,
            Self::Title => 0x161b22,
            Self::Series(at) | Self::Faint(at) | Self::Whole(at) => SERIES[at % SERIES.len()].0,
        }
    }

    pub fn class(self) -> String {
        match self {
            Self::Grid => "grid".into(),
            Self::Axis => "axis".into(),
            Self::Label => "label".into(),
            Self::Title => "title".into(),
            Self::Series(at) | Self::Whole(at) => format!("s{}", at % SERIES.len()),
            Self::Faint(at) => format!("s{} faint", at % SERIES.len()),
        }
    }

    /// Lengths of dashes and gaps; empty for a solid line.
    pub fn dashes(self) -> &'static [f32] {
        match self {
            // Shifted by one per round of colours, so that the ninth curve differs from the first.
            Self::Series(at) => DASHES[(at + at / SERIES.len()) % DASHES.len()],
            _ => &[],
        }
    }

    pub fn width(self) -> f32 {
        match self {
            Self::Series(_) | Self::Whole(_) => 1.8,
            _ => 1.0,
        }
    }
}

/// The colours as variables `--s0` to `--s7` of the page.
pub fn css() -> String {
    let variables = |colour: fn(&(u32, u32)) -> u32| {
        SERIES.iter().enumerate().fold(String::new(), |mut css, (at, both)| {
            write!(css, "--s{at}:#{:06x};", colour(both)).expect("writing to a string cannot fail");
            css
        })
    };
    let (light, dark) = (variables(|both| both.0), variables(|both| both.1));
    let classes: String = (0..SERIES.len()).map(|at| format!(".s{at}{{color:var(--s{at})}}\n")).collect();
    format!(":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{classes}")
}
