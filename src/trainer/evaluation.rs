//! The result of an evaluation as files: `evaluation.json` for the report, tables, a picture.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kiln_data::ImageSet;
use kiln_engine::checkpoint::write_atomic;
use kiln_engine::parallel::Counts;
use kiln_system::{Error, Result};
use kiln_training::{Prediction, TOP1, TOP5};

use super::pictures::picture;
use crate::metrics::csv;
use crate::report::evaluation::{Evaluation, Pair, Sample};
use crate::report::{matrix, svg};

/// The number of images shown: half of them the mistakes with the highest confidence, the others in order.
const SAMPLES: usize = 24;

/// The evaluation from `counts` and `predictions` for the first of `images`; `of` names the model.
pub(super) fn evaluation(
    images: &ImageSet,
    counts: &Counts,
    predictions: &[Prediction],
    of: String,
) -> Result<Evaluation> {
    let seen = predictions.iter().map(|it| it.class as usize + 1).max().unwrap_or(0);
    let mut classes = images.classes().to_vec();
    // A model may know more classes than the images have.
    classes.extend((classes.len()..seen).map(|class| format!("class {class}")));
    let mut pairs = BTreeMap::new();
    for (id, prediction) in predictions.iter().enumerate() {
        *pairs.entry((images.label(id as u32) as usize, prediction.class as usize)).or_default() += 1;
    }
    let finite = |value: f64| value.is_finite().then_some(value);
    Ok(Evaluation {
        of,
        loss: finite(counts.mean_loss()),
        top1: finite(counts.share(TOP1)),
        top5: finite(counts.share(TOP5)),
        samples: samples(images, predictions)?,
        classes,
        confusion: pairs.into_iter().map(|((truth, predicted), images)| (truth, predicted, images)).collect(),
        matrix: Vec::new(),
    })
}

fn samples(images: &ImageSet, predictions: &[Prediction]) -> Result<Vec<Sample>> {
    let all = predictions.iter().enumerate().map(|(id, prediction)| (id as u32, *prediction));
    let is_wrong = |(id, prediction): &(u32, Prediction)| images.label(*id) != prediction.class;
    let mut wrong: Vec<_> = all.clone().filter(is_wrong).collect();
    wrong.sort_by(|(_, one), (_, other)| other.confidence.total_cmp(&one.confidence));
    wrong.truncate(SAMPLES / 2);
    let rest = SAMPLES - wrong.len();
    let spread = (predictions.len() / rest).max(1);
    let others = all.filter(|sample| !is_wrong(sample)).step_by(spread).take(rest);
    let sample = |(id, prediction): (u32, Prediction)| -> Result<Sample> {
        Ok(Sample {
            png: STANDARD.encode(picture(&images.image(id)?, images.size())),
            truth: images.label(id) as usize,
            predicted: prediction.class as usize,
            confidence: prediction.confidence.into(),
        })
    };
    wrong.into_iter().chain(others).map(sample).collect()
}

pub(super) fn write(directory: &Path, evaluation: &Evaluation) -> Result<()> {
    std::fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
    let json = serde_json::to_vec(evaluation).expect("plain numbers and texts are always JSON");
    let files = [
        ("evaluation.json", json),
        ("classes.csv", csv::table(classes(evaluation))),
        ("confusion.csv", csv::table(confusion(evaluation))),
        ("confusion.svg", svg::file(&matrix::figure(evaluation)).into_bytes()),
    ];
    files.iter().try_for_each(|(name, bytes)| write_atomic(&directory.join(name), bytes))
}

fn classes(evaluation: &Evaluation) -> Vec<Vec<String>> {
    let share = |share: Option<f64>| share.map_or(String::new(), |share| format!("{share:.6}"));
    let head = ["class", "images", "correct", "accuracy", "precision"].map(String::from).to_vec();
    let row = |(name, score): (&String, crate::report::evaluation::ClassScore)| {
        let counts = [score.images, score.correct].map(|count| count.to_string());
        [vec![name.clone()], counts.to_vec(), vec![share(score.accuracy()), share(score.precision())]].concat()
    };
    std::iter::once(head).chain(evaluation.classes.iter().zip(evaluation.scores()).map(row)).collect()
}

/// A row per true and predicted class that occur together.
fn confusion(evaluation: &Evaluation) -> Vec<Vec<String>> {
    let names = &evaluation.classes;
    let head = ["class", "predicted", "images"].map(String::from).to_vec();
    let row =
        |(truth, predicted, images): &Pair| vec![names[*truth].clone(), names[*predicted].clone(), images.to_string()];
    std::iter::once(head).chain(evaluation.confusion.iter().map(row)).collect()
}
