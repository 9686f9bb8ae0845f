//! The examples of the documentation run. A list counts those that only compile, with the reason.

use std::fs;
use std::path::{Path, PathBuf};

/// A file, how many of its examples are only compiled, and why.
const COMPILED_ONLY: &[(&str, usize, &str)] = &[
    ("README.md", 1, "an application, which a test of the command line runs"),
    ("docs/libraries.md", 1, "a server that runs until it is stopped"),
    ("docs/simulation.md", 1, "a sketch of a test whose program is an example"),
    ("net/src/address.rs", 1, "names of the outside world"),
    ("net/src/copy.rs", 1, "a server elsewhere"),
    ("net/src/datagram.rs", 2, "about any kind of socket, which the macro names"),
    ("net/src/dns.rs", 1, "names of the outside world"),
    ("net/src/error.rs", 3, "about a connection from elsewhere"),
    ("net/src/halves.rs", 1, "about a connection from elsewhere"),
    ("net/src/pipe.rs", 1, "a simulation has no descriptors"),
    ("net/src/resolver.rs", 1, "names of the outside world"),
    ("net/src/send_io.rs", 1, "a server elsewhere"),
    ("net/src/stream.rs", 11, "about any kind of stream, which the macro names"),
    ("net/src/tcp.rs", 1, "other kernels, which a simulation does not share a port with"),
    ("net/src/tls.rs", 2, "certificates in files, names of the outside world"),
    ("services/cli/src/lib.rs", 1, "an application, which does what its command line says"),
    ("services/jobs/src/brokers/rabbitmq.rs", 1, "a RabbitMQ to connect to"),
    ("services/jobs/src/brokers/sqlite.rs", 1, "a database in the file system"),
    ("task/src/bounded.rs", 1, "requests that never end"),
    ("task/src/proxy.rs", 1, "a simulation has no threads for objects"),
    ("task/src/thread.rs", 2, "a simulation has no threads that await"),
    ("traps/src/blocking.rs", 2, "closures that loop or read until they are told to stop"),
];

/// The folders whose files are read, with the folders below them.
const FOLDERS: &[&str] = &[
    "src",
    "time/src",
    "traps/src",
    "kernel/src",
    "net/src",
    "services/amqp/src",
    "services/amqp-testing/src",
    "task/src",
    "sync/src",
    "sim/src",
    "services/jobs/src",
    "services/cli/src",
    "docs",
];

/// The folders whose files are read, without the folders below them.
const PAGES: &[&str] = &["traps", "."];

/// The Rust files and pages that may have examples.
fn documented_files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for page in PAGES {
        entries(&root.join(page), &mut files);
    }
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = folders.pop() {
        folders.extend(entries(&folder, &mut files));
    }
    files
}

/// Adds the Rust files and pages of a folder. Returns the folders in it.
fn entries(folder: &Path, files: &mut Vec<PathBuf>) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, others): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    let is_read =
        |path: &PathBuf| path.extension().is_some_and(|kind| kind == "rs" || kind == "md");
    files.extend(others.into_iter().filter(is_read));
    folders
}

#[test]
fn files_in_folders_of_a_crate_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(documented_files(root).contains(&root.join("kernel/src/kernel/embedding.rs")));
}

#[test]
fn examples_that_are_not_run_have_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for path in documented_files(root) {
        let text = fs::read_to_string(&path).unwrap();
        let is_left_out = |line: &&str| {
            let line = line.trim_start().trim_start_matches(['/', '!']).trim_start();
            line.starts_with("```") && (line.contains("no_run") || line.contains("ignore"))
        };
        let count = text.lines().filter(is_left_out).count();
        if count > 0 {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            found.push((name, count));
        }
    }
    found.sort();
    let listed: Vec<(String, usize)> =
        COMPILED_ONLY.iter().map(|(name, count, _)| ((*name).to_owned(), *count)).collect();
    assert_eq!(found, listed, "have them run (see `pikake_sim::example`), or say why not");
}
