//! `cargo xtask quick [COMMIT]`: what a change may have broken, in a few minutes.
//!
//! Format and lints of everything; the tests of the packages whose files changed since the commit,
//! and of those that depend on them; the rules of the project. Programs that wait for servers and
//! processes run only for a change of their own package, and the examples of the documentation not
//! at all: `cargo xtask ci` has them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Result;
use crate::ci;
use crate::programs::{self, Options, Program, Summary};
use crate::run::cargo;
use crate::steps::timed;

/// The package that has the names of all others.
const FACADE: &str = "pikake";

/// The test program with the rules of the project.
const RULES: &str = "project";

pub(crate) fn quick(arguments: &[String]) -> Result {
    let since = match arguments {
        [] => "HEAD",
        [commit] => commit,
        _ => return Err("since when? cargo xtask quick [COMMIT]".into()),
    };
    let packages = Package::all()?;
    let affected = Affected::of(&packages, &changed_files(since)?);
    let tested = affected.tested.iter().copied().collect::<Vec<_>>().join(", ");
    println!("changed since {since}, or dependent on a change: {tested}");
    timed(|steps| {
        steps.run("format", ci::format)?;
        steps.run("lints", ci::lints)?;
        let mut built = Vec::new();
        steps.run("test programs", || {
            built = programs::build(&[])?;
            Ok(())
        })?;
        let is_chosen = |program: &&Program| {
            let package = &*program.package;
            let list = if program.mostly_waits() { &affected.changed } else { &affected.tested };
            (package, &*program.name) == (FACADE, RULES) || list.contains(package)
        };
        let chosen: Vec<&Program> = built.iter().filter(is_chosen).collect();
        steps.run("tests", || {
            let options = Options { is_quiet: true, ..Options::default() };
            let mut summary = Summary::default();
            for ended in programs::run_all(&chosen, &options)? {
                summary.add(&ended);
            }
            println!("{}", summary.text());
            summary.check()
        })
    })
}

/// The files that differ from a commit, and those that git does not know yet.
fn changed_files(since: &str) -> Result<Vec<String>> {
    let git = |arguments: &[&str]| -> Result<String> {
        let output = Command::new("git").current_dir(xtask::root()).args(arguments).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout)?),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
        }
    };
    let changed = git(&["diff", "--name-only", since, "--"])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(changed.lines().chain(new.lines()).map(str::to_owned).collect())
}

/// A package of the workspace, and the packages of the workspace that it depends on.
#[derive(Debug)]
struct Package {
    name: String,
    /// Its folder below the root, empty for the root.
    folder: String,
    needed: BTreeSet<String>,
    optional: BTreeSet<String>,
    /// For tests and examples only.
    for_tests: BTreeSet<String>,
}

impl Package {
    fn all() -> Result<Vec<Self>> {
        let output = cargo(&["metadata", "--no-deps", "--format-version", "1"]).output()?;
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let packages = metadata["packages"].as_array().ok_or("cargo knows no packages")?;
        packages.iter().map(Self::read).collect()
    }

    fn read(package: &Value) -> Result<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or("cargo says no name");
        let manifest = text(&package["manifest_path"])?;
        let folder = Path::new(&manifest).parent().ok_or("a manifest has a folder")?;
        let folder = folder.strip_prefix(xtask::root())?.to_string_lossy().into_owned();
        let mut read = Self {
            name: text(&package["name"])?,
            folder,
            needed: BTreeSet::new(),
            optional: BTreeSet::new(),
            for_tests: BTreeSet::new(),
        };
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        for dependency in dependencies.filter(|dependency| dependency["path"].is_string()) {
            let list = match (dependency["kind"] == "dev", dependency["optional"] == true) {
                (true, _) => &mut read.for_tests,
                (false, true) => &mut read.optional,
                (false, false) => &mut read.needed,
            };
            list.insert(text(&dependency["name"])?);
        }
        Ok(read)
    }

    /// Whether what it is made of, as opposed to its tests, is in the file.
    fn is_made_of(&self, file: &str) -> bool {
        let below = file.strip_prefix(&*self.folder).unwrap_or(file).trim_start_matches('/');
        // All packages include the helpers of tests by path.
        let folders = ["src/", "tests/support/"];
        folders.iter().any(|folder| below.starts_with(folder))
            || ["Cargo.toml", "Cargo.lock"].contains(&below)
    }
}

/// What changes of files have to do with packages.
#[derive(Debug, PartialEq)]
struct Affected<'a> {
    /// The packages that have a file which changed.
    changed: BTreeSet<&'a str>,
    /// These, and the packages that depend on them.
    tested: BTreeSet<&'a str>,
}

impl<'a> Affected<'a> {
    fn of(packages: &'a [Package], files: &[String]) -> Self {
        let (mut changed, mut different) = (BTreeSet::new(), BTreeSet::new());
        for file in files {
            let is_in = |package: &&Package| {
                package.folder.is_empty() || Path::new(file).starts_with(&package.folder)
            };
            let owner = packages.iter().filter(is_in).max_by_key(|package| package.folder.len());
            let Some(owner) = owner else { continue };
            changed.insert(&*owner.name);
            if owner.is_made_of(file) {
                different.insert(&*owner.name);
            }
        }
        // Tests use the facade, and of its features only those that their own package is for. So a
        // test depends on what the facade has without features.
        let mut bare: BTreeSet<&str> =
            different.iter().copied().filter(|it| *it == FACADE).collect();
        loop {
            let before = (different.len(), bare.len());
            for package in packages {
                let has = |list: &BTreeSet<String>| list.iter().any(|it| different.contains(&**it));
                let (is_needed, is_optional) = (has(&package.needed), has(&package.optional));
                if is_needed || is_optional {
                    different.insert(&*package.name);
                }
                if is_needed && package.name == FACADE {
                    bare.insert(&*package.name);
                }
            }
            if before == (different.len(), bare.len()) {
                break;
            }
        }
        let uses = |package: &&Package| {
            let is_different = |name: &String| match name == FACADE {
                true => bare.contains(&**name),
                false => different.contains(&**name),
            };
            package.for_tests.iter().any(is_different)
        };
        let users = packages.iter().filter(uses).map(|package| &*package.name);
        let tested =
            users.chain(changed.iter().copied()).chain(different.iter().copied()).collect();
        Self { changed, tested }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, folder: &str, needed: &[&str], optional: &[&str]) -> Package {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (name, folder) = (name.to_owned(), folder.to_owned());
        let for_tests = if name == FACADE { BTreeSet::new() } else { set(&[FACADE]) };
        Package { name, folder, needed: set(needed), optional: set(optional), for_tests }
    }

    fn tested(file: &str) -> Vec<String> {
        let packages = [
            package("pikake", "", &["net"], &["rpc"]),
            package("net", "net", &[], &[]),
            package("rpc", "services/rpc", &["net"], &[]),
            package("jobs", "services/jobs", &["net"], &[]),
            package("cli", "services/cli", &["pikake"], &[]),
        ];
        let affected = Affected::of(&packages, &[file.to_owned()]);
        affected.tested.into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn sources_are_tested_with_their_dependents() {
        assert_eq!(tested("services/rpc/src/lib.rs"), ["cli", "pikake", "rpc"]);
        assert_eq!(tested("net/src/lib.rs"), ["cli", "jobs", "net", "pikake", "rpc"]);
        assert_eq!(tested("src/lib.rs"), ["cli", "jobs", "net", "pikake", "rpc"]);
        assert_eq!(tested("tests/support/mod.rs"), ["cli", "jobs", "net", "pikake", "rpc"]);
    }

    #[test]
    fn tests_and_pages_concern_their_package_alone() {
        assert_eq!(tested("services/rpc/tests/rpc/main.rs"), ["rpc"]);
        assert_eq!(tested("docs/jobs.md"), ["pikake"]);
    }
}
