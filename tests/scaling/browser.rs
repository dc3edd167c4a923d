//! The page in a real browser: nothing to complain about, and as wide as its window.

use kiln::study::scaling::page;
use tempfile::tempdir;

use super::{analysed, varied};
use crate::browser::{fits, open};

#[test]
fn a_browser_has_nothing_to_complain_about() {
    let directory = tempdir().unwrap();
    analysed(&varied()).write(directory.path()).unwrap();
    let Some((page, console)) = open(&directory.path().join("scaling.html")) else { return };
    assert!(console.is_empty(), "{console:#?}");
    assert!(page.contains("<h2>Models and predictions</h2>") && page.contains("</footer>"));
}

#[test]
fn a_page_is_as_wide_as_its_window_down_to_a_phone() {
    let content = page::page(&analysed(&varied()));
    for width in [360, 1280] {
        let Some(fits) = fits(&content, width) else { return };
        assert!(fits, "{width} pixels");
    }
}
