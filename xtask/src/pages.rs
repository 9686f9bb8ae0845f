//! The code on the pages of the book: copies of files, or of parts of files, that cargo builds or
//! that tests compare with a run.
//!
//! A comment of HTML on the line before a block names the source, seen from the root:
//!
//! ````text
//! <!-- source: examples/hung.rs:deadlock -->
//! ```rust
//! ```
//! ````
//!
//! A part begins after the line `// ANCHOR: deadlock` of the file and ends before the line
//! `// ANCHOR_END: deadlock`. Parts may overlap: such lines are not copied.

use std::fs;
use std::path::{Path, PathBuf};

use crate::tree;

/// Begins and ends a block of code.
const FENCE: &str = "```";

/// The pages below `docs`, seen from the root, in order.
pub fn pages(root: &Path) -> Vec<PathBuf> {
    let is_page = |file: &PathBuf| {
        file.starts_with("docs") && file.extension().is_some_and(|kind| kind == "md")
    };
    tree::files(root).into_iter().filter(is_page).collect()
}

/// The file, and the part of the file, that a line names as the source of the block below it.
pub fn source(line: &str) -> Option<(&str, Option<&str>)> {
    let source = line.strip_prefix("<!-- source: ")?.strip_suffix(" -->")?;
    Some(source.split_once(':').map_or((source, None), |(file, part)| (file, Some(part))))
}

/// The text of a page, with the code that its sources have now.
///
/// # Errors
///
/// A source that cannot be read, a part that its file has not, or a comment without a block.
pub fn renewed(root: &Path, page: &str) -> Result<String, String> {
    let (mut text, mut lines) = (String::new(), page.lines());
    while let Some(line) = lines.next() {
        text += &format!("{line}\n");
        let Some((file, part)) = source(line) else { continue };
        let begin = lines.next().filter(|line| line.starts_with(FENCE));
        let begin = begin.ok_or_else(|| format!("no block follows the line {line}"))?;
        let is_closed = lines.any(|line| line == FENCE);
        let code =
            fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))?;
        let code = part.map_or(Ok(code.clone()), |part| {
            self::part(&code, part).ok_or_else(|| format!("{file} has no part `{part}`"))
        })?;
        if !is_closed || code.lines().any(|line| line.starts_with(FENCE)) {
            return Err(format!("a fence is in the way after the line {line}"));
        }
        text += &format!("{begin}\n{}\n{FENCE}\n", code.trim_end());
    }
    Ok(text)
}

/// The lines of a part of a file.
fn part(code: &str, name: &str) -> Option<String> {
    let (begin, end) = (format!("// ANCHOR: {name}"), format!("// ANCHOR_END: {name}"));
    let mut lines = code.lines();
    lines.find(|line| line.trim() == begin)?;
    let mut part = String::new();
    for line in lines {
        match line.trim() {
            mark if mark == end => return Some(part),
            mark if mark.starts_with("// ANCHOR") => {}
            _ => part += &format!("{line}\n"),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file whose parts overlap.
    const CODE: &str = "\
// ANCHOR: all
fn a() {
    // ANCHOR: inner
    b();
    // ANCHOR_END: inner
}
// ANCHOR_END: all
";

    /// The renewed text of a page beside a file `code.rs`.
    fn renewed_beside(name: &str, code: &str, page: &str) -> Result<String, String> {
        let folder = std::env::temp_dir().join(format!("pikake-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("it can be made");
        fs::write(folder.join("code.rs"), code).expect("it can be written");
        let text = renewed(&folder, page);
        drop(fs::remove_dir_all(&folder));
        text
    }

    #[test]
    fn blocks_get_the_code_of_their_sources() {
        let page = "\
Text.

<!-- source: code.rs:all -->
```rust
old();
```
<!-- source: code.rs:inner -->
```rust,ignore
```

```rust
stays();
```
";
        let expected = "\
Text.

<!-- source: code.rs:all -->
```rust
fn a() {
    b();
}
```
<!-- source: code.rs:inner -->
```rust,ignore
    b();
```

```rust
stays();
```
";
        assert_eq!(renewed_beside("blocks", CODE, page).as_deref(), Ok(expected));
        assert_eq!(renewed_beside("again", CODE, expected).as_deref(), Ok(expected));
    }

    #[test]
    fn source_without_a_part_is_copied_whole() {
        let page = "<!-- source: code.rs -->\n```text\n```\n";
        let expected = "<!-- source: code.rs -->\n```text\none\n\ntwo\n```\n";
        assert_eq!(renewed_beside("whole", "one\n\ntwo\n", page).as_deref(), Ok(expected));
    }

    #[test]
    fn faults_of_sources_are_errors() {
        for (page, code, expected) in [
            ("<!-- source: code.rs:b -->\n```\n```\n", CODE, "code.rs has no part `b`"),
            ("<!-- source: code.rs:a -->\n```\n```\n", "// ANCHOR: a\n", "has no part `a`"),
            ("<!-- source: gone.rs -->\n```\n```\n", CODE, "gone.rs: "),
            ("<!-- source: code.rs -->\ntext\n", CODE, "no block follows"),
            ("<!-- source: code.rs -->\n```\n", CODE, "a fence is in the way"),
            ("<!-- source: code.rs -->\n```\n```\n", "```\n", "a fence is in the way"),
        ] {
            let error = renewed_beside("faults", code, page).expect_err(page);
            assert!(error.contains(expected), "{error}");
        }
    }
}
