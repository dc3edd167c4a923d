//! Reads pickles without running foreign code: the state dictionaries of PyTorch, and CIFAR's "python version".
//!
//! A pickle is a program for a small stack machine, `machine`, which reads its operands by `operands`. It only calls
//! what `value` lists, which creates dictionaries and tensors. Values are in one vector and refer to each other by
//! index: nothing recurses or is copied.

mod machine;
mod operands;
mod value;
mod view;

pub use machine::Pickle;
pub use value::{Id, Value};
pub use view::{Storage, View};

use kiln_system::quoted;
use serde_json::Value as Json;

impl<'a> Pickle<'a> {
    pub fn storages(&self) -> impl Iterator<Item = Storage<'a>> {
        self.values.iter().filter_map(|value| if let Value::Storage(storage) = value { Some(*storage) } else { None })
    }

    /// The value of the key `name`, a text or its bytes, in a dictionary.
    pub fn entry(&self, dictionary: Id, name: &str) -> Option<Id> {
        let Value::Dict(items) = &self.values[dictionary] else { return None };
        let is_it = |(key, _): &&(Id, Id)| match self.values[*key] {
            Value::Text(text) => text == name,
            Value::Bytes(bytes) => bytes == name.as_bytes(),
            _ => false,
        };
        items.iter().rev().find(is_it).map(|(_, value)| *value)
    }

    /// Whether it is a dictionary of tensors, by its first value.
    pub fn holds_tensors(&self, id: Id) -> bool {
        let Value::Dict(items) = &self.values[id] else { return false };
        items.first().is_some_and(|(_, value)| matches!(self.values[*value], Value::Tensor(_)))
    }

    /// What a value is, if it is foreign, as in ` (an object of 'argparse.Namespace', which was not run)`.
    pub fn foreign(&self, id: Id) -> String {
        let Value::Foreign(module, name) = self.values[id] else { return String::new() };
        format!(" (an object of {}, which was not executed)", quoted(&format!("{module}.{name}")))
    }

    /// The attribute `name` of a dictionary.
    pub fn attribute(&self, dictionary: Id, name: &str) -> Option<Id> {
        self.entry(*self.states.get(&dictionary)?, name)
    }

    /// A text, a number, or a list of them; `None` for anything else, or if its texts are longer than the pickle.
    pub fn plain(&self, id: Id) -> Option<Json> {
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
