//! Gradients that travel while the backward pass goes on.

use std::any::Any;
use std::sync::{Arc, Mutex};

use burn::backend::Autodiff;
use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Int, Tensor, TensorPrimitive};
use kiln_engine::nn::{ForwardContext, flat_gradients, initialize, kernels};
use kiln_engine::parallel::HostBackend;
use kiln_ops::{GradientListener, Precision};
use kiln_training::{ModelConfig, ResNet, Stem};

use crate::backends::computes_in;

#[cfg(feature = "gloo")]
pub mod processes;

/// Remembers what it hears: tensors of the backend that computes, in every precision.
struct Heard<B: HostBackend> {
    told: Mutex<Vec<(ParamId, FloatTensor<B>)>>,
    /// Whether it adds each gradient once more.
    doubles: bool,
}

impl<B: HostBackend> GradientListener for Heard<B> {
    fn accumulated(&self, _parameter: ParamId, gradient: Box<dyn Any>) -> Box<dyn Any> {
        if !self.doubles {
            return gradient;
        }
        let gradient = *gradient.downcast::<FloatTensor<B>>().unwrap();
        Box::new(B::float_add(gradient.clone(), gradient))
    }

    fn ready(&self, parameter: ParamId, gradient: &dyn Fn() -> Box<dyn Any>) {
        let gradient = gradient();
        let gradient = gradient.downcast_ref::<FloatTensor<B>>().expect("a tensor of this backend");
        self.told.lock().unwrap().push((parameter, gradient.clone()));
    }
}

/// Every kernel once, from the last to the first, with the gradient that the backward pass ends with.
pub fn is_told_of_every_kernel<B: HostBackend>(precision: Precision) {
    if !computes_in::<B>(precision) {
        return;
    }
    let device = B::open(0).unwrap();
    let config = ModelConfig { stem: Stem::Imagenet, width: 4, ..ModelConfig::default() };
    let model = initialize(ResNet::<Autodiff<B>>::new(&config, 10, 0.0, &device), 0).unwrap();
    let kernels = kernels(&model);
    assert_eq!(kernels.len(), 20);
    let images: Vec<f32> = (0..2 * 3 * 32 * 32).map(|at| (at as f32 * 0.37).sin()).collect();
    let images = Tensor::<Autodiff<B>, 1>::from_floats(images.as_slice(), &device).reshape([2, 3, 32, 32]);
    let labels = Tensor::<Autodiff<B>, 1, Int>::from_ints([3, 7], &device);
    let hear = |doubles| {
        let heard = Arc::new(Heard::<B> { told: Mutex::default(), doubles });
        let model = model.clone().fork(&device);
        let context = ForwardContext::local().in_precision(precision).with_listener(heard.clone());
        let losses = model.losses_of(model.forward(images.clone(), &context), labels.clone(), None);
        let gradients = GradientsParams::from_grads((losses.sum() * 0.5).backward(), &model);
        (heard, flat_gradients(&model, gradients).unwrap())
    };
    let (heard, gradients) = hear(false);
    let heard = heard.told.lock().unwrap();
    assert_eq!(heard.len(), kernels.len(), "each once");
    for kernel in &kernels {
        let (_, told) = heard.iter().find(|(id, _)| *id == kernel.id).unwrap();
        let told = TensorPrimitive::Float(B::float_reshape(told.clone(), [kernel.length].into()));
        let values: Vec<f32> = Tensor::<B, 1>::from_primitive(told).into_data().into_vec().unwrap();
        let whole: Vec<f32> = gradients[kernel.place].clone().into_data().convert::<f32>().into_vec().unwrap();
        assert_eq!(values, whole, "kernel at {}", kernel.place);
        assert!(values.iter().any(|value| *value != 0.0));
    }
    assert_eq!([heard[0].0, heard[19].0], [kernels[19].id, kernels[0].id], "from the last to the first");
    // What is added is a part of the gradient.
    let (_, doubled) = hear(true);
    for (place, (once, twice)) in gradients.into_iter().zip(doubled).enumerate() {
        let factor = if kernels.iter().any(|kernel| kernel.place == place) { 2.0 } else { 1.0 };
        let [expected, found]: [Vec<f32>; 2] =
            [once * factor, twice].map(|it| it.into_data().convert::<f32>().into_vec().unwrap());
        assert_eq!(found, expected, "tensor {place}");
    }
}

on_every_backend! {
    a_backward_pass_tells_of_every_kernel => || is_told_of_every_kernel::<TestBackend>(Precision::F32);
    a_backward_pass_in_bf16_tells_of_every_kernel => || is_told_of_every_kernel::<TestBackend>(Precision::Bf16);
}
