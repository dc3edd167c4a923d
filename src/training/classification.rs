//! The task of `train`: a ResNet that classifies images.

use std::sync::Arc;

use burn::backend::Autodiff;
use burn::tensor::{Int, Tensor};
use burn_dataset::Dataset;
use kiln_data::{
    Augment, DataConfig, DataSplits, HostBatch, ImageSet, Mixing, Need, Picture, Purpose, SampleKey, assemble,
};
use kiln_engine::nn::{HEAD, cross_entropy};
use kiln_engine::parallel::{
    Activations, Counts, Evaluated, Foresight, HostBackend, Passage, Passed, Shard, Split, Task, Unit, fetch,
};
use kiln_ops::images::MixBy;
use kiln_ops::{HostOps, Precision, primitive, tensor, upload};
use kiln_system::{Error, Result};

use super::model::{Architecture, ResNet, TOP1, Through, Units, hits, predictions};

/// The images of both splits, and their preparation.
#[derive(Debug, Clone)]
pub struct Classification {
    pub train: Arc<ImageSet>,
    pub validation: Arc<ImageSet>,
    pub augment: Augment,
    pub mixing: Option<Mixing>,
    /// For validation images: normalisation only.
    pub plain: Augment,
    pub seed: u64,
    pub architecture: Architecture,
    /// Probability that an image skips the last residual branch in training (stochastic depth).
    pub drop_path: f64,
}

impl Classification {
    /// The images of `splits`, prepared as `data` says, for networks of an architecture; `seed` keys the augmentation.
    pub fn new(data: &DataConfig, splits: &DataSplits, architecture: Architecture, seed: u64) -> Self {
        Self {
            train: splits.train.clone(),
            validation: splits.validation.clone(),
            augment: Augment::new(data, splits.normalization),
            mixing: Mixing::new(data),
            plain: Augment::plain(splits.normalization),
            seed,
            architecture,
            drop_path: 0.0,
        }
    }

    pub fn with_drop_path(self, drop_path: f64) -> Self {
        Self { drop_path, ..self }
    }

    /// The parts that may become stages.
    pub fn units(&self) -> Vec<Unit> {
        self.architecture.units().into_iter().map(|(layers, cost)| Unit::new(layers, cost)).collect()
    }

    fn images_of(&self, split: Split) -> &ImageSet {
        match split {
            Split::Training => &self.train,
            Split::Validation => &self.validation,
        }
    }

    fn mix(&self, shard: &Shard) -> Option<MixBy> {
        // Keyed by the first sample of all replicas, so that all of them draw the same.
        let first = SampleKey { seed: self.seed, epoch: shard.epoch, sample: shard.first };
        self.mixing?.draw(first, self.train.size())
    }

    /// The images of `shard` in the form for the network, in host memory; `pictures` are the decoded images.
    pub fn assemble(&self, split: Split, pictures: Vec<Picture>, shard: &Shard) -> Result<HostBatch> {
        let images = self.images_of(split);
        if split == Split::Validation {
            return assemble(pictures, None, &self.plain, self.seed, shard);
        }
        let partners = self.mix(shard).map(|mix| Ok::<_, Error>((fetch(images, &shard.partners)?, mix))).transpose()?;
        let batch = assemble(pictures, partners, &self.augment, self.seed, shard)?;
        Ok(HostBatch { branches: self.branches(shard), ..batch })
    }

    /// Stochastic depth (Huang et al. 2016): the factors of the residual branches of each image, which are left out
    /// with a probability that rises from 0 for the first to `drop_path` for the last, as in timm; those that are kept
    /// grow in return.
    fn branches(&self, shard: &Shard) -> Vec<f32> {
        if self.drop_path == 0.0 {
            return Vec::new();
        }
        let branches: usize = self.architecture.blocks.iter().sum();
        let of_image = |view: usize, image: usize| {
            let copy = shard.copies.get(image).copied().unwrap_or(0);
            let key = SampleKey { seed: self.seed, epoch: shard.epoch, sample: shard.ids[image] }.copy(copy);
            let key = key.view(view as u32);
            (0..branches).map(move |branch| {
                let kept = 1.0 - self.drop_path * branch as f64 / (branches - 1).max(1) as f64;
                if key.fraction(Purpose::DropPath, branch as u32) < kept { (1.0 / kept) as f32 } else { 0.0 }
            })
        };
        let images = shard.ids.len();
        (0..self.augment.views * images).flat_map(|at| of_image(at / images, at % images)).collect()
    }
}

#[derive(Debug, Clone)]
pub struct Images<B: HostBackend> {
    /// Normalised, `[images, 3, height, width]`, each sample as often as there are views; one zero for a stage that
    /// does not look at them.
    pixels: Tensor<B, 4>,
    size: [usize; 2],
    /// Their classes, `[batch]`.
    labels: Tensor<B, 1, Int>,
    /// The classes of the images mixed into them, `[batch]`, and the weight of their own classes.
    mixed: Option<(Tensor<B, 1, Int>, f32)>,
    /// The factors of the residual branches, `[images, branches]`.
    branches: Option<Tensor<B, 2>>,
}

/// The logits of a forward pass, and the true classes.
#[derive(Debug)]
pub struct Logits<B: HostBackend> {
    /// `[batch, classes]`.
    values: Tensor<B, 2>,
    /// `[batch]`.
    labels: Tensor<B, 1, Int>,
}

impl<B: HostBackend> Task<B> for Classification {
    type Model = ResNet<Autodiff<B>>;
    type Item = Picture;
    type Batch = HostBatch;
    type Input = Images<B>;
    type Outputs = Logits<B>;

    /// Those of [`predictions`].
    const ANSWERS: usize = 2;

    fn dataset(&self, split: Split) -> &dyn Dataset<Picture> {
        self.images_of(split)
    }

    fn foresee(&self, split: Split, shards: Box<dyn Iterator<Item = Shard> + Send>) -> Option<Foresight> {
        let (task, mut shards) = (self.clone(), shards.peekable());
        if shards.peek().is_none_or(|shard| shard.targets_only) {
            return None;
        }
        let is_validation = split == Split::Validation;
        let need = move |shard: Shard| {
            let mixed = !is_validation && task.mix(&shard).is_some();
            let Shard { epoch, mut ids, partners, .. } = shard;
            ids.extend(partners.into_iter().filter(|_| mixed));
            Need { epoch, ids, is_validation }
        };
        self.images_of(split).foresee(shards.map(need))
    }

    fn prepare(&self, split: Split, pictures: Vec<Picture>, shard: &Shard) -> Result<HostBatch> {
        self.assemble(split, pictures, shard)
    }

    fn upload(&self, batch: HostBatch, device: &B::Device) -> Images<B> {
        let is_seen = !batch.images.own.bytes.is_empty();
        let pixels = if is_seen { tensor(B::input(&batch.images, device)) } else { Tensor::zeros([1; 4], device) };
        let mixed = batch.partners.filter(|partners| partners.share < 1.0);
        let mixed = mixed.map(|partners| (on_device::<B>(&partners.labels, device), partners.share));
        let branches = (!batch.branches.is_empty()).then(|| {
            let count: usize = self.architecture.blocks.iter().sum();
            upload(&batch.branches, device).reshape([batch.branches.len() / count, count])
        });
        let labels = on_device::<B>(&batch.labels, device);
        Images { pixels, size: batch.images.size, labels, mixed, branches }
    }

    fn put(&self, batch: &Images<B>, place: &Images<B>) -> bool {
        let shape =
            |it: &Images<B>| (it.pixels.dims(), it.size, it.labels.dims(), it.branches.as_ref().map(Tensor::dims));
        // The share of labels that are mixed in is a number of the host.
        if shape(batch) != shape(place) || batch.mixed.is_some() || place.mixed.is_some() {
            return false;
        }
        B::put(primitive(batch.pixels.clone()), primitive(place.pixels.clone()));
        B::put_integers(batch.labels.clone().into_primitive(), place.labels.clone().into_primitive());
        for (factors, place) in batch.branches.iter().zip(&place.branches) {
            B::put(primitive(factors.clone()), primitive(place.clone()));
        }
        true
    }

    fn units(&self) -> Vec<Unit> {
        self.units()
    }

    fn forward(
        &self,
        model: &ResNet<Autodiff<B>>,
        passage: Passage<Autodiff<B>, Images<B>>,
    ) -> Passed<Autodiff<B>, Logits<B>> {
        let Images { pixels, size, labels, mixed, branches } = passage.input;
        let units = Units { range: passage.units, image: size };
        let x = passage.activations.map_or_else(|| Tensor::from_inner(pixels), Activations::into_tensor);
        let branches = branches.map(Tensor::from_inner);
        match model.forward_units(&units, x, branches, passage.context) {
            Through::Maps(maps) => Passed::Activations(Activations::new(maps)),
            Through::Logits(logits) => {
                let mixed = mixed.map(|(labels, share)| (Tensor::from_inner(labels), share.into()));
                let losses = model.losses_of(logits.clone(), Tensor::from_inner(labels.clone()), mixed);
                let (mut values, [batch]) = (logits.inner(), labels.dims());
                if self.augment.views > 1 {
                    // Hits are those of the first view.
                    values = values.narrow(0, 0, batch);
                }
                Passed::Losses((losses, Logits { values, labels }))
            }
        }
    }

    fn evaluate(&self, model: &Evaluated<B, Self>, passage: Passage<B, Images<B>>) -> Passed<B, Logits<B>> {
        let Images { pixels, size, labels, .. } = passage.input;
        let units = Units { range: passage.units, image: size };
        let x = passage.activations.map_or(pixels, Activations::into_tensor);
        match model.forward_units(&units, x, None, passage.context) {
            Through::Maps(maps) => Passed::Activations(Activations::new(maps)),
            Through::Logits(values) => {
                let losses = cross_entropy(values.clone(), labels.clone(), 0.0);
                Passed::Losses((losses, Logits { values, labels }))
            }
        }
    }

    fn count(&self, logits: &Logits<B>) -> Option<Tensor<B, 1>> {
        Some(hits(logits.values.clone(), logits.labels.clone()))
    }

    fn answers(&self, logits: &Logits<B>) -> Option<Tensor<B, 2>> {
        Some(predictions(logits.values.clone()))
    }

    fn passes_on(&self, precision: Precision) -> Precision {
        precision
    }

    fn score(&self, counts: &Counts) -> f64 {
        counts.share(TOP1)
    }

    fn is_head(&self, name: &str) -> bool {
        name.split('.').next() == Some(HEAD)
    }
}

fn on_device<B: HostOps>(labels: &[u32], device: &B::Device) -> Tensor<B, 1, Int> {
    let targets: Vec<i32> = labels.iter().map(|label| *label as i32).collect();
    Tensor::from_primitive(B::integers(&targets, device))
}
