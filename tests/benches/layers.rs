//! One convolution on `flex`, one thread: `layers DIR BATCH INPUTS OUTPUTS SIDE KERNEL STRIDE ROUNDS` reads `x`,
//! `weight` and `gradient` from DIR as f32, writes the three products there, and prints the least milliseconds of each.
//! `layers.py` holds them against oneDNN's.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a bench reads what it measures")]

use std::fs;
use std::time::Instant;

use burn::backend::Flex;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Tensor, TensorData, TensorPrimitive};
use kiln_ops::{Algorithm, ConvOps, Sliding};

/// That of `train`.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let dir = &arguments[0];
    let numbers: Vec<usize> = arguments[1..].iter().map(|number| number.parse().unwrap()).collect();
    let [batch, inputs, outputs, side, kernel, stride, rounds] = numbers[..] else { panic!("seven numbers") };
    rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global().unwrap();
    let sliding = Sliding { stride, padding: kernel / 2, groups: 1, algorithm: Algorithm::Auto };
    let out = (side + 2 * sliding.padding - kernel) / stride + 1;
    let read = |name: &str, shape: [usize; 4]| -> FloatTensor<Flex> {
        let values: Vec<f32> = bytemuck::pod_collect_to_vec(&fs::read(format!("{dir}/{name}")).unwrap());
        let tensor = Tensor::<Flex, 4>::from_data(TensorData::new(values, shape), &Default::default());
        tensor.into_primitive().tensor()
    };
    // Between layers channels are innermost in memory.
    let image = |name: &str, shape: [usize; 4]| {
        let turned = Tensor::<Flex, 4>::from_primitive(TensorPrimitive::Float(read(name, shape))).permute([0, 2, 3, 1]);
        let innermost = Tensor::<Flex, 4>::from_data(turned.into_data(), &Default::default());
        innermost.permute([0, 3, 1, 2]).into_primitive().tensor()
    };
    let x = image("x", [batch, inputs, side, side]);
    let gradient = image("gradient", [batch, outputs, out, out]);
    let weight = Flex::conv_weight(read("weight", [outputs, inputs, kernel, kernel]), &x, sliding);
    let time = |name: &str, product: &dyn Fn() -> FloatTensor<Flex>| {
        let mut least = f64::INFINITY;
        for _ in 0..rounds {
            let start = Instant::now();
            let done = product();
            least = least.min(start.elapsed().as_secs_f64());
            drop(done);
        }
        let product = Tensor::<Flex, 4>::from_primitive(TensorPrimitive::Float(product()));
        let values = product.into_data().to_vec::<f32>().unwrap();
        fs::write(format!("{dir}/{name}"), bytemuck::cast_slice(&values)).unwrap();
        1e3 * least
    };
    let forward = time("output", &|| Flex::conv_forward([x.clone(), weight.clone()], sliding));
    let operands = || [&x, &weight, &gradient].map(Clone::clone);
    let backward = time("input_gradient", &|| Flex::conv_input_gradient(operands(), sliding));
    let weights = time("weight_gradient", &|| Flex::conv_weight_gradient(operands(), sliding));
    println!("[{forward}, {backward}, {weights}]");
}
