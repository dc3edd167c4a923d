//! A screen whose text a test can read.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use indicatif::TermLike;

/// A terminal, or a pipe, whose text can be looked at; it breaks when told to.
#[derive(Debug, Clone, Default)]
pub struct Screen {
    text: Arc<Mutex<String>>,
    broken: bool,
}

impl Screen {
    pub fn broken() -> Self {
        Self { broken: true, ..Self::default() }
    }

    pub fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    pub fn lines(&self) -> Vec<String> {
        self.text().lines().map(str::to_string).collect()
    }
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_str(std::str::from_utf8(bytes).unwrap()).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        200
    }
    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        self.write_str("")
    }
    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        self.write_str("")
    }
    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        self.write_str("")
    }
    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        self.write_str("")
    }
    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(&format!("{text}\n"))
    }
    fn write_str(&self, text: &str) -> io::Result<()> {
        let mut screen = self.text.lock().unwrap();
        screen.push_str(text);
        if self.broken { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
    fn clear_line(&self) -> io::Result<()> {
        self.write_str("")
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
