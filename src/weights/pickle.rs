//! Reads the pickle of a state dictionary without running foreign code.
//!
//! A pickle is a program for a small stack machine, `machine`. It only runs what [`super::value::Function`] lists,
//! which creates dictionaries and tensors. Values are in one vector and refer to each other by index: nothing recurses
//! or is copied.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::machine::Machine;
use super::quoted;
use super::value::{Id, Value};
use super::view::Storage;

pub(super) struct Pickle<'a> {
    /// Every value that it created.
    pub values: Vec<Value<'a>>,
    pub root: Id,
    /// The attributes of dictionaries, which are dictionaries.
    attributes: BTreeMap<Id, Id>,
    /// Its length in bytes; a file may continue after it.
    pub length: usize,
}

impl<'a> Pickle<'a> {
    /// Runs the program at the start of `bytes`.
    ///
    /// # Errors
    /// A reason that completes "... is not a readable PyTorch file".
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut machine = Machine::new(bytes);
        let root = machine.run()?;
        let length = bytes.len() - machine.operands.rest.len();
        Ok(Self { values: machine.values, root, attributes: machine.attributes, length })
    }

    pub(crate) fn storages(&self) -> impl Iterator<Item = Storage<'a>> {
        self.values.iter().filter_map(|value| if let Value::Storage(storage) = value { Some(*storage) } else { None })
    }

    /// The value of the key `name` in a dictionary.
    pub(crate) fn entry(&self, dictionary: Id, name: &str) -> Option<Id> {
        let Value::Dict(items) = &self.values[dictionary] else { return None };
        let is_it = |(key, _): &&(Id, Id)| matches!(self.values[*key], Value::Text(text) if text == name);
        items.iter().rev().find(is_it).map(|(_, value)| *value)
    }

    /// Whether it is a dictionary of tensors, by its first value.
    pub(crate) fn holds_tensors(&self, id: Id) -> bool {
        let Value::Dict(items) = &self.values[id] else { return false };
        items.first().is_some_and(|(_, value)| matches!(self.values[*value], Value::Tensor(_)))
    }

    /// What a value is, if it is foreign, as in ` (an object of 'argparse.Namespace', which was not run)`.
    pub(crate) fn foreign(&self, id: Id) -> String {
        let Value::Foreign(module, name) = self.values[id] else { return String::new() };
        format!(" (an object of {}, which was not executed)", quoted(&format!("{module}.{name}")))
    }

    /// The attribute `name` of a dictionary.
    pub(crate) fn attribute(&self, dictionary: Id, name: &str) -> Option<Id> {
        self.entry(*self.attributes.get(&dictionary)?, name)
    }

    /// A text, a number, or a list of them; `None` for anything else, or if its texts are longer than the pickle.
    pub(crate) fn plain(&self, id: Id) -> Option<Json> {
        let mut budget = self.length;
        let mut scalar = |id: Id| match &self.values[id] {
            Value::Text(text) => {
                budget = budget.checked_sub(text.len())?;
                Some(Json::from(*text))
            }
            Value::Int(number) => Some(Json::from(*number)),
            Value::Float(number) => Some(Json::from(*number)),
            _ => None,
        };
        match &self.values[id] {
            Value::List(items) => items.iter().map(|item| scalar(*item)).collect(),
            _ => scalar(id),
        }
    }
}
