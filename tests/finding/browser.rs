//! The page in a real browser, where there is one: nothing to complain about, and as wide as its window.

use std::fs;
use std::path::Path;
use std::process::Command;

use kiln::finding::page;
use kiln::report::markup::escape;
use tempfile::tempdir;

use super::{about, analysed, tested};
use crate::command::skip;

/// What Chromium makes of a page, and what it logged; `None` with a word on stderr where there is no Chromium.
fn open(page: &Path) -> Option<(String, String)> {
    let profile = tempdir().unwrap();
    let output = Command::new("timeout")
        .args(["60", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--enable-logging=stderr", "--window-size=1280,1024", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .output();
    let Some(output) = output.ok().filter(|output| output.status.code() != Some(127)) else {
        skip("there is no 'timeout' or no 'chromium' on the PATH (Debian: apt-get install chromium)");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let [page, log] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Some((page, log))
}

#[test]
fn a_browser_has_nothing_to_complain_about() {
    let directory = tempdir().unwrap();
    tested().write(directory.path(), &about()).unwrap();
    analysed().write(directory.path(), &about()).unwrap();
    for (name, heading) in [("find-lr", "Curve"), ("find-batch-size", "Trials")] {
        let Some((page, log)) = open(&directory.path().join(format!("{name}.html"))) else { return };
        assert!(!log.contains("CONSOLE"), "{log}");
        assert!(page.contains(&format!("<h2>{heading}</h2>")) && page.contains("</footer>"));
    }
}

#[test]
fn a_page_is_as_wide_as_its_window_down_to_a_phone() {
    let directory = tempdir().unwrap();
    for content in [page::learning_rate(&tested(), &about()), page::batch_size(&analysed(), &about())] {
        for width in [360, 1280] {
            let frame = directory.path().join("frame.html");
            let script = "onload = () => { const page = document.querySelector('iframe').contentDocument.documentElement; \
                          document.title = page.scrollWidth <= page.clientWidth ? 'fits' : 'is too wide'; }";
            let html = format!(
                "<!DOCTYPE html><title>not measured</title><script>{script}</script>\
                 <iframe style=\"width:{width}px;height:800px;border:0\" srcdoc=\"{}\"></iframe>",
                escape(&content)
            );
            fs::write(&frame, html).unwrap();
            let Some((measured, _)) = open(&frame) else { return };
            assert!(measured.contains("<title>fits</title>"), "{width} pixels: {}", &measured[..200]);
        }
    }
}
