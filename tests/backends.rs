//! Runs a backend-generic test on every backend of this build that a machine without a GPU can run.

/// `on_every_backend!(sentence => function)` makes a test `flex::sentence` and, with the feature, `tch::sentence`.
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
    };
}
