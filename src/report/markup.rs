//! HTML elements that several parts of the page use, and the escaping of text.

use std::path::{Component, Path};

/// Escapes a text for content and attributes of HTML and XML.
///
/// XML 1.0 does not allow most control characters, not even escaped; they become U+FFFD.
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

/// The address of the file `to` relative to the folder `from`, both absolute.
pub(super) fn href(from: &Path, to: &Path) -> String {
    let (from, to): (Vec<Component>, Vec<Component>) = (from.components().collect(), to.components().collect());
    let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
    let up = from[common..].iter().map(|_| "..".to_string());
    let down = to[common..].iter().map(|part| encoded(part.as_os_str().as_encoded_bytes()));
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// Bytes of a path's part as RFC 3986 has them in an address.
fn encoded(part: &[u8]) -> String {
    let encode = |byte: &u8| match byte {
        byte if byte.is_ascii_alphanumeric() || b"-._~=,+@".contains(byte) => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    part.iter().map(encode).collect()
}

/// What `html` makes of `body`; empty if that is.
pub(super) fn unless_empty(body: &str, html: impl FnOnce() -> String) -> String {
    if body.is_empty() { String::new() } else { html() }
}

/// A section with a heading; empty if `body`, which is HTML, is empty.
pub(super) fn section(heading: &str, body: &str) -> String {
    unless_empty(body, || format!("<section>\n<h2>{}</h2>\n{body}</section>\n", escape(heading)))
}

/// A section that is initially folded; `body` is HTML.
pub(super) fn folded(summary: &str, body: &str) -> String {
    unless_empty(body, || format!("<details>\n<summary>{}</summary>\n{body}</details>\n", escape(summary)))
}

/// Notes at the top of the page; empty without notes.
pub(super) fn notes(notes: &[String]) -> String {
    let notes: String = notes.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
    unless_empty(&notes, || format!("<aside aria-label=\"Notes\"><ul>\n{notes}</ul></aside>\n"))
}

/// Tiles of a name, a value and a remark.
pub(super) fn tiles(tiles: &[(&str, String, String)]) -> String {
    let tile = |(name, value, remark): &(&str, String, String)| {
        let remark = unless_empty(remark, || format!("<dd class=\"remark\">{}</dd>", escape(remark)));
        format!("<div><dt>{}</dt><dd>{}</dd>{remark}</div>\n", escape(name), escape(value))
    };
    let tiles: String = tiles.iter().map(tile).collect();
    unless_empty(&tiles, || format!("<dl class=\"tiles\">\n{tiles}</dl>\n"))
}
