//! What Flex computes by Kiln's loops, against Burn's own operations: not a bit differs.

use burn::backend::{Autodiff, Flex};
use burn::tensor::ops::FloatTensorOps;
use burn::tensor::{FloatDType, Tensor};
use kiln_ops::{BatchNormOps, HostOps, Lars, UpdateOps, mean_of_pixels, primitive, tensor};

use super::{noise, to_vec};

/// More than a piece of a parallel loop.
const MANY: usize = 40_001;

/// Small and large values of both signs, and zeros.
fn values<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<Flex, D> {
    let wide = |value: &f32| if value.abs() < 0.05 { 0.0 } else { value * value * value };
    super::tensor(&noise(shape.iter().product(), seed).iter().map(wide).collect::<Vec<_>>(), shape)
}

fn bits<const D: usize>(x: Tensor<Flex, D>) -> Vec<u32> {
    to_vec(x).into_iter().map(f32::to_bits).collect()
}

#[track_caller]
fn assert_same<const D: usize>(found: Tensor<Flex, D>, expected: Tensor<Flex, D>) {
    assert_eq!(found.dims(), expected.dims());
    assert!(bits(found) == bits(expected), "Burn has other bits");
}

#[test]
fn types_are_converted_as_burn_does_it() {
    let x = values([3, 5, 41, 67], 1);
    for x in [x.clone(), x.permute([0, 3, 1, 2])] {
        for half in [FloatDType::BF16, FloatDType::F16] {
            let expected = tensor::<Flex, 4>(Flex::float_cast(primitive(x.clone()), half));
            let found = tensor::<Flex, 4>(Flex::cast(primitive(x.clone()), half));
            assert_eq!(found.dtype(), expected.dtype());
            assert_same(found.clone(), expected);
            let expected = tensor::<Flex, 4>(Flex::float_cast(primitive(found.clone()), FloatDType::F32));
            assert_same(tensor(Flex::cast(primitive(found), FloatDType::F32)), expected);
        }
    }
}

#[test]
fn batch_norm_has_burns_factors() {
    let [weight, sum, weighted, inv_std] = [1, 2, 3, 4].map(|seed| values([67], seed));
    let m2 = values([67], 5).abs();
    let expected_inv_std = (m2.clone() / 48.0 + 1e-5).sqrt().recip();
    let expected = [expected_inv_std.clone(), weight.clone() * expected_inv_std, m2.clone() / 47.0];
    let found = Flex::bn_factors(primitive(m2), primitive(weight.clone()), 48.0, 1e-5);
    found.into_iter().zip(expected).for_each(|(found, expected)| assert_same::<1>(tensor(found), expected));
    let k = weight.clone() * inv_std.clone();
    let q = k.clone() * inv_std.clone() * (weighted.clone() * 0.3);
    let expected = [k.clone(), q, k * (sum.clone() * 0.3)];
    let sums = [sum, weighted.clone()].map(primitive);
    let found = Flex::bn_gradient_factors(primitive(weight), primitive(inv_std.clone()), sums, 0.3);
    found.into_iter().zip(expected).for_each(|(found, expected)| assert_same::<1>(tensor(found), expected));
    let found = Flex::bn_weight_gradient(primitive(weighted.clone()), primitive(inv_std.clone()));
    assert_same::<1>(tensor(found), weighted * inv_std);
}

#[test]
fn means_of_maps_and_their_gradients_are_burns() {
    for [height, width] in [[7, 5], [4, 4], [1, 1]] {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            let x =
                Tensor::<Autodiff<Flex>, 4>::from_inner(values([3, 17, height, width], 6).cast(dtype)).require_grad();
            let slopes = Tensor::<Autodiff<Flex>, 2>::from_inner(values([3, 17], 7).cast(dtype));
            let gradient = |mean: &Tensor<Autodiff<Flex>, 2>| {
                x.grad(&(mean.clone() * slopes.clone()).sum().backward()).expect("the leaf is tracked")
            };
            let pixels = x.clone().permute([0, 2, 3, 1]).reshape([3, height * width, 17]);
            let (expected, found) = (pixels.mean_dim(1).reshape([3, 17]), mean_of_pixels(x.clone()));
            assert_same(gradient(&found), gradient(&expected));
            assert_same(found.inner(), expected.inner());
        }
    }
}

#[test]
fn updates_are_burns() {
    let [param, gradient, velocity] = [8, 9, 10].map(|seed| values([MANY], seed));
    let both = |one: &Tensor<Flex, 1>, other: &Tensor<Flex, 1>| (primitive(one.clone()), primitive(other.clone()));
    let (one, other) = both(&param, &gradient);
    let shares = [0.99, 1.0 - 0.99];
    assert_same::<1>(tensor(Flex::blend(one, other, shares)), param.clone() * shares[0] + gradient.clone() * shares[1]);
    let (one, other) = both(&param, &gradient);
    assert_same::<1>(tensor(Flex::added(one, other)), param.clone() + gradient.clone());
    assert_same::<1>(tensor(Flex::scaled(primitive(param.clone()), 0.3)), param.clone() * 0.3);
    assert_same::<1>(tensor(Flex::clamped(primitive(param.clone()), 0.1)), param.clone().clamp(-0.1, 0.1));
    for (param, vector) in [(param.clone(), true), (param.clone(), false), (param.zeros_like(), false)] {
        let step = Lars { rate: 0.1, momentum: 0.9, weight_decay: 0.01, trust_coefficient: 0.001, vector };
        let norm = |x: &Tensor<Flex, 1>| tensor::<Flex, 1>(Flex::norm(primitive(x.clone())));
        let (weight, slope) = (norm(&param), norm(&gradient));
        let trust = weight.clone() * 0.001 / (slope + weight.clone() * 0.01 + 1e-12);
        let trust = trust.mask_fill(weight.equal_elem(0.0), 1.0);
        let change =
            if vector { gradient.clone() * 0.1 } else { (gradient.clone() + param.clone() * 0.01) * trust * 0.1 };
        let moved = velocity.clone() * 0.9 + change;
        let (one, other) = both(&param, &gradient);
        let (found, memory) = Flex::lars(one, other, Some(primitive(velocity.clone())), &step);
        assert_same::<1>(tensor(found), param - moved.clone());
        assert_same::<1>(tensor(memory), moved);
    }
}
