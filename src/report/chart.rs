//! A chart and its layout as shapes, which [`super::svg`] renders.

use super::axis::{Axis, plain};
use super::palette::Ink;
use super::series::{Look, Series, bucket, thin};

/// Width of a chart, in units that are pixels on most screens.
pub const WIDTH: f64 = 420.0;
const PLOT_HEIGHT: f64 = 190.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 14.0;
const TITLE_LINE: f64 = 24.0;
const LEGEND_LINE: f64 = 19.0;
const BELOW: f64 = 40.0;
const SWATCH: f64 = 24.0;
/// Font size.
pub const TEXT: f64 = 12.5;
/// Average width of a letter.
const LETTER: f64 = 0.54 * TEXT;
/// Longer names are cut.
const LONGEST_NAME: usize = 40;
/// Smallest ratio of the largest to the smallest value for a logarithmic scale.
const WIDE: f64 = 20.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Around the values.
    Linear,
    /// From zero.
    FromZero,
    /// From zero to the largest value, as for shares.
    Tight,
    /// Logarithmic if the values span a factor of 20, else around them.
    MaybeLogarithmic,
    /// Logarithmic, by powers of two.
    Doubling,
}

/// The horizontal axis of a chart, by its title.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Across {
    /// From zero.
    Linear(&'static str),
    Logarithmic(&'static str),
    Doubling(&'static str),
}

/// A quantity over the epochs of a run, or over something else.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The quantity and its unit.
    pub title: String,
    pub series: Vec<Series>,
    pub scale: Scale,
    pub across: Across,
    /// Places with a vertical line: changes of membership.
    pub marks: Vec<f64>,
}

/// A shape; y grows downwards.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    Line(Vec<[f64; 2]>, Ink),
    Dot([f64; 2], Ink),
    /// A filled rectangle: its upper left corner, its width and height, and its opacity.
    Area([f64; 2], [f64; 2], f64, Ink),
    Text([f64; 2], Anchor, String, Ink),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figure {
    pub width: f64,
    pub height: f64,
    /// Shapes from back to front.
    pub shapes: Vec<Shape>,
    /// A description for screen readers.
    pub words: String,
}

impl Chart {
    /// The curves in words, for screen readers.
    pub fn words(&self) -> String {
        let ends = |series: &Series| {
            let (first, last) = series.ends()?;
            Some(format!("{} from {} to {}", series.name, plain(first), plain(last)))
        };
        let curves = self.series.iter().filter(|it| it.is_named()).filter_map(ends);
        let at = |it: &Series| it.points.first().map(|[x, _]| format!("{} at {}", it.name, plain(*x)));
        let words: Vec<String> = curves.chain(self.callouts().into_iter().filter_map(at)).collect();
        format!("{}, by {}: {}", self.title, self.across_title(), words.join("; "))
    }

    /// Remarks about averaging, scale and gaps, one sentence each.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.is_logarithmic() {
            remarks.push("Logarithmic scale.".into());
        }
        if let Some(longest) = self.series.iter().filter(|it| it.half_life.is_some()).max_by_key(|it| it.half_life) {
            let steps = longest.half_life.unwrap_or(1);
            let every = if steps == 1 { "step".into() } else { format!("{steps} steps") };
            let which = if longest.is_bare { "Exponential" } else { "Faint: every step. Bold: exponential" };
            remarks.push(format!("{which} moving average with a half-life of {every}."));
        }
        if let Some(size) = self.series.iter().map(|series| bucket(series.points.len())).max().filter(|size| *size > 1)
        {
            remarks.push(format!("Each group of {size} steps is drawn by its smallest and largest value."));
        }
        match self.series.iter().map(Series::gaps).sum() {
            0 => {}
            1 => remarks.push("A value that is not finite is not drawn.".into()),
            gaps => remarks.push(format!("{gaps} values that are not finite are not drawn.")),
        }
        if !self.marks.is_empty() {
            remarks.push("Vertical lines: changes of membership.".into());
        }
        remarks
    }

    pub fn figure(&self) -> Figure {
        let (legend, top) = self.legend();
        // Each callout has a line of text above the plot.
        let top = top + LEGEND_LINE * self.callouts().len() as f64;
        let place = PlotArea { top, x: self.x_axis(), y: self.y_axis() };
        let mut shapes = vec![Shape::Text([4.0, 15.0], Anchor::Start, self.title.clone(), Ink::Title)];
        shapes.extend(legend);
        shapes.extend(place.grid(self.across_title()));
        let across = |x: &f64| Shape::Line(vec![[place.x(*x), top], [place.x(*x), place.bottom()]], Ink::Axis);
        shapes.extend(self.marks.iter().map(across));
        for series in &self.series {
            shapes.extend(place.curve(&thin(series.background()), Ink::Faint(series.style)));
        }
        for series in &self.series {
            let points = thin(&series.line());
            if !matches!(series.look, Look::Callout | Look::Points) {
                shapes.extend(place.curve(&points, series.ink()));
            }
            if matches!(series.look, Look::Marks | Look::Points) {
                shapes.extend(place.marks(&points, series.style));
            }
        }
        shapes.extend(self.callouts().into_iter().enumerate().flat_map(|(row, series)| place.callout(row, series)));
        Figure { width: WIDTH, height: place.height(), shapes, words: self.words() }
    }

    fn across_title(&self) -> &'static str {
        let (Across::Linear(title) | Across::Logarithmic(title) | Across::Doubling(title)) = self.across;
        title
    }

    /// Callouts from left to right, so that no line passes through a name.
    fn callouts(&self) -> Vec<&Series> {
        let mut callouts: Vec<&Series> = self.series.iter().filter(|series| series.look == Look::Callout).collect();
        let x = |series: &Series| series.points.first().map_or(f64::NAN, |[x, _]| *x);
        callouts.sort_by(|a, b| x(a).total_cmp(&x(b)));
        callouts
    }

    /// The legend and the top of the plot below it. A single curve has no legend.
    fn legend(&self) -> (Vec<Shape>, f64) {
        let (mut shapes, mut x, mut y) = (Vec::new(), LEFT, TITLE_LINE + 12.0);
        let named: Vec<&Series> = self.series.iter().filter(|series| series.is_named()).collect();
        if named.len() < 2 {
            return (shapes, TITLE_LINE + 6.0);
        }
        for series in named {
            let name = shortened(&series.name);
            let width = SWATCH + 6.0 + LETTER * name.chars().count() as f64 + 14.0;
            if x > LEFT && x + width > WIDTH {
                (x, y) = (LEFT, y + LEGEND_LINE);
            }
            shapes.push(match series.look {
                Look::Marks | Look::Points => mark([x + SWATCH / 2.0, y - 4.0], series.style),
                _ => Shape::Line(vec![[x, y - 4.0], [x + SWATCH, y - 4.0]], series.ink()),
            });
            shapes.push(Shape::Text([x + SWATCH + 6.0, y], Anchor::Start, name, Ink::Label));
            x += width;
        }
        (shapes, y + 12.0)
    }

    /// The smallest and the largest drawn x (0) or y (1).
    fn ends(&self, of: usize) -> Option<(f64, f64)> {
        let drawn =
            self.series.iter().flat_map(|series| if series.is_bare { series.line() } else { series.points.clone() });
        let values = drawn.map(|point| point[of]).filter(|value| value.is_finite());
        let ends = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), it| (min.min(it), max.max(it)));
        (ends.0 <= ends.1).then_some(ends)
    }

    fn is_logarithmic(&self) -> bool {
        let wide = |(min, max)| min > f64::from(f32::MIN_POSITIVE) && max / min >= WIDE;
        self.scale == Scale::MaybeLogarithmic && self.ends(1).is_some_and(wide)
    }

    fn x_axis(&self) -> Axis {
        let (min, max) = self.ends(0).unwrap_or((0.0, 1.0));
        match self.across {
            Across::Linear(_) => Axis::tight(min.min(0.0), max),
            Across::Doubling(_) => Axis::doubling(min.max(1.0), max.max(1.0)),
            Across::Logarithmic(_) => {
                let least = f64::from(f32::MIN_POSITIVE);
                Axis::logarithmic(min.max(least), max.max(least))
            }
        }
    }

    fn y_axis(&self) -> Axis {
        let (min, max) = self.ends(1).unwrap_or((0.0, 1.0));
        match self.scale {
            _ if self.is_logarithmic() => Axis::logarithmic(min, max),
            Scale::FromZero => Axis::linear(min.min(0.0), max),
            Scale::Tight => Axis::tight(min.min(0.0), max),
            Scale::Doubling => Axis::doubling(min, max),
            _ => Axis::linear(min, max),
        }
    }
}

/// The unit of time for a run of `seconds`, and the seconds in one unit.
pub(super) fn time_unit(seconds: f64) -> (&'static str, f64) {
    match seconds {
        7200.0.. => ("hours", 3600.0),
        120.0.. => ("minutes", 60.0),
        _ => ("seconds", 1.0),
    }
}

/// The part of a figure in which data are drawn.
pub(super) struct PlotArea {
    top: f64,
    x: Axis,
    y: Axis,
}

impl PlotArea {
    /// The area below a title.
    pub(super) fn new(x: Axis, y: Axis) -> Self {
        Self { top: TITLE_LINE + 6.0, x, y }
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top + PLOT_HEIGHT
    }

    /// That of the whole figure.
    pub(super) fn height(&self) -> f64 {
        self.bottom() + BELOW
    }

    pub(super) fn x(&self, value: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * self.x.place(value)
    }

    pub(super) fn y(&self, value: f64) -> f64 {
        self.bottom() - PLOT_HEIGHT * self.y.place(value)
    }

    pub(super) fn grid(&self, title: &str) -> Vec<Shape> {
        let (right, bottom) = (WIDTH - RIGHT, self.bottom());
        let mut shapes = Vec::new();
        for tick in &self.y.ticks {
            let y = self.y(*tick);
            shapes.push(Shape::Line(vec![[LEFT, y], [right, y]], Ink::Grid));
            shapes.push(Shape::Text([LEFT - 6.0, y + 4.0], Anchor::End, self.y.label(*tick), Ink::Label));
        }
        for tick in &self.x.ticks {
            let x = self.x(*tick);
            shapes.push(Shape::Line(vec![[x, bottom], [x, bottom + 4.0]], Ink::Axis));
            shapes.push(Shape::Text([x, bottom + 17.0], Anchor::Middle, self.x.label(*tick), Ink::Label));
        }
        shapes.push(Shape::Line(vec![[LEFT, bottom], [right, bottom]], Ink::Axis));
        let middle = LEFT + (right - LEFT) / 2.0;
        shapes.push(Shape::Text([middle, bottom + 33.0], Anchor::Middle, title.into(), Ink::Label));
        shapes
    }

    /// A vertical line at every point, with the name in row `row` above the plot.
    fn callout(&self, row: usize, series: &Series) -> Vec<Shape> {
        let name = shortened(&series.name);
        let width = LETTER * name.chars().count() as f64;
        let y = self.top - 6.0 - LEGEND_LINE * row as f64;
        let line = |x: f64| Shape::Line(vec![[x, y + 3.0], [x, self.bottom()]], series.ink());
        let text = |x: f64| Shape::Text([(x + 1.0).max(4.0 + width), y], Anchor::End, name.clone(), series.ink());
        series.points.iter().map(|[x, _]| self.x(*x)).flat_map(|x| [line(x), text(x)]).collect()
    }

    fn marks(&self, points: &[[f64; 2]], style: usize) -> Vec<Shape> {
        let drawn = points.iter().filter(|[_, y]| y.is_finite());
        drawn.map(|[x, y]| mark([self.x(*x), self.y(*y)], style)).collect()
    }

    /// A line through the points between two gaps; a single point is a dot.
    fn curve(&self, points: &[[f64; 2]], ink: Ink) -> Vec<Shape> {
        let piece = |points: &[[f64; 2]]| -> Option<Shape> {
            let line: Vec<[f64; 2]> = points.iter().map(|[x, y]| [self.x(*x), self.y(*y)]).collect();
            match line.as_slice() {
                [] => None,
                [point] => Some(Shape::Dot(*point, ink)),
                _ => Some(Shape::Line(line, ink)),
            }
        };
        points.split(|[_, y]| y.is_nan()).filter_map(piece).collect()
    }
}

impl Figure {
    pub fn stack(charts: &[Chart]) -> Self {
        let mut sheet = Self::default();
        for figure in charts.iter().map(Chart::figure) {
            let down = |[x, y]: [f64; 2]| [x, y + sheet.height];
            let moved = figure.shapes.into_iter().map(|shape| match shape {
                Shape::Line(points, ink) => Shape::Line(points.into_iter().map(down).collect(), ink),
                Shape::Dot(at, ink) => Shape::Dot(down(at), ink),
                Shape::Area(at, size, opacity, ink) => Shape::Area(down(at), size, opacity, ink),
                Shape::Text(at, anchor, text, ink) => Shape::Text(down(at), anchor, text, ink),
            });
            sheet.shapes.extend(moved);
            sheet.words += if sheet.words.is_empty() { "" } else { ". " };
            sheet.words += &figure.words;
            (sheet.width, sheet.height) = (sheet.width.max(figure.width), sheet.height + figure.height);
        }
        sheet
    }
}

/// A mark with the colour and form of the style, so that curves differ without colour too.
fn mark(at: [f64; 2], style: usize) -> Shape {
    let outline: &[[f64; 2]] = match style % 4 {
        0 => return Shape::Dot(at, Ink::Whole(style)),
        1 => &[[0.0, -4.5], [4.5, 0.0], [0.0, 4.5], [-4.5, 0.0], [0.0, -4.5]],
        2 => &[[-3.5, -3.5], [3.5, -3.5], [3.5, 3.5], [-3.5, 3.5], [-3.5, -3.5]],
        _ => &[[0.0, -4.5], [4.2, 3.2], [-4.2, 3.2], [0.0, -4.5]],
    };
    Shape::Line(outline.iter().map(|[x, y]| [at[0] + x, at[1] + y]).collect(), Ink::Whole(style))
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => format!("{}\u{2026}", &name[..end]),
        None => name.into(),
    }
}
