//! The rectifier and its gradient.

use burn::backend::Autodiff;
use kiln::ops::{ReluOps, relu};

use super::{noise, tensor, to_vec};

fn definition<B: ReluOps>() {
    let mut values = noise(40_000, 9);
    values[7] = 0.0;
    let slopes = noise(values.len(), 10);
    let x = tensor::<Autodiff<B>, 1>(&values, [values.len()]).require_grad();
    let output = relu(x.clone());
    // Twice the same output: the gradient that reaches the rectifier is a sum, and not the slopes' own memory.
    let objective = (output.clone() * tensor(&slopes, [slopes.len()])).sum() + output.clone().sum();
    let found = to_vec(x.grad(&objective.backward()).expect("the leaf is tracked"));
    for (i, (value, found)) in values.iter().zip(found).enumerate() {
        assert_eq!(found, if *value > 0.0 { slopes[i] + 1.0 } else { 0.0 }, "value {i}: {value}");
    }
    assert_eq!(to_vec(output), values.into_iter().map(|value| value.max(0.0)).collect::<Vec<_>>());
}

on_every_backend! {
    the_rectifier_lets_through_what_is_positive_and_its_gradient => || definition::<TestBackend>();
}
