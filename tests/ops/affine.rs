//! What is affine before a ReLU: batch-norm with given statistics and frozen scale and shift, and residual branches
//! with a factor for each image; with their gradients.

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use kiln_engine::parallel::HostBackend;
use kiln_ops::{Epilogue, add_branch, arranged, normalize};

use super::{assert_close, noise, tensor, to_vec};

const SHAPE: [usize; 4] = [4, 3, 5, 7];

type Images<B> = Tensor<Autodiff<B>, 4>;

/// `x * scale + offset` of each image and channel, with the shortcut and the ReLU that are behind it.
struct Affine {
    scale: Vec<f64>,
    offset: Vec<f64>,
    adds: bool,
    has_relu: bool,
}

impl Affine {
    /// Input and shortcut are used twice, so that the gradients that reach them are sums.
    fn check<B: HostBackend>(&self, what: &str, compute: impl Fn(Images<B>, Images<B>) -> Images<B>) {
        let count = SHAPE.iter().product();
        let [x, shortcut, gradient] = [31, 32, 33].map(|seed| noise(count, seed));
        for innermost in [false, true] {
            let leaf = |values: &[f32]| arranged(tensor::<Autodiff<B>, 4>(values, SHAPE), innermost).require_grad();
            let (input, other) = (leaf(&x), leaf(&shortcut));
            let output = compute(input.clone(), other.clone());
            let twice = (input.clone() * other.clone()).sum();
            let gradients = ((output.clone() * tensor(&gradient, SHAPE)).sum() + twice).backward();

            let [mut expected, mut of_x, mut of_shortcut] = [[]; 3].map(|none: [f64; 0]| none.to_vec());
            for i in 0..count {
                let plane = i / (SHAPE[2] * SHAPE[3]);
                let [x, shortcut, gradient] = [x[i], shortcut[i], gradient[i]].map(f64::from);
                let sum = x * self.scale[plane] + self.offset[plane] + if self.adds { shortcut } else { 0.0 };
                let passed = if self.has_relu && sum < 0.0 { 0.0 } else { gradient };
                expected.push(if self.has_relu { sum.max(0.0) } else { sum });
                of_x.push(passed * self.scale[plane] + shortcut);
                of_shortcut.push(x + if self.adds { passed } else { 0.0 });
            }
            let what = |of: &str| format!("{of} of {what}, innermost {innermost}");
            assert_close(&what("output"), &to_vec(output), &expected, 2e-6);
            assert_close(&what("input"), &to_vec(input.grad(&gradients).unwrap()), &of_x, 2e-6);
            assert_close(&what("shortcut"), &to_vec(other.grad(&gradients).unwrap()), &of_shortcut, 2e-6);
        }
    }
}

/// Also with factors that have gradients, as of a network in evaluation mode.
fn frozen<B: HostBackend>() {
    let [mean, scale, bias] = [34, 35, 36].map(|seed| noise(SHAPE[1], seed));
    let planes = |value: &dyn Fn(usize) -> f64| (0..SHAPE[0] * SHAPE[1]).map(|plane| value(plane % SHAPE[1])).collect();
    let (slopes, offsets): (Vec<_>, Vec<_>) = (
        planes(&|channel| f64::from(scale[channel])),
        planes(&|channel| f64::from(bias[channel]) - f64::from(mean[channel]) * f64::from(scale[channel])),
    );
    for is_trained in [false, true] {
        let factors = [&mean, &scale, &bias].map(|values| tensor::<Autodiff<B>, 1>(values, [SHAPE[1]]));
        let factors = factors.map(|values| values.set_require_grad(is_trained));
        for (adds, has_relu) in [(false, false), (false, true), (true, true)] {
            let affine = Affine { scale: slopes.clone(), offset: offsets.clone(), adds, has_relu };
            affine.check::<B>(&format!("normalize, {adds}, {has_relu}, trained {is_trained}"), |x, shortcut| {
                let epilogue = match (adds, has_relu) {
                    (true, _) => Epilogue::AddRelu(shortcut),
                    (false, true) => Epilogue::Relu,
                    (false, false) => Epilogue::Identity,
                };
                normalize(x, factors.clone(), epilogue)
            });
        }
    }
}

fn branches<B: HostBackend>() {
    let factors = [0.0, 1.25, 1.0, -0.5];
    let scale = (0..SHAPE[0] * SHAPE[1]).map(|plane| f64::from(factors[plane / SHAPE[1]])).collect();
    let affine = Affine { scale, offset: vec![0.0; SHAPE[0] * SHAPE[1]], adds: true, has_relu: true };
    affine.check::<B>("branches", |x, shortcut| add_branch(x, tensor(&factors, [SHAPE[0]]), shortcut));
}

on_every_backend! {
    batch_norm_by_frozen_factors_has_the_gradients_of_the_definition => || frozen::<TestBackend>();
    branches_with_a_factor_for_each_image_have_the_gradients_of_the_definition => || branches::<TestBackend>();
}
