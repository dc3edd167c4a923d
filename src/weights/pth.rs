//! Reading a file of `torch.save`: a `.pth` or `.pt` with a state dictionary, in the format of PyTorch 1.6 and later (a
//! zip archive) or in the one before.
//!
//! Files are untrusted. No code in them is run (see [`kiln_data::pickle`]), every stated size is checked against the
//! available bytes, and memory is bounded by a fixed multiple of the file's length. burn-store's reader is not used: it
//! ignores strides and fills missing bytes with zeros.

use std::collections::BTreeMap;
use std::path::Path;

use kiln_data::pickle::{Id, Pickle, Storage, Value, View};
use kiln_engine::state::{self, Metadata, StateDict};
use kiln_system::{Error, Result, quoted, shown};

use super::description::{KEYS, text};
use super::few;
use super::zip::Archive;

/// The pickled magic number 0x1950a86a20f9469cfc6c that the old format starts with.
const OLD_MAGIC: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";

/// The protocol of its pickles.
const PROTOCOL: u8 = 2;

/// Entries of a training script's checkpoint that hold a state dictionary, the most common one first.
const ENTRIES: [&str; 7] = ["state_dict", "model_state_dict", "model", "net", "model_state", "weights", "params"];

/// A result, or a reason that completes "... is not a readable PyTorch file".
type Outcome<T> = std::result::Result<T, String>;

/// The attribute of a state dictionary that describes its use.
pub(super) const ATTRIBUTE: &str = "kiln";

/// A file's tensors of floats (as f32) and of integers (as i64), by name, and the description in the dictionary's
/// attribute `kiln`. The file is a state dictionary or a training script's checkpoint with one; other content is
/// skipped. `origin` is the path, for errors.
///
/// # Errors
/// [`Error::Checkpoint`] if it is damaged, is not a file of `torch.save`, if its state dictionary holds anything but
/// named tensors, or if it asks for the operating system.
pub fn from_bytes(bytes: &[u8], origin: &Path) -> Result<(StateDict, Metadata)> {
    let outcome = match bytes {
        [] => Err("it is empty".into()),
        _ if bytes.starts_with(b"PK\x03\x04") => from_zip(bytes),
        _ if bytes.starts_with(OLD_MAGIC) => from_old(bytes),
        _ => Err("it is neither a zip archive nor the format before PyTorch 1.6".into()),
    };
    outcome.map_err(|reason| {
        Error::Checkpoint(format!(
            "'{}' is not a readable PyTorch file ({reason}); save it in PyTorch with \
             torch.save(model.state_dict(), FILE) or give a .safetensors file",
            shown(origin)
        ))
    })
}

type Storages<'a> = BTreeMap<&'a str, &'a [u8]>;

/// `NAME/data.pkl` is the pickle, `NAME/data/KEY` a storage.
fn from_zip(bytes: &[u8]) -> Outcome<(StateDict, Metadata)> {
    let mut archive = Archive::open(bytes)?;
    let is_folder = |folder: &&str| folder.is_empty() || folder.find('/') == Some(folder.len() - 1);
    let mut folders = archive.names().filter_map(|name| name.strip_suffix("data.pkl")).filter(is_folder);
    let (Some(folder), None) = (folders.next().map(str::to_owned), folders.next()) else {
        return Err("it is a zip archive without a single 'data.pkl'".into());
    };
    drop(folders);
    let mut entry = |name: &str| archive.get(&format!("{folder}{name}"));
    if entry("byteorder")?.is_some_and(|order| order != b"little") {
        return Err("its numbers are not little-endian".into());
    }
    let pickle = Pickle::read(entry("data.pkl")?.ok_or("it has no 'data.pkl'")?, PROTOCOL)?;
    let (views, metadata) = weights(&pickle)?;
    let mut storages = Storages::new();
    for Storage { key, .. } in views.values().map(|view| view.storage) {
        if !storages.contains_key(key) {
            storages.insert(key, entry(&format!("data/{key}"))?.ok_or_else(|| missing(key))?);
        }
    }
    Ok((decode(&views, &storages, bytes.len())?, metadata))
}

/// Five pickles (magic number, version, system, object, keys of storages), then each storage: its length in elements
/// as an i64, and its bytes.
fn from_old(bytes: &[u8]) -> Outcome<(StateDict, Metadata)> {
    let mut rest = &bytes[OLD_MAGIC.len()..];
    let mut pickle = || {
        let pickle = Pickle::read(rest, PROTOCOL)?;
        rest = &rest[pickle.length..];
        Ok::<_, String>(pickle)
    };
    let (_version, system, object, keys) = (pickle()?, pickle()?, pickle()?, pickle()?);
    let little_endian = system.entry(system.root, "little_endian").map(|id| &system.values[id]);
    if !matches!(little_endian, Some(Value::Bool(true))) {
        return Err("its numbers are not little-endian".into());
    }
    let (views, metadata) = weights(&object)?;
    let known: BTreeMap<&str, Storage> = object.storages().map(|storage| (storage.key, storage)).collect();
    let Value::List(keys_in_order) = &keys.values[keys.root] else {
        return Err("its list of storages is missing".into());
    };
    let mut storages = Storages::new();
    for key in keys_in_order {
        let storage = if let Value::Text(key) = keys.values[*key] { known.get(key) } else { None };
        let storage = storage.ok_or("it has a storage of unknown type")?;
        let size = storage.elements.checked_mul(storage.width()).ok_or("it declares more bytes than it has")?;
        let (count, data) = rest.split_first_chunk().ok_or("it ends too early")?;
        if usize::try_from(u64::from_le_bytes(*count)) != Ok(storage.elements) {
            return Err(format!("its storage {} has two lengths", quoted(storage.key)));
        }
        let (data, after) = data.split_at_checked(size).ok_or("it ends too early")?;
        storages.insert(storage.key, data);
        rest = after;
    }
    Ok((decode(&views, &storages, bytes.len())?, metadata))
}

/// The dictionary of tensors: one of [`ENTRIES`], the only entry that is one, or the whole.
fn dictionary(pickle: &Pickle<'_>) -> Outcome<Id> {
    let root = pickle.root;
    let Value::Dict(items) = &pickle.values[root] else {
        return Err(format!("it holds no dictionary{}", pickle.foreign(root)));
    };
    let known = |name: &&str| pickle.entry(root, name).filter(|id| pickle.holds_tensors(*id));
    if let Some(id) = ENTRIES.iter().find_map(known) {
        return Ok(id);
    }
    let found: Vec<&(Id, Id)> = items.iter().filter(|(_, value)| pickle.holds_tensors(*value)).collect();
    match found[..] {
        [(_, only)] => return Ok(*only),
        [] if items.iter().any(|(_, value)| matches!(pickle.values[*value], Value::Tensor(_))) => return Ok(root),
        _ => {}
    }
    let entry = |(key, value): &(Id, Id)| match pickle.values[*key] {
        Value::Text(name) => format!("{}{}", quoted(name), pickle.foreign(*value)),
        _ => "a key that is not text".into(),
    };
    let has = if items.is_empty() { "nothing".into() } else { few(items.iter().map(entry)) };
    let count = if found.is_empty() { "no" } else { "more than one" };
    let entries = ENTRIES.join("', '");
    Err(format!("it holds {count} dictionary of tensors, and none is named '{entries}'; it has {has}"))
}

/// The tensors of the state dictionary, by name, and its description.
fn weights<'p, 'a>(pickle: &'p Pickle<'a>) -> Outcome<(BTreeMap<&'a str, &'p View<'a>>, Metadata)> {
    let id = dictionary(pickle)?;
    let Value::Dict(items) = &pickle.values[id] else { return Err("it holds no dictionary".into()) };
    let mut views: BTreeMap<&str, &View> = BTreeMap::new();
    for (key, value) in items {
        let Value::Text(name) = pickle.values[*key] else { return Err("it has a key that is not text".into()) };
        let Value::Tensor(view) = &pickle.values[*value] else {
            return Err(format!("its entry {} is not a tensor{}", quoted(name), pickle.foreign(*value)));
        };
        if views.insert(name, view).is_some() {
            return Err(format!("it has the entry {} twice", quoted(name)));
        }
    }
    let described = pickle.attribute(id, ATTRIBUTE);
    let pair = |key: &str| {
        let value = pickle.plain(pickle.entry(described?, key)?).unwrap_or_default();
        Some((key.to_string(), text(&value)))
    };
    Ok((views, KEYS.into_iter().filter_map(pair).collect()))
}

/// The elements of the views. Their number is limited to the file's `length` in bytes, which allows shared storages but
/// not a huge tensor of repeated elements.
fn decode(views: &BTreeMap<&str, &View<'_>>, storages: &Storages, length: usize) -> Outcome<StateDict> {
    let mut budget = length;
    let mut tensors = StateDict::new();
    for (name, view) in views {
        let Storage { key, dtype, elements } = view.storage;
        let data = *storages.get(key).ok_or_else(|| missing(key))?;
        if elements.checked_mul(view.storage.width()) != Some(data.len()) {
            return Err(format!("its storage {} has {} bytes for {elements} elements", quoted(key), data.len()));
        }
        let left = view.elements().and_then(|count| budget.checked_sub(count));
        budget = left.ok_or_else(|| format!("its tensor {} is larger than the file", quoted(name)))?;
        let bytes = view.gather(data).ok_or_else(|| format!("its tensor {} leaves its storage", quoted(name)))?;
        let tensor = state::decode(dtype, view.shape.clone(), &bytes).ok_or_else(|| {
            format!("its tensor {} has the type '{dtype}'; readable types are {}", quoted(name), state::READABLE)
        })?;
        tensors.insert((*name).to_owned(), tensor);
    }
    Ok(tensors)
}

fn missing(key: &str) -> String {
    format!("its storage {} is missing", quoted(key))
}
