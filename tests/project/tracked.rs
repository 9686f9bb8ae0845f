//! The repository has sources alone: no product of a build, and no large file.

use std::fs;
use std::path::Path;

use xtask::tree;

use crate::root;

/// A larger file is loaded by everybody who clones the repository, for good.
const MAX_BYTES: u64 = 300_000;

/// Larger files, with the reason.
const LARGE: &[(&str, &str)] = &[];

/// What compilers and package managers make.
const FOLDERS: &[&str] = &["target", "node_modules", "__pycache__"];
const EXTENSIONS: &[&str] =
    &["o", "a", "so", "dylib", "dll", "exe", "lib", "rlib", "rmeta", "d", "pyc", "class", "wasm"];

/// How programs and libraries begin: Linux, macOS (two), Windows, archives, WebAssembly.
const MAGIC: &[&[u8]] =
    &[b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ", b"!<arch>\n", b"\0asm"];

fn is_product(file: &Path, content: &[u8]) -> bool {
    let folders = file.parent().into_iter().flat_map(Path::iter);
    folders.flat_map(|folder| folder.to_str()).any(|folder| FOLDERS.contains(&folder))
        || file.extension().is_some_and(|kind| EXTENSIONS.iter().any(|product| kind == *product))
        || MAGIC.iter().any(|magic| content.starts_with(magic))
}

#[test]
fn no_product_of_a_build_is_tracked() {
    let files = tree::files(root());
    assert!(files.len() > 1000, "only {} files were found", files.len());
    let is_product =
        |file: &&std::path::PathBuf| is_product(file, &fs::read(root().join(file)).unwrap());
    let found: Vec<_> = files.iter().filter(is_product).collect();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn large_files_have_a_reason() {
    let is_large =
        |file: &&std::path::PathBuf| fs::metadata(root().join(file)).unwrap().len() > MAX_BYTES;
    let files = tree::files(root());
    let found: Vec<_> = files.iter().filter(is_large).map(|file| file.to_str().unwrap()).collect();
    let listed: Vec<&str> = LARGE.iter().map(|(file, _)| *file).collect();
    assert_eq!(found, listed, "more than {MAX_BYTES} bytes");
}

#[test]
fn products_are_known_by_name_and_content() {
    for (file, content) in [
        ("net/target/debug/x.rs", &b""[..]),
        ("libx.rlib", b""),
        ("page/node_modules/x/index.js", b""),
        ("run", b"\x7fELF\x02\x01"),
    ] {
        assert!(is_product(Path::new(file), content), "{file}");
    }
    assert!(!is_product(Path::new("src/target.rs"), b"//! The target."));
    assert!(!is_product(Path::new("run"), b"#!/bin/sh"));
}
