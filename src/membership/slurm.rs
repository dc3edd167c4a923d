//! SLURM's compressed host lists, such as `node[1-3,07],gpu[1-2]`.
//!
//! `scontrol show hostnames` does the same, but is often missing inside a container. [`super::environment`] knows which
//! variable holds the list.

/// SLURM's own limit (`MAX_SLURM_NODES`); a longer list is a mistake.
const MOST_HOSTS: usize = 65_536;

/// The hosts of `list`, in its order. Zero padding is kept; of several brackets in a name the last varies fastest.
pub fn hosts(list: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for name in names(list)? {
        hosts.append(&mut expand(name)?);
        within_limit(hosts.len())?;
    }
    Ok(hosts)
}

/// Splits at the commas outside of brackets.
fn names(list: &str) -> Result<Vec<&str>, String> {
    let mut open = false;
    let balanced = list.chars().all(|letter| match letter {
        '[' => !std::mem::replace(&mut open, true),
        ']' => std::mem::replace(&mut open, false),
        _ => true,
    });
    if !balanced || open {
        return Err("its brackets do not match".into());
    }
    let mut inside = false;
    let comma = |letter| {
        inside = letter == '[' || inside && letter != ']';
        letter == ',' && !inside
    };
    let names: Vec<&str> = list.split(comma).collect();
    if names.contains(&"") { Err("it holds an empty name".into()) } else { Ok(names) }
}

/// Expands one name with matching brackets: text and brackets alternate.
fn expand(name: &str) -> Result<Vec<String>, String> {
    let mut hosts = vec![String::new()];
    for (index, piece) in name.split(['[', ']']).enumerate() {
        if index % 2 == 0 {
            hosts.iter_mut().for_each(|host| host.push_str(piece));
            continue;
        }
        let numbers = numbers(piece)?;
        within_limit(hosts.len().saturating_mul(numbers.len()))?;
        hosts = hosts.iter().flat_map(|host| numbers.iter().map(move |number| format!("{host}{number}"))).collect();
    }
    Ok(hosts)
}

fn numbers(ranges: &str) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(format!("its range '{range}' runs backwards"));
        }
        within_limit(numbers.len().saturating_add(to - from))?;
        numbers.extend((from..=to).map(|number| format!("{number:0width$}", width = first.len())));
    }
    Ok(numbers)
}

fn number(text: &str) -> Result<usize, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| format!("'{text}' in its brackets is not a number"))
}

fn within_limit(hosts: usize) -> Result<(), String> {
    if hosts > MOST_HOSTS { Err(format!("it names more than {MOST_HOSTS} hosts")) } else { Ok(()) }
}

/// The tasks of each node from a list such as `2,1` or `2(x3),1`; `None` if it cannot be read.
pub fn tasks(list: &str) -> Option<Vec<usize>> {
    let mut tasks = Vec::new();
    for part in list.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        let count: usize = count.parse().ok()?;
        tasks.extend(std::iter::repeat_n(count, if times <= 65_536 { times } else { return None }));
    }
    Some(tasks)
}
