//! Descriptors, of which a graph, its engines and their plans are made: objects with attributes.

use std::ffi::{c_int, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::Arc;

use super::Library;
use crate::nvidia::Pointer;

/// `cudnnBackendDescriptorType_t`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Convolution = 1,
    Engine = 2,
    EngineConfig = 3,
    Heuristics = 4,
    Plan = 5,
    Forward = 10,
    WeightGradient = 11,
    InputGradient = 12,
    Graph = 15,
    Memory = 16,
    Tensor = 17,
}

/// The value of an attribute, by its `cudnnBackendAttributeType_t`.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Handle(Pointer),
    DataType(c_int),
    Integers(&'a [i64]),
    Float(f32),
    Pointers(&'a [Pointer]),
    ConvolutionMode(c_int),
    HeuristicMode(c_int),
    Descriptor(&'a Descriptor),
}

const INTEGERS: c_int = 3;
const NUMERICAL_NOTES: c_int = 11;
const DESCRIPTORS: c_int = 15;

pub(super) struct Descriptor {
    library: Arc<Library>,
    raw: Pointer,
}

// SAFETY: a descriptor may be used by any thread, one at a time.
unsafe impl Send for Descriptor {}

impl Descriptor {
    /// With these attributes, by the numbers of `cudnnBackendAttributeName_t`; complete.
    pub(super) fn new(library: &Arc<Library>, kind: Kind, attributes: &[(c_int, Value)]) -> Result<Self, String> {
        let made = Self::empty(library, kind)?;
        for (name, value) in attributes {
            made.set(*name, *value)?;
        }
        // SAFETY: the descriptor lives; so below.
        library.check(unsafe { (library.0.finalize)(made.raw) }, &format!("complete a descriptor ({kind:?})"))?;
        Ok(made)
    }

    fn empty(library: &Arc<Library>, kind: Kind) -> Result<Self, String> {
        let mut raw = null_mut();
        // SAFETY: it writes one handle.
        library.check(unsafe { (library.0.create_descriptor)(kind as c_int, &mut raw) }, "make a descriptor")?;
        Ok(Self { library: library.clone(), raw })
    }

    fn set(&self, name: c_int, value: Value) -> Result<(), String> {
        let (kind, count, values): (c_int, usize, *const c_void) = match &value {
            Value::Handle(handle) => (0, 1, from_ref(handle).cast()),
            Value::DataType(number) => (1, 1, from_ref(number).cast()),
            Value::Integers(numbers) => (INTEGERS, numbers.len(), numbers.as_ptr().cast()),
            Value::Float(number) => (4, 1, from_ref(number).cast()),
            Value::Pointers(pointers) => (6, pointers.len(), pointers.as_ptr().cast()),
            Value::ConvolutionMode(number) => (7, 1, from_ref(number).cast()),
            Value::HeuristicMode(number) => (8, 1, from_ref(number).cast()),
            Value::Descriptor(other) => (DESCRIPTORS, 1, from_ref(&other.raw).cast()),
        };
        // SAFETY: it reads `count` values of this type.
        let code = unsafe { (self.library.0.set_attribute)(self.raw, name, kind, count as i64, values.cast_mut()) };
        self.library.check(code, &format!("set attribute {name}"))
    }

    /// Fills as many of `values` as there are; the number of those.
    fn get<T>(&self, name: c_int, kind: c_int, values: &mut [T]) -> Result<usize, String> {
        let mut count = 0;
        let room = values.len() as i64;
        // SAFETY: it writes at most `room` values of this type.
        let code = unsafe {
            (self.library.0.get_attribute)(self.raw, name, kind, room, &mut count, values.as_mut_ptr().cast())
        };
        self.library.check(code, &format!("read attribute {name}"))?;
        Ok(values.len().min(count as usize))
    }

    pub(super) fn integer(&self, name: c_int) -> Result<i64, String> {
        let mut number = [0];
        self.get(name, INTEGERS, &mut number).map(|_| number[0])
    }

    /// `cudnnBackendNumericalNote_t`.
    pub(super) fn notes(&self, name: c_int) -> Result<Vec<c_int>, String> {
        let mut notes = vec![0; 32];
        let count = self.get(name, NUMERICAL_NOTES, &mut notes)?;
        notes.truncate(count);
        Ok(notes)
    }

    /// At most `most` descriptors of one kind.
    pub(super) fn descriptors(&self, name: c_int, kind: Kind, most: usize) -> Result<Vec<Self>, String> {
        let mut made = (0..most).map(|_| Self::empty(&self.library, kind)).collect::<Result<Vec<_>, _>>()?;
        // cuDNN fills in what they describe.
        let mut raw: Vec<Pointer> = made.iter().map(|descriptor| descriptor.raw).collect();
        let count = self.get(name, DESCRIPTORS, &mut raw)?;
        made.truncate(count);
        Ok(made)
    }

    pub(super) fn raw(&self) -> Pointer {
        self.raw
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // There is no remedy for an error.
        // SAFETY: the descriptor lives.
        let _ = unsafe { (self.library.0.destroy_descriptor)(self.raw) };
    }
}
