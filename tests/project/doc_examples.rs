//! The examples of the documentation run. A list counts those that only compile, with the reason.

use std::fs;
use std::path::{Path, PathBuf};

/// A file, how many of its examples are only compiled, and why.
const COMPILED_ONLY: &[(&str, usize, &str)] = &[
    ("docs/jobs.md", 1, "an application, which a test of the command line runs"),
    (
        "docs/rpc.md",
        3,
        "a program that runs until a signal, kernels on several threads, certificates in files",
    ),
    ("docs/simulation.md", 1, "a sketch of a test whose program is an example"),
    ("net/src/address.rs", 1, "names of the outside world"),
    ("net/src/copy.rs", 1, "a server elsewhere"),
    ("net/src/datagram.rs", 2, "about any kind of socket, which the macro names"),
    ("net/src/dns.rs", 1, "names of the outside world"),
    ("net/src/error.rs", 3, "about a connection from elsewhere"),
    ("net/src/halves.rs", 1, "about a connection from elsewhere"),
    ("net/src/on_all.rs", 1, "other kernels, which a simulation does not share a port with"),
    ("net/src/resolver.rs", 1, "names of the outside world"),
    ("net/src/send_io.rs", 1, "a server elsewhere"),
    ("net/src/stream.rs", 13, "about any kind of stream, which the macro names"),
    ("net/src/tcp.rs", 1, "other kernels, which a simulation does not share a port with"),
    ("net/src/tls.rs", 2, "certificates in files, names of the outside world"),
    ("net/src/tls/listener.rs", 1, "certificates in files"),
    ("os/src/child.rs", 2, "programs of the system"),
    ("os/src/command.rs", 1, "programs of the system"),
    ("os/src/file.rs", 2, "the file system"),
    ("os/src/fs.rs", 1, "the file system"),
    ("os/src/output.rs", 1, "programs of the system"),
    ("os/src/process.rs", 1, "programs of the system"),
    ("os/src/signal.rs", 1, "signals that somebody else sends"),
    ("os/src/stdio.rs", 1, "standard input, which the tests have no use for"),
    ("os/src/watch.rs", 1, "the file system"),
    ("services/cli/src/lib.rs", 1, "an application, which does what its command line says"),
    ("services/http/src/client.rs", 2, "a server elsewhere"),
    ("services/http/src/client/body.rs", 1, "a server elsewhere"),
    ("services/http/src/client/error.rs", 1, "a server elsewhere"),
    ("services/http/src/client/request.rs", 1, "a server elsewhere"),
    ("services/http/src/client/response.rs", 1, "a server elsewhere"),
    ("services/http/src/io.rs", 1, "a server elsewhere"),
    ("services/http/src/lib.rs", 1, "a server that runs until a signal ends it"),
    (
        "services/http/src/on_all.rs",
        1,
        "other kernels, which a simulation does not share a port with",
    ),
    ("services/http/src/server.rs", 1, "certificates in files"),
    ("services/http/src/timer.rs", 1, "a builder of hyper, without a server"),
    ("services/jobs/src/brokers/rabbitmq.rs", 1, "a RabbitMQ to connect to"),
    ("services/jobs/src/brokers/sqlite.rs", 1, "a database in the file system"),
    ("services/jobs/src/client/setup.rs", 1, "a RabbitMQ and a Redis to connect to"),
    ("services/postgres/src/connection.rs", 2, "a PostgreSQL to connect to"),
    ("services/postgres/src/lib.rs", 1, "a PostgreSQL to connect to"),
    ("services/postgres/src/listener.rs", 1, "a PostgreSQL to connect to"),
    ("services/postgres/src/pipelined.rs", 1, "a PostgreSQL to connect to"),
    ("services/postgres/src/pool.rs", 1, "a PostgreSQL to connect to"),
    ("services/postgres/src/rows.rs", 1, "a PostgreSQL to connect to"),
    ("services/postgres/src/transaction.rs", 1, "a PostgreSQL to connect to"),
    ("services/rpc/src/client.rs", 1, "certificates in files"),
    ("src/lib.rs", 1, "a server that runs until a signal ends it"),
    ("task/src/bounded.rs", 1, "requests that never end"),
    ("traps/src/traps/blocking.rs", 2, "closures that run until another thread stops them"),
];

/// The crates whose files are read: the pages beside the manifest, and all that is in `src`.
const CRATES: &[&str] = &[
    ".",
    "time",
    "traps",
    "kernel",
    "net",
    "task",
    "sync",
    "os",
    "sim",
    "macros",
    "services/amqp",
    "services/amqp-testing",
    "services/cli",
    "services/console",
    "services/http",
    "services/jobs",
    "services/pool",
    "services/postgres",
    "services/rpc",
    "services/tokio",
];

/// The crates that a program knows by the name of a module of `pikake`, or not at all.
const INNER_CRATES: &[&str] = &[
    "pikake_time",
    "pikake_traps",
    "pikake_kernel",
    "pikake_net",
    "pikake_task",
    "pikake_sync",
    "pikake_os",
    "pikake_sim",
    "pikake_macros",
    "pikake_amqp",
    "pikake_console",
    "pikake_http",
    "pikake_jobs",
    "pikake_pool",
    "pikake_postgres",
    "pikake_rpc",
    "pikake_tokio",
];

/// The Rust files and pages that may have examples.
fn documented_files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for name in CRATES {
        entries(&root.join(name), &mut files);
    }
    let mut folders: Vec<PathBuf> = CRATES.iter().map(|name| root.join(name).join("src")).collect();
    folders.push(root.join("docs"));
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

/// A line of documentation, without the marks of a comment.
fn documentation(line: &str) -> &str {
    line.trim_start().trim_start_matches(['/', '!']).trim_start()
}

/// The path of a file below the root.
fn name(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap().to_str().unwrap().trim_start_matches("./").to_owned()
}

/// The lines that name an inner crate in an example, or in a text that a macro makes documentation
/// of.
fn lines_with_inner_crates(text: &str) -> Vec<&str> {
    let mut is_example = false;
    let mut found = Vec::new();
    for line in text.lines() {
        is_example ^= documentation(line).starts_with("```");
        let is_named = |name: &&str| {
            let is_text = |at: usize| is_example || line[..at].contains('"');
            let path = format!("{name}::");
            line.match_indices(&path).any(|(at, _)| is_text(at))
        };
        if INNER_CRATES.iter().any(is_named) {
            found.push(line.trim());
        }
    }
    found
}

#[test]
fn examples_import_pikake_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for path in documented_files(root) {
        let text = fs::read_to_string(&path).unwrap();
        let lines = lines_with_inner_crates(&text);
        found.extend(lines.iter().map(|line| format!("{}: {line}", name(root, &path))));
    }
    assert!(found.is_empty(), "name the module of `pikake` instead:\n{}", found.join("\n"));
}

#[test]
fn imports_of_inner_crates_are_found() {
    let text = "\
/// See [`sleep`](pikake_traps::sleep).
/// ```
/// # use pikake_net::TcpStream;
/// use pikake::net::TcpListener;
/// use pikake_amqp_testing::Broker;
/// ```
    reading!(\"pikake_net::ReadHalf\");
";
    let found = ["/// # use pikake_net::TcpStream;", "reading!(\"pikake_net::ReadHalf\");"];
    assert_eq!(lines_with_inner_crates(text), found);
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
            let line = documentation(line);
            line.starts_with("```") && (line.contains("no_run") || line.contains("ignore"))
        };
        let count = text.lines().filter(is_left_out).count();
        if count > 0 {
            found.push((name(root, &path), count));
        }
    }
    found.sort();
    let listed: Vec<(String, usize)> =
        COMPILED_ONLY.iter().map(|(name, count, _)| ((*name).to_owned(), *count)).collect();
    assert_eq!(found, listed, "have them run (see `pikake::sim::example`), or say why not");
}
