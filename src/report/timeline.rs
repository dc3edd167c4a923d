//! Who took part in an elastic run, and when: a bar per generation, as high as it has processes, with a gap for the
//! pause before it.

use super::axis::Axis;
use super::chart::{Anchor, Figure, PlotArea, Shape, TEXT, WIDTH, time_unit};
use super::palette::Ink;
use super::run::Run;

/// The narrowest bar with the number of its generation.
const NARROWEST: f64 = 2.0 * TEXT;

/// The generations of `run` over its time, with a remark; `None` without any.
pub fn timeline(run: &Run) -> Option<(Figure, String)> {
    let first = run.generations.first()?;
    let (steps, epochs) = (run.steps.iter().map(|it| it.seconds), run.epochs.iter().map(|it| it.seconds));
    let starts = run.generations.iter().map(|it| it.seconds);
    let last = starts.chain(steps).chain(epochs).filter(|it| it.is_finite()).fold(first.seconds, f64::max);
    let (of_time, unit) = time_unit(last);
    let most = run.generations.iter().map(|it| it.members).max().unwrap_or(1);
    let area = PlotArea::new(Axis::tight(0.0, (last / unit).max(f64::MIN_POSITIVE)), Axis::count(most));
    let mut shapes = vec![Shape::Text([4.0, 15.0], Anchor::Start, "Processes".into(), Ink::Title)];
    shapes.extend(area.grid(of_time));
    for (at, it) in run.generations.iter().enumerate() {
        let next = run.generations.get(at + 1);
        let end = next.map_or(last, |next| next.seconds - next.pause_seconds.unwrap_or(0.0)).max(it.seconds);
        let ([left, right], top) = ([it.seconds, end].map(|time| area.x(time / unit)), area.y(it.members as f64));
        shapes.push(Shape::Area([left, top], [right - left, area.bottom() - top], 0.35, Ink::Whole(at)));
        if right - left >= NARROWEST {
            let middle = [(left + right) / 2.0, area.bottom() - 6.0];
            shapes.push(Shape::Text(middle, Anchor::Middle, it.generation.to_string(), Ink::Label));
        }
    }
    let words = format!("{} generations of at most {most} processes, by {of_time}", run.generations.len());
    let remark = "A bar is a generation with its number; a gap is the pause before the next one.".into();
    Some((Figure { width: WIDTH, height: area.height(), shapes, words }, remark))
}
