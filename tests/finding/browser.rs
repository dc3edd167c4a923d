//! The pages in a real browser: nothing to complain about, and as wide as their window.

use kiln::study::finding::page;
use tempfile::tempdir;

use super::{about, analysed, tested};
use crate::browser::{fits, open};

#[test]
fn a_browser_has_nothing_to_complain_about() {
    let directory = tempdir().unwrap();
    tested().write(directory.path(), &about()).unwrap();
    analysed().write(directory.path(), &about()).unwrap();
    for (name, heading) in [("find-lr", "Curve"), ("find-batch-size", "Trials")] {
        let Some((page, console)) = open(&directory.path().join(format!("{name}.html"))) else { return };
        assert!(console.is_empty(), "{console:#?}");
        assert!(page.contains(&format!("<h2>{heading}</h2>")) && page.contains("</footer>"));
    }
}

#[test]
fn a_page_is_as_wide_as_its_window_down_to_a_phone() {
    for content in [page::learning_rate(&tested(), &about()), page::batch_size(&analysed(), &about())] {
        for width in [360, 1280] {
            let Some(fits) = fits(&content, width) else { return };
            assert!(fits, "{width} pixels");
        }
    }
}
