//! The pickle of a state dictionary, read without running anything.
//!
//! A pickle is a program for a small stack machine. The only names a program may use are those in [`super::value::global`]: they make
//! dictionaries and tensors. Any other name refuses the file. Values lie in one vector and refer to each other by index:
//! nothing recurses, and nothing is copied. The machine itself is `machine`; what the values are for is seen in `pth`.

use super::machine::Machine;
use super::value::{Id, Value};
use super::view::Storage;

/// What a finished program leaves.
pub(super) struct Pickle<'a> {
    /// Every value it made.
    pub values: Vec<Value<'a>>,
    /// Its result.
    pub root: Id,
    /// How many bytes it took; a file may go on behind it.
    pub length: usize,
}

impl<'a> Pickle<'a> {
    /// Runs the program that `bytes` start with.
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

    /// Every storage that a tensor may be in.
    pub fn storages(&self) -> impl Iterator<Item = Storage<'a>> {
        self.values.iter().filter_map(|value| if let Value::Storage(storage) = value { Some(*storage) } else { None })
    }

    /// The entry of a dictionary's items under the text `name`.
    pub fn entry(&self, items: &[(Id, Id)], name: &str) -> Option<&Value<'a>> {
        let is_it = |(key, _): &&(Id, Id)| matches!(self.values[*key], Value::Text(text) if text == name);
        items.iter().rev().find(is_it).map(|(_, value)| &self.values[*value])
    }
}
