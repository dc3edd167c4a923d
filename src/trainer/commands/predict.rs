//! `train predict`: classifies images with a trained model. A file that cannot be read does not keep the others from
//! being answered.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::slice::from_ref;

use kiln_data::{Augment, Framing, ImageSet, SUFFIXES, assemble, is_image};
use kiln_engine::checkpoint::Which;
use kiln_engine::parallel::Shard;
use kiln_system::{Error, Result, printable, shown};
use kiln_training::{Backend, backend};
use rayon::prelude::*;
use serde::Serialize;

use crate::config::{Config, Request, Saved, resolve};
use crate::metrics::csv;
use crate::trainer::model_file::ModelFile;
use crate::trainer::prepare::{blank_network, share_threads};
use crate::trainer::terminal::{say, warn};
use crate::weights::{Description, Stated};

const UNUSED: [&str; 5] = ["checkpoint.url", "checkpoint.path", "model.pretrained", "data.dir", "data.cache_dir"];

const BATCH: usize = 32;

#[derive(Debug)]
pub struct Question {
    /// Image files, folders of them, or `-` for names from standard input.
    pub images: Vec<PathBuf>,
    pub top: usize,
    pub answers: Answers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    Text,
    Json,
    Csv,
}

#[derive(Debug, Serialize)]
struct Answer {
    image: String,
    predictions: Vec<Guess>,
}

#[derive(Debug, Serialize)]
struct Guess {
    class: String,
    index: usize,
    probability: f32,
}

/// Prints the most probable classes of every image by the model in `path`; of a run, its checkpoint `which`. What is
/// `given` about images and classes counts more than what the file says. Returns 1 if an image could not be read, each
/// of which is a line of standard error.
pub fn predict(
    path: &Path,
    which: Option<Which>,
    question: Question,
    given: Stated,
    mut request: Request,
) -> Result<u8> {
    let file = ModelFile::read(path, which, true)?;
    request.saved = file.config.clone().map(|saved| Saved { without: &UNUSED, ..saved });
    let mut config = resolve(&request)?.config;
    let description = file.describe(given)?;
    config.model = file.model.clone();
    let (backend, threads) = (backend(config.parallel.backend)?, share_threads(config.run.threads, 1));
    let mut code = Ok(1);
    backend.on_threads(threads, &mut || code = answer(backend, &config, &file, &description, &question));
    code
}

fn answer(
    backend: &dyn Backend,
    config: &Config,
    file: &ModelFile,
    description: &Description,
    question: &Question,
) -> Result<u8> {
    let framing = Framing::for_validation(&config.data);
    let Description { center_crop: middle, exif, interpolation, .. } = *description;
    let framing = Framing { middle, exif, interpolation: Some(interpolation), ..framing };
    let network = blank_network(backend, config, file.outputs)?.load(&file.tensors, &file.origin)?;
    let augment = Augment::plain(description.normalization);
    // To standard error, since programs read the answers.
    warn(&format!("weights of {}", file.title));
    let (images, mut faults) = files(&question.images)?;
    let mut answers = Vec::new();
    for paths in images.chunks(BATCH) {
        let read = |path: &PathBuf| Ok(ImageSet::from_files(from_ref(path), description.size, framing)?.picture(0));
        let outcomes: Vec<Result<_>> = paths.par_iter().map(read).collect();
        let (mut names, mut pictures) = (Vec::new(), Vec::new());
        for (path, outcome) in paths.iter().zip(outcomes) {
            match outcome {
                Ok(picture) => {
                    names.push(shown(path));
                    pictures.push(picture);
                }
                Err(error) => faults.push(error),
            }
        }
        if pictures.is_empty() {
            continue;
        }
        let shard = Shard { ids: (0..pictures.len() as u32).collect(), ..Shard::default() };
        let batch = assemble(pictures, None, &augment, 0, &shard)?;
        let probabilities = network.probabilities(&batch, config.parallel.gpu_ids[0])?;
        if !probabilities.iter().all(|it| it.is_finite()) {
            return Err(file.overflow());
        }
        for (image, row) in names.into_iter().zip(probabilities.chunks(file.outputs)) {
            answers.push(Answer { image, predictions: guesses(row, question.top, &description.classes) });
        }
    }
    match question.answers {
        Answers::Json => say(&json(&answers)),
        Answers::Csv => say(&table(answers)),
        Answers::Text if answers.is_empty() => {}
        Answers::Text => say(&text(&answers)),
    }
    faults.iter().for_each(|error| warn(&error.to_string()));
    Ok(u8::from(!faults.is_empty()))
}

/// The image files that `names` mean, in this order, and what could not be read.
fn files(names: &[PathBuf]) -> Result<(Vec<PathBuf>, Vec<Error>)> {
    let (mut images, mut faults) = (Vec::new(), Vec::new());
    for name in names {
        if name.as_os_str() != "-" {
            add(name, &mut images, &mut faults);
            continue;
        }
        let mut listed = Vec::new();
        std::io::stdin().read_to_end(&mut listed).map_err(Error::io("read", "standard input"))?;
        // One a line, or as `find -print0` separates them.
        let end = if listed.contains(&0) { 0 } else { b'\n' };
        let names = listed.split(|byte| *byte == end).filter(|name| !name.is_empty());
        names.for_each(|name| add(Path::new(OsStr::from_bytes(name)), &mut images, &mut faults));
    }
    Ok((images, faults))
}

/// Adds a file, or the image files in a folder and its folders, sorted.
fn add(path: &Path, images: &mut Vec<PathBuf>, faults: &mut Vec<Error>) {
    if !path.is_dir() {
        return images.push(path.into());
    }
    let (mut found, mut folders, before) = (Vec::new(), vec![path.to_path_buf()], faults.len());
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
        match entries.map_err(Error::io("read", &folder)) {
            Err(error) => faults.push(error),
            Ok(entries) => {
                let seen = entries.iter().filter(|entry| !entry.file_name().as_bytes().starts_with(b"."));
                // A link to a folder may lead back here.
                let (inner, files): (Vec<_>, Vec<_>) =
                    seen.partition(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
                folders.extend(inner.iter().map(|entry| entry.path()));
                let images = files.iter().filter(|entry| is_image(entry.file_name().as_bytes()));
                found.extend(images.map(|entry| entry.path()));
            }
        }
    }
    if found.is_empty() && faults.len() == before {
        let (folder, kinds) = (shown(path), SUFFIXES.join(", ."));
        faults.push(Error::Data(format!("no image in '{folder}' or its subfolders; images are .{kinds} files")));
    }
    found.sort();
    images.extend(found);
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

fn table(answers: Vec<Answer>) -> String {
    let head = ["image", "rank", "class", "index", "probability"].map(String::from);
    let rows = answers.into_iter().flat_map(|Answer { image, predictions }| {
        let row = move |(rank, guess): (usize, Guess)| {
            let Guess { class, index, probability } = guess;
            [image.clone(), (rank + 1).to_string(), class, index.to_string(), probability.to_string()]
        };
        predictions.into_iter().enumerate().map(row)
    });
    String::from_utf8_lossy(&csv::table(std::iter::once(head).chain(rows))).into_owned()
}

fn text(answers: &[Answer]) -> String {
    let answer = |answer: &Answer| {
        let guess = |guess: &Guess| format!("  {:5.1} %  {}\n", 100.0 * guess.probability, printable(&guess.class));
        let guesses: String = answer.predictions.iter().map(guess).collect();
        format!("{}\n{guesses}", printable(&answer.image))
    };
    answers.iter().map(answer).collect::<Vec<_>>().join("").trim_end().to_string()
}
