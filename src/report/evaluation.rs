//! `evaluation.json`: a model's results on the validation images, with confusion matrix and samples.

use serde::{Deserialize, Serialize};

/// The subdirectory of a run for an evaluation made after it.
pub const DIRECTORY: &str = "evaluation";

/// The first bytes of every PNG file, in base64.
const PNG: &str = "iVBORw0KGgo";

/// The results of a model.
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
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Images by true class (row) and predicted class (column).
    pub confusion: Vec<Vec<u64>>,
    /// Some images with their predictions.
    pub samples: Vec<Sample>,
}

/// An image with its prediction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The image as a PNG file in base64.
    pub png: String,
    /// The true class.
    pub truth: usize,
    /// The predicted class.
    pub predicted: usize,
    /// The predicted class's probability.
    pub confidence: f64,
}

/// The results of one class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassScore {
    /// Images of the class.
    pub images: u64,
    /// Correctly predicted images of the class.
    pub correct: u64,
    /// Images of any class that are predicted as this class.
    pub taken: u64,
}

impl ClassScore {
    /// Recall, the share of correct predictions; `None` without images.
    pub fn accuracy(&self) -> Option<f64> {
        (self.images > 0).then(|| self.correct as f64 / self.images as f64)
    }

    /// Precision, the share of predictions of this class that are correct; `None` without predictions.
    pub fn precision(&self) -> Option<f64> {
        (self.taken > 0).then(|| self.correct as f64 / self.taken as f64)
    }
}

impl Evaluation {
    /// Drops inconsistent parts and returns a note for each.
    pub fn check(&mut self) -> Vec<&'static str> {
        let mut complaints = Vec::new();
        let classes = self.classes.len();
        let is_square = self.confusion.len() == classes && self.confusion.iter().all(|row| row.len() == classes);
        if !self.confusion.is_empty() && !is_square {
            self.confusion.clear();
            complaints.push("the confusion matrix does not have a row and a column per class and is left out");
        }
        let whole = self.samples.len();
        self.samples.retain(|sample| sample.truth < classes && sample.predicted < classes && sample.is_png());
        if self.samples.len() < whole {
            complaints.push("some samples are no PNG images of a known class and are left out");
        }
        complaints
    }

    /// The results of each class, in order; empty without a confusion matrix.
    pub fn scores(&self) -> Vec<ClassScore> {
        let mut taken = vec![0_u64; self.confusion.len()];
        for row in &self.confusion {
            taken.iter_mut().zip(row).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
        }
        let score = |(class, row): (usize, &Vec<u64>)| ClassScore {
            images: sum(row),
            correct: row[class],
            taken: taken[class],
        };
        self.confusion.iter().enumerate().map(score).collect()
    }

    /// The most frequent mistakes as (images, true class, predicted class), the most frequent first.
    pub fn mistakes(&self, most: usize) -> Vec<(u64, usize, usize)> {
        let row = |(truth, row): (usize, &Vec<u64>)| {
            let wrong = row.iter().enumerate().filter(|(predicted, count)| *predicted != truth && **count > 0);
            wrong.map(|(predicted, count)| (*count, truth, predicted)).collect::<Vec<_>>()
        };
        let mut mistakes: Vec<_> = self.confusion.iter().enumerate().flat_map(row).collect();
        mistakes.sort_by_key(|(count, truth, predicted)| (std::cmp::Reverse(*count), *truth, *predicted));
        mistakes.truncate(most);
        mistakes
    }
}

/// The images of a row. The sum saturates because the counts of a damaged file may overflow.
pub fn sum(row: &[u64]) -> u64 {
    row.iter().fold(0, |sum, count| sum.saturating_add(*count))
}

impl Sample {
    fn is_png(&self) -> bool {
        self.png.starts_with(PNG) && self.png.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte))
    }
}
