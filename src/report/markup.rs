//! HTML from text: the one place that escapes, and the elements that more than one part of the page uses.

/// A text as it may stand between tags and in attributes, of HTML as of XML.
///
/// XML 1.0 has no place for most control characters, not even escaped; they become U+FFFD.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' => escaped.push(letter),
            '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            control if control.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            _ => escaped.push(letter),
        }
    }
    escaped
}

/// A part of the page under a heading; nothing without a body, which is HTML.
pub fn section(heading: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    format!("<section>\n<h2>{}</h2>\n{body}</section>\n", escape(heading))
}

/// A part that is folded until somebody opens it; its body is HTML.
pub fn folded(summary: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    format!("<details>\n<summary>{}</summary>\n{body}</details>\n", escape(summary))
}

/// What the reader must know before the rest; nothing without a note.
pub fn notes(notes: &[String]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let notes: String = notes.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
    format!("<aside aria-label=\"Notes\"><ul>\n{notes}</ul></aside>\n")
}

/// Names and values, each name above its value and a remark below it.
pub fn tiles(tiles: &[(&str, String, String)]) -> String {
    if tiles.is_empty() {
        return String::new();
    }
    let tile = |(name, value, remark): &(&str, String, String)| {
        let remark =
            if remark.is_empty() { String::new() } else { format!("<dd class=\"remark\">{}</dd>", escape(remark)) };
        format!("<div><dt>{}</dt><dd>{}</dd>{remark}</div>\n", escape(name), escape(value))
    };
    format!("<dl class=\"tiles\">\n{}</dl>\n", tiles.iter().map(tile).collect::<String>())
}
