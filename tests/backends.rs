//! Runs a backend-generic test on every backend of this build that the machine can run, and says what a backend lacks
//! there.

use kiln_engine::parallel::{HostBackend, World, check_precision};
use kiln_ops::Precision;

use crate::skipped::skip;

/// Those of the devices `0..count` that `B` has. A processor has them all.
pub fn devices<B: HostBackend>(count: usize) -> Vec<usize> {
    (0..count).filter(|index| B::open(*index).is_ok()).collect()
}

/// How many devices `B` has here, `most` at most; a test of several is skipped where there is one.
pub fn several_devices<B: HostBackend>(most: usize) -> Option<usize> {
    let found = devices::<B>(most).len();
    if found < 2 {
        skip(&format!("it takes several devices, here {} is all there is", B::describe(0)));
    }
    (found > 1).then_some(found)
}

/// Whether `B` computes in `precision` here; a test that needs it is skipped otherwise.
pub fn computes_in<B: HostBackend>(precision: Precision) -> bool {
    let refused = check_precision::<B>(&World::new(1, vec![0]), precision).err();
    refused.iter().for_each(|why| skip(&why.to_string()));
    refused.is_none()
}

/// Whether this machine has what `module` tests; its tests are skipped otherwise.
///
/// LibTorch computes on CUDA where it finds a device, and on the processor elsewhere: never on both.
pub fn is_there<B: HostBackend>(module: &str) -> bool {
    let missing = match (B::open(0), module) {
        (Err(why), _) => Some(why.to_string()),
        (_, "tch") if !B::is_processor() => {
            Some("LibTorch computes on a CUDA device here; CUDA_VISIBLE_DEVICES=-1 leaves it the processor".into())
        }
        (_, "tch_cuda") if B::is_processor() => Some("LibTorch finds no CUDA device".into()),
        _ => None,
    };
    missing.iter().for_each(|why| skip(why));
    // Bits are compared.
    B::choose_kernels(true);
    missing.is_none()
}

/// Tests of one backend, in a module of their own.
macro_rules! on_backend {
    ($feature:literal $module:ident $backend:ty: $($(#[$meta:meta])* $name:ident => $test:expr;)+) => {
        #[cfg(feature = $feature)]
        mod $module {
            #[allow(unused_imports, reason = "the tests decide what they need")]
            use super::*;
            type TestBackend = $backend;
            $($(#[$meta])* #[test] fn $name() {
                let test: fn() = $test;
                if crate::backends::is_there::<TestBackend>(stringify!($module)) {
                    test();
                }
            })+
        }
    };
}

/// `on_every_backend!(sentence => function)` makes a test `flex::sentence` and, with the features, `tch::sentence`,
/// `tch_cuda::sentence`, `cuda::sentence` and `wgpu::sentence`.
macro_rules! on_every_backend {
    ($($tests:tt)+) => {
        on_backend! { "flex" flex burn::backend::Flex: $($tests)+ }
        on_backend! { "tch" tch burn::backend::LibTorch<f32>: $($tests)+ }
        on_backend! { "tch" tch_cuda burn::backend::LibTorch<f32>: $($tests)+ }
        on_backend! { "cuda" cuda burn::backend::Cuda<f32, i32>: $($tests)+ }
        on_backend! { "wgpu" wgpu burn::backend::Wgpu<f32, i32>: $($tests)+ }
    };
}
