//! The stack machine that runs a pickle, limited to the opcodes that `torch.save` (protocol 2) writes.
//!
//! Every opcode takes a bounded number of operations or consumes the stack, so that work and memory are linear in the
//! number of steps, which is limited. Opcodes are those of Python's `pickletools`; `operands` reads their operands,
//! `value` defines the functions.

use std::collections::BTreeMap;

use super::operands::Operands;
use super::value::{Function, Id, Value, global};
use super::view::{Storage, View};

/// Most steps, many times those of a state dictionary with its optimizer. A step is at least one byte of the file and
/// may take a hundred bytes of memory.
const MOST_STEPS: usize = 1 << 19;

const MOST_AXES: usize = 8;

pub(super) struct Machine<'a> {
    pub operands: Operands<'a>,
    /// Every value that the program created.
    pub values: Vec<Value<'a>>,
    stack: Vec<Id>,
    /// Stack heights at the marks; never above the current height.
    marks: Vec<usize>,
    memo: BTreeMap<u32, Id>,
    /// The attributes of dictionaries.
    pub attributes: BTreeMap<Id, Id>,
}

impl<'a> Machine<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        let operands = Operands { rest: bytes };
        let (values, memo, attributes) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { operands, values, stack: Vec::new(), marks: Vec::new(), memo, attributes }
    }

    /// Runs the program and returns the value on top of the stack.
    pub fn run(&mut self) -> Result<Id, String> {
        for _ in 0..MOST_STEPS {
            match self.operands.byte()? {
                b'.' => return self.pop(),
                opcode => self.step(opcode)?,
            }
        }
        Err(format!("its pickle takes more than {MOST_STEPS} steps, which no state_dict needs"))
    }

    fn step(&mut self, opcode: u8) -> Result<(), String> {
        let value = match opcode {
            0x80 => return self.protocol(),
            b'(' => {
                self.marks.push(self.stack.len());
                return Ok(());
            }
            b'q' | b'r' => {
                let (index, top) = (self.operands.index(opcode == b'q')?, self.top()?);
                self.memo.insert(index, top);
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
            b'R' => return self.call(),
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'K' => Value::Int(self.operands.byte()?.into()),
            b'M' => Value::Int(u16::from_le_bytes(self.operands.array()?).into()),
            b'J' => Value::Int(i32::from_le_bytes(self.operands.array()?).into()),
            0x8a => self.operands.long()?.map_or(Value::Other, Value::Int),
            b'G' => Value::Float(f64::from_be_bytes(self.operands.array()?)),
            b'X' => Value::Text(self.operands.text()?),
            b')' => Value::Tuple(Vec::new()),
            b't' => Value::Tuple(self.pop_mark()?),
            0x85..=0x87 => Value::Tuple(self.pop_many(usize::from(opcode - 0x84))?),
            b']' => Value::List(Vec::new()),
            b'}' => Value::Dict(Vec::new()),
            b'c' => global(self.operands.line()?, self.operands.line()?)?,
            b'Q' => self.storage()?,
            _ => return Err(format!("its pickle has the opcode 0x{opcode:02x}, which torch.save does not write")),
        };
        self.push(value);
        Ok(())
    }

    fn protocol(&mut self) -> Result<(), String> {
        match self.operands.byte()? {
            2 => Ok(()),
            version => Err(format!("its pickle has the protocol {version}; torch.save writes 2 unless told otherwise")),
        }
    }

    fn extend_list(&mut self, single: bool) -> Result<(), String> {
        let mut items = if single { self.pop_many(1)? } else { self.pop_mark()? };
        let target = self.top()?;
        let Value::List(list) = &mut self.values[target] else {
            return Err("its pickle extends something that is not a list".into());
        };
        list.append(&mut items);
        Ok(())
    }

    fn extend_dict(&mut self, single: bool) -> Result<(), String> {
        let items = if single { self.pop_many(2)? } else { self.pop_mark()? };
        let target = self.top()?;
        let (pairs, rest) = items.as_chunks::<2>();
        match &mut self.values[target] {
            Value::Dict(dict) if rest.is_empty() => dict.extend(pairs.iter().map(|[key, value]| (*key, *value))),
            _ => return Err("its pickle sets entries of something that is not a dictionary".into()),
        }
        Ok(())
    }

    /// Sets attributes of an object, which must be a dictionary.
    fn build(&mut self) -> Result<(), String> {
        let state = self.pop()?;
        let target = self.top()?;
        self.attributes.insert(target, state);
        let is_dict = matches!(self.values[target], Value::Dict(_));
        is_dict.then_some(()).ok_or_else(|| "its pickle sets attributes of something that is not a dictionary".into())
    }

    fn call(&mut self) -> Result<(), String> {
        let [function, arguments] = self.pop_pair()?;
        let (Value::Function(function), Value::Tuple(arguments)) = (&self.values[function], &self.values[arguments])
        else {
            return Err("its pickle calls something that is not a function".into());
        };
        let value = match (function, arguments.as_slice()) {
            (Function::OrderedDict, []) => Value::Dict(Vec::new()),
            // A parameter counts as its tensor.
            (Function::RebuildParameter, [tensor, ..]) if matches!(self.values[*tensor], Value::Tensor(_)) => {
                self.stack.push(*tensor);
                return Ok(());
            }
            (Function::RebuildTensor, [storage, offset, shape, stride, ..]) => {
                let view = self.view([*storage, *offset, *shape, *stride]).ok_or("one of its tensors is malformed")?;
                Value::Tensor(Box::new(view))
            }
            _ => return Err("its pickle calls a function with the wrong arguments".into()),
        };
        self.push(value);
        Ok(())
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
    /// `None`, where views of other storages are not supported.
    fn storage(&mut self) -> Result<Value<'a>, String> {
        let id = self.pop()?;
        let parts = if let Value::Tuple(parts) = &self.values[id] { parts.as_slice() } else { &[] };
        let parts: Vec<&Value> = parts.iter().map(|part| &self.values[*part]).collect();
        let ([Value::Text("storage"), Value::Type(dtype), Value::Text(key), _, Value::Int(elements)]
        | [Value::Text("storage"), Value::Type(dtype), Value::Text(key), _, Value::Int(elements), Value::None]) =
            parts.as_slice()
        else {
            return Err("its pickle refers to something that is not a storage of numbers".into());
        };
        let elements = usize::try_from(*elements).map_err(|_| "one of its storages has a negative length")?;
        Ok(Value::Storage(Storage { key, dtype: *dtype, elements }))
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

    fn pop_pair(&mut self) -> Result<[Id; 2], String> {
        let second = self.pop()?;
        Ok([self.pop()?, second])
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Id>, String> {
        if self.available() < count { Err(exhausted()) } else { Ok(self.stack.split_off(self.stack.len() - count)) }
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or_else(exhausted)?;
        Ok(self.stack.split_off(mark))
    }
}

fn exhausted() -> String {
    "its pickle pops from an empty stack".into()
}
