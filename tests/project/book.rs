//! The book in `docs/`: its pages are listed, its links lead to pages, each of its Rust blocks is
//! tested, and the code on a page is that of its source.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use xtask::pages::source;

use crate::root;

/// The pages of the book, without its summary.
fn pages() -> BTreeSet<PathBuf> {
    let mut pages: BTreeSet<PathBuf> =
        xtask::pages::pages(root()).iter().map(|page| root().join(page)).collect();
    assert!(pages.remove(&root().join("docs/SUMMARY.md")));
    pages
}

/// A block of code: its language, the line before it, and its lines.
struct Block<'a> {
    language: &'a str,
    before: &'a str,
    lines: Vec<&'a str>,
}

/// The blocks of code of a page, and the lines outside of them.
fn parts(text: &str) -> (Vec<Block<'_>>, Vec<&str>) {
    let (mut blocks, mut outside) = (Vec::<Block<'_>>::new(), Vec::new());
    let (mut is_inside, mut before) = (false, "");
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(_) if is_inside => is_inside = false,
            Some(language) => {
                is_inside = true;
                blocks.push(Block { language, before, lines: Vec::new() });
            }
            None if is_inside => blocks.last_mut().unwrap().lines.push(line),
            None => outside.push(line),
        }
        before = line;
    }
    assert!(!is_inside, "a block is not closed");
    (blocks, outside)
}

/// The targets of the links in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

fn shown(page: &Path) -> String {
    page.strip_prefix(root()).unwrap().display().to_string()
}

#[test]
fn summary_lists_every_page() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let listed: BTreeSet<PathBuf> =
        summary.lines().flat_map(links).map(|link| root().join("docs").join(link)).collect();
    assert_eq!(listed, pages());
}

/// A link to a file outside of `docs` would be broken in the rendered book.
#[test]
fn links_lead_to_pages() {
    let pages = pages();
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        for link in parts(&text).1.into_iter().flat_map(links) {
            if link.starts_with("https://") || link.starts_with('#') {
                continue;
            }
            let file = link.split('#').next().unwrap();
            let target = page.parent().unwrap().join(file).canonicalize();
            let is_page = target.is_ok_and(|target| {
                pages.iter().any(|page| page.canonicalize().is_ok_and(|page| page == target))
            });
            assert!(is_page, "{}: {link} is no page", shown(page));
        }
    }
}

/// A Rust block is a part of a file that cargo builds, or it is on a page whose examples
/// `src/lib.rs` tests.
#[test]
fn rust_blocks_are_tested() {
    let facade = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    for page in pages() {
        let name = shown(&page);
        let is_tested = facade.contains(&format!("include_str!(\"../{name}\")"));
        let text = fs::read_to_string(&page).unwrap();
        for block in parts(&text).0.iter().filter(|block| block.language.starts_with("rust")) {
            let is_built = source(block.before).is_some_and(|(file, _)| file.ends_with(".rs"));
            assert!(is_built != is_tested, "{name}: the block {:?} …", block.lines[0]);
        }
    }
}

/// Programs and their outputs are copies of files, which tests build, run and compare.
#[test]
fn code_is_that_of_its_sources() {
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let renewed = xtask::pages::renewed(root(), &text);
        let renewed = renewed.unwrap_or_else(|error| panic!("{}: {error}", shown(&page)));
        let name = shown(&page);
        assert!(renewed == text, "`cargo xtask book` renews the code on the page {name}");
        assert!(!text.contains("{{#"), "{name}: mdBook would include a file, and no forge does");
        count += parts(&text).0.iter().filter(|block| source(block.before).is_some()).count();
    }
    assert!(count > 20, "only {count} blocks have a source");
}

/// The places of examples in a text, as `examples/hung.rs:39:21`.
fn places(text: &str) -> impl Iterator<Item = (&str, usize, usize)> {
    let words = text.split(|letter: char| !(letter.is_alphanumeric() || "/_.:".contains(letter)));
    words.filter(|word| word.starts_with("examples/")).filter_map(|word| {
        let mut parts = word.split(':');
        let (file, line, column) = (parts.next()?, parts.next()?, parts.next()?);
        Some((file, line.parse().ok()?, column.parse().ok()?))
    })
}

/// Whether a trap, a task or a main function may be at a text: it begins with a call, an await or
/// an attribute.
fn may_wait(text: &str) -> bool {
    let name =
        text.trim_start_matches(|letter: char| letter.is_alphanumeric() || "_:".contains(letter));
    text.starts_with("#[pikake::main")
        || text.starts_with("await")
        || (name.len() < text.len() && name.starts_with('('))
}

/// The output of the program `pikake` names places in examples, which move.
#[test]
fn places_on_pages_are_in_the_examples() {
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for (file, line, column) in places(&text) {
            let source = fs::read_to_string(root().join(file)).unwrap();
            let there = source.lines().nth(line - 1).and_then(|line| line.get(column - 1..));
            let name = shown(&page);
            assert!(there.is_some_and(may_wait), "{name}: {file}:{line}:{column}: {there:?}");
            count += 1;
        }
    }
    assert!(count > 20, "only {count} places are on the pages");
}

/// The figures of the page of questions are those of the benchmarks.
#[test]
fn figures_are_recorded() {
    let questions = fs::read_to_string(root().join("docs/faq.md")).unwrap();
    let recorded = fs::read_to_string(root().join("benches/README.md")).unwrap();
    let mut count = 0;
    for row in questions.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, operation, pikake, tokio, _] = cells[..] else { continue };
        if pikake.parse::<u32>().is_ok() {
            let figures = format!("| {pikake} | {tokio} |");
            assert!(recorded.contains(&figures), "{operation}: {figures}");
            count += 1;
        }
    }
    assert_eq!(count, 8);
}
