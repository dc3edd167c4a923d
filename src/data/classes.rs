//! Names of classes. Some letters have two forms in Unicode that look alike, as one character or as a letter and a
//! mark, and systems store names of files in either.

use std::collections::BTreeMap;

use kiln_system::{Error, Result};
use unicode_normalization::UnicodeNormalization;

pub(super) fn is_same(one: &str, other: &str) -> bool {
    one == other || one.nfc().eq(other.nfc())
}

/// Refuses `classes` of which two are read as the same and are not; `place` has them. Equal names are taken: lists for
/// ImageNet have some, as well as numbers as classes.
///
/// # Errors
/// [`Error::Data`] with both.
pub(super) fn check(classes: &[String], place: &str) -> Result<()> {
    let mut seen = BTreeMap::new();
    for class in classes {
        if let Some(other) = seen.insert(class.nfc().collect::<String>(), class).filter(|other| *other != class) {
            let forms = forms(other, class);
            return Err(Error::Data(format!(
                "'{place}' has two classes that are both read as '{class}', {forms}; make them one, with one name"
            )));
        }
    }
    Ok(())
}

/// Both forms of a name, with the codes of their letters beyond ASCII.
pub(super) fn forms(one: &str, other: &str) -> String {
    let codes = |name: &str| -> String {
        let code = |letter: char| {
            if letter.is_ascii() { letter.to_string() } else { format!("<U+{:04X}>", u32::from(letter)) }
        };
        name.chars().map(code).collect()
    };
    format!("in two forms of Unicode ({} and {})", codes(one), codes(other))
}
