//! Renders shapes to a PNG file, at twice the size of the SVG file for high-density screens.
//!
//! The font is compiled in, because servers may have none: Roboto (Apache-2.0, `roboto-LICENSE.txt`), reduced to Latin,
//! Greek and Cyrillic. Missing letters are drawn as boxes.

use std::io::Cursor;

use image::{ImageFormat, RgbaImage};
use tiny_skia::{Color, FillRule, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, StrokeDash, Transform};
use ttf_parser::{Face, GlyphId, OutlineBuilder};

use super::chart::{Anchor, Figure, Shape, TEXT};
use super::palette::{FAINT, Ink};

const FONT: &[u8] = include_bytes!("roboto.ttf");
const ZOOM: f64 = 2.0;
/// Largest side of a picture in pixels; a longer legend is cut off.
const LARGEST: f64 = 8192.0;

/// The picture of a figure, on white.
pub fn file(figure: &Figure) -> Vec<u8> {
    let side = |length: f64| (length * ZOOM).clamp(1.0, LARGEST) as u32;
    let mut sheet = Pixmap::new(side(figure.width), side(figure.height)).expect("neither side is 0 or huge");
    sheet.fill(Color::WHITE);
    let face = Face::parse(FONT, 0).expect("the font that is part of the program is whole");
    figure.shapes.iter().for_each(|shape| put(&mut sheet, &face, shape));
    let (width, height) = (sheet.width(), sheet.height());
    // The white background makes every pixel opaque, so premultiplied colours equal straight ones.
    let image = RgbaImage::from_raw(width, height, sheet.take()).expect("there are four bytes for every pixel");
    let mut png = Cursor::new(Vec::new());
    image.write_to(&mut png, ImageFormat::Png).expect("a picture in memory has a PNG form");
    png.into_inner()
}

fn put(sheet: &mut Pixmap, face: &Face<'_>, shape: &Shape) {
    let zoom = Transform::from_scale(ZOOM as f32, ZOOM as f32);
    let fill = |sheet: &mut Pixmap, path: Option<Path>, paint: Paint| {
        if let Some(path) = path {
            sheet.fill_path(&path, &paint, FillRule::Winding, zoom, None);
        }
    };
    match shape {
        Shape::Line(points, ink) => {
            if let Some(path) = polyline(points) {
                let dash = StrokeDash::new(ink.dashes().to_vec(), 0.0);
                let stroke = Stroke { width: ink.width(), dash, ..Stroke::default() };
                sheet.stroke_path(&path, &paint(*ink, 1.0), &stroke, zoom, None);
            }
        }
        Shape::Dot([x, y], ink) => fill(sheet, PathBuilder::from_circle(*x as f32, *y as f32, 2.5), paint(*ink, 1.0)),
        Shape::Area([x, y], [width, height], opacity, ink) => {
            let rect = Rect::from_xywh(*x as f32, *y as f32, *width as f32, *height as f32);
            fill(sheet, rect.map(PathBuilder::from_rect), paint(*ink, *opacity));
        }
        Shape::Text(at, anchor, text, ink) => fill(sheet, letters(face, text, *at, *anchor), paint(*ink, 1.0)),
    }
}

fn paint(ink: Ink, opacity: f64) -> Paint<'static> {
    let [_, red, green, blue] = ink.colour().to_be_bytes();
    let opacity = if matches!(ink, Ink::Faint(_)) { FAINT } else { opacity };
    let mut paint = Paint::default();
    paint.set_color_rgba8(red, green, blue, (255.0 * opacity) as u8);
    paint
}

fn polyline(points: &[[f64; 2]]) -> Option<Path> {
    let mut path = PathBuilder::new();
    let mut points = points.iter().map(|[x, y]| (*x as f32, *y as f32));
    let (x, y) = points.next()?;
    path.move_to(x, y);
    points.for_each(|(x, y)| path.line_to(x, y));
    path.finish()
}

fn letters(face: &Face<'_>, text: &str, [x, y]: [f64; 2], anchor: Anchor) -> Option<Path> {
    let scale = TEXT as f32 / f32::from(face.units_per_em());
    let glyphs: Vec<GlyphId> = text.chars().map(|letter| face.glyph_index(letter).unwrap_or_default()).collect();
    let advance = |glyph: &GlyphId| f32::from(face.glyph_hor_advance(*glyph).unwrap_or(0)) * scale;
    let width: f32 = glyphs.iter().map(advance).sum();
    let before = match anchor {
        Anchor::Start => 0.0,
        Anchor::Middle => width / 2.0,
        Anchor::End => width,
    };
    let mut pen = Pen { path: PathBuilder::new(), x: x as f32 - before, y: y as f32, scale };
    for glyph in &glyphs {
        // A space has no outline.
        let _ = face.outline_glyph(*glyph, &mut pen);
        pen.x += advance(glyph);
    }
    pen.path.finish()
}

/// Converts outlines from font units, with y upwards, to positions in the figure.
struct Pen {
    path: PathBuilder,
    x: f32,
    y: f32,
    scale: f32,
}

impl Pen {
    fn at(&self, x: f32, y: f32) -> [f32; 2] {
        [self.x + x * self.scale, self.y - y * self.scale]
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        let [x, y] = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let [x, y] = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ([x1, y1], [x, y]) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ([x1, y1], [x2, y2], [x, y]) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}
