//! What short runs can find: suggestions are where the losses and rates put them, and a test that proves nothing says
//! so.

mod batch_size;
mod command;
mod drawing;
mod files;
mod learning_rate;
mod search;

use std::collections::BTreeMap;

use kiln::study::finding::{Analysis, Outcome, Probe, RangeTest, Trial};

/// `steps` rates from `from` to `to`, and the losses that `loss` gives their decimal logarithms.
fn probes(steps: usize, from: f64, to: f64, mut loss: impl FnMut(f64) -> f64) -> Vec<Probe> {
    let exponent = |step: usize| from.log10() + (to / from).log10() * step as f64 / (steps - 1) as f64;
    (0..steps).map(|step| Probe { rate: 10f64.powf(exponent(step)), loss: loss(exponent(step)) }).collect()
}

/// Falls from 2.3 to 0.8 around the rate 0.01, fastest there, then rises as the square of the rate: the slope is
/// -1.5 e / (w (1 + e)^2) at e = exp(-(x + 2) / w), most negative at x = -2.
fn typical(exponent: f64) -> f64 {
    2.3 - 1.5 / (1.0 + (-(exponent + 2.0) / 0.25).exp()) + 0.3 * 10f64.powf(2.0 * exponent)
}

fn fits(batch_size: usize, images_per_second: f64, memory_bytes: u64) -> Trial {
    Trial { batch_size, outcome: Outcome::Fits { images_per_second, memory_bytes } }
}

fn too_large(batch_size: usize, why: &str) -> Trial {
    Trial { batch_size, outcome: Outcome::TooLarge { why: why.into() } }
}

/// Hostile settings.
fn about() -> BTreeMap<String, String> {
    BTreeMap::from([("device".into(), "a <script>\"&".into())])
}

fn tested() -> RangeTest {
    let mut probes = probes(140, 1e-5, 1e2, typical);
    probes.extend([Probe { rate: 150.0, loss: f64::NAN }, Probe { rate: 200.0, loss: f64::INFINITY }]);
    RangeTest::new(&probes, 4.0).unwrap()
}

fn analysed() -> Analysis {
    let trials = vec![
        too_large(256, "<img src=x onerror=alert(1)> \"&' \u{7}"),
        fits(8, 400.0, 1100 << 20),
        fits(64, 975.25, 1800 << 20),
        fits(32, 930.5, 1400 << 20),
        fits(16, 700.0, 1200 << 20),
        fits(128, 980.0, 2600 << 20),
    ];
    Analysis::new(trials, Some(4 << 30)).unwrap()
}
