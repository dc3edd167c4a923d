//! References in settings, as in Hydra's files: `${run.seed}` is the value of another key, `${oc.env:NAME}` or
//! `${oc.env:NAME,DEFAULT}` a variable of the environment.
//!
//! A setting with a reference waits in its layer until all layers are read. Its value is then checked like any other.

use std::mem;

use super::layer::{Complaints, Layer, REFERENCE};
use super::request::Setting;
use super::schema::{self, plain};
use super::suggestion;

/// Most bytes of a value with references, so that references to references do not multiply without end.
const LONGEST: usize = 1 << 16;

/// Replaces the references in `layers`, the weakest first.
pub(super) fn replace(layers: &mut [&mut Layer], environment: &[(String, String)], complaints: &mut Complaints) {
    loop {
        let mut moved = false;
        for at in 0..layers.len() {
            let found =
                |setting: &Setting| expanded(&setting.value, &|name| value(name, layers, environment)).transpose();
            let found: Vec<_> = layers[at].waiting.iter().map(found).collect();
            moved |= found.iter().any(Option::is_some);
            for (setting, found) in mem::take(&mut layers[at].waiting).into_iter().zip(found) {
                match found {
                    None => layers[at].waiting.push(setting),
                    Some(Ok(text)) => layers[at].add_text(&setting.key, &text, setting.place, complaints),
                    Some(Err(why)) => refuse(setting, &why, complaints),
                }
            }
        }
        if !moved {
            break;
        }
    }
    for setting in layers.iter_mut().flat_map(|layer| mem::take(&mut layer.waiting)) {
        refuse(setting, "it refers to itself; give one of the keys a value", complaints);
    }
}

fn refuse(Setting { key, value, place }: Setting, why: &str, complaints: &mut Complaints) {
    complaints.lines.push(format!("'{value}' has no value ({place}): {why}"));
    complaints.refused.push(key);
}

/// The text with the values of its references; `None` while one of them is not known.
fn expanded(text: &str, value: &dyn Fn(&str) -> Result<Option<String>, String>) -> Result<Option<String>, String> {
    let (mut expanded, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(REFERENCE) {
        let (name, behind) = after.split_once('}').ok_or("a reference ends with '}', as in ${run.seed}")?;
        let Some(value) = value(name.trim())? else { return Ok(None) };
        expanded.extend([before, &value]);
        if expanded.len() > LONGEST {
            return Err(format!("it is longer than {LONGEST} bytes; refer to shorter values"));
        }
        rest = behind;
    }
    Ok(Some(expanded + rest))
}

/// The value of `name`; `None` while it waits for others.
fn value(name: &str, layers: &[&mut Layer], environment: &[(String, String)]) -> Result<Option<String>, String> {
    if let Some(name) = name.strip_prefix("oc.env:").or_else(|| name.strip_prefix("env:")) {
        return variable(name, environment).map(Some);
    }
    if schema::default(name).is_none() {
        return Err(format!("there is no key '{name}'; {}", suggestion::for_key(name)));
    }
    if layers.iter().any(|layer| layer.is_waiting(name)) {
        return Ok(None);
    }
    Ok(layers.iter().rev().find_map(|layer| layer.find(name)).map(|(value, _)| plain(value)))
}

fn variable(text: &str, environment: &[(String, String)]) -> Result<String, String> {
    let (name, default) = text.split_once(',').map_or((text, None), |(name, default)| (name, Some(default.trim())));
    let set = environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    set.or(default).map(String::from).ok_or_else(|| {
        format!("the environment has no '{name}'; set it, or give a default, as in ${{oc.env:{name},DEFAULT}}")
    })
}
