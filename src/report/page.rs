//! The HTML page and its sections.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use kiln_system::shown;
use sha2::{Digest, Sha256};

use super::against::Varied;
use super::chart::Figure;
use super::markup::{self, escape, folded, section, unless_empty};
use super::pipeline::Pipeline;
use super::run::Run;
use super::table::{Cell, Table};
use super::timeline::timeline;
use super::{against, classes, curves, palette, replicas, results, svg};

const STYLE: &str = include_str!("style.css");
/// Shown to whoever has the token.
const BUTTONS: &str = "\
<button hidden name=\"save\" value=\"Save a checkpoint after the next step?\">Save now</button>
<button hidden name=\"stop\" value=\"Finish the step, save and end the run?\">Stop</button>
";
/// No scripts and no network access, even if a run's files contain them.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// The script of a live page.
const SCRIPT: &str = include_str!("live.js");

pub(super) fn page(runs: &[Run]) -> String {
    whole(runs, &Live::default())
}

/// The page of a run that is followed, with the buttons of one that may be stopped and saved.
pub(super) fn live(run: &Run, has_buttons: bool) -> String {
    let hash = BASE64.encode(Sha256::digest(SCRIPT));
    let buttons = if has_buttons { BUTTONS } else { "" };
    let live = Live {
        policy: format!("; script-src 'sha256-{hash}'; connect-src 'self'"),
        header: format!("<nav>\n<span id=\"state\" role=\"status\">not connected</span>\n{buttons}</nav>\n"),
        script: format!("<script>{SCRIPT}</script>\n"),
    };
    whole(std::slice::from_ref(run), &live)
}

fn whole(runs: &[Run], live: &Live) -> String {
    let title = match runs {
        [run] => format!("Run {}", run.name),
        runs => format!("{} runs compared", runs.len()),
    };
    let body = [
        notes(runs),
        runs.iter().filter(|run| run.is_followed).map(|run| section("Progress", &results::progress(run))).collect(),
        section("Results", &results::html(runs)),
        section("Accuracy against each setting", &of_sweep(runs)),
        section("Settings that differ", &results::differences(runs)),
        section("Curves", &figures(curves::charts(runs).iter().map(|it| (it.figure(), it.remarks().join(" "))))),
        runs.iter().map(|run| of_run(run, runs.len() == 1)).collect(),
    ];
    let places = runs.iter().map(|run| format!("<p>{}</p>\n", escape(&shown(&run.directory)))).collect::<String>();
    let about = if let [run] = runs { about(run) } else { String::new() };
    document(&title, &(places + &about), &body.concat(), live)
}

/// What only a live page has, as HTML.
#[derive(Default)]
struct Live {
    policy: String,
    header: String,
    script: String,
}

/// A complete page around `body`, which is HTML as `top` is: title, directories of the runs, and style.
fn document(title: &str, top: &str, body: &str, Live { policy, header, script }: &Live) -> String {
    let (title, colours) = (escape(title), palette::css());
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title} - Kiln</title>\n<style>\n{colours}{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>{title}</h1>\n{top}{header}</header>\n<main>\n{body}</main>\n<footer>Kiln {version}</footer>\n{script}</body>\n</html>\n"
    )
}

/// What a run trains, by which command and when.
fn about(run: &Run) -> String {
    let Some(start) = &run.start else { return String::new() };
    let ends =
        [("command", &start.command), ("began", &start.date)].map(|(name, words)| (name.to_string(), words.clone()));
    let row = |(name, words): &(String, String)| format!("<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(words));
    let rows: String = start.about.iter().chain(&ends).filter(|(_, words)| !words.is_empty()).map(row).collect();
    unless_empty(&rows, || format!("<dl class=\"about\">\n{rows}</dl>\n"))
}

fn notes(runs: &[Run]) -> String {
    let of_run = |run: &Run| {
        let whose = if runs.len() > 1 { format!("{}: ", run.name) } else { String::new() };
        run.notes.iter().map(|note| format!("{whose}{note}")).collect::<Vec<_>>()
    };
    markup::notes(&runs.iter().flat_map(of_run).collect::<Vec<_>>())
}

fn of_sweep(runs: &[Run]) -> String {
    let varied = against::varied(runs);
    let charts = varied.iter().filter_map(Varied::chart).map(|chart| (chart.figure(), chart.remarks().join(" ")));
    let tables: String = varied.iter().map(|it| it.table().html()).collect();
    figures(charts) + &unless_empty(&tables, || format!("<div class=\"beside\">\n{tables}</div>\n"))
}

/// Figures with their remarks, side by side; empty without a figure.
fn figures(figures: impl IntoIterator<Item = (Figure, String)>) -> String {
    let html = |(figure, remarks): (Figure, String)| {
        let remarks = escape(&remarks);
        format!("<figure>\n{}<figcaption>{remarks}</figcaption>\n</figure>\n", svg::inline(&figure))
    };
    let figures: String = figures.into_iter().map(html).collect();
    unless_empty(&figures, || format!("<div class=\"charts\">\n{figures}</div>\n"))
}

/// The sections of one run; with several runs, their headings name the run.
fn of_run(run: &Run, is_alone: bool) -> String {
    let heading = |what: &str| if is_alone { what.to_string() } else { format!("{what} of {}", run.name) };
    let evaluation: String = run.evaluations.iter().map(classes::html).collect();
    let settings = folded("Configuration", &pairs("Every setting of the run", "Setting", &run.settings).html());
    let epochs = folded("Epochs as a table", &epochs(run).html());
    let pipeline = run.pipeline.as_ref().map(Pipeline::figure);
    let environment = pairs("Hardware and software", "Name", &run.environment);
    [
        section(&heading("Evaluation"), &evaluation),
        section(&heading("Where time went"), &format!("{}{}", figures(pipeline), phases(run).html())),
        section(&heading("Replicas"), &replicas::html(run)),
        section(&heading("Generations"), &format!("{}{}", figures(timeline(run)), generations(run).html())),
        section(&heading("Environment"), &environment.html()),
        section(&heading("Details"), &format!("{epochs}{settings}")),
    ]
    .concat()
}

/// A table of values under their names; `name` is the header of the names.
fn pairs(caption: &str, name: &str, values: &BTreeMap<String, String>) -> Table {
    let rows = values.iter().map(|(name, value)| vec![Cell::text(name), Cell::text(value)]).collect();
    Table { rows, ..Table::new(caption, [name, "Value"]) }
}

fn epochs(run: &Run) -> Table {
    let head = [
        "Epoch",
        "Step",
        "Train loss",
        "Train accuracy",
        "Validation loss",
        "Top-1 accuracy",
        "Top-5 accuracy",
        "Learning rate",
        "Images/s",
        "Seconds",
    ];
    let mut table = Table::new("Every epoch and the validation after it", head);
    table.rows.extend(run.epochs.iter().map(|it| {
        let (losses, accuracies) = ([it.train_loss, it.val_loss], [it.train_accuracy, it.val_accuracy, it.val_top5]);
        let ([train, val], [train_accuracy, top1, top5]) =
            (losses.map(|loss| format!("{loss:.4}")), accuracies.map(results::percent));
        let rate = it.images_per_second.map(|it| format!("{it:.0}")).unwrap_or_default();
        let rest = [format!("{:.3e}", it.lr), rate, format!("{:.0}", it.seconds)];
        let numbers = [it.epoch.to_string(), it.step.to_string(), train, train_accuracy, val, top1, top5];
        numbers.into_iter().chain(rest).map(Cell::number).collect()
    }));
    table
}

fn phases(run: &Run) -> Table {
    let caption = "Phases of each thread; the time of a phase includes the phases below it";
    let mut table = Table::new(caption, ["Phase", "Total", "Calls", "Each", "Share"]);
    let mut thread = "";
    for phase in &run.phases {
        if phase.thread != thread {
            thread = &phase.thread;
            table.rows.push(std::iter::once(Cell::text(thread)).chain((0..4).map(|_| Cell::text(""))).collect());
        }
        let each = 1e3 * phase.seconds / phase.calls.max(1) as f64;
        table.rows.push(vec![
            Cell::indented(phase.path.last().map_or("", String::as_str), phase.path.len()),
            Cell::number(format!("{:.2} s", phase.seconds)),
            Cell::number(phase.calls),
            Cell::number(format!("{each:.2} ms")),
            Cell::bar(&format!("{:.1} %", 100.0 * phase.share), phase.share),
        ]);
    }
    table
}

fn generations(run: &Run) -> Table {
    let head = ["Generation", "After step", "Members", "Pause", "Why"];
    let mut table = Table::new("Members of each generation; a generation ends when a process joins or leaves", head);
    table.rows.extend(run.generations.iter().map(|it| {
        let pause = it.pause_seconds.map_or("-".into(), |seconds| format!("{seconds:.1} s"));
        let numbers = [it.generation.to_string(), it.step.to_string(), it.members.to_string(), pause];
        numbers.into_iter().map(Cell::number).chain([Cell::text(&it.why)]).collect()
    }));
    table
}
