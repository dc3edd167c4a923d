//! The types in which activations lie in memory. All arithmetic is f32.

use std::mem::MaybeUninit;

use half::{bf16, f16};

use super::vector::{Vector, bf16_of, f16_of, of_bf16, of_f16};

/// A type of activations in the host's memory; zero is all bits zero.
pub trait Activation: Copy + Default + Send + Sync {
    fn widened(self) -> f32;

    /// The nearest value of this type.
    fn of(value: f32) -> Self;

    /// Sixteen values.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`, and the address is that of sixteen values.
    unsafe fn load<V: Vector>(from: *const Self) -> V;

    /// The nearest values of this type.
    ///
    /// # Safety
    ///
    /// As [`Activation::load`].
    unsafe fn store<V: Vector>(values: V, to: *mut Self);

    /// The values if this type is f32.
    fn as_f32(_values: &[Self]) -> Option<&[f32]> {
        None
    }

    /// As [`Activation::as_f32`].
    fn as_f32_mut(_values: &mut [MaybeUninit<Self>]) -> Option<&mut [MaybeUninit<f32>]> {
        None
    }

    /// The values if this type is bf16.
    fn as_bf16(_values: &[Self]) -> Option<&[bf16]> {
        None
    }

    /// As [`Activation::as_bf16`].
    fn as_bf16_mut(_values: &mut [MaybeUninit<Self>]) -> Option<&mut [MaybeUninit<bf16>]> {
        None
    }
}

macro_rules! activation {
    ($type:ty: $widened:path, $of:path, $load:ident, $store:ident; $($own:item)*) => {
        impl Activation for $type {
            #[inline(always)]
            fn widened(self) -> f32 {
                $widened(self)
            }

            #[inline(always)]
            fn of(value: f32) -> Self {
                $of(value)
            }

            #[inline(always)]
            unsafe fn load<V: Vector>(from: *const Self) -> V {
                // SAFETY: passed on to the caller.
                unsafe { V::$load(from) }
            }

            #[inline(always)]
            unsafe fn store<V: Vector>(values: V, to: *mut Self) {
                // SAFETY: passed on to the caller.
                unsafe { values.$store(to) }
            }

            $($own)*
        }
    };
}

activation! {
    f32: std::convert::identity, std::convert::identity, load, store;

    fn as_f32(values: &[Self]) -> Option<&[f32]> {
        Some(values)
    }

    fn as_f32_mut(values: &mut [MaybeUninit<Self>]) -> Option<&mut [MaybeUninit<f32>]> {
        Some(values)
    }
}
activation! {
    bf16: of_bf16, bf16_of, load_bf16, store_bf16;

    fn as_bf16(values: &[Self]) -> Option<&[bf16]> {
        Some(values)
    }

    fn as_bf16_mut(values: &mut [MaybeUninit<Self>]) -> Option<&mut [MaybeUninit<bf16>]> {
        Some(values)
    }
}
activation!(f16: of_f16, f16_of, load_f16, store_f16;);

/// Writes the nearest values of another type.
#[inline(always)]
pub fn narrow<T: Activation>((values, to): (&[f32], &mut [MaybeUninit<T>])) {
    to.iter_mut().zip(values).for_each(|(to, value)| *to = MaybeUninit::new(T::of(*value)));
}
