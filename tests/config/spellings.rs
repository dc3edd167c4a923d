//! The rows of the guide's table of other trainers' spellings.

use std::sync::LazyLock;

/// Where a spelling comes from, the spelling, and Kiln's own.
pub(super) type Row = [&'static str; 3];

pub(super) struct Table {
    /// Both spellings mean the same.
    pub same: Vec<Row>,
    /// The spelling is refused with words that name Kiln's.
    pub refused: Vec<Row>,
    /// Arguments of `train` that mean one of its commands.
    pub commands: Vec<Row>,
}

pub(super) static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let page = include_str!("../../src/guide/coming_from.md");
    let mut table = Table { same: Vec::new(), refused: Vec::new(), commands: Vec::new() };
    let mut from = "";
    for row in page.lines().filter(|line| line.starts_with('|')).skip(2) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [source, theirs, ours] = cells.try_into().expect("three cells");
        // A group names its source once.
        from = if source.is_empty() { from } else { source };
        let (rows, ours) = if let Some(ours) = ours.strip_prefix("refused: ") {
            (&mut table.refused, ours)
        } else if let Some(ours) = ours.strip_prefix("`train ") {
            (&mut table.commands, ours)
        } else {
            (&mut table.same, if ours == "the default" { "" } else { ours })
        };
        rows.push([from, theirs.trim_matches('`'), ours.trim_matches('`')]);
    }
    let Table { same, refused, commands } = &table;
    assert_eq!([same.len(), refused.len(), commands.len()], [141, 43, 6], "all rows of the page are read");
    table
});
