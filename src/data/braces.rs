//! Patterns for many names, as in shells: `{train,val}-{000..127}.tar`.

/// Most names of a pattern.
const MOST: usize = 1_000_000;
/// Most bytes of a pattern, and digits of its numbers: every name may be as long, and every brace is a call within a
/// call.
const LONGEST: usize = 1024;
const WIDEST: usize = 20;

/// All names of a pattern, in its order.
///
/// # Errors
/// If it is not a pattern or has too many names: the second half of a sentence about it.
pub(super) fn expand(pattern: &str) -> Result<Vec<String>, String> {
    if pattern.len() > LONGEST {
        return Err(format!("has more than {LONGEST} bytes"));
    }
    let Some(open) = pattern.find('{') else { return Ok(vec![pattern.to_string()]) };
    let (before, rest) = pattern.split_at(open);
    let Some((items, after)) = group(&rest[1..]) else { return Err("has a '{' without its '}'".into()) };
    let mut heads = Vec::new();
    for item in &items {
        match range(item).filter(|_| items.len() == 1) {
            Some((first, last, width)) if last - first < MOST as u64 => {
                heads.extend((first..=last).map(|number| format!("{number:0width$}")));
            }
            Some(_) => return Err(too_many()),
            None => heads.extend(expand(item)?),
        }
        if heads.len() > MOST {
            return Err(too_many());
        }
    }
    let tails = expand(after)?;
    if heads.len().saturating_mul(tails.len()) > MOST {
        return Err(too_many());
    }
    Ok(heads.iter().flat_map(|head| tails.iter().map(move |tail| format!("{before}{head}{tail}"))).collect())
}

fn too_many() -> String {
    format!("has more than {MOST} names")
}

/// The items up to the closing brace, and the text after it.
fn group(text: &str) -> Option<(Vec<&str>, &str)> {
    let (mut items, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                items.push(&text[start..at]);
                return Some((items, &text[at + 1..]));
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    None
}

/// `000..127` as numbers, with the width of the first.
fn range(item: &str) -> Option<(u64, u64, usize)> {
    let (first, last) = item.split_once("..")?;
    let [from, to] = [first.parse().ok()?, last.parse().ok()?];
    (from <= to && first.len() <= WIDEST).then_some((from, to, if first.starts_with('0') { first.len() } else { 0 }))
}
