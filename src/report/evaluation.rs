//! `evaluation.json`: a model's results on the validation images, with confusion matrix and samples.

use serde::{Deserialize, Serialize};

/// The subdirectory of a run for an evaluation made after it.
pub(crate) const DIRECTORY: &str = "evaluation";

/// The first bytes of every PNG file, in base64.
const PNG: &str = "iVBORw0KGgo";

/// A true class, a predicted class, and how many images have both.
pub type Pair = (usize, usize, u64);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evaluation {
    /// The evaluated model, such as `epoch 3` or a checkpoint.
    pub of: String,
    /// Mean loss over the images; absent if it is not finite.
    pub loss: Option<f64>,
    /// Top-1 accuracy, as a fraction.
    pub top1: Option<f64>,
    /// Top-5 accuracy, as a fraction.
    pub top5: Option<f64>,
    pub classes: Vec<String>,
    /// The confusion matrix without its zeros: as a rule most of it is zero, and its size is the square of the
    /// classes'.
    #[serde(rename = "pairs")]
    pub confusion: Vec<Pair>,
    /// The whole matrix, a row per true class, as files of earlier versions have it.
    #[serde(rename = "confusion", skip_serializing)]
    pub matrix: Vec<Vec<u64>>,
    pub samples: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The image as a PNG file in base64.
    pub(crate) png: String,
    pub(crate) truth: usize,
    pub(crate) predicted: usize,
    /// The predicted class's probability.
    pub(crate) confidence: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClassScore {
    pub images: u64,
    /// Correctly predicted images of the class.
    pub(crate) correct: u64,
    /// Images of any class that are predicted as this class.
    pub(crate) taken: u64,
}

impl ClassScore {
    /// Recall, the share of correct predictions; `None` without images.
    pub(crate) fn accuracy(&self) -> Option<f64> {
        (self.images > 0).then(|| self.correct as f64 / self.images as f64)
    }

    /// Precision, the share of predictions of this class that are correct; `None` without predictions.
    pub(crate) fn precision(&self) -> Option<f64> {
        (self.taken > 0).then(|| self.correct as f64 / self.taken as f64)
    }
}

impl Evaluation {
    /// Drops inconsistent parts and returns a note for each; a matrix becomes pairs.
    pub fn check(&mut self) -> Vec<&'static str> {
        let mut complaints = Vec::new();
        let classes = self.classes.len();
        let matrix = std::mem::take(&mut self.matrix);
        let is_square = matrix.len() == classes && matrix.iter().all(|row| row.len() == classes);
        let row = |(truth, row): (usize, Vec<u64>)| {
            row.into_iter().enumerate().map(move |(predicted, images)| (truth, predicted, images))
        };
        let fits = is_square || matrix.is_empty();
        self.confusion.extend(matrix.into_iter().enumerate().flat_map(row).filter(|pair| pair.2 > 0));
        if !fits || self.confusion.iter().any(|(truth, predicted, _)| *truth.max(predicted) >= classes) {
            self.confusion.clear();
            complaints.push("the confusion matrix does not have a row and a column per class and is not shown");
        }
        let whole = self.samples.len();
        let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
        let is_png = |png: &str| png.starts_with(PNG) && png.bytes().all(is_base64);
        self.samples.retain(|it| it.truth < classes && it.predicted < classes && is_png(&it.png));
        if self.samples.len() < whole {
            complaints.push("some samples are not PNG images of a known class and are not shown");
        }
        complaints
    }

    /// The results of each class, in order; empty without a confusion matrix. The sums saturate because the counts of a
    /// damaged file may overflow.
    pub fn scores(&self) -> Vec<ClassScore> {
        let classes = if self.confusion.is_empty() { 0 } else { self.classes.len() };
        let mut scores = vec![ClassScore::default(); classes];
        for (truth, predicted, images) in &self.confusion {
            let add = |sum: &mut u64| *sum = sum.saturating_add(*images);
            add(&mut scores[*truth].images);
            add(&mut scores[*predicted].taken);
            if truth == predicted {
                add(&mut scores[*truth].correct);
            }
        }
        scores
    }

    /// The most frequent mistakes, the most frequent first.
    pub(crate) fn mistakes(&self, most: usize) -> Vec<Pair> {
        let is_mistake = |(truth, predicted, _): &Pair| truth != predicted;
        let mut mistakes: Vec<_> = self.confusion.iter().copied().filter(is_mistake).collect();
        mistakes.sort_by_key(|(truth, predicted, images)| (std::cmp::Reverse(*images), *truth, *predicted));
        mistakes.truncate(most);
        mistakes
    }
}
