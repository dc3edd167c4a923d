//! The live page in a real browser, where there is one.

use super::{ENDLESS, Served};
use crate::browser::{fits, show};
use crate::command::{Workplace, signal, until};

#[test]
fn a_browser_follows_the_run_and_shows_the_buttons_to_whoever_has_the_token() {
    let place = Workplace::new();
    let served = Served::start(place.small("run", &ENDLESS));
    let address = format!("http://{}/", served.place());
    for (url, has_buttons) in [(served.url.clone(), true), (address, false)] {
        let Some(mut seen) = show(&url) else { return };
        // The browser says what there is when the page is loaded; the first event may come a little later.
        until("the page is live", || {
            let (page, console) = &seen;
            assert!(console.is_empty(), "{console:#?}");
            assert_eq!(page.contains("<button name=\"stop\""), has_buttons, "{url}");
            let is_live = page.contains("<span id=\"state\" role=\"status\">live, last change ");
            seen = show(&url).unwrap();
            is_live
        });
    }
    let page = served.page();
    let html = page.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(fits(html, 390), Some(true));
    signal(&served.child, "TERM");
    assert_eq!(served.end().0, Some(143));
}
