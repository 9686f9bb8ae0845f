//! The packages that a feature brings, and the oldest Rust that they build with: the front page
//! says how many, and the default features stay light.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::root;

/// The most packages that a program with the default features builds. Nobody raises it.
const MOST_BY_DEFAULT: usize = 30;

/// Which packages are built differs between systems.
const TARGET: &str = "x86_64-unknown-linux-gnu";

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--locked", "--offline", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The packages that a program with pikake builds: name and version.
fn packages(features: &[&str]) -> BTreeSet<(String, String)> {
    let tree =
        ["tree", "-p", "pikake", "-e", "normal,build", "--prefix", "none", "--target", TARGET];
    let listed = cargo(&[&tree, features].concat());
    let package = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        Some((name.to_owned(), version.to_owned()))
    };
    listed.lines().filter_map(package).collect()
}

/// The oldest Rust that each package declares, as 85 for 1.85.
fn oldest_rusts() -> BTreeMap<(String, String), u32> {
    let metadata = cargo(&["metadata", "--format-version", "1", "--filter-platform", TARGET]);
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages").iter();
    let declared = |package: &Value| {
        let text = |field: &str| package[field].as_str().map(str::to_owned);
        let minor = text("rust_version").map(|rust| rust.split('.').nth(1).unwrap().parse());
        Some(((text("name")?, text("version")?), minor?.ok()?))
    };
    packages.filter_map(declared).collect()
}

/// The rows of the front page: feature, whether it is a default, packages, oldest Rust.
fn rows() -> Vec<(String, bool, String, String)> {
    let page = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let section = page.lines().skip_while(|line| *line != "//! # Features");
    let rows = section.take_while(|line| *line != "//! # Guides");
    let cells = rows.filter(|row| row.starts_with("//! | `")).map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let text = |index: usize| cells[index].to_owned();
        (text(1).trim_matches('`').to_owned(), cells[2] == "yes", text(5), text(6))
    });
    cells.collect()
}

/// The rows of the page of features: feature, packages, seconds of a build, multiple of tokio's.
fn rows_of_the_page() -> Vec<[String; 4]> {
    let page = std::fs::read_to_string(root().join("docs/features.md")).unwrap();
    let rows = page.lines().skip_while(|line| !line.starts_with("| ---")).skip(1);
    let rows = rows.take_while(|line| line.starts_with('|')).map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        [cells[1], cells[2], cells[4], cells[5]].map(|cell| cell.trim_matches('`').to_owned())
    });
    rows.collect()
}

/// The front page has the packages of each feature, and `benches/weight/run features` writes the
/// other page with those.
#[test]
fn page_of_features_agrees_with_the_front_page() {
    let of_none = packages(&["--no-default-features"]).len().to_string();
    let of_default = packages(&[]).len().to_string();
    let mut expected = vec![("none".to_owned(), of_none), ("defaults".to_owned(), of_default)];
    expected.extend(rows().into_iter().map(|(feature, _, packages, _)| (feature, packages)));

    let page = rows_of_the_page();
    let [tokio, others @ ..] = &page[..] else { panic!("docs/features.md has no table") };
    let listed = others.iter().map(|[feature, packages, ..]| (feature.clone(), packages.clone()));
    let hint = "`benches/weight/run features` makes the table in docs/features.md";
    assert_eq!(listed.collect::<Vec<_>>(), expected, "{hint}");

    let seconds = |row: &[String; 4]| row[2].parse::<f64>().expect("seconds");
    for row in &page {
        let multiple: f64 = row[3].parse().expect("a multiple");
        let measured = seconds(row) / seconds(tokio);
        // The seconds on the page are rounded.
        let is_near = (multiple / measured - 1.0).abs() < 0.01;
        assert!(is_near, "{}: {multiple}, and not {measured}", row[0]);
    }
}

#[test]
fn front_page_says_what_features_weigh() {
    let rusts = oldest_rusts();
    let (none, by_default) = (packages(&["--no-default-features"]), packages(&[]));
    let listed = rows();
    let measured = listed.iter().map(|(feature, is_default, ..)| {
        let added = match is_default {
            true => packages(&["--no-default-features", "--features", feature]).len() - none.len(),
            false => packages(&["--features", feature]).len() - by_default.len(),
        };
        let oldest = packages(&["--features", feature]);
        let oldest = oldest.iter().filter_map(|package| rusts.get(package)).max().unwrap();
        (feature.clone(), *is_default, format!("+{added}"), format!("1.{oldest}"))
    });
    assert_eq!(listed, measured.collect::<Vec<_>>(), "the table of features in src/lib.rs");

    let page = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let sentence = format!(
        "builds {} packages, and one with the default features {}.",
        none.len(),
        by_default.len()
    );
    assert!(page.contains(&sentence), "src/lib.rs says: {sentence}");
    assert!(by_default.len() <= MOST_BY_DEFAULT, "{by_default:?}");
}

/// It binds the login at PostgreSQL to the certificate; rustls reads the dates.
#[test]
fn x509_cert_comes_with_postgres_and_tls_alone() {
    for (features, expected) in [("postgres", false), ("tls", false), ("postgres,tls", true)] {
        let packages = packages(&["--features", features]);
        let found = packages.iter().any(|(name, _)| name == "x509-cert");
        assert_eq!(found, expected, "{features}");
    }
}
