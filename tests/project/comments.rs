//! Comments are at most a hundred columns wide, as the code is.

use std::fs;
use std::ops::Range;

use xtask::source::{Kind, parts};
use xtask::tree;

use crate::root;

/// rustfmt's `max_width`, which leaves comments alone.
const WIDTH: usize = 100;

/// The numbers of the lines whose comments are too wide. Rows of tables and fenced code may be.
fn wide(text: &str) -> Vec<usize> {
    if text.lines().all(|line| line.chars().count() <= WIDTH) {
        return Vec::new();
    }
    let parts = parts(text);
    let (mut found, mut at) = (Vec::new(), 0);
    // The mark of the comment block that the line before belongs to, and whether a fence is open.
    let (mut block, mut is_fenced) = (None, false);
    for (number, line) in text.split('\n').enumerate() {
        let end = at + line.len();
        let is_here = |(kind, range): &&(Kind, Range<usize>)| {
            *kind == Kind::Comment && range.start < end && at < range.end
        };
        let comment = parts.iter().find(is_here).map(|(_, range)| range.start.max(at) - at);
        let is_alone = comment.is_some_and(|begin| line[..begin].trim().is_empty());
        let marked = comment.map(|begin| &line[begin..]).filter(|_| is_alone);
        let words = marked.map(|marked| marked.trim_start_matches(['/', '!', '*']));
        let mark = marked.zip(words).map(|(marked, words)| &marked[..marked.len() - words.len()]);
        let words = words.unwrap_or_default().trim_start();
        if mark != block {
            (block, is_fenced) = (mark, false);
        }
        let is_fence = words.starts_with("```");
        let may_be_wide = is_fenced || is_fence || words.starts_with('|');
        if comment.is_some() && line.chars().count() > WIDTH && !may_be_wide {
            found.push(number + 1);
        }
        is_fenced ^= is_fence;
        at = end + 1;
    }
    found
}

#[test]
fn comments_are_not_too_wide() {
    let mut found = Vec::new();
    for file in
        tree::files(root()).iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs"))
    {
        let text = fs::read_to_string(root().join(file)).unwrap();
        found.extend(wide(&text).iter().map(|line| format!("{}:{line}", file.display())));
    }
    assert!(found.is_empty(), "comments of more than {WIDTH} columns:\n{}", found.join("\n"));
}

#[test]
fn wide_comment_is_found_outside_of_tables_and_fences() {
    let wide_text = "é".repeat(WIDTH);
    let text = format!(
        "//! {wide_text}
//! | {wide_text} |
//! ```text
//! {wide_text}
//! ```
//! {wide_text}
const URL: &str = \"http://{wide_text}\";
let a = 1; // {wide_text}
    /// ```
    /// {wide_text}
    // {wide_text}
/* {wide_text}
{wide_text} */
// {}
",
        "é".repeat(WIDTH - 3)
    );
    assert_eq!(wide(&text), [1, 6, 8, 11, 12, 13]);
}
