//! Reads a pickled dictionary with a numpy array of bytes and a list of labels: CIFAR's "python version".
//!
//! `serde-pickle` reads it without calling functions: those that the stream names (numpy's `_reconstruct`, `dtype`)
//! become inert values, and the array becomes the state `(version, shape, dtype, fortran order, bytes)`. `program`
//! first checks that this cannot exhaust the memory.

use std::collections::BTreeMap;

use serde_pickle::{DeOptions, HashableValue, Value};

use super::pickle_check;

/// Reads the array `data` and the list `labels` of a pickled dictionary.
///
/// # Errors
/// A reason that completes "... is not a CIFAR pickle: ".
pub(super) fn batch(pickle: &[u8], labels: &str) -> Result<(Vec<u8>, Vec<i64>), String> {
    pickle_check::check(pickle)?;
    let options = DeOptions::new().replace_unresolved_globals();
    match serde_pickle::value_from_slice(pickle, options) {
        Ok(Value::Dict(mut entries)) => {
            let data = array(take(&mut entries, "data")?).ok_or("its 'data' is not a numpy array of bytes in rows")?;
            let labels =
                integers(take(&mut entries, labels)?).ok_or(format!("its '{labels}' is not a list of integers"))?;
            Ok((data, labels))
        }
        Ok(_) => Err("it holds no dictionary".into()),
        Err(reason) => Err(reason.to_string()),
    }
}

/// An entry by name, which Python 2 stored as bytes and Python 3 may have stored as text.
fn take(entries: &mut BTreeMap<HashableValue, Value>, name: &str) -> Result<Value, String> {
    let bytes = HashableValue::Bytes(name.as_bytes().to_vec());
    let value = entries.remove(&bytes).or_else(|| entries.remove(&HashableValue::String(name.into())));
    value.ok_or_else(|| format!("it has no entry '{name}'"))
}

/// The bytes of a numpy array in C order with one byte per element.
fn array(value: Value) -> Option<Vec<u8>> {
    let Value::Tuple(state) = value else { return None };
    let [_version, Value::Tuple(shape), _dtype, Value::Bool(false), Value::Bytes(bytes)] =
        <[Value; 5]>::try_from(state).ok()?
    else {
        return None;
    };
    let elements = integers(Value::List(shape))?.into_iter().try_fold(1_i64, i64::checked_mul)?;
    (usize::try_from(elements) == Ok(bytes.len())).then_some(bytes)
}

fn integers(value: Value) -> Option<Vec<i64>> {
    let Value::List(items) = value else { return None };
    items.into_iter().map(|item| if let Value::I64(number) = item { Some(number) } else { None }).collect()
}
