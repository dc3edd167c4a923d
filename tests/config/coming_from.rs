//! What people who come from other trainers type: it works as it is, or its refusal names what does.

use std::collections::BTreeSet;

use kiln::config::alias;
use kiln::config::flag;
use kiln::config::schema;
use proptest::prelude::*;

use super::spellings::TABLE;
use super::{Cli, Request, complaint, complaints, config, resolve};

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn what_is_typed_elsewhere_is_what_is_typed_here() {
    for [from, theirs, ours] in &TABLE.same {
        assert_eq!(config(&words(theirs)), config(&words(ours)), "{from}: {theirs}");
    }
}

#[test]
fn options_that_mean_a_command_are_that_command() {
    let parse = |line: &str| format!("{:?}", Cli::try_parse_from([&["train"], &words(line)[..]].concat()).unwrap());
    for [from, theirs, ours] in &TABLE.commands {
        assert_eq!(parse(theirs), parse(ours), "{from}: {theirs}");
    }
}

#[test]
fn what_differs_is_refused_and_the_refusal_names_what_to_use() {
    for [from, theirs, ours] in &TABLE.refused {
        let line = complaint(&words(theirs));
        assert!(line.contains(ours) && line.contains("; "), "{from}: {theirs}: {line}");
    }
}

#[test]
fn every_spelling_of_others_is_new_and_means_a_key_that_exists() {
    let keys: BTreeSet<String> = schema::keys().collect();
    let longs: BTreeSet<&str> = flag::all().flat_map(|flag| flag.aliases.iter().chain([&flag.long])).copied().collect();
    let mut seen = BTreeSet::new();
    for (name, alias) in alias::all() {
        assert!(seen.insert(name), "{name} is listed twice");
        assert!(!keys.contains(name), "{name} is a key");
        let long = name.strip_prefix("--");
        assert!(long.is_none_or(|long| !longs.contains(long)), "{name} is a flag");
        for key in alias.keys() {
            assert!(keys.contains(key), "{name} sets {key}");
        }
    }
}

#[test]
fn what_is_spelled_in_kilns_way_wins() {
    for line in
        ["trainer.max_epochs=3 run.epochs=4", "run.epochs=4 trainer.max_epochs=3", "--epochs 4 trainer.max_epochs=3"]
    {
        assert_eq!(config(&words(line)).run.epochs, 4, "{line}");
    }
    assert_eq!(config(&words("trainer.max_epochs=3 trainer.max_epochs=4")).run.epochs, 4, "the later one");
    assert_eq!(config(&words("--precision f32 --amp")), config(&[]));
    assert_eq!(config(&words("--amp --precision bf16")), config(&words("--precision bf16")));
    assert_eq!(config(&words("--amp-dtype bfloat16 --amp")), config(&words("--amp --amp-dtype bfloat16")));
}

#[test]
fn a_group_of_the_users_own_may_be_called_as_a_word_of_others() {
    let dir = tempfile::tempdir().unwrap();
    super::write(dir.path(), "logger/mine.toml", "[run]\nseed = 7\n");
    let dir = dir.path().to_str().unwrap();
    assert_eq!(config(&["--config-dir", dir, "logger=mine"]).run.seed, 7);
}

#[test]
fn every_complaint_about_foreign_words_comes_at_once_with_all_others() {
    let lines = complaints(&words("trainer.devices=x --workers x --batch-size 0 trainer.max_epochs=x run.sede=1"));
    assert_eq!(lines.len(), 5, "{lines:#?}");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("epochs must be a whole number") && line.contains("'trainer.max_epochs=x'"))
    );
}

proptest! {
    #[test]
    fn no_value_whatever_makes_a_foreign_word_panic(value in ".*", other in "[0-9:,.\\[\\]-]{0,20}", which in 0_usize..500) {
        let words: Vec<_> = alias::all().filter(|(name, _)| !name.starts_with('-')).collect();
        let word = words[which % words.len()].0;
        for value in [value, other] {
            drop(resolve(&Request { arguments: vec![format!("{word}={value}")], ..Request::default() }));
        }
    }
}
