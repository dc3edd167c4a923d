//! Reads the pickle of a state dictionary without running foreign code.
//!
//! A pickle is a program for a small stack machine, `machine`. It may only use the names in [`super::value::global`],
//! which create dictionaries and tensors. Values are in one vector and refer to each other by index: nothing recurses
//! or is copied.

use super::machine::Machine;
use super::value::{Id, Value};
use super::view::Storage;

pub(super) struct Pickle<'a> {
    /// Every value that it created.
    pub values: Vec<Value<'a>>,
    /// Its result.
    pub root: Id,
    /// Its length in bytes; a file may continue after it.
    pub length: usize,
}

impl<'a> Pickle<'a> {
    /// Runs the program at the start of `bytes`.
    ///
    /// # Errors
    /// A reason that completes "... is not a readable PyTorch file".
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut machine = Machine::new(bytes);
        let root = machine.run()?;
        let length = bytes.len() - machine.operands.rest.len();
        Ok(Self { values: machine.values, root, length })
    }

    /// The result.
    pub fn result(&self) -> &Value<'a> {
        &self.values[self.root]
    }

    /// All storages.
    pub fn storages(&self) -> impl Iterator<Item = Storage<'a>> {
        self.values.iter().filter_map(|value| if let Value::Storage(storage) = value { Some(*storage) } else { None })
    }

    /// The value of the key `name` in a dictionary's items.
    pub fn entry(&self, items: &[(Id, Id)], name: &str) -> Option<&Value<'a>> {
        let is_it = |(key, _): &&(Id, Id)| matches!(self.values[*key], Value::Text(text) if text == name);
        items.iter().rev().find(is_it).map(|(_, value)| &self.values[*value])
    }
}
