//! The HTML page of an analysis: notes, results, charts, numbers and models.

use super::Analysis;
use super::charts;
use super::curve::{Curve, Row};
use super::measurement::Mode;
use super::table;
use crate::metrics::line::count;
use crate::report::markup::{self, escape, section, tiles};
use crate::report::page;
use crate::report::table::{Cell, Table};
use crate::study::{sources, with_legend};

const SOURCES: [&str; 4] = [
    "G. M. Amdahl, Validity of the single processor approach to achieving large scale computing capabilities, AFIPS 1967",
    "J. L. Gustafson, Reevaluating Amdahl's law, CACM 31(5), 1988",
    "R. W. Hockney, The communication challenge for MPP, Parallel Computing 20(3), 1994",
    "R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19(1), \
     2005",
];

/// The page.
pub fn page(analysis: &Analysis) -> String {
    let curves = &analysis.curves;
    let body = [
        markup::notes(&analysis.caveats),
        section("Results", &tiles(&headline(analysis))),
        section("Curves", &with_legend(charts::LEGEND, page::charts(&charts::charts(curves)))),
        section("Measurements", &curves.iter().map(measured).collect::<String>()),
        section("Models and predictions", &models(curves)),
        section(
            "Hardware and settings",
            &page::pairs("What the measurements were made with", "Name", &analysis.about).html(),
        ),
    ];
    page::document("Scaling", &[], &body.concat())
}

/// The numbers at the top: a name, the value, and a remark.
fn headline(analysis: &Analysis) -> Vec<(&'static str, String, String)> {
    let best = analysis.rows.iter().max_by(|a, b| a.images_per_second.total_cmp(&b.images_per_second));
    let mut tiles: Vec<_> = best
        .map(|row| ("Best throughput", table::rate(row.images_per_second), format!("images/s, {}", place(row))))
        .into_iter()
        .collect();
    for (mode, name) in [(Mode::Weak, "Weak efficiency"), (Mode::Strong, "Strong efficiency")] {
        // The best layout of the largest size.
        let rows = analysis.rows.iter().filter(|row| row.mode == mode);
        let largest = rows.max_by(|a, b| a.replicas.cmp(&b.replicas).then(a.efficiency.total_cmp(&b.efficiency)));
        tiles.extend(largest.map(|row| (name, table::percent(row.efficiency), place(row))));
    }
    let serial = analysis.curves.iter().find_map(|curve| curve.fit.as_ref()?.serial_fraction);
    tiles.extend(serial.map(|it| {
        let range = it.range.map_or_else(|| "no error can be given".into(), |_| table::range(&it, table::percent));
        ("Serial fraction", table::percent(it.value), range)
    }));
    tiles
}

fn place(row: &Row) -> String {
    let shared = if row.devices_shared { ", devices shared" } else { "" };
    format!("{}, {}{shared}", count(row.replicas, "replica"), count(row.processes, "process"))
}

fn measured(curve: &Curve) -> String {
    numbers(&capitalised(&table::title(curve)), table::HEAD, curve.rows.iter().map(table::cells)).html()
}

fn models(curves: &[Curve]) -> String {
    let fitted: String = curves.iter().filter(|curve| curve.fit.is_some()).map(model).collect();
    if fitted.is_empty() {
        return fitted;
    }
    fitted + &sources("Sources of the models", &SOURCES)
}

fn model(curve: &Curve) -> String {
    let Some(fit) = &curve.fit else { return String::new() };
    let mut parameters = Table::new(curve.mode.formula(), ["Symbol", "Value", "Range", "Meaning"]);
    parameters.rows.extend(table::parameters(curve).into_iter().map(|[symbol, value, range, meaning]| {
        vec![Cell::Text(symbol), Cell::Number(value), Cell::Number(range), Cell::Text(meaning)]
    }));
    let predictions =
        numbers(table::prediction_title(fit), table::PREDICTED, curve.predictions.iter().map(table::predicted));
    format!(
        "<h3>{}</h3>\n{}<p>{}</p>\n{}",
        escape(&capitalised(&table::title(curve))),
        parameters.html(),
        escape(&fit.remarks().join(" ")),
        predictions.html()
    )
}

fn numbers<const N: usize>(caption: &str, head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> Table {
    let rows = rows.map(|cells| cells.into_iter().map(Cell::Number).collect()).collect();
    Table { caption: caption.into(), head: head.map(capitalised).into(), rows }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
