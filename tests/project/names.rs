//! The page `docs/names.md`: it has each public item of tokio and each method once, nothing that
//! tokio does not have, and no name of ours that does not exist.
//!
//! The sources are those of the versions in `Cargo.lock`. A row of a table has the name of tokio,
//! ours or `none`, and words. Among the words are lists of methods, each in a line of its own:
//! `same:` or `same, with a note:`; `other:`, with pairs as in "`recv` is `next`"; and `missing:`,
//! where `poll_*` is all that begins so. Words in parentheses are for readers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::public_items::{Crates, Definition, Names};
use crate::root;

const PAGE: &str = "docs/names.md";

/// The modules of tokio with a table each. The names at its root have one, too.
const MODULES: &[&str] =
    &["fs", "io", "net", "process", "runtime", "signal", "sync", "task", "time"];

/// The traits of futures-util that the page has.
const EXTENSIONS: &[&str] = &["FutureExt", "SinkExt", "StreamExt", "TryFutureExt", "TryStreamExt"];

/// The crates whose names the page gives, with their folders.
const OURS: &[(&str, &str)] = &[
    ("pikake", "."),
    ("pikake_kernel", "kernel"),
    ("pikake_net", "net"),
    ("pikake_os", "os"),
    ("pikake_sim", "sim"),
    ("pikake_sync", "sync"),
    ("pikake_task", "task"),
    ("pikake_time", "time"),
    ("pikake_traps", "traps"),
];

/// The word in a row in place of a name of ours.
const NONE: &str = "none";
const AS_IT_IS: &str = "as it is";

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--filter-platform"])
        .args(["x86_64-unknown-linux-gnu", "--locked", "--offline", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The root file of a dependency.
fn library(metadata: &Value, name: &str) -> PathBuf {
    let packages = metadata["packages"].as_array().expect("packages").iter();
    let [package] = packages.filter(|package| package["name"] == name).collect::<Vec<_>>()[..]
    else {
        panic!("there is not one {name}")
    };
    let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
    manifest.parent().expect("a folder").join("src/lib.rs")
}

/// The items that need a row: the heading of its table, its name there, and its definition.
fn wanted(crates: &Crates) -> BTreeMap<(String, String), Definition> {
    let all = crates.all_public(&["tokio".to_owned()]);
    let mut all: Vec<(Names, Definition)> = all
        .into_iter()
        .filter(|(path, _)| path.len() == 2 || MODULES.contains(&&*path[1]))
        .collect();
    // An item with several paths has the row of the shortest within a module.
    all.sort_by_key(|(path, _)| (path.len() == 2, path.len()));
    let mut known = BTreeSet::new();
    let mut wanted = BTreeMap::new();
    for (path, definition) in all {
        if !known.insert(definition.clone()) {
            continue;
        }
        let (table, name) = match &path[..] {
            [_, name] => ("tokio".to_owned(), name.clone()),
            [_, module, rest @ ..] => (format!("tokio::{module}"), rest.join("::")),
            _ => panic!("{path:?} is no path"),
        };
        wanted.insert((table, name), definition);
    }
    for name in EXTENSIONS {
        let path = ["futures_util", name].map(str::to_owned);
        let definition = crates.public(&path).expect("it is in futures-util");
        wanted.insert(("futures_util".to_owned(), (*name).to_owned()), definition);
    }
    wanted
}

/// A row of a table.
#[derive(Debug, Default, PartialEq, Eq)]
struct Row {
    table: String,
    name: String,
    /// Our names.
    ours: Vec<String>,
    /// Whether the item is used here as it is, and so needs no name of ours.
    is_as_it_is: bool,
    /// Methods: theirs, and ours if there is one.
    methods: Vec<(String, Option<String>)>,
    has_words: bool,
}

/// The texts between backticks.
fn codes(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The text without what is in parentheses outside of code.
fn without_remarks(text: &str) -> String {
    let (mut kept, mut depth) = (String::new(), 0);
    for (index, part) in text.split('`').enumerate() {
        let is_code = index % 2 == 1;
        for sign in part.chars() {
            match sign {
                '(' if !is_code => depth += 1,
                ')' if !is_code => depth -= 1,
                sign if depth == 0 => kept.push(sign),
                _ => {}
            }
        }
        if depth == 0 {
            kept.push('`');
        }
    }
    assert_eq!(depth, 0, "parentheses of {text}");
    kept.strip_suffix('`').expect("it was added").to_owned()
}

/// The first cell of a row that begins with a name, and the others.
fn row_parts(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("| ").filter(|rest| rest.starts_with('`'))?.split_once(" | ")
}

fn row(table: &str, line: &str) -> Row {
    let cells = row_parts(line).and_then(|(name, rest)| {
        let (ours, words) = rest.strip_suffix('|')?.split_once(" | ")?;
        Some((codes(name), ours, words))
    });
    let Some(([name], ours, words)) =
        cells.as_ref().map(|(name, ours, words)| (&name[..], *ours, *words))
    else {
        panic!("a row has a name of theirs, a name of ours, and words: {line}")
    };
    let mut row = Row {
        table: table.to_owned(),
        name: name.trim_end_matches('!').to_owned(),
        ours: codes(ours).into_iter().map(str::to_owned).collect(),
        is_as_it_is: ours == AS_IT_IS,
        ..Row::default()
    };
    assert!([NONE, AS_IT_IS].contains(&ours) == row.ours.is_empty(), "no name of ours: {line}");
    for part in words.split("<br>") {
        let (kind, list) = part.split_once(": ").unwrap_or(("", part));
        let list = without_remarks(list);
        let mut add = |theirs: &str, ours: Option<&str>| {
            row.methods.push((theirs.to_owned(), ours.map(str::to_owned)));
        };
        match kind.split(',').next().expect("a part") {
            "same" => codes(&list).into_iter().for_each(|name| add(name, Some(name))),
            "missing" => codes(&list).into_iter().for_each(|name| add(name, None)),
            "other" => {
                for pair in list.split(',') {
                    let [theirs, ours] = codes(pair)[..] else { panic!("no pair: {pair}") };
                    add(theirs, Some(ours));
                }
            }
            _ => row.has_words |= !part.trim().is_empty(),
        }
    }
    row
}

/// The rows of the page. The heading above a table is the path of its module.
fn rows(page: &str) -> Vec<Row> {
    let mut table = "";
    let mut rows = Vec::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            table = heading;
        } else if row_parts(line).is_some() {
            rows.push(row(table, line));
        }
    }
    rows
}

/// The path of a name of ours.
fn path_of_ours(name: &str) -> Names {
    let segments = name.trim_end_matches('!').split("::");
    ["pikake"].into_iter().chain(segments).map(str::to_owned).collect()
}

fn is_ours(crates: &Crates, name: &str) -> bool {
    let path = path_of_ours(name);
    let item = crates.public(&path);
    // A function or method of a type, as `Kernel::run`.
    let of_type = || {
        let (method, owner) = path.split_last().expect("a name");
        crates.public(owner).is_some_and(|owner| crates.has_method(&owner, method))
    };
    item.is_some() || of_type()
}

/// The faults of the methods in a row, given those of the item.
fn complaints_of_row(row: &Row, methods: &BTreeSet<String>, crates: &Crates) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut say = |text: String| complaints.push(format!("{}, {}: {text}", row.table, row.name));
    for name in &row.ours {
        if !is_ours(crates, name) {
            say(format!("pikake has no {name}"));
        }
    }
    let last = row.name.rsplit("::").next().expect("a name");
    let is_same = |ours: &String| ours.trim_end_matches('!').rsplit("::").next() == Some(last);
    if !row.has_words && !row.is_as_it_is && !row.ours.iter().any(is_same) {
        say("a reason or a difference is missing".to_owned());
    }
    let owners: Vec<Definition> =
        row.ours.iter().filter_map(|name| crates.public(&path_of_ours(name))).collect();
    let has_alias = |owner: &Definition| match owner {
        Definition::Item(_) => crates.doc_aliases(owner).contains(last),
        _ => true,
    };
    if !row.ours.iter().any(is_same) && !owners.is_empty() && !owners.iter().any(has_alias) {
        say(format!("{} needs #[doc(alias = \"{last}\")]", row.ours.join(" or ")));
    }
    let is_outside = |owner: &Definition| matches!(owner, Definition::Foreign(_));
    let is_missing = row.ours.is_empty() && !row.is_as_it_is;
    if row.methods.is_empty() && (is_missing || owners.iter().any(is_outside)) {
        return complaints;
    }
    let mut left = methods.clone();
    for (theirs, ours) in &row.methods {
        let named: Vec<String> = match theirs.strip_suffix('*') {
            Some(begin) => left.iter().filter(|name| name.starts_with(begin)).cloned().collect(),
            None => left.get(theirs).cloned().into_iter().collect(),
        };
        if named.is_empty() {
            say(format!("`{theirs}` is no method, or listed twice"));
        }
        left.retain(|name| !named.contains(name));
        let Some(ours) = ours.as_ref().filter(|_| !row.is_as_it_is) else { continue };
        let is_method = owners.iter().any(|owner| crates.has_method(owner, ours));
        if !is_method && !is_ours(crates, ours) {
            say(format!("{} has no {ours}", row.ours.join(" or ")));
        }
    }
    if !left.is_empty() {
        say(format!("not listed: {}", Vec::from_iter(left).join(", ")));
    }
    complaints
}

/// The paths of ours that do not exist, outside of the first two cells of rows.
fn unknown_paths(page: &str, crates: &Crates) -> Vec<String> {
    let words = |line| match row_parts(line).and_then(|(_, rest)| rest.split_once(" | ")) {
        Some((_, words)) => words,
        None => line,
    };
    let is_ours_by_form = |path: &&str| {
        let first = path.split("::").next().expect("a name");
        *path != first && !["std", "tokio"].contains(&first) && !path.starts_with("#[")
    };
    let paths = page.lines().flat_map(|line| codes(words(line))).filter(is_ours_by_form);
    let unknown = paths.filter(|path| !is_ours(crates, path));
    unknown.map(|path| format!("pikake has no {path}")).collect()
}

fn complaints(
    rows: &[Row],
    wanted: &BTreeMap<(String, String), Definition>,
    crates: &Crates,
) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut found = BTreeSet::new();
    for row in rows {
        let key = (row.table.clone(), row.name.clone());
        let Some(definition) = wanted.get(&key) else {
            complaints.push(format!("{}, {}: there is no such item", row.table, row.name));
            continue;
        };
        complaints.extend(complaints_of_row(row, &crates.methods(definition), crates));
        if !found.insert(key) {
            complaints.push(format!("{}, {}: a second row", row.table, row.name));
        }
    }
    for (table, name) in wanted.keys().filter(|key| !found.contains(*key)) {
        complaints.push(format!("{table}, {name}: no row"));
    }
    complaints
}

#[test]
fn page_has_each_name_once() {
    let metadata = metadata();
    let mut crates = Crates::default();
    crates.read("tokio", &library(&metadata, "tokio"));
    crates.read("futures_util", &library(&metadata, "futures-util"));
    for (name, folder) in OURS {
        crates.read(name, &root().join(folder).join("src/lib.rs"));
    }
    crates.resolve_impls();
    let wanted = wanted(&crates);
    assert!(wanted.len() > 200, "tokio has only {} items", wanted.len());
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let mut complaints = complaints(&rows(&page), &wanted, &crates);
    complaints.extend(unknown_paths(&page, &crates));
    assert!(complaints.is_empty(), "{PAGE}:\n{}", complaints.join("\n"));
}

#[test]
fn row_is_read() {
    let line = "| `Sender` | `sync::mpsc::Sender` | not `Send` (but `shared` is)<br>same: `send` (a `?`), \
        `len`<br>other: `a` is `b` (as `c`), `d` is `e::f`<br>missing: `poll_*` |";
    let pair = |theirs: &str, ours: Option<&str>| (theirs.to_owned(), ours.map(str::to_owned));
    let expected = Row {
        table: "tokio::sync".to_owned(),
        name: "Sender".to_owned(),
        ours: vec!["sync::mpsc::Sender".to_owned()],
        methods: vec![
            pair("send", Some("send")),
            pair("len", Some("len")),
            pair("a", Some("b")),
            pair("d", Some("e::f")),
            pair("poll_*", None),
        ],
        has_words: true,
        ..Row::default()
    };
    assert_eq!(rows(&format!("## tokio::sync\n\n| tokio | pikake | |\n{line}\n")), [expected]);
}

#[test]
fn rows_and_methods_too_few_or_too_many_are_reported() {
    let wanted = ["Gone", "Left", "Both"].map(|name| {
        let definition = Definition::Item(vec!["tokio".to_owned(), name.to_owned()]);
        (("tokio".to_owned(), name.to_owned()), definition)
    });
    let page = "## tokio
| `Both` | none | a reason |
| `Both` | none | a reason |
| `Gone` | none | |
| `Other` | `Nothing` | |
";
    assert_eq!(
        complaints(&rows(page), &wanted.into(), &Crates::default()),
        [
            "tokio, Both: a second row",
            "tokio, Gone: a reason or a difference is missing",
            "tokio, Other: there is no such item",
            "tokio, Left: no row",
        ]
    );
    let methods = ["a", "b", "poll_a", "poll_b"].map(str::to_owned).into();
    let row = row("tokio", "| `T` | as it is | same: `a`, `a`<br>missing: `poll_*`, `c` |");
    assert_eq!(
        complaints_of_row(&row, &methods, &Crates::default()),
        [
            "tokio, T: `a` is no method, or listed twice",
            "tokio, T: `c` is no method, or listed twice",
            "tokio, T: not listed: b",
        ]
    );
}
