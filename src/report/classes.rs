//! The evaluation part of the page: per-class accuracy, confusion matrix and samples.

use super::evaluation::{Evaluation, Sample};
use super::markup::{escape, folded, tiles, unless_empty};
use super::results::percent;
use super::table::{Cell, Table};

/// Most classes of a matrix; for more, the most frequent mistakes are listed instead.
const MOST_CLASSES: usize = 20;
const MOST_MISTAKES: usize = 20;
const MOST_SAMPLES: usize = 60;
/// Most classes of a table that is not folded.
const FEW_CLASSES: usize = 30;

pub(crate) fn html(evaluation: &Evaluation) -> String {
    let scores = scores(evaluation).html();
    let scores = if evaluation.classes.len() > FEW_CLASSES { folded("Accuracy by class", &scores) } else { scores };
    let matrix =
        if evaluation.classes.len() > MOST_CLASSES { mistakes(evaluation).html() } else { matrix(evaluation).html() };
    let beside = unless_empty(&scores, || format!("<div class=\"beside\">\n{scores}{matrix}</div>\n"));
    let of = unless_empty(&evaluation.of, || format!("<p>Of {}.</p>\n", escape(&evaluation.of)));
    [of, totals(evaluation), beside, samples(evaluation)].concat()
}

fn totals(evaluation: &Evaluation) -> String {
    let loss = evaluation.loss.map(|loss| ("Loss", format!("{loss:.4}"), String::new()));
    let top1 = evaluation.top1.map(|top1| ("Top-1 accuracy", percent(top1), String::new()));
    let top5 = evaluation.top5.map(|top5| ("Top-5 accuracy", percent(top5), String::new()));
    tiles(&[loss, top1, top5].into_iter().flatten().collect::<Vec<_>>())
}

fn scores(evaluation: &Evaluation) -> Table {
    let mut table = Table::new("Accuracy by class", ["Class", "Images", "Precision", "Accuracy"]);
    for (name, score) in evaluation.classes.iter().zip(evaluation.scores()) {
        let accuracy = score.accuracy();
        let cell = Cell::bar(&accuracy.map_or("\u{2013}".into(), percent), accuracy.unwrap_or(0.0));
        let precision = Cell::number(score.precision().map_or("\u{2013}".into(), percent));
        table.rows.push(vec![Cell::text(name), Cell::number(score.images), precision, cell]);
    }
    table
}

/// The shade of a cell is its share of the images of its class.
fn matrix(evaluation: &Evaluation) -> Table {
    let mut table = Table::new("Images by true class (row) and predicted class (column)", ["Class"]);
    table.head.extend(evaluation.classes.iter().cloned());
    let scores = evaluation.scores();
    let none = || Cell::shade(0, 0.0, false);
    let empty = |name: &String| std::iter::once(Cell::text(name)).chain(scores.iter().map(|_| none())).collect();
    table.rows = evaluation.classes.iter().take(scores.len()).map(empty).collect();
    for (truth, predicted, images) in &evaluation.confusion {
        let share = *images as f64 / scores[*truth].images.max(1) as f64;
        table.rows[*truth][1 + predicted] = Cell::shade(*images, share, truth == predicted);
    }
    table
}

fn mistakes(evaluation: &Evaluation) -> Table {
    let mut table = Table::new("The most frequent mistakes", ["Class", "Taken for", "Images"]);
    for (truth, predicted, count) in evaluation.mistakes(MOST_MISTAKES) {
        let names = [truth, predicted].map(|class| Cell::text(&evaluation.classes[class]));
        table.rows.push(names.into_iter().chain([Cell::number(count)]).collect());
    }
    table
}

fn samples(evaluation: &Evaluation) -> String {
    let (all, shown) = (evaluation.samples.len(), evaluation.samples.len().min(MOST_SAMPLES));
    if all == 0 {
        return String::new();
    }
    let figures: String =
        evaluation.samples[..shown].iter().map(|sample| figure(sample, &evaluation.classes)).collect();
    let rest = if all > shown { format!(" ({shown} of {all})") } else { String::new() };
    format!("<h3>Samples{rest}</h3>\n<div class=\"samples\">\n{figures}</div>\n")
}

fn figure(sample: &Sample, classes: &[String]) -> String {
    let (truth, predicted) = (escape(&classes[sample.truth]), escape(&classes[sample.predicted]));
    let is_right = sample.truth == sample.predicted;
    let (class, verdict) = if is_right { ("right", "\u{2713}") } else { ("wrong", "\u{2717}") };
    let instead = if is_right { String::new() } else { format!("<br>it is {truth}") };
    let confidence = 100.0 * sample.confidence;
    format!(
        "<figure class=\"{class}\"><img src=\"data:image/png;base64,{}\" alt=\"{truth}, taken for {predicted}\">\
         <figcaption>{verdict} {predicted}, {confidence:.0}&nbsp;%{instead}</figcaption></figure>\n",
        sample.png
    )
}
