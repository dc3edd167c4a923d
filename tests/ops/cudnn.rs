//! cuDNN's graph interface, by a stand-in that insists on its rules and computes by the definition.

use std::process::{Command, Output};

use burn::tensor::{DType, bf16};
use kiln_ops::nvidia::cudnn::{Convolution, Handle, Library, Plan, Product};
use tempfile::tempdir;

use crate::compiled::compiled;

/// Set for the process that loads the stand-in.
const INSIDE: &str = "KILN_TEST_CUDNN";

/// Runs the test `name` again in a process with the stand-in and a fault of it; `None` without a compiler.
fn with_stand_in(name: &str, fault: &str) -> Option<Output> {
    let place = tempdir().unwrap();
    let library = place.path().join("libcudnn.so.9");
    compiled("cudnn.cc", &library).then(|| {
        let mut inside = Command::new(std::env::current_exe().unwrap());
        inside.args(["--exact", &format!("cudnn::{name}"), "--nocapture", "--test-threads=2"]).env(INSIDE, "1");
        inside.env("KILN_CUDNN", &library).env("KILN_STAND_IN", fault).output().unwrap()
    })
}

fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Images, kernels and outputs of small whole numbers, of which sums are exact in bf16, too: channels innermost.
fn numbers([outer, channels, height, width]: [usize; 4], step: usize) -> Vec<f32> {
    (0..outer * channels * height * width).map(|at| (at * step % 5) as f32 - 2.0).collect()
}

/// Among `x`, `w` and `y`.
fn role_of_result(it: &Convolution) -> usize {
    match it.product {
        Product::InputGradient => 0,
        Product::WeightGradient => 1,
        Product::Forward => 2,
    }
}

/// The product of `tensors` `x`, `w` and `y` by the definition; the result's own values do not count.
fn definition(it: &Convolution, tensors: &[Vec<f32>; 3]) -> Vec<f32> {
    let shapes = [it.x, it.w, it.y()];
    let place = |role: usize, [outer, channel, row, column]: [usize; 4]| {
        let [_, channels, height, width] = shapes[role];
        ((outer * height + row) * width + column) * channels + channel
    };
    let [batch, outputs, down, across] = it.y();
    let result = role_of_result(it);
    let mut sums = vec![0.0; tensors[result].len()];
    for at in 0..batch * outputs * down * across {
        let [image, output] = [at / across / down / outputs, at / across / down % outputs];
        let [row, column] = [at / across % down, at % across];
        for tap in 0..it.w[1] * it.w[2] * it.w[3] {
            let [input, above, left] = [tap / it.w[3] / it.w[2], tap / it.w[3] % it.w[2], tap % it.w[3]];
            let [from_row, from_column] = [row * it.stride + above, column * it.stride + left];
            let inside = |place: usize, size: usize| (it.padding..size + it.padding).contains(&place);
            if !inside(from_row, it.x[2]) || !inside(from_column, it.x[3]) {
                continue;
            }
            let places = [
                place(0, [image, input, from_row - it.padding, from_column - it.padding]),
                place(1, [output, input, above, left]),
                place(2, [image, output, row, column]),
            ];
            let factors = (0..3).filter(|role| *role != result).map(|role| tensors[role][places[role]]);
            sums[places[result]] += factors.product::<f32>();
        }
    }
    sums
}

/// The product by a plan.
fn planned(handle: &Handle, it: &Convolution, tensors: &[Vec<f32>; 3]) -> Vec<f32> {
    let plan = Plan::new(handle, it).unwrap();
    let halves = |values: &[f32]| values.iter().map(|value| bf16::from_f32(*value)).collect::<Vec<_>>();
    let mut bytes = tensors.each_ref().map(|values| match it.dtype {
        DType::F32 => bytemuck::pod_collect_to_vec::<f32, u128>(&padded(values.clone(), 4, 0.0)),
        _ => bytemuck::pod_collect_to_vec::<bf16, u128>(&padded(halves(values), 8, bf16::ZERO)),
    });
    let result = role_of_result(it);
    let count = tensors[result].len();
    bytes[result] = vec![u128::MAX; count.div_ceil(4)];
    let mut workspace = vec![0u8; plan.workspace()];
    let memory = bytes.each_mut().map(|bytes| bytes.as_mut_ptr().cast());
    // SAFETY: the memory has the sizes of the convolution, and the stand-in computes at once.
    unsafe { plan.run(handle, memory, workspace.as_mut_ptr().cast()) }.unwrap();
    assert!(workspace.iter().all(|byte| *byte == 0xff), "the whole workspace is there");
    match it.result {
        DType::F32 => bytemuck::cast_slice::<u128, f32>(&bytes[result])[..count].to_vec(),
        _ => bytemuck::cast_slice::<u128, bf16>(&bytes[result])[..count].iter().map(|value| value.to_f32()).collect(),
    }
}

fn padded<T: Clone>(mut values: Vec<T>, multiple: usize, zero: T) -> Vec<T> {
    values.resize(values.len().next_multiple_of(multiple), zero);
    values
}

#[test]
fn plans_compute_the_three_products_by_a_deterministic_engine() {
    if !is_inside() {
        let name = "plans_compute_the_three_products_by_a_deterministic_engine";
        let Some(output) = with_stand_in(name, "nothing") else { return };
        return assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let library = Library::find().unwrap();
    assert_eq!(library.version(), 91_002);
    let handle = Handle::new(library, None).unwrap();
    for (x, w, stride, padding) in [
        ([2, 3, 5, 4], [4, 3, 3, 3], 1, 1),
        ([2, 2, 6, 6], [3, 2, 3, 3], 2, 1),
        ([1, 4, 6, 5], [2, 4, 1, 1], 2, 0),
        ([1, 3, 9, 8], [2, 3, 7, 5], 2, 3),
    ] {
        for product in [Product::Forward, Product::WeightGradient, Product::InputGradient] {
            for (dtype, result) in [(DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::BF16, DType::F32)] {
                let it = Convolution { product, x, w, stride, padding, dtype, result };
                let tensors = [numbers(it.x, 3), numbers(it.w, 2), numbers(it.y(), 7)];
                assert_eq!(planned(&handle, &it, &tensors), definition(&it, &tensors), "{it:?}");
            }
        }
    }
}

#[test]
fn what_will_not_do_is_said_in_one_line() {
    if is_inside() {
        let found = Library::find().and_then(|library| Handle::new(library, None));
        let it = Convolution {
            product: Product::Forward,
            x: [1, 1, 4, 4],
            w: [1, 1, 3, 3],
            stride: 1,
            padding: 1,
            dtype: DType::F32,
            result: DType::F32,
        };
        let said = found.and_then(|handle| Plan::new(&handle, &it).map(drop));
        return println!("said: {}", said.unwrap_err());
    }
    for (fault, part) in [
        ("old", "cuDNN's version is 8907, 90000 is the oldest that will do"),
        ("refuse", "cuDNN has no engine for it that sums in f32 and gives the same bits every time"),
    ] {
        let Some(output) = with_stand_in("what_will_not_do_is_said_in_one_line", fault) else { return };
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.lines().any(|line| line.starts_with("said: ") && line.contains(part)), "{said}");
    }
}
