//! Groups of predefined settings: `optim=adamw` selects the layer `config/optim/adamw.toml`.
//!
//! The built-in files are compiled into the binary. `--config-dir DIR` adds `DIR/GROUP/NAME.toml`, which replaces a
//! built-in file of the same name. [`super::layer`] reads the files.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kiln_system::file::{self, TEXT};
use kiln_system::shown;

use super::schema::{self, enumerate};
use super::suggestion;

/// Lists files of the repository's `config` directory as (group, name, text).
macro_rules! built_in {
    ($($group:literal: $($name:literal),*;)*) => {
        &[$($(($group, $name, include_str!(concat!("../../config/", $group, "/", $name, ".toml"))),)*)*]
    };
}

const BUILT_IN: &[(&str, &str, &str)] = built_in![
    "data": "cifar10", "cifar100", "folder", "pack", "parquet", "synthetic", "webdataset";
    "experiment": "cifar10", "cifar10-fast", "imagenet", "imagenet-a3", "imagenet-short", "quickstart", "transfer";
    "optim": "adamw", "lars", "sgd";
    "trainer": "cpu", "ddp", "ddp_sim", "dp", "gpu", "single";
];

pub(crate) fn groups(config_dirs: &[PathBuf]) -> Vec<String> {
    let built_in = BUILT_IN.iter().map(|(group, ..)| group.to_string());
    let added = config_dirs.iter().flat_map(|dir| listed(dir, |path| path.is_dir()));
    built_in.chain(added).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The file of `group=name`, its name for messages and its text; the last directory that has it wins.
///
/// # Errors
/// One line, if there is no such file or it cannot be read.
pub(crate) fn find(group: &str, name: &str, config_dirs: &[PathBuf]) -> Result<(String, String), String> {
    let added = config_dirs.iter().rev().map(|dir| dir.join(group).join(format!("{name}.toml")));
    if let Some(path) = added.into_iter().find(|path| path.is_file()) {
        return read(&path);
    }
    match BUILT_IN.iter().find(|(known, file, _)| (*known, *file) == (group, name)) {
        Some((.., text)) => Ok((format!("config/{group}/{name}.toml"), text.to_string())),
        None => Err(missing(group, name, &names(group, config_dirs))),
    }
}

fn missing(group: &str, name: &str, names: &[String]) -> String {
    let known = enumerate(names, "and");
    let is_choice =
        |key: &String| key.starts_with(&format!("{group}.")) && schema::choices(key).iter().any(|it| it == name);
    let hint = match (schema::keys().find(is_choice), suggestion::nearest(name, names.iter().cloned())) {
        (Some(key), _) => format!("available: {known}; the setting alone is {key}={name}"),
        (None, Some(meant)) => format!("did you mean '{group}={meant}'?"),
        (None, None) => format!("available: {known}; --config-dir DIR adds DIR/{group}/NAME.toml"),
    };
    format!("no '{name}' in the group '{group}' (argument '{group}={name}'); {hint}")
}

/// The name of a file for messages, and its text.
///
/// # Errors
/// One line, if it cannot be read.
pub(crate) fn read(path: &Path) -> Result<(String, String), String> {
    let name = shown(path);
    let text = file::text(path, TEXT).map_err(|error| {
        let reason = match error.kind() {
            ErrorKind::NotFound => "there is no such file".into(),
            ErrorKind::InvalidData => "it is not UTF-8 text".into(),
            _ => error.to_string(),
        };
        format!("cannot read the configuration '{name}': {reason}; give --config the path of a TOML file")
    })?;
    Ok((name, text))
}

/// The names in `group`, sorted.
fn names(group: &str, config_dirs: &[PathBuf]) -> Vec<String> {
    let built_in = BUILT_IN.iter().filter(|(known, ..)| *known == group).map(|(_, name, _)| name.to_string());
    let added = config_dirs.iter().flat_map(|dir| listed(&dir.join(group), |path| path.is_file()));
    let added = added.filter_map(|file| file.strip_suffix(".toml").map(String::from));
    built_in.chain(added).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The names in a directory that satisfy `wanted`; none if it cannot be listed.
fn listed(dir: &Path, wanted: impl Fn(&Path) -> bool) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| wanted(&entry.path())).filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
