//! Says how to get tokio's files, if they are missing, and has them compile with all modules.

use std::path::Path;

/// Features of tokio that bring no package here.
const MODULES: [&str; 11] = [
    "fs",
    "io-std",
    "io-util",
    "net",
    "process",
    "rt",
    "rt-multi-thread",
    "signal",
    "sync",
    "test-util",
    "time",
];

fn main() {
    let source = Path::new("../../target/tokio-source/src/lib.rs");
    println!("cargo::rerun-if-changed={}", source.display());
    if !source.exists() {
        println!(
            "cargo::error=tokio's own files are missing: run `cargo xtask tokio source` in the \
             repository of pikake"
        );
    }
    for module in MODULES {
        println!("cargo::rustc-cfg=feature=\"{module}\"");
    }
}
