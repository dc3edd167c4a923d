//! The content of the dashboard: progress, numbers of the last step and epoch, what is trained, the curves of loss and
//! accuracy, and recent messages.

use kiln_system::stop::Stop;
use kiln_system::{printable, shown};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, LineGauge, Paragraph};

use super::line::{Goal, count, folded, learning_rate, percent, rate};
use super::meter::{Curve, ETA_WINDOW, Throughput, format_duration};
use super::record::{EpochRecord, GenerationRecord, ReplicaRecord, ReplicasRecord, StartRecord, StepRecord};

const POINTS: usize = 400;
/// Columns of the numbers of a step or an epoch, and of their names.
const NUMBERS: (u16, usize) = (26, 15);
/// Columns and rows of a terminal that has room for replicas, how many of them, and from how many seconds in a minute on
/// a smaller one says that others wait.
const LARGE: [u16; 2] = [120, 40];
const MOST_REPLICAS: usize = 8;
const LEAST: f64 = 1.0;
/// What does not stand before a sign that something is left out.
const ENDS: [char; 4] = [',', ':', ';', '\u{2026}'];

pub struct Panel {
    goal: Goal,
    stop: Stop,
    step: Option<StepRecord>,
    epoch: Option<EpochRecord>,
    directory: String,
    /// What is trained, in words under names.
    about: Vec<(String, String)>,
    generation: Option<String>,
    replicas: Vec<ReplicaRecord>,
    /// Finished and total batches of the current validation.
    validating: Option<(usize, usize)>,
    pace: Throughput,
    /// Of loss, as its logarithm, and accuracy.
    training: [Curve; 2],
    validation: [Vec<(f64, f64)>; 2],
    has_colours: bool,
}

impl Panel {
    pub fn new(goal: Goal, stop: Stop) -> Self {
        // See no-color.org.
        let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            goal,
            stop,
            step: None,
            epoch: None,
            directory: "Training".into(),
            about: Vec::new(),
            generation: None,
            replicas: Vec::new(),
            validating: None,
            pace: Throughput::new(ETA_WINDOW),
            training: [0; 2].map(|_| Curve::new(POINTS)),
            validation: Default::default(),
            has_colours,
        }
    }

    pub fn start(&mut self, record: &StartRecord) {
        (self.directory, self.about) = (shown(&record.directory), record.about.clone());
    }

    pub fn generation(&mut self, record: &GenerationRecord) {
        self.generation = Some(format!("generation {}, {}", record.generation, count(record.members, "process")));
    }

    pub fn replicas(&mut self, record: &ReplicasRecord) {
        self.replicas = record.replicas.clone();
        // Those that others wait for come first.
        self.replicas.sort_by(|a, b| b.waited_minute.total_cmp(&a.waited_minute));
    }

    pub fn step(&mut self, record: &StepRecord) {
        self.pace.mark(record.seconds, record.step as u64);
        for (curve, value) in self.training.iter_mut().zip([height(record.loss), 100.0 * record.accuracy]) {
            curve.add(record.step as f64, value);
        }
        (self.step, self.validating) = (Some(*record), None);
    }

    pub fn epoch(&mut self, record: &EpochRecord) {
        for (curve, value) in self.validation.iter_mut().zip([height(record.val_loss), 100.0 * record.val_accuracy]) {
            curve.extend(value.is_finite().then_some((record.step as f64, value)));
        }
        (self.epoch, self.validating) = (Some(*record), None);
    }

    pub fn validating(&mut self, done: usize, total: usize) {
        self.validating = Some((done, total));
    }

    /// Draws the panel with the last of `lines`. Laid out for 80 columns and 24 rows; more space goes to the curves.
    pub fn draw(&self, frame: &mut Frame<'_>, lines: &[String]) {
        let messages = 4.max(frame.area().height / 5);
        let Rect { width, height, .. } = frame.area();
        let is_large = width >= LARGE[0] && height >= LARGE[1] && !self.replicas.is_empty();
        let waits = if is_large { 2 + self.replicas.len().min(MOST_REPLICAS) as u16 } else { 0 };
        let [run, numbers, waits, curves, messages, keys] = Layout::vertical([
            Constraint::Length(4),
            Constraint::Length(7),
            Constraint::Length(waits),
            Constraint::Fill(1),
            Constraint::Length(messages),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_run(frame, run);
        let columns = [Constraint::Length(NUMBERS.0), Constraint::Length(NUMBERS.0), Constraint::Fill(1)];
        let [step, epoch, about] = Layout::horizontal(columns).areas(numbers);
        self.draw_step(frame, step);
        self.draw_epoch(frame, epoch);
        self.draw_about(frame, about);
        self.draw_waits(frame, waits);
        let [loss, accuracy] = Layout::horizontal([Constraint::Fill(1); 2]).areas(curves);
        self.draw_curve(frame, loss, 0, "Loss, logarithmic", |height| format!("{:.3}", height.exp()));
        self.draw_curve(frame, accuracy, 1, "Accuracy", |percent| format!("{percent:.1} %"));
        self.draw_lines(frame, messages, lines);
        let keys_do = match self.stop.reason() {
            None => "q or Ctrl-C: stop after this step and save",
            Some(_) => "stopping after this step to save; q or Ctrl-C again: end at once, without saving",
        };
        frame.render_widget(Line::raw(format!(" {keys_do}")), keys);
    }

    fn style(&self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn block(&self, title: &str) -> Block<'static> {
        Block::bordered().title(format!(" {title} ")).border_style(self.style(Color::DarkGray))
    }

    fn draw_run(&self, frame: &mut Frame<'_>, area: Rect) {
        let Goal { epochs, steps } = self.goal;
        let (step, done) = self.step.map_or((0, 0.0), |it| (it.step, it.epoch));
        let whole = step as f64 / steps.max(1) as f64;
        let (part, name) = match self.validating {
            Some((done, total)) => (done as f64 / total.max(1) as f64, "validation".into()),
            // A whole number is the end of an epoch.
            None => (done - (done.ceil() - 1.0).max(0.0), format!("epoch {}/{epochs}", (done.ceil() as usize).max(1))),
        };
        let seconds = self.step.map_or(f64::NAN, |it| it.seconds);
        let eta = self.pace.eta(steps.saturating_sub(step)).unwrap_or(f64::NAN);
        let [elapsed, eta] = [seconds, eta].map(format_duration);
        let done = format!(" {:.1} %   elapsed {elapsed}   eta {eta} ", 100.0 * whole);
        let block = self.block(&self.directory).title_bottom(done);
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let [first, second] = Layout::vertical([Constraint::Length(1); 2]).areas(inner);
        for (area, name, ratio) in [(first, format!("step {step}/{steps}"), whole), (second, name, part)] {
            let bar =
                LineGauge::default().label(format!("{name:<20}")).ratio(if ratio > 0.0 { ratio.min(1.0) } else { 0.0 });
            let bar = bar.filled_symbol("█").unfilled_symbol("░").filled_style(self.style(Color::Green));
            frame.render_widget(bar.unfilled_style(self.style(Color::DarkGray)), area);
        }
    }

    fn draw_step(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.step.map(|it| {
            [
                ("loss", format!("{:.4}", it.loss)),
                ("accuracy", percent(it.accuracy)),
                ("learning rate", learning_rate(it.lr)),
                ("gradient norm", format!("{:.2}", it.grad_norm)),
                ("images/s", rate(it.images_per_second)),
            ]
        });
        self.draw_numbers(frame, area, "Last step", rows);
    }

    fn draw_epoch(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.epoch.map(|it| {
            [
                ("val loss", format!("{:.4}", it.val_loss)),
                ("val accuracy", percent(it.val_accuracy)),
                ("val top-5", percent(it.val_top5)),
                ("train loss", format!("{:.4}", it.train_loss)),
                ("train accuracy", percent(it.train_accuracy)),
            ]
        });
        let title = self.epoch.map_or("Last epoch".into(), |it| format!("Epoch {}", it.epoch));
        self.draw_numbers(frame, area, &title, rows);
    }

    fn draw_numbers(&self, frame: &mut Frame<'_>, area: Rect, title: &str, rows: Option<[(&str, String); 5]>) {
        let row = |(name, value): (&str, String)| Line::raw(format!("{name:<0$}{1}", NUMBERS.1, value.trim()));
        let text: Vec<Line<'_>> = rows.into_iter().flatten().map(row).collect();
        frame.render_widget(Paragraph::new(text).block(self.block(title)), area);
    }

    fn draw_about(&self, frame: &mut Frame<'_>, area: Rect) {
        let block = self.block("Run");
        let Rect { width, height, .. } = block.inner(area);
        let named = self.about.iter().filter(|(name, _)| !["", "weights"].contains(&name.as_str()));
        let waits = self.replicas.first().filter(|it| it.waited_minute >= LEAST);
        let waits = waits.map(|it| format!("wait {:.0} s/min: {}", it.waited_minute, it.name()));
        let all = self.generation.iter().chain(&waits).chain(named.map(|(_, words)| words));
        let mut rows: Vec<Vec<String>> = all.map(|words| rows(words, usize::from(width))).collect();
        // Where there is not enough room for everything, the longest text ends earlier.
        while rows.iter().map(Vec::len).sum::<usize>() > usize::from(height)
            && let Some(longest) = rows.iter_mut().rev().max_by_key(|rows| rows.len()).filter(|rows| rows.len() > 1)
        {
            longest.pop();
            longest.last_mut().into_iter().for_each(|row| *row = format!("{}\u{2026}", row.trim_end_matches(ENDS)));
        }
        let text: Vec<Line<'_>> = rows.into_iter().flatten().map(Line::raw).collect();
        frame.render_widget(Paragraph::new(text).block(block), area);
    }

    fn draw_waits(&self, frame: &mut Frame<'_>, area: Rect) {
        let row = |it: &ReplicaRecord| {
            let place = if it.host.is_empty() { String::new() } else { format!("{}, ", printable(&it.host)) };
            let (name, place) = (it.name(), format!("{place}device {}", it.device));
            let (step, loading, waited) = (1000.0 * it.work_seconds, it.loading(), format_duration(it.waited));
            Line::raw(format!(
                "{name:<24}{place:<32}{step:>8.1} ms a step, {loading:>3.0} % of it loading   waited for: {:>4.1} s/min, \
                 {waited}",
                it.waited_minute
            ))
        };
        let text: Vec<Line<'_>> = self.replicas.iter().take(MOST_REPLICAS).map(row).collect();
        frame.render_widget(Paragraph::new(text).block(self.block("Replicas, without waits for others")), area);
    }

    fn draw_curve(&self, frame: &mut Frame<'_>, area: Rect, of: usize, title: &str, label: fn(f64) -> String) {
        let sets = [
            ("training", self.training[of].points(), Marker::Braille, Color::Cyan),
            ("validation", &self.validation[of], Marker::Dot, Color::Yellow),
        ];
        let x = bounds(sets.iter().flat_map(|set| set.1).map(|point| point.0));
        let y = bounds(sets.iter().flat_map(|set| set.1).map(|point| point.1));
        let sets = sets.map(|(name, points, marker, colour)| {
            let set = Dataset::default().name(name).data(points).marker(marker);
            set.graph_type(GraphType::Line).style(self.style(colour))
        });
        let axis = |bounds, labels: [String; 2]| {
            Axis::default().bounds(bounds).labels(labels).style(self.style(Color::DarkGray))
        };
        let chart = Chart::new(sets.into())
            .block(self.block(title))
            .x_axis(axis(x, x.map(|step| format!("step {step:.0}"))))
            .y_axis(axis(y, y.map(label)));
        frame.render_widget(chart, area);
    }

    fn draw_lines(&self, frame: &mut Frame<'_>, area: Rect, lines: &[String]) {
        let block = self.block("Messages");
        let Rect { width, height, .. } = block.inner(area);
        let (wide, high) = (usize::from(width.max(1)), usize::from(height));
        let last = &lines[lines.len().saturating_sub(high)..];
        // Only a word that is longer than a row is broken.
        let cut = |line: &str| {
            let characters: Vec<char> = line.chars().collect();
            characters.chunks(wide).map(|part| Line::raw(part.iter().collect::<String>())).collect::<Vec<_>>()
        };
        let rows: Vec<Line<'_>> =
            last.iter().flat_map(|line| folded(line, wide).lines().flat_map(cut).collect::<Vec<_>>()).collect();
        let rows = rows[rows.len().saturating_sub(high)..].to_vec();
        frame.render_widget(Paragraph::new(rows).block(block), area);
    }
}

/// The logarithm of a loss: the first validation may have fifty times the loss of later ones.
fn height(loss: f64) -> f64 {
    const LEAST: f64 = 1e-6;
    if loss < LEAST { LEAST.ln() } else { loss.ln() }
}

/// `text` in rows of whole words, of fewer than `width` letters each: there is room for a sign that something is left
/// out.
fn rows(text: &str, width: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    for word in text.split(' ') {
        match rows.last_mut() {
            Some(row) if row.is_empty() => row.push_str(word),
            Some(row) if row.chars().count() + 1 + word.chars().count() < width => *row += &format!(" {word}"),
            _ => rows.push(word.into()),
        }
    }
    rows
}

/// The smallest and largest of `values`, widened if they are equal.
fn bounds(values: impl Iterator<Item = f64> + Clone) -> [f64; 2] {
    let (low, high) = (values.clone().reduce(f64::min).unwrap_or(0.0), values.reduce(f64::max).unwrap_or(1.0));
    if low < high { [low, high] } else { [low - 0.5, low + 0.5] }
}
