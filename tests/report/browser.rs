//! The page in a real browser, where there is one.

use std::fs;
use std::path::Path;
use std::process::Command;

use kiln::report::{self, markup::escape};
use tempfile::tempdir;

use super::{FIXTURE, copy};
use crate::command::skip;

/// What Chromium makes of a page: its elements after loading, and what it logged. `None` with a word on stderr where
/// there is no Chromium.
fn open(page: &Path) -> Option<(String, Vec<String>)> {
    let profile = tempdir().unwrap();
    let started = Command::new("timeout")
        .args(["60", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--enable-logging=stderr", "--window-size=1280,1024", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .output();
    let output = match started {
        Ok(output) if output.status.code() == Some(127) => None,
        started => started.ok(),
    };
    let Some(output) = output else {
        skip("there is no 'timeout' or no 'chromium' on the PATH (Debian: apt-get install chromium)");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let console = log.lines().filter(|line| line.contains("CONSOLE")).map(String::from).collect();
    Some((String::from_utf8_lossy(&output.stdout).into_owned(), console))
}

#[test]
fn a_browser_has_nothing_to_complain_about() {
    let parent = tempdir().unwrap();
    let to = parent.path().join("report.html");
    for runs in [vec![FIXTURE.into()], vec![copy(&parent, "0001"), copy(&parent, "0002")]] {
        report::write(&runs, &to).unwrap();
        let Some((page, console)) = open(&to) else { return };
        assert!(console.is_empty(), "{console:#?}");
        assert!(page.contains("<h2>Curves</h2>") && page.contains("</footer>"));
    }
}

#[test]
fn a_script_that_slips_in_is_not_run() {
    let parent = tempdir().unwrap();
    let to = parent.path().join("report.html");
    report::write(&[FIXTURE.into()], &to).unwrap();
    super::edit(&to, "</main>", "<script>document.title = 'run'</script></main>");
    let Some((page, console)) = open(&to) else { return };
    assert!(page.contains("<title>Run run-report - Kiln</title>"));
    assert!(console.iter().any(|line| line.contains("Content Security Policy")), "{console:#?}");
}

#[test]
fn a_page_is_as_wide_as_its_window_down_to_a_phone() {
    let parent = tempdir().unwrap();
    let to = parent.path().join("report.html");
    report::write(&[copy(&parent, "0001"), copy(&parent, &"long-name-".repeat(20))], &to).unwrap();
    let page = escape(&fs::read_to_string(&to).unwrap());
    let wide = escape("<!DOCTYPE html><p style=\"width:2000px\">wide</p>");
    for (width, content, fits) in [(360, &page, true), (1280, &page, true), (360, &wide, false)] {
        let frame = parent.path().join("frame.html");
        let script = "onload = () => { const page = document.querySelector('iframe').contentDocument.documentElement; \
                      document.title = page.scrollWidth <= page.clientWidth ? 'fits' : 'is too wide'; }";
        let html = format!(
            "<!DOCTYPE html><title>not measured</title><script>{script}</script>\
             <iframe style=\"width:{width}px;height:800px;border:0\" srcdoc=\"{content}\"></iframe>"
        );
        fs::write(&frame, html).unwrap();
        let Some((measured, _)) = open(&frame) else { return };
        let verdict = if fits { "<title>fits</title>" } else { "<title>is too wide</title>" };
        assert!(measured.contains(verdict), "{width} pixels: {}", &measured[..200]);
    }
}
