//! The three products of a convolution: of bf16 on a matrix unit where there is one, else by Winograd's algorithm where
//! it applies, else by the definition.

use std::mem::MaybeUninit;

use super::activation::Activation;
use super::amx::{MatrixUnit, Products};
use super::direct::{self, Geometry};
use super::epilogue::Epilogue;
use super::winograd::Winograd;

/// The plan of a convolution of one size. It depends on the machine only in bf16, and there only on whether it has a
/// matrix unit.
pub struct Convolution {
    pub geometry: Geometry,
    /// Whether the definition was asked for.
    pub is_direct: bool,
    winograd: Option<Winograd>,
    /// By the definition, with kernels in bf16.
    products: Option<Products>,
}

impl Convolution {
    /// `is_direct` asks for the definition even where Winograd's algorithm applies, which rounds more.
    pub fn new(geometry: Geometry, is_direct: bool) -> Self {
        let Geometry { batch, inputs, outputs, size, kernel, stride, padding, parallel_for } = geometry;
        let fits = !is_direct && padding == 1 && kernel == [3, 3];
        let x = [batch, inputs, size[0], size[1]];
        let winograd = fits.then(|| Winograd::new(x, outputs, stride, parallel_for)).flatten();
        Self { geometry, is_direct, winograd, products: None }.on(MatrixUnit::of_machine())
    }

    /// The same plan with another matrix unit, or without one. Panics if the machine lacks it.
    pub fn on(self, unit: Option<MatrixUnit>) -> Self {
        let is_there = [None, Some(MatrixUnit::Emulated), MatrixUnit::of_machine()].contains(&unit);
        assert!(is_there, "the machine has the matrix unit");
        Self { products: unit.and_then(|unit| Products::new(unit, self.geometry)), ..self }
    }

    /// Whether bf16 is multiplied on a matrix unit.
    pub fn uses_matrix_unit(&self) -> bool {
        self.products.is_some()
    }

    /// Whether an epilogue is applied while the output is in a cache.
    pub fn takes_epilogue(&self) -> bool {
        self.winograd.is_some()
    }

    /// The size of the output, `[batch, height, width, channels]`.
    pub fn output(&self) -> [usize; 4] {
        let [height, width] = self.geometry.output();
        [self.geometry.batch, height, width, self.geometry.outputs]
    }

    /// The size of the input, `[batch, height, width, channels]`.
    pub fn input(&self) -> [usize; 4] {
        let Geometry { batch, size, inputs, .. } = self.geometry;
        [batch, size[0], size[1], inputs]
    }

    /// Writes the output. Panics if there is an epilogue and [`Convolution::takes_epilogue`] is false.
    pub fn forward<T: Activation>(
        &self,
        x: &[T],
        weight: &[f32],
        epilogue: Option<Epilogue<T>>,
        output: &mut [MaybeUninit<T>],
    ) {
        if let (Some(products), Some(x), Some(output)) = (self.products, T::as_bf16(x), T::as_bf16_mut(output)) {
            let epilogue = epilogue.map(|Epilogue { factors, shortcut, relu }| {
                let shortcut = shortcut.and_then(T::as_bf16);
                Epilogue { factors, shortcut, relu }
            });
            return products.forward(x, weight, epilogue, output);
        }
        match self.winograd {
            Some(plan) => plan.forward_with(x, weight, epilogue, output),
            None => {
                assert!(epilogue.is_none(), "the epilogue of a direct convolution is a pass of its own");
                direct::forward(&self.geometry, x, weight, output);
            }
        }
    }

    /// Writes the gradient of the weight, `[outputs, inputs, height, width]`.
    pub fn weight_gradient<T: Activation>(&self, x: &[T], gradient: &[T], weight: &mut [MaybeUninit<f32>]) {
        if let (Some(products), Some(x), Some(gradient)) = (self.products, T::as_bf16(x), T::as_bf16(gradient)) {
            return products.weight_gradient(x, gradient, weight);
        }
        match self.winograd {
            Some(plan) => plan.weight_gradient(x, gradient, weight),
            None => direct::weight_gradient(&self.geometry, x, gradient, weight),
        }
    }

    pub fn input_gradient<T: Activation>(&self, weight: &[f32], gradient: &[T], x: &mut [MaybeUninit<T>]) {
        if let (Some(products), Some(gradient), Some(x)) = (self.products, T::as_bf16(gradient), T::as_bf16_mut(x)) {
            return products.input_gradient(weight, gradient, x);
        }
        match self.winograd {
            Some(plan) => plan.input_gradient(gradient, weight, x),
            None => direct::input_gradient(&self.geometry, weight, gradient, x),
        }
    }
}
