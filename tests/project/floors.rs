//! The dependencies between the crates: no crate imports one beside or above its floor.
//!
//! A list names the crates of the workspace that each crate may use.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// A crate of the workspace, its floor, and the crates of the workspace it may use.
///
/// `kernel` executes traps, `net` asks for them: neither may know the other. Only the roof may.
const HOUSE: [(&str, u8, &[&str]); 26] = [
    // They import nothing, and name the roof only in what they write.
    ("pikake-macros", 0, &[]),
    // The commands of the workspace, and what tests need of the system.
    ("xtask", 0, &[]),
    ("pikake-time", 0, &[]),
    ("pikake-traps", 0, &["pikake-time"]),
    ("pikake-kernel", 1, &["pikake-time", "pikake-traps"]),
    ("pikake-net", 1, &["pikake-time", "pikake-traps"]),
    ("pikake-sync", 1, &["pikake-time", "pikake-traps"]),
    ("pikake-task", 1, &["pikake-time", "pikake-traps"]),
    ("pikake-os", 2, &["pikake-net", "pikake-sync", "pikake-task", "pikake-time", "pikake-traps"]),
    ("pikake-sim", 2, &["pikake-kernel", "pikake-time", "pikake-traps"]),
    ("pikake-tokio", 2, &["pikake-traps"]),
    // Looks at kernels, which traps do not show.
    (
        "pikake-console",
        2,
        // Over HTTP only for the program tokio-console.
        &[
            "pikake-http",
            "pikake-kernel",
            "pikake-net",
            "pikake-task",
            "pikake-time",
            "pikake-traps",
        ],
    ),
    ("pikake-http", 2, &["pikake-net", "pikake-pool", "pikake-time", "pikake-traps"]),
    ("pikake-pool", 2, &["pikake-time", "pikake-traps"]),
    ("pikake-rpc", 2, &["pikake-net", "pikake-sync", "pikake-time", "pikake-traps"]),
    (
        "pikake-amqp",
        2,
        &["pikake-net", "pikake-sync", "pikake-task", "pikake-time", "pikake-traps"],
    ),
    ("pikake-amqp-testing", 2, &["pikake-amqp", "pikake-net", "pikake-time", "pikake-traps"]),
    (
        "pikake-jobs",
        3,
        &["pikake-amqp", "pikake-net", "pikake-sync", "pikake-task", "pikake-time", "pikake-traps"],
    ),
    ("pikake-postgres", 3, &["pikake-net", "pikake-pool", "pikake-sync", "pikake-traps"]),
    (
        "pikake",
        4,
        &[
            "pikake-amqp",
            "pikake-console",
            "pikake-http",
            "pikake-jobs",
            "pikake-kernel",
            "pikake-macros",
            "pikake-net",
            "pikake-os",
            "pikake-pool",
            "pikake-postgres",
            "pikake-rpc",
            "pikake-sim",
            "pikake-sync",
            "pikake-task",
            "pikake-time",
            "pikake-tokio",
            "pikake-traps",
        ],
    ),
    // Shows what others can build on the roof; nobody imports it.
    ("pikake-libraries", 5, &["pikake"]),
    ("pikake-tour", 5, &["pikake"]),
    ("pikake-tutorial", 5, &["pikake"]),
    ("pikake-accounts", 5, &["pikake"]),
    // Shows what a trap outside of the house is; tests of the facade run it.
    ("pikake-read-at-least", 5, &["pikake"]),
    // The command line of what has jobs, and a program with some.
    ("pikake-cli", 5, &["pikake"]),
];

/// Crates that tests and examples depend on, on whatever floor: the facade, a simulation, a broker,
/// a trap.
const FOR_TESTS: [&str; 5] =
    ["pikake", "pikake-amqp-testing", "pikake-read-at-least", "pikake-sim", "xtask"];

/// Crates of the system, for the kernel's driver alone.
const DRIVERS_ONLY: [&str; 2] = ["mio", "socket2"];

#[test]
fn no_crate_imports_across_the_floors() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let floors: BTreeMap<&str, u8> = HOUSE.iter().map(|(name, floor, _)| (*name, *floor)).collect();

    let packages = metadata["packages"].as_array().expect("packages");
    let names: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    assert_eq!(names, floors.keys().copied().collect(), "every crate has a floor");

    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let (_, floor, allowed) = HOUSE.iter().find(|(n, ..)| *n == name).expect("it has a floor");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let used = dependency["name"].as_str().expect("a name");
            let is_dev = dependency["kind"].as_str() == Some("dev");
            if let Some(used_floor) = floors.get(used) {
                // Tests and examples may use a simulation, and the facade, as users do. A crate
                // that depends on itself turns its features for tests on.
                let is_for_tests =
                    is_dev && (used_floor < floor || FOR_TESTS.contains(&used) || used == name);
                let may = allowed.contains(&used) || is_for_tests;
                assert!(
                    may,
                    "{name} must not depend on {used} (see the floors in ARCHITECTURE.md)"
                );
            }
            if DRIVERS_ONLY.contains(&used) && !is_dev {
                assert_eq!(
                    name, "pikake-kernel",
                    "{name} must not know the system: it uses {used}"
                );
            }
        }
    }
}

/// The default features of the facade; everything else is behind a feature.
const DEFAULT_FEATURES: [&str; 2] = ["log-to-stderr", "signals"];

/// Dependencies of `pikake-net` that only a feature brings in.
const BEHIND_FEATURES: [&str; 6] =
    ["futures-io", "hickory-resolver", "rustls", "rustls-native-certs", "rustls-webpki", "tokio"];

#[test]
fn the_default_features_stay_small() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .expect("cargo can be run");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let package = |name: &str| {
        let packages = metadata["packages"].as_array().expect("packages");
        packages.iter().find(|package| package["name"] == name).expect("a package").clone()
    };
    assert_eq!(package("pikake")["features"]["default"], serde_json::json!(DEFAULT_FEATURES));
    let net = package("pikake-net");
    assert!(net["features"]["default"].is_null(), "pikake-net has no features by default");
    let dependencies = net["dependencies"].as_array().expect("dependencies");
    let optional: BTreeSet<&str> = dependencies
        .iter()
        .filter(|dependency| dependency["optional"] == true)
        .filter_map(|dependency| dependency["name"].as_str())
        .collect();
    assert_eq!(optional, BTreeSet::from(BEHIND_FEATURES));
    // A library leaves the choice to the program; a program above the roof makes it.
    let roof = HOUSE.iter().find(|(name, ..)| *name == "pikake").expect("the roof").1;
    let is_below = |package: &&serde_json::Value| {
        HOUSE.iter().any(|(name, floor, _)| package["name"] == *name && *floor <= roof)
    };
    for package in metadata["packages"].as_array().expect("packages").iter().filter(is_below) {
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let is_needed = dependency["optional"] == false && dependency["kind"].is_null();
            let is_subscriber = dependency["name"] == "tracing-subscriber";
            assert!(!(is_needed && is_subscriber), "{}: a program chooses", package["name"]);
        }
    }
}
