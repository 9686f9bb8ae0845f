//! Code lines of each package: lines that are neither blank nor only comment.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::Path;

use crate::source::Source;
use crate::tree::{self, Package, Tree};

/// What lines are for.
pub const COLUMNS: [&str; 4] = ["sources", "tests", "examples", "benches"];

/// The row of the sum of the sources that programs are made of: those of published packages.
pub const PUBLISHED: &str = "published";

/// Where the numbers are recorded, seen from the root.
pub const FILE: &str = "tests/project/budget.tsv";

/// Code lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// The lines of each column, by the package's folder. The root is `.`.
    pub packages: BTreeMap<String, [usize; 4]>,
    /// The sum of the sources of published packages.
    pub published: usize,
}

impl Budget {
    /// Counts the lines of the workspace.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn count(root: &Path) -> std::io::Result<Self> {
        let mut budget = Self::default();
        for package in tree::packages(&tree::files(root)) {
            let lines = count(root, &package)?;
            let manifest = fs::read_to_string(root.join(&package.folder).join("Cargo.toml"))?;
            if !manifest.contains("publish = false") {
                budget.published += lines[0];
            }
            let name = package.folder.display().to_string();
            budget.packages.insert(if name.is_empty() { ".".into() } else { name }, lines);
        }
        Ok(budget)
    }

    /// Reads the form that `Display` writes. Lines that begin with `#` are left out.
    ///
    /// # Errors
    /// The line that has another form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut budget = Self::default();
        let is_row = |line: &&str| !line.starts_with('#') && !line.starts_with("package\t");
        for line in text.lines().filter(is_row) {
            let (name, numbers) = line.split_once('\t').ok_or(line)?;
            let numbers: Result<Vec<usize>, _> = numbers.split('\t').map(str::parse).collect();
            match numbers.map_err(|error| format!("{line}: {error}"))?[..] {
                [published] if name == PUBLISHED => budget.published = published,
                [sources, tests, examples, benches] => {
                    let lines = [sources, tests, examples, benches];
                    budget.packages.insert(name.to_owned(), lines);
                }
                _ => return Err(line.to_owned()),
            }
        }
        Ok(budget)
    }
}

impl Display for Budget {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "package\t{}", COLUMNS.join("\t"))?;
        for (name, lines) in &self.packages {
            writeln!(f, "{name}\t{}", lines.map(|count| count.to_string()).join("\t"))?;
        }
        writeln!(f, "{PUBLISHED}\t{}", self.published)
    }
}

/// The lines of a package, by column.
fn count(root: &Path, package: &Package) -> std::io::Result<[usize; 4]> {
    let read = |file: &Path| fs::read_to_string(root.join(file)).ok();
    let trees = package.roots(root).map(|file| Tree::read(file, &read));
    let in_no_test: BTreeMap<_, _> = trees.flat_map(|tree| tree.sources).collect();
    // Programs that show or measure something are no sources.
    let column = match package.folder.iter().next().and_then(|first| first.to_str()) {
        Some("examples") => 2,
        Some("benches") => 3,
        _ => 0,
    };
    let mut lines = [0; 4];
    for file in &package.sources {
        let (others, tests) = match in_no_test.get(file) {
            Some(source) => source.lines(),
            None => Source::new(fs::read_to_string(root.join(file))?).lines(),
        };
        let inner = file.strip_prefix(&package.folder).unwrap_or(file);
        let column = match inner.iter().next().and_then(|first| first.to_str()) {
            Some("tests") => 1,
            Some("examples") => 2,
            Some("benches") => 3,
            Some("src") if !in_no_test.contains_key(file) => 1,
            _ => column,
        };
        lines[column] += others;
        lines[1] += tests;
    }
    Ok(lines)
}
