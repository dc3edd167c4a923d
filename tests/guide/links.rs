//! Links of the README and the guide lead to files that exist, where the file itself is read and in rustdoc.

use std::fs;

use super::*;

/// What stands in parentheses or behind a definition: `[text](target)`, `[label]: target`.
fn targets(text: &str) -> (Vec<&str>, Vec<(&str, &str)>) {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let inline = inline.chain(text.split("src=\"").skip(1).filter_map(|rest| rest.split('"').next())).collect();
    let defined = text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).collect();
    (inline, defined)
}

/// The labels of `[text][label]`.
fn labels(text: &str) -> Vec<&str> {
    text.split("][").skip(1).filter_map(|rest| rest.split(']').next()).collect()
}

/// The text outside of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).flat_map(|text| text.split('`').step_by(2)).collect()
}

#[test]
fn links_lead_to_files_that_exist() {
    let mut followed = 0;
    for page in pages() {
        let text = prose(&fs::read_to_string(&page).unwrap());
        let (inline, defined) = targets(&text);
        for target in inline.into_iter().chain(defined.iter().map(|(_, target)| *target)) {
            let is_file = page.parent().unwrap().join(target).is_file();
            assert!(target.starts_with("https://") || is_file, "'{target}' in {}", page.display());
            followed += 1;
        }
        for label in labels(&text) {
            assert!(defined.iter().any(|(name, _)| *name == label), "'{label}' in {}", page.display());
        }
    }
    assert!(followed >= 40, "only {followed}");
}

/// Rustdoc copies no files: there a page's own definitions come second to those of modules.
#[test]
fn links_between_pages_lead_to_modules_in_rustdoc() {
    let modules = fs::read_to_string(file("src/guide/links.txt")).unwrap();
    let (_, modules) = targets(&modules);
    for page in pages().iter().filter(|page| !page.ends_with("README.md")) {
        let name = page.file_stem().unwrap().to_str().unwrap();
        assert!(modules.contains(&(name, &*format!("crate::guide::{name}"))), "{name}");
        let text = prose(&fs::read_to_string(page).unwrap());
        let (inline, defined) = targets(&text);
        assert!(inline.iter().all(|target| target.starts_with("https://")), "{inline:?} in {name}");
        for (label, target) in defined {
            assert!(modules.iter().any(|(module, _)| *module == label), "{label} in {name}");
            assert_eq!(target, format!("{label}.md"));
        }
    }
}
