//! Renders shapes as SVG, inside the page or as a file.

use std::fmt::Write;

use super::chart::{Anchor, Figure, Shape, TEXT};
use super::markup::escape;
use super::palette::{FAINT, Ink};

/// SVG for the page, with colours from CSS classes.
pub fn inline(figure: &Figure) -> String {
    let words = escape(&figure.words);
    let (width, height) = (figure.width, figure.height);
    let mut svg =
        format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{words}\">\n<title>{words}</title>\n");
    figure.shapes.iter().for_each(|shape| put(&mut svg, shape, |ink| format!("class=\"{}\"", ink.class())));
    svg + "</svg>\n"
}

/// A complete SVG file, dark on white.
pub fn file(figure: &Figure) -> String {
    let (width, height, words) = (figure.width, figure.height, escape(&figure.words));
    let mut svg = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" \
         height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"system-ui, sans-serif\">\n\
         <title>{words}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    let coloured = |ink: Ink| {
        let opacity = if matches!(ink, Ink::Faint(_)) { format!(" opacity=\"{FAINT}\"") } else { String::new() };
        format!("color=\"#{:06x}\"{opacity}", ink.colour())
    };
    figure.shapes.iter().for_each(|shape| put(&mut svg, shape, coloured));
    svg + "</svg>\n"
}

fn put(svg: &mut String, shape: &Shape, style: impl Fn(Ink) -> String) {
    let written = match shape {
        Shape::Line(points, ink) => {
            let points: Vec<String> = points.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
            let dashes: Vec<String> = ink.dashes().iter().map(ToString::to_string).collect();
            let dashes =
                if dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{}\"", dashes.join(" ")) };
            let (points, width, style) = (points.join(" "), ink.width(), style(*ink));
            writeln!(
                svg,
                "<polyline {style} fill=\"none\" stroke=\"currentColor\" stroke-width=\"{width}\" \
                 stroke-linejoin=\"round\"{dashes} points=\"{points}\"/>"
            )
        }
        Shape::Dot([x, y], ink) => {
            writeln!(svg, "<circle {} fill=\"currentColor\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>", style(*ink))
        }
        Shape::Area([x, y], [width, height], opacity, ink) => {
            let style = style(*ink);
            writeln!(
                svg,
                "<rect {style} fill=\"currentColor\" fill-opacity=\"{opacity:.3}\" x=\"{x:.1}\" y=\"{y:.1}\" \
                 width=\"{width:.1}\" height=\"{height:.1}\"/>"
            )
        }
        Shape::Text([x, y], anchor, text, ink) => {
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            let weight = if *ink == Ink::Title { " font-weight=\"600\"" } else { "" };
            let (style, text) = (style(*ink), escape(text));
            writeln!(
                svg,
                "<text {style} fill=\"currentColor\" font-size=\"{TEXT}\"{weight} text-anchor=\"{anchor}\" x=\"{x:.1}\" \
                 y=\"{y:.1}\">{text}</text>"
            )
        }
    };
    written.expect("writing to a string cannot fail");
}
