//! Measures a model on the validation images, sharded over the replicas' devices.

use std::path::Path;
use std::time::Instant;

use burn::module::{AutodiffModule, Module};
use burn::train::InferenceStep;

use super::backend::{Program, dispatch};
use super::evaluation;
use super::model_file::ModelFile;
use super::prepare::{Prepared, blank_model, prepare};
use super::terminal::{say, warn};
use crate::config::{Config, Request, resolve};
use crate::data::validation_place;
use crate::error::{Error, Result};
use crate::launch::alone;
use crate::model::{EvaluationOutput, ResNet, for_evaluation, load_state};
use crate::parallel::{BackendKind, HostBackend};
use crate::report::evaluation::Evaluation;
use crate::stop::Stop;

/// More classes are not listed on the terminal, only the worst of them.
const MOST_CLASSES: usize = 20;

/// Prints loss, top-1, top-5 and a table of the classes for `path`: a checkpoint, a run's directory or a file of
/// weights. A checkpoint brings its configuration along; every layer of `request` wins over it.
pub fn evaluate(path: &Path, mut request: Request) -> Result<()> {
    let file = ModelFile::read(path, true)?;
    request.saved = file.config.clone();
    let mut config = resolve(&request)?.config;
    // What the user names stays: if it does not fit the weights, they are refused when they are loaded.
    let unnamed = |key: &str| !request.names(key);
    if unnamed("model.stem") {
        config.model.stem = file.model.stem;
    }
    if unnamed("model.width") {
        config.model.width = file.model.width;
    }
    if unnamed("model.num_classes") {
        config.model.num_classes = file.outputs;
    }
    if unnamed("run.output_dir") {
        config.run.output_dir = file.run.clone().unwrap_or_default();
    }
    config.model.freeze = "none".into();
    dispatch(config.parallel.backend, Measurement { config, file })
}

struct Measurement {
    config: Config,
    file: ModelFile,
}

impl Program for Measurement {
    type Output = ();

    fn run<B: HostBackend>(self, _backend: BackendKind) -> Result<()> {
        let Self { config, file } = self;
        let prepared = prepare::<B>(&config, alone(&config.parallel).as_ref(), Stop::new())?;
        let model = load_state(blank_model::<B>(&config, prepared.classes)?, &file.tensors, &file.origin)?.valid();
        let began = Instant::now();
        let output = sharded(&model, &prepared)?;
        let seconds = began.elapsed().as_secs_f64();
        let tally = output.tally;
        say(&format!("weights     {}", file.origin));
        say(&format!("images      {}", tally.samples));
        say(&format!("speed       {:.0} images/s", tally.samples as f64 / seconds));
        say(&format!("loss        {:.4}", tally.mean_loss()));
        say(&format!("top-1       {:.2} % ({} of {})", 100.0 * tally.accuracy(), tally.top1, tally.samples));
        say(&format!("top-5       {:.2} % ({} of {})", 100.0 * tally.top5_accuracy(), tally.top5, tally.samples));
        let evaluation = evaluation::evaluation(&prepared.plan.validation, &output, file.origin.clone())?;
        say(&table(&evaluation));
        let directory = &config.run.output_dir;
        if directory.as_os_str().is_empty() {
            say("files       none; --output-dir DIR writes the tables, the confusion matrix and its picture there");
            return Ok(());
        }
        evaluation::write(directory, &evaluation)?;
        say(&format!("files       evaluation.json, classes.csv, confusion.csv|svg|png in {}", directory.display()));
        if file.run.as_ref() == Some(directory) {
            // The page of the run shows the evaluation, too.
            let page = directory.join("report.html");
            match crate::report::write(std::slice::from_ref(directory), &page) {
                Ok(()) => say(&format!("report      {}", page.display())),
                Err(error) => warn(&format!("warning: the report was not written: {error}")),
            }
        }
        Ok(())
    }
}

/// A row per class; of many classes, the worst.
fn table(evaluation: &Evaluation) -> String {
    let mut rows: Vec<_> = evaluation.classes.iter().zip(evaluation.scores()).collect();
    let all = rows.len();
    if all > MOST_CLASSES {
        rows.retain(|(_, score)| score.images > 0);
        rows.sort_by(|(_, one), (_, other)| one.accuracy().partial_cmp(&other.accuracy()).expect("numbers of images"));
        rows.truncate(MOST_CLASSES);
    }
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(5);
    let share = |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.1} %", 100.0 * share));
    let title = if all > rows.len() { format!("the worst of {all} classes\n") } else { String::new() };
    let mut text = format!("\n{title}{:<width$}  {:>7}  {:>9}  {:>9}\n", "class", "images", "accuracy", "precision");
    for (name, score) in rows {
        let [accuracy, precision] = [score.accuracy(), score.precision()].map(share);
        text += &format!("{name:<width$}  {:>7}  {accuracy:>9}  {precision:>9}\n", score.images);
    }
    text
}

/// Each replica's shard on a thread of its own; the sums do not depend on how many there are.
fn sharded<B: HostBackend>(model: &ResNet<B>, prepared: &Prepared) -> Result<EvaluationOutput> {
    let plan = &prepared.plan;
    let shard = |replica: usize, model: ResNet<B>| -> Result<EvaluationOutput> {
        B::share_threads(plan.threads, plan.world.size());
        let device = B::open(plan.world.device_of(replica))?;
        let model = for_evaluation(model.to_device(&device));
        let mut sum = EvaluationOutput::default();
        for batch in plan.validation_shard(replica)?.0 {
            let output = model.step(plan.evaluation_batch(batch?, &device));
            sum.tally += output.tally;
            sum.predictions.extend(output.predictions);
        }
        Ok(sum)
    };
    std::thread::scope(|scope| {
        let shard = &shard;
        let threads: Vec<_> = (0..plan.world.size())
            .map(|replica| {
                let model = model.clone();
                scope.spawn(move || shard(replica, model))
            })
            .collect();
        let mut shards = Vec::new();
        for (replica, thread) in threads.into_iter().enumerate() {
            let died = |_| Error::Training(format!("replica {replica} panicked during the evaluation"));
            shards.push(thread.join().map_err(died)??);
        }
        Ok(merged(&shards))
    })
}

/// The outputs of all replicas as one, in the order of the images.
fn merged(shards: &[EvaluationOutput]) -> EvaluationOutput {
    let mut whole = EvaluationOutput::default();
    shards.iter().for_each(|shard| whole.tally += shard.tally);
    let prediction = |image: usize| {
        let (replica, place) = validation_place(image, shards.len());
        shards[replica].predictions[place]
    };
    whole.predictions = (0..whole.tally.samples).map(prediction).collect();
    whole
}
