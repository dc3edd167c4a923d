//! Files of options, as timm's `-c FILE.yaml`: their keys are names of options, which the command line overrides. Those
//! in sections, as Lightning writes them, are settings.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use ::config::{File, FileFormat, Map, Source, Value, ValueKind};
use kiln_system::file::{self, TEXT};
use kiln_system::{Error, Result, shown};

/// `arguments`, which begin with the program, with the options of the files instead of `--config FILE.yaml`.
///
/// # Errors
/// If a file cannot be read or is not a list of options.
pub(super) fn expanded(arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let (mut options, mut others) = (Vec::new(), Vec::new());
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let joined = argument.to_str().and_then(|word| word.strip_prefix("--config=")).map(OsString::from);
        let path = if argument == "--config" { arguments.peek().cloned() } else { joined };
        match path.filter(|path| is_yaml(Path::new(path))) {
            Some(path) => {
                options.extend(options_in(Path::new(&path))?);
                arguments.next_if(|_| argument == "--config");
            }
            None if argument == "--" => {
                // What follows is read by itself.
                others.extend(std::iter::once(argument).chain(arguments.by_ref()));
            }
            None => others.push(argument),
        }
    }
    // Before all others, which win, but behind a command.
    let is_option = |word: &OsString| word.to_string_lossy().starts_with('-');
    let at = others.iter().position(is_option).unwrap_or(others.len());
    others.splice(at..at, options);
    Ok(others)
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| suffix == "yaml" || suffix == "yml")
}

fn options_in(path: &Path) -> Result<Vec<OsString>> {
    let name = shown(path);
    let text = file::text(path, TEXT).map_err(Error::io("read", path))?;
    let refused =
        |why: String| Error::usage(format!("'{name}' {why}; its lines must be 'option: value', or sections of those"));
    // An alias of an alias of an alias takes more memory than there is.
    if text.lines().any(|line| line.split([':', '-', ' ', '[', ',']).any(|word| word.starts_with('&'))) {
        return Err(refused("has an anchor (&)".into()));
    }
    let source = File::from_str(&text, FileFormat::Yaml);
    let values = source.collect().map_err(|error| refused(format!("is not YAML: {error}")))?;
    let mut options = Vec::new();
    collect("", values, &mut options).map_err(refused)?;
    Ok(options)
}

/// Adds the options in `values`, which are settings below a `section`; the error is what the file has.
fn collect(section: &str, values: Map<String, Value>, options: &mut Vec<OsString>) -> std::result::Result<(), String> {
    // In one order, for one list of complaints.
    for (key, Value { kind, .. }) in BTreeMap::from_iter(values) {
        let key = if section.is_empty() { key } else { format!("{section}.{key}") };
        let value = match kind {
            ValueKind::Table(inner) => {
                collect(&key, inner, options)?;
                continue;
            }
            ValueKind::Boolean(on) if !section.is_empty() => Some(on.to_string()),
            kind => words(kind).ok_or_else(|| format!("has sections in a list ('{key}')"))?,
        };
        let Some(value) = value else { continue };
        let option = match (section, &key[..]) {
            // timm's argument without a name.
            ("", "data") => value,
            ("", _) if value.is_empty() => format!("--{key}"),
            ("", _) => format!("--{key}={value}"),
            _ => format!("{key}={value}"),
        };
        options.push(option.into());
    }
    Ok(())
}

/// The value as it is typed, empty for a switch; nothing for what is not set, `None` for a section.
fn words(value: ValueKind) -> Option<Option<String>> {
    Some(match value {
        ValueKind::Nil | ValueKind::Boolean(false) => None,
        ValueKind::Boolean(true) => Some(String::new()),
        ValueKind::Table(values) if values.is_empty() => None,
        ValueKind::Table(_) => return None,
        ValueKind::Array(items) => {
            let items: Vec<_> = items.into_iter().map(|item| words(item.kind)).collect::<Option<_>>()?;
            Some(items.into_iter().flatten().collect::<Vec<_>>().join(" ")).filter(|items| !items.is_empty())
        }
        value => Some(value.to_string()).filter(|text| !text.is_empty()),
    })
}
