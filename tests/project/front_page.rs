//! The front page's table of features lists those of the manifest.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The features in the table of the front page, and whether the table calls them defaults.
fn listed_features(page: &str) -> BTreeMap<String, bool> {
    let lines = page.lines().map(|line| line.trim_start_matches("//!").trim());
    let section = lines.skip_while(|line| *line != "# Features").skip(1);
    let rows =
        section.take_while(|line| !line.starts_with("# ")).filter(|line| line.starts_with("| `"));
    let read = |row: &str| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        (cells[1].trim_matches('`').to_owned(), cells[2] == "yes")
    };
    rows.map(read).collect()
}

/// The features in the manifest, and whether they are defaults.
fn features_of_the_manifest() -> BTreeMap<String, bool> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .expect("cargo can be run");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let package = packages.iter().find(|package| package["name"] == "pikake").expect("the facade");
    let features = package["features"].as_object().expect("features");
    let defaults = features["default"].as_array().expect("defaults");
    let names = features.keys().filter(|name| *name != "default");
    names.map(|name| (name.clone(), defaults.iter().any(|one| one == name))).collect()
}

#[test]
fn front_page_lists_each_feature_and_default() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let listed = listed_features(&fs::read_to_string(page).unwrap());
    assert_eq!(listed, features_of_the_manifest());
}
