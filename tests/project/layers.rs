//! The table of files in a crate's README is an order: a file imports none of the rows above.
//!
//! Such a table begins with [`HEAD`], and [`RULE`] follows it, with the exceptions there are. An
//! exception that no import needs is refused, so the list only shrinks.

use std::collections::BTreeSet;
use std::fs;

use xtask::tree;

use crate::circles::IMPORTS;
use crate::imports::Import;
use crate::{is_renewed, root};

/// The first line of a table. A row names files and folders below `src/`; a file stands for the
/// folder of its name, too, if no other row has that.
const HEAD: &str = "| in `src/`, from the top down | |";

/// The line behind a table that has an order. `src/lib.rs`, which exports the names of all, has no
/// row.
const RULE: &str = "A file imports files of its own row and of rows below it, and none above.";

/// The line instead of [`RULE`] before a list of exceptions.
const EXCEPTED: &str =
    "A file imports files of its own row and of rows below it, and none above but these:";

/// The first name imports the second, which is in a row above.
type Exception = (String, String);

/// The names in the rows of the table, from the top down.
fn rows(page: &str) -> Option<Vec<Vec<&str>>> {
    let rows = page.lines().skip_while(|line| *line != HEAD).skip(2);
    let rows: Vec<_> = rows.take_while(|line| line.starts_with('|')).map(quoted).collect();
    (!rows.is_empty()).then_some(rows)
}

/// The names between backticks in the first cell of a row, or in an exception.
fn quoted(line: &str) -> Vec<&str> {
    let cell = line.trim_start_matches('|').split('|').next().unwrap_or_default();
    cell.split('`').skip(1).step_by(2).collect()
}

/// The page before the rule and its exceptions, those, and the page behind them.
fn parts(page: &str) -> Option<(&str, BTreeSet<Exception>, &str)> {
    let begin = page.find(RULE).or_else(|| page.find(EXCEPTED))?;
    let (before, rule) = page.split_at(begin);
    let mut end = 0;
    let mut exceptions = BTreeSet::new();
    for line in rule.split_inclusive('\n') {
        match quoted(line)[..] {
            [from, to] if line.contains("` imports `") => {
                exceptions.insert((from.to_owned(), to.to_owned()));
            }
            _ if line.starts_with(RULE) || line.starts_with(EXCEPTED) => {}
            _ if line.trim().is_empty() => {}
            _ => break,
        }
        end += line.len();
    }
    Some((before, exceptions, &rule[end..]))
}

/// The rule with its exceptions, as a page has it.
fn rule(exceptions: &BTreeSet<Exception>) -> String {
    if exceptions.is_empty() {
        return format!("{RULE}\n\n");
    }
    let lines = exceptions.iter().map(|(from, to)| format!("* `{from}` imports `{to}`\n"));
    format!("{EXCEPTED}\n\n{}\n", lines.collect::<String>())
}

/// The row of a file and the name there that stands for it.
fn place<'a>(rows: &[Vec<&'a str>], file: &str) -> Option<(usize, &'a str)> {
    let names =
        rows.iter().enumerate().flat_map(|(row, names)| names.iter().map(move |n| (row, *n)));
    let is_its = |(_, name): &(usize, &str)| {
        let folder = name.trim_end_matches(".rs").trim_end_matches('/');
        file == *name || file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    };
    // The file itself comes before a folder of its name, and an inner folder before an outer one.
    names.filter(is_its).max_by_key(|(_, name)| (file == *name, name.len()))
}

/// The imports that lead upwards, by the names in the table, and the files without a row.
fn upward(
    rows: &[Vec<&str>],
    imports: &[Import],
    src: &str,
) -> (Vec<(Exception, String)>, BTreeSet<String>) {
    let (mut upward, mut homeless) = (Vec::new(), BTreeSet::new());
    for import in imports {
        let inner = |file: &str| file.strip_prefix(src).map(str::to_owned);
        let (Some(from), Some(to)) = (inner(&import.from), inner(&import.to)) else { continue };
        let mut find = |file: &str| {
            let top = (0, "lib.rs");
            place(rows, file).or((file == "lib.rs").then_some(top)).or_else(|| {
                homeless.insert(file.to_owned());
                None
            })
        };
        let (Some((low, name)), Some((high, used))) = (find(&from), find(&to)) else { continue };
        if high < low || (used == "lib.rs" && name != used) {
            let text = format!("{from}:{}: {} is in {to}", import.line, import.path);
            upward.push(((name.to_owned(), used.to_owned()), text));
        }
    }
    (upward, homeless)
}

#[test]
fn files_import_none_of_the_rows_above() {
    let mut complaints = Vec::new();
    let mut count = 0;
    for package in tree::packages(&tree::files(root())) {
        let path = package.folder.join("README.md");
        let Ok(page) = fs::read_to_string(root().join(&path)) else { continue };
        let Some(rows) = rows(&page) else { continue };
        let path = path.display();
        let Some((before, exceptions, behind)) = parts(&page) else {
            complaints.push(format!("{path}: behind the table stands no rule"));
            continue;
        };
        count += 1;
        let (upward, homeless) =
            upward(&rows, &IMPORTS, &format!("{}/src/", package.folder.display()));
        complaints.extend(homeless.iter().map(|file| format!("{path}: no row has {file}")));
        let needed: BTreeSet<Exception> = upward.iter().map(|(pair, _)| pair.clone()).collect();
        if is_renewed() {
            let page = [before, &rule(&needed), behind].concat();
            fs::write(root().join(package.folder.join("README.md")), page).unwrap();
            continue;
        }
        for (_, import) in upward.iter().filter(|(pair, _)| !exceptions.contains(pair)) {
            complaints.push(format!("{path}: {import}, in a row above"));
        }
        for (from, to) in exceptions.difference(&needed) {
            complaints.push(format!("{path}: `{from}` imports nothing of `{to}` any more"));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(count > 0, "no README has a table that begins with {HEAD}");
}

#[test]
fn exceptions_are_read_and_written() {
    let page = format!(
        "## Files\n\n{HEAD}\n| --- | --- |\n| `a.rs`, `b/` | `c.rs` |\n| `b/low.rs` | |\n\n\
         {EXCEPTED}\n\n* `b/low.rs` imports `a.rs`\n\n## Next\n"
    );
    let rows = rows(&page).unwrap();
    assert_eq!(rows, [vec!["a.rs", "b/"], vec!["b/low.rs"]]);
    let (before, exceptions, behind) = parts(&page).unwrap();
    assert_eq!(exceptions, BTreeSet::from([("b/low.rs".to_owned(), "a.rs".to_owned())]));
    assert_eq!([before, &rule(&exceptions), behind].concat(), page);

    let import = |from: &str, to: &str| Import {
        from: format!("net/src/{from}"),
        to: format!("net/src/{to}"),
        line: 7,
        path: "crate::x".to_owned(),
    };
    let imports = [
        import("a.rs", "b/low.rs"),
        import("b/low.rs", "b/high.rs"),
        import("b/high.rs", "lib.rs"),
        import("a.rs", "d.rs"),
    ];
    let (upward, homeless) = upward(&rows, &imports, "net/src/");
    let pair =
        |from: &str, to: &str, text: &str| ((from.to_owned(), to.to_owned()), text.to_owned());
    assert_eq!(
        upward,
        [
            pair("b/low.rs", "b/", "b/low.rs:7: crate::x is in b/high.rs"),
            pair("b/", "lib.rs", "b/high.rs:7: crate::x is in lib.rs"),
        ]
    );
    assert_eq!(homeless, BTreeSet::from(["d.rs".to_owned()]));
}
