//! `train evaluate`: measures a model on the validation images, sharded over the replicas' devices.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kiln_data::{DataSplits, Normalization};
use kiln_engine::checkpoint::Which;
use kiln_system::stop::Stop;
use kiln_system::{Error, Result, printable, shown};
use kiln_training::{Prediction, TOP1, TOP5, backend};

use crate::config::{Config, Request, Resolved, Saved, resolve, sketch};
use crate::launch::alone;
use crate::report::evaluation::{self as findings, DIRECTORY};
use crate::trainer::evaluation;
use crate::trainer::initial::{TORCHVISION, place};
use crate::trainer::loading::Bars;
use crate::trainer::model_file::{ModelFile, usual};
use crate::trainer::prepare::{blank_network, prepare, task};
use crate::trainer::terminal::{say, warn};
use crate::weights::Description;

const UNUSED: [&str; 3] = ["checkpoint.url", "checkpoint.path", "model.pretrained"];

/// The most classes on the terminal; of more, only the worst are listed.
const MOST_CLASSES: usize = 20;

/// Prints loss, top-1, top-5 and a table of the classes for `path`: a checkpoint, a run's directory (its checkpoint
/// `which`), a file of weights, or `torchvision` for those that it publishes for the network of `request`. The
/// configuration of a checkpoint is the first layer, below the layers of `request`.
pub fn evaluate(path: &Path, which: Option<Which>, mut request: Request) -> Result<()> {
    let sketch = sketch(&request);
    let published = sketch.as_ref().filter(|_| path == Path::new(TORCHVISION));
    let path = published.map_or_else(|| Ok(path.into()), |config| place(TORCHVISION, config))?;
    let file = ModelFile::read(&path, which, true)?;
    // The run's limit of validation batches does not apply here.
    let limit = sketch.map_or(0, |config| config.run.limit_val_batches);
    request.saved = file.config.clone().map(|saved| Saved { without: &UNUSED, ..saved });
    request.weights = request.saved.is_none().then(|| frame(&file));
    let Resolved { mut config, given, .. } = resolve(&request)?;
    config.run.limit_val_batches = limit;
    // A given value stays; if it does not fit the weights, loading them fails.
    let unnamed = |key: &str| !given.contains(key);
    if unnamed("model.stem") {
        config.model.stem = file.model.stem;
    }
    let (ours, theirs) = (&mut config.model, &file.model);
    let sizes = [
        ("model.depth", &mut ours.depth, theirs.depth),
        ("model.groups", &mut ours.groups, theirs.groups),
        ("model.width_per_group", &mut ours.width_per_group, theirs.width_per_group),
        ("model.width", &mut ours.width, theirs.width),
    ];
    for (_, size, of_weights) in sizes.into_iter().filter(|(key, ..)| unnamed(key)) {
        *size = of_weights;
    }
    if unnamed("model.num_classes") {
        // The number of classes of the images, with which the weights are compared.
        config.model.num_classes = 0;
    }
    if unnamed("run.output_dir") {
        config.run.output_dir = file.run.as_ref().map(|run| run.join(DIRECTORY)).unwrap_or_default();
    }
    config.model.freeze = "none".into();
    // Only training has the others.
    config.model.bn_parts = 1;
    let normalization = file.stated.normalization().filter(|_| unnamed("data.normalization"));
    prepare_as_stated(&mut config, &file, unnamed);
    measure(&config, file, normalization)
}

/// The usual image size and crop for the network; the file may override them.
fn frame(file: &ModelFile) -> Saved {
    let Description { size, center_crop, .. } = usual(file.model.stem);
    let text = format!("[data]\nimage_size = {size}\ncenter_crop = {center_crop:?}\n");
    Saved { path: file.origin.clone().into(), text, note: None, without: &[], older: "" }
}

/// Prepares images as the file states, unless a setting is named; notes what neither says, as the configuration has it.
fn prepare_as_stated(config: &mut Config, file: &ModelFile, unnamed: impl Fn(&str) -> bool) {
    let (data, stated) = (&mut config.data, &file.stated);
    let assumed = [
        ("data.image_size", stated.size.is_some(), format!("--image-size {}", data.image_size)),
        ("data.center_crop", stated.center_crop.is_some(), format!("--center-crop {}", data.center_crop)),
        ("data.exif", stated.exif.is_some(), format!("data.exif={}", data.exif)),
        ("data.normalization", stated.normalization().is_some(), format!("data.normalization={}", data.normalization)),
    ];
    let is_assumed = |(key, is_stated, _): &&(&str, bool, String)| !is_stated && unnamed(key);
    file.note(&assumed.iter().filter(is_assumed).map(|(.., setting)| setting.clone()).collect::<Vec<_>>());
    if unnamed("data.image_size") {
        data.image_size = stated.size.unwrap_or(data.image_size);
    }
    // The file states the size for validation.
    if unnamed("data.val_image_size") {
        data.val_image_size = 0;
    }
    if unnamed("data.center_crop") {
        data.center_crop = stated.center_crop.unwrap_or(data.center_crop);
    }
    if unnamed("data.exif") {
        data.exif = stated.exif.unwrap_or(data.exif);
    }
    if unnamed("data.interpolation") {
        data.interpolation = stated.interpolation.unwrap_or(data.interpolation);
    }
}

/// Evaluates the network in `file`; `normalization` is that of the weights, instead of the data set's.
fn measure(config: &Config, file: ModelFile, normalization: Option<Normalization>) -> Result<()> {
    let backend = backend(config.parallel.backend)?;
    let mut prepared = prepare(backend, config, alone(&config.parallel)?.as_ref(), Stop::new())?;
    if let Some(normalization) = normalization {
        let splits = DataSplits { normalization, ..prepared.splits.clone() };
        prepared.task = Arc::new(task(config, &splits));
    }
    let images = &prepared.task.validation;
    let outputs = match config.model.num_classes {
        0 => outputs_for(images.classes(), &file)?,
        named => named,
    };
    let network = blank_network(backend, config, outputs)?.load(&file.tensors, &file.origin)?;
    let began = Instant::now();
    let bars = Bars::new(config.run.progress);
    let report = |done, all| bars.count("evaluating", "batches", done, all);
    let output = network.evaluate(&prepared.task, &prepared.plan, &report);
    bars.finish();
    let output = output?;
    let seconds = began.elapsed().as_secs_f64();
    let counts = output.counts;
    if !counts.mean_loss().is_finite() {
        return Err(file.overflow());
    }
    let predictions = Prediction::from_values(&output.answers);
    let limited = if counts.samples < images.len() {
        format!(" of {} (--limit-val-batches {})", images.len(), config.run.limit_val_batches)
    } else {
        String::new()
    };
    say(&format!("weights     {}", printable(&file.title)));
    say(&format!("images      {}{limited}", counts.samples));
    say(&format!("speed       {:.0} images/s", counts.samples as f64 / seconds));
    say(&format!("loss        {:.4}", counts.mean_loss()));
    for (name, place) in [("top-1", TOP1), ("top-5", TOP5)] {
        let (share, hits) = (100.0 * counts.share(place), counts.counted[place]);
        say(&format!("{name}       {share:.2} % ({hits} of {})", counts.samples));
    }
    let of = format!("{}, on {}{limited} images", file.title, counts.samples);
    let evaluation = evaluation::evaluation(images, &counts, &predictions, of)?;
    say(&table(&evaluation));
    let directory = &config.run.output_dir;
    if directory.as_os_str().is_empty() {
        say("files       none; --output-dir DIR writes the tables and the confusion matrix");
        return Ok(());
    }
    evaluation::write(directory, &evaluation)?;
    say(&format!("files       evaluation.json, classes.csv, confusion.csv|svg in {}", shown(directory)));
    if let Some(run) = file.run.filter(|run| *directory == run.join(DIRECTORY)) {
        // The page of the run shows the evaluation.
        let page = run.join("report.html");
        match crate::report::write(std::slice::from_ref(&run), &page) {
            Ok(()) => say(&format!("report      {}", shown(&page))),
            Err(error) => warn(&format!("warning: the report was not written: {error}")),
        }
    }
    Ok(())
}

/// The number of outputs of the weights, if they are classes of the images.
fn outputs_for(classes: &[String], file: &ModelFile) -> Result<usize> {
    let known = &file.stated.classes;
    if (known == classes && known.len() <= file.outputs) || (known.is_empty() && file.outputs == classes.len()) {
        return Ok(file.outputs);
    }
    let differ = known.iter().zip(classes).find(|(ours, theirs)| ours != theirs);
    let fault = match differ {
        Some((ours, theirs)) if known.len() == classes.len() => {
            format!("have a class '{ours}' where the images have '{theirs}'")
        }
        _ => format!("have '{}' classes, the images '{}'", known.len().max(file.outputs), classes.len()),
    };
    Err(Error::usage(format!(
        "cannot evaluate {}: the weights {fault}; both must have the same classes in the same order; give the training \
         data with --data and --data-dir, or train a new classifier with --pretrained",
        file.origin
    )))
}

/// A row per class; for many classes, only the worst.
fn table(evaluation: &findings::Evaluation) -> String {
    let mut rows: Vec<_> = evaluation.classes.iter().zip(evaluation.scores()).collect();
    let all = rows.len();
    if all > MOST_CLASSES {
        rows.retain(|(_, score)| score.images > 0);
        rows.sort_by(|(_, one), (_, other)| one.accuracy().partial_cmp(&other.accuracy()).expect("numbers of images"));
        rows.truncate(MOST_CLASSES);
    }
    let rows: Vec<_> = rows.into_iter().map(|(name, score)| (printable(name), score)).collect();
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
