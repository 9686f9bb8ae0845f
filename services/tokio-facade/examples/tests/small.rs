//! Runs each example that needs no server, and compares its output with the header of its file.

use std::path::Path;
use std::process::Command;

/// Examples and their sources.
macro_rules! examples {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../examples/", $name, ".rs")))),*]
    };
}

#[test]
fn examples_print_their_headers() {
    let tests = std::env::current_exe().expect("this program has a path");
    let folder = tests.parent().and_then(Path::parent).expect("cargo's folders").join("examples");
    let examples = examples! {
        "actix_web" "async_nats" "axum" "hyper_rustls" "hyper_util" "kube" "opentelemetry_otlp"
        "quinn" "tokio_stream" "tokio_tungstenite" "tokio_util" "tonic" "tower" "tower_http"
    };
    let mut wrong = Vec::new();
    for (name, source) in examples {
        let output = Command::new("timeout").arg("60").arg(folder.join(name)).output();
        let output = output.expect("cargo has built the example");
        let header = source.lines().map_while(|line| line.strip_prefix("//!"));
        let lines: Vec<&str> = header.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        let promised =
            lines.split(|line| line.starts_with("```")).nth(1).expect("a block of output");
        let printed = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || printed.lines().ne(promised.iter().copied()) {
            let errors = String::from_utf8_lossy(&output.stderr);
            wrong.push(format!("{name}, {}: {printed}{errors}", output.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
