//! What is published: the metadata of the packages, and the order of publishing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The packages of the workspace, as cargo knows them.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(Path::new(ROOT).join("Cargo.toml"))
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().expect("a name")
}

/// `publish = false` is an empty list of registries.
fn is_published(package: &Value) -> bool {
    package["publish"].is_null()
}

#[test]
fn packages_have_metadata_readme_and_licences() {
    for package in packages() {
        let name = name(&package);
        for field in ["description", "license", "rust_version"] {
            assert!(package[field].is_string(), "{name} has no {field}");
        }
        if !is_published(&package) {
            continue;
        }
        for field in ["keywords", "categories"] {
            let count = package[field].as_array().map_or(0, Vec::len);
            assert!(
                (1..=5).contains(&count),
                "{name} has {count} {field}, and crates.io takes five"
            );
        }
        assert_eq!(package["metadata"]["docs"]["rs"]["all-features"], true, "docs.rs and {name}");
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
        let folder = manifest.parent().expect("a folder");
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(folder.join(file).is_file(), "{name} has no {file}");
        }
    }
}

/// Its feature brings no public item.
const WITHOUT_BADGES: &str = "pikake-kernel";

/// docs.rs shows which items a feature brings if the crate asks for it.
#[test]
fn documentation_says_which_items_need_a_feature() {
    for package in packages().iter().filter(|package| is_published(package)) {
        let features = package["features"].as_object().expect("features");
        if features.is_empty() || name(package) == WITHOUT_BADGES {
            continue;
        }
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
        let library = manifest.parent().expect("a folder").join("src/lib.rs");
        let library = fs::read_to_string(library).expect("a library");
        let asks = library.contains("#![cfg_attr(docsrs, feature(doc_cfg)");
        assert!(asks, "{} has features, and no `doc_cfg`", name(package));
    }
}

/// Cargo builds the examples of all packages in one folder: of two with one name, the last one
/// built is what a test runs.
#[test]
fn examples_have_names_of_their_own() {
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    for package in packages() {
        for target in package["targets"].as_array().expect("targets") {
            if target["kind"][0] != "example" {
                continue;
            }
            let owner = name(&package).to_owned();
            let example = name(target).to_owned();
            if let Some(first) = owners.insert(example.clone(), owner.clone()) {
                panic!("{first} and {owner} have an example `{example}` each");
            }
        }
    }
    assert!(owners.contains_key("shop"), "{owners:?}");
}

#[test]
fn versions_of_published_dependencies_are_given() {
    let packages = packages();
    let versions: BTreeMap<&str, (&str, bool)> = packages
        .iter()
        .map(|package| {
            let version = package["version"].as_str().expect("a version");
            (name(package), (version, is_published(package)))
        })
        .collect();
    for package in packages.iter().filter(|package| is_published(package)) {
        let name = name(package);
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let used = dependency["name"].as_str().expect("a name");
            let Some((version, is_published)) = versions.get(used) else { continue };
            // A dev-dependency without a version is not part of the package.
            let (wanted, is_dev) = (&dependency["req"], dependency["kind"] == "dev");
            if is_dev && wanted == "*" {
                continue;
            }
            assert!(is_published, "{name} needs {used}, which is not published");
            assert_eq!(*wanted, format!("^{version}"), "{name} needs {used}");
        }
    }
}

#[test]
fn crates_are_published_after_their_dependencies() {
    let packages = packages();
    let text = fs::read_to_string(Path::new(ROOT).join("RELEASING.md")).expect("it is there");
    let order: Vec<&str> = text.lines().filter_map(|line| listed(line)).collect();
    let published: BTreeSet<&str> =
        packages.iter().filter(|package| is_published(package)).map(name).collect();
    assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), published);
    assert_eq!(order.len(), published.len(), "each crate is listed once");

    let mut done = BTreeSet::new();
    for crate_name in order {
        let package = packages.iter().find(|package| name(package) == crate_name);
        let dependencies = package.expect("it is published")["dependencies"].as_array();
        for dependency in dependencies.expect("dependencies") {
            let used = dependency["name"].as_str().expect("a name");
            let is_in_package = dependency["kind"] != "dev" || dependency["req"] != "*";
            if is_in_package && published.contains(used) {
                assert!(done.contains(used), "{crate_name} is listed before {used}");
            }
        }
        done.insert(crate_name);
    }
}

/// The crate of a line `3. ``pikake-traps``` of the list in RELEASING.md.
fn listed(line: &str) -> Option<&str> {
    let (number, name) = line.split_once(". `")?;
    number.parse::<u8>().ok()?;
    name.strip_suffix('`')
}
