//! Records as lines of text with fixed columns.

use kiln_system::printable;

use super::meter::format_duration;
use super::record::{EpochRecord, GenerationRecord, StepRecord};

/// The end of a run, which determines the widths of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goal {
    pub epochs: usize,
    pub steps: usize,
}

/// A step: `epoch  3/50  step  1200/19550  loss  1.2345  acc  56.7 %  lr 0.0500  grad   1.23  1234 img/s  eta 1h02m`;
/// less if it has more than `columns`.
///
/// `eta` is in seconds; `None` is shown as `?`.
pub(crate) fn step_line(record: &StepRecord, goal: &Goal, eta: Option<f64>, columns: usize) -> String {
    let epoch = (record.epoch.ceil() as usize).max(1);
    let [epoch, step] = position(epoch, record.step, goal);
    let parts = [vec![(0, epoch), (3, step)], step_parts(record, eta)].concat();
    joined(parts, columns)
}

/// The numbers of a step, without its position.
pub(crate) fn step_numbers(record: &StepRecord, eta: Option<f64>) -> String {
    joined(step_parts(record, eta), usize::MAX)
}

fn step_parts(record: &StepRecord, eta: Option<f64>) -> Vec<Field> {
    vec![
        (0, format!("loss {:>7.4}", record.loss)),
        (0, format!("acc {}", percent(record.accuracy))),
        (2, format!("lr {}", learning_rate(record.lr))),
        (1, format!("grad {:>6.2}", record.grad_norm)),
        (0, format!("{} img/s", rate(record.images_per_second))),
        (0, format!("eta {:>6}", format_duration(eta.unwrap_or(f64::NAN)))),
    ]
}

/// An epoch and its validation: position, then `train LOSS ACC  val LOSS ACC  top5 ACC  lr  img/s  time`; less if it
/// has more than `columns`.
pub(crate) fn epoch_line(record: &EpochRecord, goal: &Goal, columns: usize) -> String {
    let [epoch, step] = position(record.epoch, record.step, goal);
    let parts = vec![
        (0, epoch),
        (2, step),
        (0, format!("train {:>7.4} {}", record.train_loss, percent(record.train_accuracy))),
        (0, format!("val {:>7.4} {}", record.val_loss, percent(record.val_accuracy))),
        (3, format!("top5 {}", percent(record.val_top5))),
        (1, format!("lr {}", learning_rate(record.lr))),
        (4, format!("{} img/s", rate(record.images_per_second))),
        (0, format!("time {:>6}", format_duration(record.seconds))),
    ];
    joined(parts, columns)
}

/// A piece of a line with its priority: if the line is too long, 1 is dropped first, then 2 and so on; 0 always stays.
type Field = (u8, String);

fn joined(mut parts: Vec<Field>, columns: usize) -> String {
    let length = |parts: &[Field]| parts.iter().map(|(_, text)| text.len() + 2).sum::<usize>() - 2;
    while length(&parts) > columns
        && let Some((place, _)) =
            parts.iter().enumerate().filter(|(_, (turn, _))| *turn > 0).min_by_key(|(_, (turn, _))| *turn)
    {
        parts.remove(place);
    }
    parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("  ")
}

/// Indentation of continuation lines: below the text after a subject.
const INDENT: usize = 12;

/// `text` with its lines broken between words, for a terminal of `columns` columns.
pub fn folded(text: &str, columns: usize) -> String {
    text.lines().map(|line| fold(line, columns)).collect::<Vec<_>>().join("\n")
}

fn fold(line: &str, columns: usize) -> String {
    let (mut folded, mut rest, mut room) = (String::new(), line, columns);
    // A word longer than a line is not broken: it may be a path.
    while let Some((last, letter)) = rest.char_indices().nth(room)
        && let Some(end) = rest[..last + letter.len_utf8()].rfind(' ').filter(|end| !rest[..*end].trim().is_empty())
    {
        folded += rest[..end].trim_end();
        folded += "\n";
        folded += &" ".repeat(INDENT);
        rest = rest[end..].trim_start();
        room = columns.saturating_sub(INDENT).max(INDENT);
    }
    folded + rest
}

/// `1 replica`, `2 replicas`, `2 processes`.
pub(crate) fn count(number: usize, name: &str) -> String {
    let plural = match number {
        1 => "",
        _ if name.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {name}{plural}")
}

/// A fraction as `56.7 %`, seven characters wide.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:>5.1} %", fraction * 100.0)
}

fn position(epoch: usize, step: usize, goal: &Goal) -> [String; 2] {
    let (epochs, steps) = (goal.epochs.to_string(), goal.steps.to_string());
    let (wide, wider) = (epochs.len(), steps.len());
    [format!("epoch {epoch:>wide$}/{epochs}"), format!("step {step:>wider$}/{steps}")]
}

/// Four decimals, or scientific notation below 0.001.
pub(crate) fn learning_rate(lr: f64) -> String {
    if lr == 0.0 || lr >= 1e-3 { format!("{lr:>6.4}") } else { format!("{lr:>6.0e}") }
}

/// Images per second, below 10 with a decimal; `?` if there is no rate.
pub(crate) fn rate(images_per_second: Option<f64>) -> String {
    match images_per_second {
        None => format!("{:>6}", '?'),
        Some(rate) if rate < 10.0 => format!("{rate:>6.1}"),
        Some(rate) => format!("{rate:>6.0}"),
    }
}

/// A change of membership: `generation 3  4 processes  paused 0.42 s  host b, process 12 joined`.
pub(crate) fn generation_line(record: &GenerationRecord) -> String {
    let pause = record.pause_seconds.map(|seconds| format!("  paused {seconds:.2} s")).unwrap_or_default();
    format!("generation {}  {}{pause}  {}", record.generation, count(record.members, "process"), printable(&record.why))
}
