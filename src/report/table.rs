//! HTML tables.

use super::markup::escape;

const MOST_ROWS: usize = 1000;

/// A table; the first cell of every row is its header.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub caption: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

/// The HTML of a cell, and its attributes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell(String, String);

impl Cell {
    pub(crate) fn text(text: &str) -> Self {
        Self(escape(text), String::new())
    }

    /// A text that leads to this address, if there is one.
    pub(crate) fn link(text: &str, to: Option<&str>) -> Self {
        let Some(to) = to else { return Self::text(text) };
        Self(format!("<a href=\"{}\">{}</a>", escape(to), escape(text)), String::new())
    }

    /// A text at this level of indentation.
    pub(crate) fn indented(text: &str, depth: usize) -> Self {
        Self(escape(text), format!(" style=\"padding-left:{}em\"", 0.6 + 1.2 * depth as f64))
    }

    pub(crate) fn number(number: impl ToString) -> Self {
        Self(escape(&number.to_string()), " class=\"number\"".into())
    }

    /// A number with a bar of this share, 0 to 1.
    pub(crate) fn bar(number: &str, share: f64) -> Self {
        let bar = format!("<span class=\"bar\" style=\"--share:{:.3}\"></span>", share.clamp(0.0, 1.0));
        Self(bar + &escape(number), " class=\"number barred\"".into())
    }

    /// A number of images on a shade of this strength, 0 to 1, and whether it counts correct predictions.
    pub(crate) fn shade(images: u64, strength: f64, right: bool) -> Self {
        let (class, shade) = (if right { "right" } else { "wrong" }, 45.0 * strength.clamp(0.0, 1.0));
        Self(images.to_string(), format!(" class=\"number {class}\" style=\"--shade:{shade:.0}%\""))
    }
}

impl Table {
    pub(crate) fn new<const COLUMNS: usize>(caption: &str, head: [&str; COLUMNS]) -> Self {
        Self { caption: caption.into(), head: head.map(String::from).into(), rows: Vec::new() }
    }

    /// The table, which scrolls if it is too wide; empty without rows.
    pub(crate) fn html(&self) -> String {
        let count = self.rows.len();
        if count == 0 {
            return String::new();
        }
        let first = if count > MOST_ROWS { format!(" (the first {MOST_ROWS} of {count} rows)") } else { String::new() };
        let caption = escape(&self.caption) + &first;
        let head: String = self.head.iter().map(|name| format!("<th scope=\"col\">{}</th>", escape(name))).collect();
        let rows: String = self.rows.iter().take(MOST_ROWS).map(|row| html_row(row)).collect();
        format!(
            "<div class=\"table\">\n<p class=\"caption\">{caption}</p>\n\
             <div class=\"scroll\" role=\"region\" aria-label=\"{caption}\" tabindex=\"0\">\n\
             <table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n\
             </div>\n</div>\n"
        )
    }
}

fn html_row(row: &[Cell]) -> String {
    let cell = |(column, Cell(content, attributes)): (usize, &Cell)| match column {
        0 => format!("<th scope=\"row\"{attributes}>{content}</th>"),
        _ => format!("<td{attributes}>{content}</td>"),
    };
    format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>())
}
