//! One step of a pipeline: when each stage computed the forward and backward pass of which micro-batch, from the traces
//! of a profiled run. The gaps are the bubble.

use super::axis::Axis;
use super::chart::{Anchor, Figure, PlotArea, Shape, TEXT, WIDTH};
use super::palette::Ink;
use super::trace::{Span, Trace};

/// The narrowest pass with the number of its micro-batch.
const NARROWEST: f64 = TEXT;
/// The part of a row that a pass fills.
const FILLED: f64 = 0.7;
/// Seconds from which on a step is long.
const LONG: f64 = 10.0;
/// The kinds of passes: what a trace calls them, opacity and colour.
const KINDS: [(&str, f64, Ink); 2] = [("forward", 0.35, Ink::Whole(0)), ("backward", 0.6, Ink::Whole(1))];

#[derive(Debug, Clone, Copy, PartialEq)]
struct Pass {
    /// The index of its kind.
    kind: usize,
    micro_batch: usize,
    /// When it began and ended, in seconds.
    time: [f64; 2],
}

/// The passes of each stage in one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Pipeline(Vec<Vec<Pass>>);

impl Pipeline {
    /// The step of median length of replica 0 of a run; `None` if the traces lack a stage.
    pub fn of(traces: &[Trace], [stages, replicas, micro_batches]: [usize; 3]) -> Option<Self> {
        let threads: Vec<_> =
            traces.iter().flat_map(|it| it.threads().into_iter().map(|of| (it.start(), of))).collect();
        let rows = (0..stages).map(|stage| {
            let name = format!("replica-{}", stage * replicas);
            let (start, (_, spans)) = threads.iter().find(|(_, (thread, _))| *thread == name)?;
            Some(steps(*start, spans, micro_batches))
        });
        let rows: Vec<Vec<Vec<Pass>>> = rows.collect::<Option<_>>()?;
        let count = rows.iter().map(Vec::len).min()?;
        let mut all: Vec<Self> =
            (0..count).map(|step| Self(rows.iter().map(|row| row[step].clone()).collect())).collect();
        all.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
        (count > 0).then(|| all.swap_remove(count / 2))
    }

    /// When the first pass began and the last one ended.
    fn ends(&self) -> [f64; 2] {
        let times = || self.0.iter().flatten().flat_map(|pass| pass.time);
        [times().fold(f64::INFINITY, f64::min), times().fold(f64::NEG_INFINITY, f64::max)]
    }

    /// From the first pass to the end of the last.
    fn seconds(&self) -> f64 {
        let [first, last] = self.ends();
        last - first
    }

    /// The fraction of the step in which each stage computed no pass.
    fn idle(&self) -> Vec<f64> {
        let busy = |row: &Vec<Pass>| row.iter().map(|pass| pass.time[1] - pass.time[0]).sum::<f64>();
        self.0.iter().map(|row| (1.0 - busy(row) / self.seconds().max(f64::MIN_POSITIVE)).max(0.0)).collect()
    }

    /// The passes over time, a row for each stage, with a remark.
    pub fn figure(&self) -> (Figure, String) {
        let ([first, _], seconds, stages) = (self.ends(), self.seconds(), self.0.len());
        let (unit, of_time) = if seconds < LONG { (1e-3, "milliseconds") } else { (1.0, "seconds") };
        let mut rows = Axis::tight(0.0, stages as f64);
        rows.ticks.clear();
        let area = PlotArea::new(Axis::tight(0.0, (seconds / unit).max(f64::MIN_POSITIVE)), rows);
        let mut shapes = vec![Shape::Text([4.0, 15.0], Anchor::Start, "Stages".into(), Ink::Title)];
        shapes.extend(legend());
        shapes.extend(area.grid(of_time));
        for (stage, passes) in self.0.iter().enumerate() {
            // The first stage is at the top.
            let middle = area.y((stages - stage) as f64 - 0.5);
            let height = FILLED * (area.y(0.0) - area.y(1.0));
            shapes.push(Shape::Text([40.0, middle + 4.0], Anchor::End, stage.to_string(), Ink::Label));
            for pass in passes {
                let [left, right] = pass.time.map(|time| area.x((time - first) / unit));
                let (_, opacity, ink) = KINDS[pass.kind];
                shapes.push(Shape::Area([left, middle - height / 2.0], [right - left, height], opacity, ink));
                if right - left >= NARROWEST {
                    let at = [(left + right) / 2.0, middle + 4.0];
                    shapes.push(Shape::Text(at, Anchor::Middle, pass.micro_batch.to_string(), Ink::Label));
                }
            }
        }
        let idle: Vec<String> = self.idle().iter().map(|it| format!("{:.0} %", 100.0 * it)).collect();
        let words = format!("A step of {stages} stages in {:.0} {of_time}", seconds / unit);
        let remark = format!(
            "The passes of the median step of replica 0, with their micro-batches. The stages were idle for {} of the \
             time.",
            idle.join(", ")
        );
        (Figure { width: WIDTH, height: area.height(), shapes, words }, remark)
    }
}

/// The passes of each step of a thread.
fn steps(start: f64, spans: &[Span<'_>], micro_batches: usize) -> Vec<Vec<Pass>> {
    let of = |kind: usize| {
        let passes = spans.iter().filter(move |span| span.name == KINDS[kind].0).enumerate();
        let pass = move |(at, span): (usize, &Span<'_>)| Pass {
            kind,
            micro_batch: at % micro_batches,
            time: [start + span.start, start + span.end()],
        };
        passes.map(pass).collect::<Vec<_>>()
    };
    let [forward, backward] = [0, 1].map(of);
    let both = forward.chunks_exact(micro_batches).zip(backward.chunks_exact(micro_batches));
    both.map(|both| [both.0, both.1].concat()).collect()
}

/// The colours of the kinds, at the right of the title.
fn legend() -> Vec<Shape> {
    let entry = |(at, (name, opacity, ink)): (usize, (&str, f64, Ink))| {
        let left = WIDTH - 180.0 + 85.0 * at as f64;
        let text = Shape::Text([left + 17.0, 15.0], Anchor::Start, name.into(), Ink::Label);
        [Shape::Area([left, 5.0], [12.0, 12.0], opacity, ink), text]
    };
    KINDS.into_iter().enumerate().flat_map(entry).collect()
}
