//! Max-pooling and its gradient.

use burn::backend::Autodiff;
use kiln_ops::{ConvOps, PoolOps, arranged, max_pool};

use super::{noise, tensor, to_vec};

/// Every value that a pool sees, as a place among the input's.
fn seen([height, width]: [usize; 2], [y, x]: [usize; 2]) -> impl Iterator<Item = usize> {
    let reach = |at: usize, size: usize| (2 * at).saturating_sub(1)..(2 * at + 2).min(size);
    reach(y, height).flat_map(move |y| reach(x, width).map(move |x| y * width + x))
}

fn definition<B: PoolOps + ConvOps>() {
    for (i, shape) in [[2, 3, 8, 8], [1, 17, 5, 6], [3, 2, 1, 1], [2, 16, 7, 2]].into_iter().enumerate() {
        let ([_, _, height, width], area) = (shape, shape[2] * shape[3]);
        let size = [height, width].map(|size: usize| size.div_ceil(2));
        // Few different values: the first of the largest ones gets the gradient.
        let values: Vec<f32> = noise(shape.iter().product(), 31).iter().map(|value| (4.0 * value).round()).collect();
        let pooled = values.len() / area * size[0] * size[1];
        let slopes = noise(pooled, 32 + i as u64);
        let (mut largest, mut gradient) = (Vec::new(), vec![0.0_f64; values.len()]);
        for (pool, slope) in slopes.iter().enumerate() {
            let (image, place) = (pool / (size[0] * size[1]) * area, pool % (size[0] * size[1]));
            let first = |one: usize, other: usize| if values[other] > values[one] { other } else { one };
            let at =
                seen([height, width], [place / size[1], place % size[1]]).map(|at| image + at).reduce(first).unwrap();
            largest.push(values[at]);
            gradient[at] += f64::from(*slope);
        }
        for innermost in [false, true] {
            let x = arranged(tensor::<Autodiff<B>, 4>(&values, shape), innermost).require_grad();
            let output = max_pool(x.clone());
            let slopes = tensor(&slopes, [shape[0], shape[1], size[0], size[1]]);
            let found = to_vec(x.grad(&(output.clone() * slopes).sum().backward()).expect("the leaf is tracked"));
            assert_eq!(to_vec(output), largest, "{shape:?}");
            super::assert_close(&format!("the gradient for {shape:?}"), &found, &gradient, 1e-6);
        }
    }
}

on_every_backend! {
    pools_hold_the_largest_values_and_give_them_the_gradient => || definition::<TestBackend>();
}
