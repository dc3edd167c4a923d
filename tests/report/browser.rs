//! The page in a real browser, where there is one.

use std::fs;

use kiln::report;
use tempfile::tempdir;

use super::{FIXTURE, copy};
use crate::browser::{fits, open};

#[test]
fn a_browser_has_nothing_to_complain_about() {
    let parent = tempdir().unwrap();
    let to = parent.path().join("report.html");
    for runs in [vec![FIXTURE.clone()], vec![copy(&parent, "0001"), copy(&parent, "0002")]] {
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
    report::write(std::slice::from_ref(&*FIXTURE), &to).unwrap();
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
    let page = fs::read_to_string(&to).unwrap();
    let wide = "<!DOCTYPE html><p style=\"width:2000px\">wide</p>";
    for (width, content, expected) in [(360, page.as_str(), true), (1280, &page, true), (360, wide, false)] {
        let Some(fits) = fits(content, width) else { return };
        assert_eq!(fits, expected, "{width} pixels");
    }
}
