//! The confusion matrix as a picture: a row per true class, a column per predicted class.
//!
//! The opacity of a cell grows with its share of the images of its class; correct predictions and mistakes differ in
//! colour.

use super::chart::{Anchor, Figure, Shape, TEXT};
use super::evaluation::{Evaluation, sum};
use super::palette::Ink;

/// Most classes of a matrix with numbers in its cells.
const MOST_NUMBERS: usize = 12;
/// Most classes of a matrix with names at its rows.
const MOST_NAMES: usize = 40;
const LARGE_CELL: f64 = 40.0;
const CELL: f64 = 16.0;
const SIDE: f64 = 480.0;
const TOP: f64 = 62.0;
const MARGIN: f64 = 14.0;
/// Longer names are cut.
const LONGEST_NAME: usize = 18;
const RIGHT: Ink = Ink::Series(0);
const WRONG: Ink = Ink::Series(1);

/// The picture; empty without a confusion matrix.
pub fn figure(evaluation: &Evaluation) -> Figure {
    let count = evaluation.confusion.len();
    let cell = match count {
        _ if count <= MOST_NUMBERS => LARGE_CELL,
        _ if count <= MOST_NAMES => CELL,
        _ => SIDE / count as f64,
    };
    let named = count <= MOST_NAMES;
    let left = if named { 150.0 } else { 2.0 * MARGIN };
    let mut shapes = vec![
        text([left, 20.0], Anchor::Start, "Rows: true class. Columns: predicted class.".into(), Ink::Title),
        text([left, 38.0], Anchor::Start, summary(evaluation), Ink::Label),
    ];
    for (truth, row) in evaluation.confusion.iter().enumerate() {
        let y = TOP + cell * truth as f64;
        if named {
            let name: String = evaluation.classes[truth].chars().take(LONGEST_NAME).collect();
            let middle = y + cell / 2.0 + TEXT / 3.0;
            shapes.push(text([left - 8.0, middle], Anchor::End, format!("{name} {truth}"), Ink::Label));
            let x = left + cell * (truth as f64 + 0.5);
            shapes.push(text([x, TOP - 6.0], Anchor::Middle, truth.to_string(), Ink::Label));
        }
        let all = sum(row).max(1) as f64;
        for (predicted, images) in row.iter().enumerate().filter(|(_, images)| **images > 0) {
            let corner = [left + cell * predicted as f64, y];
            let ink = if predicted == truth { RIGHT } else { WRONG };
            let share = *images as f64 / all;
            // The square root keeps a single mistake visible.
            shapes.push(Shape::Area(corner, [cell; 2], 0.85 * share.sqrt(), ink));
            if count <= MOST_NUMBERS {
                let middle = [corner[0] + cell / 2.0, corner[1] + cell / 2.0 + TEXT / 3.0];
                shapes.push(text(middle, Anchor::Middle, images.to_string(), Ink::Title));
            }
        }
    }
    let side = cell * count as f64;
    let corners = [[left, TOP], [left + side, TOP], [left + side, TOP + side], [left, TOP + side], [left, TOP]];
    shapes.push(Shape::Line(corners.to_vec(), Ink::Axis));
    let words = format!("Confusion matrix of {count} classes; {}", summary(evaluation));
    Figure { width: (left + side + MARGIN).max(420.0), height: TOP + side + MARGIN, shapes, words }
}

fn summary(evaluation: &Evaluation) -> String {
    let [images, correct] = evaluation.scores().iter().fold([0, 0], |[images, correct], score| {
        [images + u128::from(score.images), correct + u128::from(score.correct)]
    });
    format!("{correct} of {images} images are recognised")
}

fn text(at: [f64; 2], anchor: Anchor, text: String, ink: Ink) -> Shape {
    Shape::Text(at, anchor, text, ink)
}
