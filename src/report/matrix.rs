//! The confusion matrix as a picture: a row per true class, a column per predicted class.
//!
//! The opacity of a cell grows with its share of the images of its class; correct predictions and mistakes differ in
//! colour. Of very many classes, neighbours share a row and a column.

use std::collections::BTreeMap;

use super::chart::{Anchor, Figure, Shape, TEXT};
use super::evaluation::Evaluation;
use super::palette::Ink;

/// Most classes of a matrix with numbers in its cells.
const MOST_NUMBERS: usize = 12;
/// Most classes of a matrix with names at its rows.
const MOST_NAMES: usize = 40;
/// Most rows; of more classes, neighbours share one.
const MOST_ROWS: usize = 240;
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
pub(crate) fn figure(evaluation: &Evaluation) -> Figure {
    let count = if evaluation.confusion.is_empty() { 0 } else { evaluation.classes.len() };
    // Classes of a row.
    let shared = count.div_ceil(MOST_ROWS).max(1);
    let cell = match count {
        _ if count <= MOST_NUMBERS => LARGE_CELL,
        _ if count <= MOST_NAMES => CELL,
        _ => SIDE / count.div_ceil(shared) as f64,
    };
    let named = count <= MOST_NAMES;
    let left = if named { 150.0 } else { 2.0 * MARGIN };
    let groups = if shared > 1 { format!(" Each: {shared} classes.") } else { String::new() };
    let title = format!("Rows: true class. Columns: predicted class.{groups}");
    let mut shapes = vec![
        Shape::Text([left, 20.0], Anchor::Start, title, Ink::Title),
        Shape::Text([left, 38.0], Anchor::Start, summary(evaluation), Ink::Label),
    ];
    for (class, name) in evaluation.classes.iter().enumerate().take(if named { count } else { 0 }) {
        let middle = TOP + cell * (class as f64 + 0.5) + TEXT / 3.0;
        let name: String = name.chars().take(LONGEST_NAME).collect();
        shapes.push(Shape::Text([left - 8.0, middle], Anchor::End, format!("{name} {class}"), Ink::Label));
        let x = left + cell * (class as f64 + 0.5);
        shapes.push(Shape::Text([x, TOP - 6.0], Anchor::Middle, class.to_string(), Ink::Label));
    }
    let (mut cells, mut rows) = (BTreeMap::new(), BTreeMap::new());
    for (truth, predicted, images) in &evaluation.confusion {
        let add = |sum: &mut u64| *sum = sum.saturating_add(*images);
        add(cells.entry((truth / shared, predicted / shared, truth == predicted)).or_default());
        add(rows.entry(truth / shared).or_default());
    }
    for ((row, column, is_right), images) in cells {
        let corner = [left + cell * column as f64, TOP + cell * row as f64];
        let share = images as f64 / rows[&row].max(1) as f64;
        // The square root keeps a single mistake visible.
        shapes.push(Shape::Area(corner, [cell; 2], 0.85 * share.sqrt(), if is_right { RIGHT } else { WRONG }));
        if count <= MOST_NUMBERS {
            let middle = [corner[0] + cell / 2.0, corner[1] + cell / 2.0 + TEXT / 3.0];
            shapes.push(Shape::Text(middle, Anchor::Middle, images.to_string(), Ink::Title));
        }
    }
    let side = cell * count.div_ceil(shared) as f64;
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
