//! `train predict`: classifies images with a trained model.

use std::path::{Path, PathBuf};

use burn::module::AutodiffModule;
use burn::tensor::activation::softmax;
use serde::Serialize;

use crate::config::{Config, Request, Saved, resolve};
use crate::data::{Augment, Framing, ImageSet, assemble};
use crate::error::{Result, printable};
use crate::nn::{ForwardContext, load_state};
use crate::ops::{download, tensor};
use crate::parallel::{BackendKind, HostBackend, Shard};
use crate::trainer::backend::{Program, dispatch};
use crate::trainer::model_file::{ModelFile, Which};
use crate::trainer::prepare::{blank_model, share_threads};
use crate::trainer::terminal::{say, warn};
use crate::weights::{Description, Stated};

/// Settings of the checkpoint that are not used.
const UNUSED: [&str; 5] = ["checkpoint.url", "checkpoint.path", "model.pretrained", "data.dir", "data.cache_dir"];

/// The batch size.
const BATCH: usize = 32;

/// The question of the user.
#[derive(Debug)]
pub struct Question {
    /// The image files.
    pub images: Vec<PathBuf>,
    /// How many classes to name for each.
    pub top: usize,
    /// Whether to answer in JSON.
    pub json: bool,
}

/// An image and its most probable classes.
#[derive(Debug, Serialize)]
struct Answer {
    image: PathBuf,
    predictions: Vec<Guess>,
}

#[derive(Debug, Serialize)]
struct Guess {
    class: String,
    index: usize,
    probability: f32,
}

/// Prints the most probable classes of every image by the model in `path`; of a run, its checkpoint `which`. What is
/// `given` about images and classes counts more than what the file says.
pub fn predict(
    path: &Path,
    which: Option<Which>,
    question: Question,
    given: Stated,
    mut request: Request,
) -> Result<()> {
    let file = ModelFile::read(path, which, true)?;
    request.saved = file.config.clone().map(|saved| Saved { without: &UNUSED, ..saved });
    let mut config = resolve(&request)?.config;
    let description = file.describe(given)?;
    config.model = file.model.clone();
    dispatch(config.parallel.backend, Prediction { config, file, description, question })
}

struct Prediction {
    config: Config,
    file: ModelFile,
    description: Description,
    question: Question,
}

impl Program for Prediction {
    type Output = ();

    fn run<B: HostBackend>(self, _backend: BackendKind) -> Result<()> {
        B::on_threads(share_threads(self.config.run.threads, 1), 1, || self.answer::<B>())
    }
}

impl Prediction {
    fn answer<B: HostBackend>(self) -> Result<()> {
        let Self { config, file, description, question } = self;
        let device = B::open(config.parallel.gpu_ids[0])?;
        // All files are read before the first answer, so that an error does not follow part of the output.
        let framing = Framing::for_validation(&config.data);
        let framing = Framing { middle: description.center_crop, exif: description.exif, ..framing };
        let images = ImageSet::from_files(&question.images, description.size, framing)?;
        let model = load_state(blank_model::<B>(&config, file.outputs)?, &file.tensors, &file.origin)?;
        let (model, context) = (model.valid(), ForwardContext::evaluate());
        let augment = Augment::plain(description.normalization);
        let mut answers = Vec::new();
        let ids: Vec<u32> = (0..images.len() as u32).collect();
        for ids in ids.chunks(BATCH) {
            let pictures = ids.iter().map(|id| images.picture(*id)).collect();
            let shard = Shard { ids: ids.to_vec(), ..Shard::default() };
            let batch = assemble(pictures, None, &augment, 0, &shard)?;
            let logits = model.forward(tensor(B::input(&batch.images, &device)), &context);
            let probabilities = download(Vec::new(), vec![softmax(logits, 1).flatten(0, 1)]);
            if !probabilities.iter().all(|it| it.is_finite()) {
                return Err(file.overflow());
            }
            for (id, row) in ids.iter().zip(probabilities.chunks(file.outputs)) {
                let image = question.images[*id as usize].clone();
                answers.push(Answer { image, predictions: guesses(row, question.top, &description.classes) });
            }
        }
        // To standard error, since programs read the answers.
        warn(&format!("weights of {}", file.title));
        say(&if question.json { json(&answers) } else { text(&answers) });
        Ok(())
    }
}

/// The most probable classes, the most probable first.
fn guesses(probabilities: &[f32], top: usize, classes: &[String]) -> Vec<Guess> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|one, other| probabilities[*other].total_cmp(&probabilities[*one]));
    let class = |index: usize| classes.get(index).cloned().unwrap_or_else(|| format!("class {index}"));
    let guess = |index: usize| Guess { class: class(index), index, probability: probabilities[index] };
    order.into_iter().take(top).map(guess).collect()
}

fn json(answers: &[Answer]) -> String {
    serde_json::to_string_pretty(answers).expect("texts and numbers are always JSON")
}

fn text(answers: &[Answer]) -> String {
    let answer = |answer: &Answer| {
        let guess = |guess: &Guess| format!("  {:5.1} %  {}\n", 100.0 * guess.probability, printable(&guess.class));
        let guesses: String = answer.predictions.iter().map(guess).collect();
        format!("{}\n{guesses}", printable(&answer.image.to_string_lossy()))
    };
    answers.iter().map(answer).collect::<Vec<_>>().join("").trim_end().to_string()
}
