//! HTML tables.

use super::markup::escape;

const MOST_ROWS: usize = 1000;

/// A table; the first cell of every row is its header.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub caption: String,
    /// A header for every column.
    pub head: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    Text(String),
    /// A text that leads to this address, if there is one.
    Link(String, Option<String>),
    /// A text at this level of indentation.
    Indented(usize, String),
    Number(String),
    /// A number with a bar of this share, 0 to 1.
    Bar(String, f64),
    /// A number on a shade of this strength, 0 to 1, and whether it counts correct predictions.
    Shade(String, f64, bool),
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(crate) fn number(number: impl ToString) -> Self {
        Self::Number(number.to_string())
    }

    fn content(&self) -> String {
        match self {
            Self::Text(text) | Self::Indented(_, text) | Self::Number(text) | Self::Shade(text, ..) => escape(text),
            Self::Link(text, Some(to)) => format!("<a href=\"{}\">{}</a>", escape(to), escape(text)),
            Self::Link(text, None) => escape(text),
            Self::Bar(text, share) => {
                let share = share.clamp(0.0, 1.0);
                format!("<span class=\"bar\" style=\"--share:{share:.3}\"></span>{}", escape(text))
            }
        }
    }

    fn attributes(&self) -> String {
        match self {
            Self::Text(_) | Self::Link(..) => String::new(),
            Self::Indented(depth, _) => format!(" style=\"padding-left:{}em\"", 0.6 + 1.2 * *depth as f64),
            Self::Number(_) => " class=\"number\"".into(),
            Self::Bar(..) => " class=\"number barred\"".into(),
            Self::Shade(_, strength, right) => {
                let class = if *right { "right" } else { "wrong" };
                format!(" class=\"number {class}\" style=\"--shade:{:.0}%\"", 45.0 * strength.clamp(0.0, 1.0))
            }
        }
    }
}

impl Table {
    pub(crate) fn new<const COLUMNS: usize>(caption: &str, head: [&str; COLUMNS]) -> Self {
        Self { caption: caption.into(), head: head.map(String::from).into(), rows: Vec::new() }
    }

    /// The table, which scrolls if it is too wide; empty without rows.
    pub(crate) fn html(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let mut caption = self.caption.clone();
        if self.rows.len() > MOST_ROWS {
            caption += &format!(" (the first {MOST_ROWS} of {} rows)", self.rows.len());
        }
        let caption = escape(&caption);
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
    let cell = |(column, cell): (usize, &Cell)| {
        let (attributes, content) = (cell.attributes(), cell.content());
        if column == 0 {
            format!("<th scope=\"row\"{attributes}>{content}</th>")
        } else {
            format!("<td{attributes}>{content}</td>")
        }
    };
    format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>())
}
