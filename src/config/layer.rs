//! One layer of settings, with the place of each value.
//!
//! A layer is a TOML text or a list of single settings (flags, `KEY=VALUE`, the environment). Reading it checks each
//! entry by itself: unknown keys, wrong types, unknown choices. Valid entries form a source of the `config` crate,
//! which keeps their places. Combinations of values are checked by [`super::rules`].

use ::config::{ConfigError, Map, Source, Value as Placed, ValueKind};
use serde::Deserialize;
use toml::Value;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::request::Setting;
use super::schema::{self, plain};
use super::{flag, suggestion};

/// What begins a reference to another setting, as in `${run.seed}`.
pub(super) const REFERENCE: &str = "${";

/// Most unknown keys that are named: the search for similar ones takes time.
const MOST_UNKNOWN: usize = 20;

#[derive(Debug, Clone, Default)]
pub(crate) struct Layer {
    entries: Vec<Entry>,
    /// Settings with values that refer to others.
    pub(super) waiting: Vec<Setting>,
}

/// A key, its value and where the user wrote it.
#[derive(Debug, Clone)]
struct Entry {
    key: String,
    value: Value,
    place: String,
}

/// The errors found in the layers.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    pub lines: Vec<String>,
    /// Keys with a refused value: rules about them are not checked.
    pub refused: Vec<String>,
    pub(super) unknown: usize,
}

impl Complaints {
    /// Adds a complaint about an unknown key.
    pub(super) fn unknown(&mut self, line: impl FnOnce() -> String) {
        self.unknown += 1;
        match self.unknown {
            ..=MOST_UNKNOWN => self.lines.push(line()),
            at if at == MOST_UNKNOWN + 1 => {
                self.lines.push("more unknown keys are not listed here; 'train config' prints every key".into());
            }
            _ => {}
        }
    }
}

impl Layer {
    /// Reads the TOML text of a file called `file`.
    pub(crate) fn from_toml(text: &str, file: &str, complaints: &mut Complaints) -> Self {
        let line_of = |offset: usize| text.get(..offset).unwrap_or(text).matches('\n').count() + 1;
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let line = line_of(error.span().map_or(0, |span| span.start));
            let message = error.message().replace('\n', ", ");
            complaints.lines.push(format!("{file}:{line} is not TOML: {message}; 'config/default.toml' is an example"));
        }
        let mut layer = Self::default();
        let mut leaves = Vec::new();
        if errors.is_empty() {
            flatten("", table.get_ref(), &mut leaves);
        }
        leaves.sort_by_key(|(_, _, offset)| *offset);
        let (mut line, mut read) = (1, 0);
        for (key, value, offset) in leaves {
            // A value that the `toml` crate cannot represent, such as a number of 30 digits, is refused as text.
            let written = text.get(value.span()).unwrap_or_default();
            let value = Value::deserialize(ValueDeserializer::from(value.clone()))
                .unwrap_or_else(|_| Value::String(written.into()));
            line += text.get(read..offset).unwrap_or_default().matches('\n').count();
            read = offset;
            let place = format!("{key} in {file}:{line}");
            layer.add(key, value, written, place, complaints);
        }
        layer
    }

    /// Reads `text` as the value of `key` and adds it if it is valid.
    pub(crate) fn add_text(&mut self, key: &str, text: &str, place: String, complaints: &mut Complaints) {
        self.add(key.into(), schema::parse(key, text), text, place, complaints);
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &Value, &str)> {
        self.entries.iter().map(|entry| (&entry.key[..], &entry.value, &entry.place[..]))
    }

    /// Adds a value that is known to be valid.
    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>, place: &str) {
        self.entries.push(Entry { key: key.into(), value: value.into(), place: place.into() });
    }

    /// Adds the entries of `other` with keys that this layer lacks, as settings that are not in `file`.
    pub(super) fn fill(&mut self, other: Self, file: &str) {
        for Entry { key, value, .. } in other.entries {
            if self.find(&key).is_none() && !self.is_waiting(&key) {
                let place = format!("{key}, which is not in {file}");
                self.entries.push(Entry { key, value, place });
            }
        }
    }

    /// Keeps the entries that satisfy `holds`.
    pub(crate) fn retain(&mut self, holds: impl Fn(&str, &Value) -> bool) {
        self.entries.retain(|entry| holds(&entry.key, &entry.value));
    }

    /// The last value of `key` in this layer, and its place.
    pub(crate) fn find(&self, key: &str) -> Option<(&Value, &str)> {
        let entry = self.entries.iter().rev().find(|entry| entry.key == key)?;
        Some((&entry.value, &entry.place))
    }

    pub(super) fn is_waiting(&self, key: &str) -> bool {
        self.waiting.iter().any(|setting| setting.key == key)
    }

    /// Adds the value that was `written` if it is valid.
    fn add(&mut self, key: String, value: Value, written: &str, place: String, complaints: &mut Complaints) {
        if let Value::String(text) = &value
            && text.contains(REFERENCE)
            && schema::default(&key).is_some()
        {
            return self.waiting.push(Setting { key, value: text.clone(), place });
        }
        if schema::default(&key).is_none() {
            complaints.unknown(|| {
                let hint = suggestion::for_key(&key);
                format!("unknown key '{key}' ({}); {hint}", place_of(&key, &place))
            });
        } else if let Some(rule) = schema::rule(&key, &value) {
            let hint = suggestion::for_value(&key, &value);
            // Quotes are shown if they are the fault.
            let is_valid_bare = || schema::rule(&key, &schema::parse(&key, &plain(&value))).is_none();
            let shown = if value.is_str() && !is_valid_bare() { plain(&value) } else { written.into() };
            let noun = flag::noun(&key);
            complaints.lines.push(format!("{noun} must be {rule}, got '{shown}' ({place}); {hint}"));
            complaints.refused.push(key);
        } else {
            self.entries.push(Entry { key, value, place });
        }
    }
}

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Placed>, ConfigError> {
        let placed = |entry: &Entry| (entry.key.clone(), Placed::new(Some(&entry.place), kind(&entry.value)));
        Ok(self.entries.iter().map(placed).collect())
    }
}

/// A value of a TOML text with its full key, and the offset of the key.
type Leaf<'a, 'text> = (String, &'a toml::Spanned<DeValue<'text>>, usize);

/// Collects the values of `table` recursively; a table is a value only if the schema has a key for it.
fn flatten<'a, 'text>(prefix: &str, table: &'a DeTable<'text>, leaves: &mut Vec<Leaf<'a, 'text>>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
        match value.get_ref() {
            DeValue::Table(inner) if schema::default(&key).is_none() && !inner.is_empty() => {
                flatten(&key, inner, leaves);
            }
            DeValue::Table(inner) if inner.is_empty() && schema::is_section(&key) => {}
            _ => leaves.push((key, value, name.span().start)),
        }
    }
}

/// The place without the key, which the message has already named.
fn place_of<'a>(key: &str, place: &'a str) -> &'a str {
    place.strip_prefix(key).map_or(place, |rest| rest.trim_start_matches(" in "))
}

fn kind(value: &Value) -> ValueKind {
    match value {
        Value::Boolean(value) => (*value).into(),
        Value::Integer(value) => (*value).into(),
        Value::Float(value) => (*value).into(),
        Value::Array(items) => ValueKind::Array(items.iter().map(|item| Placed::new(None, kind(item))).collect()),
        Value::String(_) | Value::Datetime(_) | Value::Table(_) => plain(value).into(),
    }
}
