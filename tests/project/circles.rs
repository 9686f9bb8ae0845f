//! No files of a crate import each other in a circle, but for those of a list that only shrinks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use xtask::tree::{self, Package, Tree};

use crate::imports::{Import, circles, imports};
use crate::{is_renewed, root};

/// The circles that are allowed: a paragraph each, with a file in each line.
const LIST: &str = "tests/project/circles.txt";

const HEADER: &str = "\
# Files that import each other in a circle: `circles.rs` allows these, and no others.
# PIKAKE_RENEW=1 cargo test -p pikake --test project circles
";

/// The imports between the files of all packages.
pub(crate) static IMPORTS: LazyLock<Vec<Import>> =
    LazyLock::new(|| tree::packages(&tree::files(root())).iter().flat_map(imports_of).collect());

/// The imports between the files of a package, in its library and its programs.
fn imports_of(package: &Package) -> Vec<Import> {
    let read = |file: &Path| fs::read_to_string(root().join(file)).ok();
    let trees = package.roots(root()).map(|file| Tree::read(file, &read));
    trees.flat_map(|tree| imports(&tree)).collect()
}

fn listed(text: &str) -> BTreeSet<Vec<String>> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let circles = lines.split(|line| line.is_empty()).filter(|lines| !lines.is_empty());
    circles.map(|lines| lines.iter().map(|file| (*file).to_owned()).collect()).collect()
}

fn list(circles: &BTreeSet<Vec<String>>) -> String {
    let mut text = HEADER.to_owned();
    for circle in circles {
        text.push('\n');
        for file in circle {
            writeln!(text, "{file}").unwrap();
        }
    }
    text
}

/// What is wrong with the circles, given those that are allowed.
fn complaints(imports: &[Import], allowed: &BTreeSet<Vec<String>>) -> Vec<String> {
    let found = circles(imports);
    let mut complaints = Vec::new();
    for circle in found.difference(allowed) {
        if allowed.iter().any(|allowed| circle.iter().all(|file| allowed.contains(file))) {
            continue;
        }
        let mut text = format!("a circle of {} files:", circle.len());
        let is_in = |circle: &[String], import: &Import| {
            circle.contains(&import.from) && circle.contains(&import.to)
        };
        // What ties a circle of the list is known.
        let is_new = |import: &&Import| {
            is_in(circle, import) && !allowed.iter().any(|allowed| is_in(allowed, import))
        };
        for import in imports.iter().filter(is_new) {
            let Import { from, to, line, path } = import;
            write!(text, "\n  {from}:{line}: {path} is in {to}").unwrap();
        }
        complaints.push(text);
    }
    for circle in allowed.difference(&found) {
        if !found.iter().any(|found| circle.iter().all(|file| found.contains(file))) {
            let files = circle.join(", ");
            complaints.push(format!("{LIST} has a circle that is gone or smaller: {files}"));
        }
    }
    complaints
}

#[test]
fn no_circle_of_files_is_new() {
    assert!(IMPORTS.len() > 1000, "only {} imports were found", IMPORTS.len());
    if is_renewed() {
        fs::write(root().join(LIST), list(&circles(&IMPORTS))).unwrap();
    }
    let allowed = listed(&fs::read_to_string(root().join(LIST)).unwrap());
    let complaints = complaints(&IMPORTS, &allowed);
    assert!(complaints.is_empty(), "{}\n\n{HEADER}", complaints.join("\n"));
}

/// The imports in a crate of these files.
fn imports_in(files: &[(&str, &str)]) -> Vec<Import> {
    let files: BTreeMap<&Path, &str> =
        files.iter().map(|(file, text)| (Path::new(*file), *text)).collect();
    let read = |file: &Path| files.get(file).map(|text| (*text).to_owned());
    imports(&Tree::read(Path::new("src/lib.rs"), &read))
}

/// Each import as `from:line -> to`.
fn shown(imports: &[Import]) -> Vec<String> {
    let shown = |import: &Import| format!("{}:{} -> {}", import.from, import.line, import.to);
    imports.iter().map(shown).collect()
}

const HIGH: &str = "\
//! Not an import: use crate::high::tests;

use std::{fmt, io::{self, Write as _}};

use crate::middle::{
    self,
    Low, // handed on
};

#[cfg(test)]
mod tests {
    use crate::other::Other;
}

fn text() -> &'static str {
    middle::text(\"crate::other::Other\")
}
";

#[test]
fn imports_lead_to_the_defining_file() {
    let middle = "mod low;\npub(crate) use low::{Low as Renamed, Low};\nfn text() { low::low() }\n";
    let files = [
        ("src/lib.rs", "mod high;\nmod middle;\nmod other;\npub use ::serde::high;\n"),
        ("src/high.rs", HIGH),
        ("src/middle.rs", middle),
        ("src/middle/low.rs", "fn low() { crate::other::inner::call::<u8>(); }\n"),
        ("src/other.rs", "mod inner { use super::super::middle::Renamed; pub fn call() {} }\n"),
    ];
    let found = imports_in(&files);
    assert_eq!(
        shown(&found),
        [
            "src/high.rs:5 -> src/middle.rs",
            "src/high.rs:5 -> src/middle/low.rs",
            "src/middle.rs:3 -> src/middle/low.rs",
            "src/middle/low.rs:1 -> src/other.rs",
            "src/other.rs:1 -> src/middle/low.rs",
        ]
    );
    let circle = ["src/middle/low.rs", "src/other.rs"].map(|file| (*file).to_owned()).to_vec();
    assert_eq!(circles(&found), BTreeSet::from([circle]));
}

#[test]
fn circle_that_is_new_or_gone_is_reported() {
    let circle = |files: &[&str]| files.iter().map(|file| (*file).to_owned()).collect::<Vec<_>>();
    let in_circle = imports_in(&[
        ("src/lib.rs", "mod a;\nmod b;\nmod c;\n"),
        ("src/a.rs", "use crate::b::B;\n"),
        ("src/b.rs", "use super::c;\n"),
        ("src/c.rs", "\nfn c() -> crate::a::A {}\n"),
    ]);
    let three = BTreeSet::from([circle(&["src/a.rs", "src/b.rs", "src/c.rs"])]);
    let two = BTreeSet::from([circle(&["src/a.rs", "src/b.rs"])]);
    let new = "\
a circle of 3 files:
  src/a.rs:1: crate::b::B is in src/b.rs
  src/b.rs:1: super::c is in src/c.rs
  src/c.rs:2: crate::a::A is in src/a.rs";
    assert!(complaints(&in_circle, &three).is_empty());
    assert_eq!(complaints(&in_circle, &BTreeSet::new()), [new]);
    assert_eq!(
        complaints(&in_circle, &two),
        [new.replace("  src/a.rs:1: crate::b::B is in src/b.rs\n", "")]
    );
    assert_eq!(complaints(&[], &two).len(), 1);
    assert_eq!(listed(&list(&three)), three);

    let in_none = imports_in(&[
        ("src/lib.rs", "mod a;\nmod b;\npub use a::A;\n"),
        ("src/a.rs", "use crate::b::B;\n"),
        ("src/b.rs", "pub struct B;\n"),
    ]);
    assert!(circles(&in_none).is_empty());
}
