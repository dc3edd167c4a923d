//! The stack machine that runs a pickle, limited to the opcodes that `torch.load(weights_only=True)` reads (protocol
//! 2), and to those with which later protocols write texts and arrays.
//!
//! Every opcode takes a bounded number of operations or consumes the stack, so that work and memory are linear in the
//! number of steps, which is limited. Opcodes have the names of Python's `pickletools`; `operands` reads their
//! operands, `value` defines the functions.

use std::collections::BTreeMap;

use super::operands::Operands;
use super::value::{Function, Id, Value, global};
use super::view::{Storage, View};

/// Most steps, many times what a state dictionary with its optimizer needs, and twice what CIFAR's 50,000 images need,
/// which have two labels and a name each. A step is at least one byte of the file and may take a hundred bytes of
/// memory.
const MOST_STEPS: usize = 1 << 19;

const MOST_AXES: usize = 8;

/// A pickle after its run.
#[derive(Debug)]
pub struct Pickle<'a> {
    /// Every value that it created.
    pub values: Vec<Value<'a>>,
    /// The one that it stands for.
    pub root: Id,
    /// The states that it gave to dictionaries, whose attributes they are, and to foreign objects.
    pub states: BTreeMap<Id, Id>,
    /// Its length in bytes; a file may continue after it.
    pub length: usize,
    /// The latest protocol that is read.
    latest: u8,
    operands: Operands<'a>,
    stack: Vec<Id>,
    /// Stack heights at the marks; never above the current height.
    marks: Vec<usize>,
    memo: BTreeMap<u32, Id>,
}

impl<'a> Pickle<'a> {
    /// Runs the program at the start of `bytes`, of protocol 2 to `latest`.
    ///
    /// # Errors
    /// A reason why it cannot be read, as a clause.
    pub fn read(bytes: &'a [u8], latest: u8) -> Result<Self, String> {
        let (values, states, memo) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let (operands, stack, marks) = (Operands { rest: bytes }, Vec::new(), Vec::new());
        let mut pickle = Self { values, root: 0, states, length: 0, latest, operands, stack, marks, memo };
        for _ in 0..MOST_STEPS {
            match pickle.operands.byte()? {
                b'.' => {
                    pickle.root = pickle.pop()?;
                    pickle.length = bytes.len() - pickle.operands.rest.len();
                    // Files of the old format have several pickles.
                    (pickle.stack, pickle.marks, pickle.memo) = Default::default();
                    return Ok(pickle);
                }
                opcode => pickle.step(opcode)?,
            }
        }
        Err(format!("its pickle takes more than {MOST_STEPS} steps, which no such file needs"))
    }

    fn step(&mut self, opcode: u8) -> Result<(), String> {
        let value = match opcode {
            // Of later protocols.
            b'B' | b'C' | 0x8c..=0x8e | 0x93..=0x96 if self.latest == 2 => return Err(unread(opcode)),
            0x80 => match self.operands.byte()? {
                version if (2..=self.latest).contains(&version) => return Ok(()),
                version => {
                    return Err(format!("its pickle has the protocol {version}; torch.save writes 2 by default"));
                }
            },
            // A frame says only how many bytes follow.
            0x95 => return self.operands.array::<8>().map(drop),
            b'(' => {
                self.marks.push(self.stack.len());
                return Ok(());
            }
            b'q' | b'r' | 0x94 => {
                let next = self.memo.len() as u32;
                let index = if opcode == 0x94 { next } else { self.operands.index(opcode == b'q')? };
                self.memo.insert(index, self.top()?);
                return Ok(());
            }
            b'h' | b'j' => {
                let index = self.operands.index(opcode == b'h')?;
                let id = *self.memo.get(&index).ok_or("its pickle reads a memo entry that it never wrote")?;
                self.stack.push(id);
                return Ok(());
            }
            b'a' | b'e' => return self.extend_list(opcode == b'a'),
            b's' | b'u' => return self.extend_dict(opcode == b's'),
            b'b' => return self.build(),
            b'R' | 0x81 => return self.call(),
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'K' => Value::Int(self.operands.byte()?.into()),
            b'M' => Value::Int(u16::from_le_bytes(self.operands.array()?).into()),
            b'J' => Value::Int(i32::from_le_bytes(self.operands.array()?).into()),
            0x8a => self.operands.long()?.map_or(Value::Other, Value::Int),
            b'G' => Value::Float(f64::from_be_bytes(self.operands.array()?)),
            b'X' => self.operands.text::<4>()?.map_or(Value::Other, Value::Text),
            0x8d => self.operands.text::<8>()?.map_or(Value::Other, Value::Text),
            // `U` as Python 2 wrote it.
            b'U' | 0x8c => self.operands.text::<1>()?.map_or(Value::Other, Value::Text),
            b'C' => Value::Bytes(self.operands.bytes::<1>()?),
            b'T' | b'B' => Value::Bytes(self.operands.bytes::<4>()?),
            0x8e | 0x96 => Value::Bytes(self.operands.bytes::<8>()?),
            b')' => Value::Tuple(Vec::new()),
            b't' => Value::Tuple(self.pop_mark()?),
            0x85..=0x87 => Value::Tuple(self.pop_many(usize::from(opcode - 0x84))?),
            b']' => Value::List(Vec::new()),
            b'}' => Value::Dict(Vec::new()),
            // An empty set.
            0x8f => Value::Other,
            b'c' => global(self.operands.line()?, self.operands.line()?)?,
            0x93 => {
                let [&Value::Text(name), &Value::Text(module)] = [self.pop()?, self.pop()?].map(|id| &self.values[id])
                else {
                    return Err("its pickle has a name that is not text".into());
                };
                global(module, name)?
            }
            b'Q' => self.storage()?,
            _ => return Err(unread(opcode)),
        };
        self.push(value);
        Ok(())
    }

    fn extend_list(&mut self, single: bool) -> Result<(), String> {
        let mut items = if single { self.pop_many(1)? } else { self.pop_mark()? };
        let target = self.top()?;
        match &mut self.values[target] {
            Value::List(list) => list.append(&mut items),
            Value::Foreign(..) => {}
            _ => return Err("its pickle extends something that is not a list".into()),
        }
        Ok(())
    }

    fn extend_dict(&mut self, single: bool) -> Result<(), String> {
        let items = if single { self.pop_many(2)? } else { self.pop_mark()? };
        let target = self.top()?;
        let (pairs, rest) = items.as_chunks::<2>();
        match &mut self.values[target] {
            Value::Dict(dict) if rest.is_empty() => dict.extend(pairs.iter().map(|[key, value]| (*key, *value))),
            Value::Foreign(..) if rest.is_empty() => {}
            _ => return Err("its pickle sets entries of something that is not a dictionary".into()),
        }
        Ok(())
    }

    /// Sets the state of an object; that of tensors is not kept.
    fn build(&mut self) -> Result<(), String> {
        let state = self.pop()?;
        let target = self.top()?;
        match self.values[target] {
            Value::Dict(_) | Value::Foreign(..) => drop(self.states.insert(target, state)),
            Value::Tensor(_) => {}
            _ => return Err("its pickle sets attributes of something that has none".into()),
        }
        Ok(())
    }

    /// Calls a function, or makes an object of a class. What is foreign is not called.
    fn call(&mut self) -> Result<(), String> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let value = match (&self.values[function], &self.values[arguments]) {
            (Value::Foreign(module, name), Value::Tuple(_)) => Value::Foreign(module, name),
            (Value::Function(Function::OrderedDict), Value::Tuple(arguments)) => match arguments[..] {
                [] => Value::Dict(Vec::new()),
                // As Python 2 wrote it.
                [pairs] => Value::Dict(self.pairs(pairs).ok_or_else(wrong_arguments)?),
                _ => return Err(wrong_arguments()),
            },
            (Value::Function(function), Value::Tuple(arguments)) => self.rebuilt(*function, arguments)?,
            _ => return Err("its pickle calls something that is not a function".into()),
        };
        self.push(value);
        Ok(())
    }

    /// The pairs in a list, which is taken, so that no list is copied many times.
    fn pairs(&mut self, id: Id) -> Option<Vec<(Id, Id)>> {
        let Value::List(items) = &mut self.values[id] else { return None };
        let items = std::mem::take(items);
        let pair = |id: Id| match &self.values[id] {
            Value::List(pair) | Value::Tuple(pair) => <[Id; 2]>::try_from(&pair[..]).ok(),
            _ => None,
        };
        items.into_iter().map(|id| pair(id).map(|[key, value]| (key, value))).collect()
    }

    /// A tensor; a parameter counts as its tensor.
    fn rebuilt(&self, function: Function, arguments: &[Id]) -> Result<Value<'a>, String> {
        match (function, arguments) {
            (Function::RebuildTyped, [function, _, arguments, ..]) => {
                match (&self.values[*function], &self.values[*arguments]) {
                    (Value::Foreign(module, name), _) => Ok(Value::Foreign(module, name)),
                    (Value::Function(function), Value::Tuple(arguments)) if *function != Function::RebuildTyped => {
                        self.rebuilt(*function, arguments)
                    }
                    _ => Err(wrong_arguments()),
                }
            }
            (Function::RebuildParameter, [tensor, ..]) => match &self.values[*tensor] {
                Value::Tensor(view) => Ok(Value::Tensor(view.clone())),
                Value::Foreign(module, name) => Ok(Value::Foreign(module, name)),
                _ => Err(wrong_arguments()),
            },
            (Function::RebuildTensor, [storage, offset, shape, stride, ..]) => {
                if let Value::Foreign(module, name) = self.values[*storage] {
                    return Ok(Value::Foreign(module, name));
                }
                let view = self.view([*storage, *offset, *shape, *stride]).ok_or("one of its tensors is malformed")?;
                Ok(Value::Tensor(Box::new(view)))
            }
            (Function::Encode, [text, ..]) => {
                Ok(if let Value::Text(text) = self.values[*text] { Value::Text(text) } else { Value::Other })
            }
            _ => Err(wrong_arguments()),
        }
    }

    fn view(&self, [storage, offset, shape, stride]: [Id; 4]) -> Option<View<'a>> {
        let Value::Storage(storage) = self.values[storage] else { return None };
        let (shape, stride) = (self.axes(shape)?, self.axes(stride)?);
        (shape.len() == stride.len()).then_some(View { storage, offset: self.count(offset)?, shape, stride })
    }

    fn axes(&self, id: Id) -> Option<Vec<usize>> {
        let Value::Tuple(axes) = &self.values[id] else { return None };
        if axes.len() > MOST_AXES { None } else { axes.iter().map(|axis| self.count(*axis)).collect() }
    }

    fn count(&self, id: Id) -> Option<usize> {
        if let Value::Int(number) = self.values[id] { usize::try_from(number).ok() } else { None }
    }

    /// The persistent id of a storage: `("storage", class, key, device, elements)`; in the old format followed by
    /// `None`, since views of other storages are not supported. Or the id of a class:
    /// `("module", class, file, source)`.
    fn storage(&mut self) -> Result<Value<'a>, String> {
        let id = self.pop()?;
        let parts = if let Value::Tuple(parts) = &self.values[id] { parts.as_slice() } else { &[] };
        // One more than a storage has, so that a long tuple costs no more.
        let parts: Vec<&Value> = parts.iter().take(7).map(|part| &self.values[*part]).collect();
        match parts[..] {
            [Value::Text("storage"), Value::Type(dtype), Value::Text(key), _, Value::Int(elements)]
            | [Value::Text("storage"), Value::Type(dtype), Value::Text(key), _, Value::Int(elements), Value::None] => {
                let elements = usize::try_from(*elements).map_err(|_| "one of its storages has a negative length")?;
                Ok(Value::Storage(Storage { key, dtype: *dtype, elements }))
            }
            [Value::Text("storage" | "module"), Value::Foreign(module, name), ..] => Ok(Value::Foreign(module, name)),
            _ => Err("its pickle refers to something that is not a storage of numbers".into()),
        }
    }

    fn push(&mut self, value: Value<'a>) {
        self.stack.push(self.values.len());
        self.values.push(value);
    }

    /// Number of values above the last mark.
    fn available(&self) -> usize {
        self.stack.len() - self.marks.last().unwrap_or(&0)
    }

    fn top(&self) -> Result<Id, String> {
        self.stack.last().filter(|_| self.available() > 0).copied().ok_or_else(exhausted)
    }

    fn pop(&mut self) -> Result<Id, String> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Id>, String> {
        if self.available() < count { Err(exhausted()) } else { Ok(self.stack.split_off(self.stack.len() - count)) }
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or_else(exhausted)?;
        Ok(self.stack.split_off(mark))
    }
}

fn unread(opcode: u8) -> String {
    format!("its pickle has the opcode 0x{opcode:02x}, which Kiln does not read")
}

fn exhausted() -> String {
    "its pickle pops from an empty stack".into()
}

fn wrong_arguments() -> String {
    "its pickle calls a function with the wrong arguments".into()
}
