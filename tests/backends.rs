//! Runs a backend-generic test on every backend of this build that a machine without a GPU can run, and says what a
//! backend lacks there.

use kiln::ops::PrecisionKind;
use kiln::parallel::{HostBackend, World, check_precision};

use crate::command::skip;

/// Those of the devices `0..count` that `B` has. A processor has them all.
pub fn devices<B: HostBackend>(count: usize) -> Vec<usize> {
    (0..count).filter(|index| B::open(*index).is_ok()).collect()
}

/// Whether `B` has so many devices here; a test that needs them is skipped otherwise.
pub fn has_devices<B: HostBackend>(count: usize) -> bool {
    let found = devices::<B>(count).len();
    if found < count {
        skip(&format!("it takes {count} devices, here {} is all there is", B::describe(0)));
    }
    found == count
}

/// Whether `B` computes in `precision` here; a test that needs it is skipped otherwise.
pub fn computes_in<B: HostBackend>(precision: PrecisionKind) -> bool {
    let refused = check_precision::<B>(&World::new(1, vec![0]), precision).err();
    refused.iter().for_each(|why| skip(&why.to_string()));
    refused.is_none()
}

/// `on_every_backend!(sentence => function)` makes a test `flex::sentence` and, with the features, `tch::sentence` and
/// `wgpu::sentence`.
macro_rules! on_every_backend {
    ($($(#[$meta:meta])* $name:ident => $test:expr;)+) => {
        #[cfg(feature = "flex")]
        mod flex {
            #[allow(unused_imports, reason = "the tests decide what they need")]
            use super::*;
            type TestBackend = burn::backend::Flex;
            $($(#[$meta])* #[test] fn $name() { let test: fn() = $test; test(); })+
        }
        #[cfg(feature = "tch")]
        mod tch {
            #[allow(unused_imports, reason = "the tests decide what they need")]
            use super::*;
            type TestBackend = burn::backend::LibTorch<f32>;
            $($(#[$meta])* #[test] fn $name() { let test: fn() = $test; test(); })+
        }
        #[cfg(feature = "wgpu")]
        mod wgpu {
            #[allow(unused_imports, reason = "the tests decide what they need")]
            use super::*;
            type TestBackend = burn::backend::Wgpu<f32, i32>;
            $($(#[$meta])* #[test] fn $name() { let test: fn() = $test; test(); })+
        }
    };
}
