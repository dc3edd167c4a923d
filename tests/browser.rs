//! Pages in a real browser, where there is one.

use std::path::Path;
use std::process::Command;

use kiln::report::markup::escape;
use tempfile::tempdir;

use crate::skipped::skip;

/// What Chromium makes of a page: its elements after loading, and what it logged. `None` with a word on stderr where
/// there is no Chromium.
pub fn open(page: &Path) -> Option<(String, Vec<String>)> {
    show(&format!("file://{}", page.display()))
}

/// The same of an address.
pub fn show(url: &str) -> Option<(String, Vec<String>)> {
    let profile = tempdir().unwrap();
    let output = Command::new("timeout")
        .args(["60", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--enable-logging=stderr", "--window-size=1280,1024", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(url)
        .output();
    let Some(output) = output.ok().filter(|output| output.status.code() != Some(127)) else {
        skip("there is no 'timeout' or no 'chromium' on the PATH (Debian: apt-get install chromium)");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let console = log.lines().filter(|line| line.contains("CONSOLE")).map(String::from).collect();
    Some((String::from_utf8_lossy(&output.stdout).into_owned(), console))
}

/// Whether a page is no wider than a window of so many pixels, and every table that is wider shows its last column
/// beside its first one when it is scrolled; `None` as of [`open`].
pub fn fits(page: &str, width: usize) -> Option<bool> {
    let directory = tempdir().unwrap();
    let frame = directory.path().join("frame.html");
    let script = "onload = () => { const page = document.querySelector('iframe').contentDocument.documentElement; \
                  const fits = page.scrollWidth <= page.clientWidth; \
                  page.querySelectorAll('details').forEach(it => it.open = true); \
                  const hides = table => { table.parentElement.scrollLeft = table.scrollWidth; \
                    return [...table.rows].some(row => row.lastElementChild.getBoundingClientRect().left + 1 < \
                      row.firstElementChild.getBoundingClientRect().right); }; \
                  const hidden = [...page.querySelectorAll('table')].filter(it => it.rows[0].cells.length > 1).some(hides); \
                  document.title = fits && !hidden ? 'fits' : 'is too wide'; }";
    let html = format!(
        "<!DOCTYPE html><title>not measured</title><script>{script}</script>\
         <iframe style=\"width:{width}px;height:800px;border:0\" srcdoc=\"{}\"></iframe>",
        escape(page)
    );
    std::fs::write(&frame, html).unwrap();
    let (measured, _) = open(&frame)?;
    let says = |verdict: &str| measured.contains(&format!("<title>{verdict}</title>"));
    assert!(says("fits") || says("is too wide"), "{width} pixels: {}", &measured[..200]);
    Some(says("fits"))
}
