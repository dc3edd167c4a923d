//! The order of rooms and files: read from `use` declarations and paths in the source, held against the map in
//! `lib.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module's path below the crate, as in `["parallel", "gloo"]`.
type Module = Vec<String>;

/// The source of every module, without comments and unit tests.
struct Sources(BTreeMap<Module, String>);

impl Sources {
    /// Those of the crate in the folder `root`.
    fn read(root: &Path) -> Self {
        let mut sources = BTreeMap::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    // Crates of their own: the compiler holds their order.
                    folders.extend((!path.join("Cargo.toml").exists()).then_some(path));
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let inside = path.strip_prefix(root).unwrap().with_extension("");
                    let name = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
                    let mut module: Module = inside.iter().map(name).collect();
                    module.pop_if(|last| ["mod", "lib"].contains(&last.as_str()));
                    sources.insert(module, code(&fs::read_to_string(path).unwrap()));
                }
            }
        }
        Self(sources)
    }

    /// The module that defines what `path`, seen from `from`, leads to; follows names that a module hands on.
    fn target(&self, from: &[String], path: &str) -> Option<Module> {
        let mut parts: Vec<&str> = path.split("::").collect();
        let mut at: Module = if parts[0] == "crate" { Vec::new() } else { from.to_vec() };
        parts.retain(|part| !matches!(*part, "crate" | "self"));
        while parts.first() == Some(&"super") {
            at.pop();
            parts.remove(0);
        }
        let mut parts = parts.into_iter().peekable();
        while let Some(child) = parts.peek().map(|part| [&at[..], &[part.to_string()]].concat()) {
            if !self.0.contains_key(&child) {
                break;
            }
            at = child;
            parts.next();
        }
        let (name, source) = (parts.next()?, self.0.get(&at)?);
        let handed_on = paths(source).into_iter().find(|(shown, path)| {
            let first = path.split("::").next().unwrap_or_default();
            shown == name && self.0.contains_key(&[&at[..], &[first.to_string()]].concat())
        });
        // Paths of a module's own children begin with their names.
        handed_on.map_or(Some(at.clone()), |(_, path)| self.target(&at, &format!("self::{path}")))
    }

    /// The modules that `module` uses; parents and children do not count.
    fn used(&self, module: &Module) -> BTreeSet<Module> {
        let is_ours = |path: &str| path.starts_with("crate::") || path.starts_with("super::");
        let all = paths(&self.0[module]).into_iter().filter(|(_, path)| is_ours(path));
        let targets = all.filter_map(|(_, path)| self.target(module, &path));
        targets.filter(|target| !target.starts_with(module) && !module.starts_with(target)).collect()
    }
}

fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The paths of `use` declarations and those in other code, each with the name that it gives.
fn paths(code: &str) -> Vec<(String, String)> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].rsplit('\n').next().unwrap_or_default();
        if before.trim_start().is_empty() || before.trim_start().starts_with("pub") {
            let tree: String = code[at + 4..].split(';').next().unwrap_or_default().split_whitespace().collect();
            // In a module within a file, the file itself is the parent.
            let tree = if before.starts_with(' ') { tree.replacen("super", "self", 1) } else { tree };
            expand("", &tree, &mut paths);
        }
    }
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start).filter(|(at, _)| !code[..*at].ends_with("::")) {
            let is_part = |letter: char| letter.is_alphanumeric() || "_:".contains(letter);
            let path = code[at..].split(|letter| !is_part(letter)).next().unwrap_or_default().trim_end_matches(':');
            paths.push((path.rsplit("::").next().unwrap_or_default().into(), path.into()));
        }
    }
    paths
}

/// Adds the paths of a tree such as `a::{b, c::{D, E}}`.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<(String, String)>) {
    let Some((head, rest)) = tree.split_once('{') else {
        let path = format!("{prefix}{tree}");
        return paths.push((path.rsplit("::").next().unwrap_or_default().into(), path));
    };
    let (mut depth, mut start) = (0, 0);
    let inside = rest.strip_suffix('}').unwrap_or(rest);
    for (at, letter) in inside.char_indices().chain([(inside.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&format!("{prefix}{head}"), &inside[start..at], paths);
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The modules that can be reached from `module`, which is one of them only in a circle.
fn reached(module: &Module, used: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![module]);
    while let Some(module) = next.pop() {
        next.extend(used[module].iter().filter(|target| seen.insert((*target).clone())));
    }
    seen
}

fn application() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

#[test]
fn no_file_uses_itself_through_others() {
    let members = ["system", "objects", "kernels", "ops", "engine", "data", "training", "membership"]
        .map(|member| application().join(member));
    let mut count = 0;
    for root in members.into_iter().chain([application()]) {
        let sources = Sources::read(&root);
        let used: BTreeMap<Module, _> = sources.0.keys().map(|module| (module.clone(), sources.used(module))).collect();
        count += used.values().map(BTreeSet::len).sum::<usize>();
        let circles = used.keys().filter(|module| reached(module, &used).contains(*module));
        let circles: Vec<String> = circles.map(|module| module.join("::")).collect();
        assert!(circles.is_empty(), "{}: {circles:?}", root.display());
    }
    assert!(count > 1000, "the paths are not found");
}

#[test]
fn rooms_use_only_rooms_above_them_in_the_map() {
    let sources = Sources::read(&application());
    let map = fs::read_to_string(application().join("lib.rs")).unwrap();
    let rows = map.lines().filter_map(|line| line.strip_prefix("//! | ")?.split(" | ").next());
    let rows: Vec<Vec<&str>> = rows.map(|cell| cell.split('`').skip(1).step_by(2).collect()).collect();
    let row = |module: &Module| rows.iter().position(|row| row.contains(&module[0].as_str()));
    let rooms: Vec<_> = sources.0.keys().filter(|module| !module.is_empty() && row(module).is_some()).collect();
    assert!(rooms.len() > 150, "the map is not found");
    for module in rooms {
        for target in sources.used(module).iter().filter(|target| target[0] != module[0]) {
            assert!(row(target) <= row(module), "{} uses {}", module.join("::"), target.join("::"));
        }
    }
}
