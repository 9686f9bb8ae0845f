//! `cargo xtask book`: the code on the pages of `docs/`, and the pages as a book, by mdBook.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use xtask::pages;

use crate::Result;
use crate::run::{cargo, within};

/// Pinned, so that what it makes and warns of changes by intention only.
const MDBOOK: &str = "0.5.4";

/// For its installation.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Pages that repeat the others, or have links that are relative to nothing.
const LEFT_OUT: [&str; 3] = ["404.html", "print.html", "toc.html"];

/// Renews the code on the pages, and builds the book into the target folder. A warning or a broken
/// link is an error.
pub(crate) fn book(arguments: &[String]) -> Result {
    if !arguments.is_empty() {
        return Err("`book` takes no arguments".into());
    }
    renew_code(xtask::root())?;
    let (docs, made) = (xtask::root().join("docs"), xtask::target().join("book"));
    let mut mdbook = Command::new(mdbook()?);
    let output = mdbook.arg("build").arg(&docs).arg("--dest-dir").arg(&made).output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    eprint!("{said}");
    if !output.status.success() || said.contains("WARN") || said.contains("ERROR") {
        return Err("mdbook has something to say of the book".into());
    }
    let broken = broken_links(&made, &docs)?;
    match broken.is_empty() {
        true => {
            println!("{}", made.join("index.html").display());
            Ok(())
        }
        false => Err(format!("broken links:\n{}", broken.join("\n")).into()),
    }
}

/// Writes the pages whose code differs from its sources.
fn renew_code(root: &Path) -> Result {
    for page in pages::pages(root) {
        let path = root.join(&page);
        let text = fs::read_to_string(&path)?;
        let shown = page.display();
        let renewed = pages::renewed(root, &text).map_err(|error| format!("{shown}: {error}"))?;
        if renewed != text {
            fs::write(&path, renewed)?;
            println!("renewed {shown}");
        }
    }
    Ok(())
}

/// The program, installed below the target folder if it is not there.
fn mdbook() -> Result<PathBuf> {
    let tools = xtask::target().join("tools");
    let program = tools.join("bin/mdbook");
    let version = Command::new(&program).arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    if version.is_ok_and(|version| version == format!("mdbook v{MDBOOK}")) {
        return Ok(program);
    }
    let mut install = cargo(&["install", "--locked", "--no-default-features", "--version", MDBOOK]);
    within(Some(LIMIT), install.arg("--root").arg(&tools).arg("mdbook"))?;
    Ok(program)
}

/// The links of a book's pages that lead nowhere. A page is read in the repository, too: a link may
/// lead from there to a file beside the pages.
fn broken_links(book: &Path, docs: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    collect(book, &mut pages)?;
    let mut broken = Vec::new();
    for (page, text) in &pages {
        if LEFT_OUT.iter().any(|name| page == &book.join(name)) {
            continue;
        }
        for link in links(text) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => clean(&page.parent().expect("it is in the book").join(path)),
            };
            let is_there = match (target.strip_prefix(book), pages.get(&target)) {
                (Err(_), _) => is_beside(page, path, book, docs),
                (Ok(_), Some(text)) => anchor.is_empty() || has_anchor(text, anchor),
                (Ok(_), None) => target.exists(),
            };
            if !is_there {
                broken.push(format!("{}: {link}", page.strip_prefix(book)?.display()));
            }
        }
    }
    Ok(broken)
}

/// Whether a link that leaves the book leads to a file of the repository.
fn is_beside(page: &Path, path: &str, book: &Path, docs: &Path) -> bool {
    let Ok(page) = page.strip_prefix(book) else { return false };
    let target = clean(&docs.join(page).parent().expect("it is in a folder").join(path));
    // mdBook takes each page for one of its own.
    target.exists()
        || target.extension().is_some_and(|end| end == "html")
            && target.with_extension("md").exists()
}

/// Reads the pages below a folder.
fn collect(folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|end| end == "html") {
            let text = fs::read_to_string(&path)?;
            pages.insert(path, text);
        }
    }
    Ok(())
}

/// The links of a page to other pages, and within itself.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let values = [" href=\"", " src=\""].into_iter().flat_map(|name| page.split(name).skip(1));
    let links = values.filter_map(|rest| rest.split('"').next());
    links.filter(|link| !link.contains(':') && !link.is_empty() && *link != "#")
}

fn has_anchor(page: &str, anchor: &str) -> bool {
    page.contains(&format!(" id=\"{anchor}\"")) || page.contains(&format!(" name=\"{anchor}\""))
}

/// A path without `.` and `..`.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(clean.pop()),
            part => clean.push(part),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
            fs::write(path, text).expect("it can be written");
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let folder = std::env::temp_dir().join(format!("pikake-book-{}", std::process::id()));
        let (book, docs) = (folder.join("target/book"), folder.join("docs"));
        write(
            &book,
            &[
                (
                    "index.html",
                    r##"<a href="a/b.html#there">, <a href="a/b.html#gone">, <img src="no.png">, <a href="#here" id="here">,
                    <a href="https://elsewhere.example/x.html">, <a href="../examples/README.html">, <a href="../no.rs">"##,
                ),
                (
                    "a/b.html",
                    r##"<h1 id="there"><a href="../index.html"> <a href="../none.html"> <a href="../a/./b.html">"##,
                ),
                ("404.html", r##"<a href="a/none.html">"##),
            ],
        );
        write(&folder, &[("examples/README.md", ""), ("docs/README.md", "")]);
        let found = broken_links(&book, &docs);
        drop(fs::remove_dir_all(&folder));
        let expected = [
            "a/b.html: ../none.html",
            "index.html: a/b.html#gone",
            "index.html: ../no.rs",
            "index.html: no.png",
        ];
        assert_eq!(found.expect("they are read"), expected);
    }
}
