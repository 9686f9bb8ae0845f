//! The files of the workspace, its packages, and the modules of a crate.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::source::Source;

/// The files that git tracks or would add, seen from the folder, in order. Without git, all files
/// outside of `target` and of hidden folders.
pub fn files(root: &Path) -> Vec<PathBuf> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let output = git.output().ok().filter(|output| output.status.success());
    let mut files: Vec<PathBuf> = match output {
        Some(output) => {
            let listed = String::from_utf8_lossy(&output.stdout).into_owned();
            // A file that is removed stays listed until git is told.
            listed.split('\0').map(PathBuf::from).filter(|file| root.join(file).is_file()).collect()
        }
        None => walk(root),
    };
    files.sort();
    files.dedup();
    files
}

fn walk(root: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_left_out = name == "target" || name.to_string_lossy().starts_with('.');
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !is_left_out => folders.push(folder.join(name)),
                Ok(kind) if kind.is_file() => files.push(folder.join(name)),
                _ => {}
            }
        }
    }
    files
}

/// A folder with a manifest.
#[derive(Debug)]
pub struct Package {
    /// Seen from the root, which is empty.
    pub folder: PathBuf,
    /// The Rust files that belong to it, seen from the root.
    pub sources: Vec<PathBuf>,
}

impl Package {
    /// The first files of its library, its programs and its build script.
    pub fn roots(&self, root: &Path) -> impl Iterator<Item = &PathBuf> {
        let manifest = fs::read_to_string(root.join(&self.folder).join("Cargo.toml"));
        let manifest = manifest.unwrap_or_default();
        self.sources.iter().filter(move |file| {
            let inner = file.strip_prefix(&self.folder).unwrap_or(file);
            let path = format!("path = \"{}\"", inner.display());
            let is_usual = ["src/lib.rs", "src/main.rs", "build.rs"].map(Path::new);
            is_usual.contains(&inner)
                || inner.parent() == Some(Path::new("src/bin"))
                || inner.starts_with("src") && manifest.lines().any(|line| line == path)
        })
    }
}

/// The packages of the workspace, and of the workspaces below it.
pub fn packages(files: &[PathBuf]) -> Vec<Package> {
    let manifests = files.iter().filter(|file| file.ends_with("Cargo.toml"));
    let mut packages: Vec<Package> = manifests
        .filter_map(|file| file.parent())
        .map(|folder| Package { folder: folder.to_owned(), sources: Vec::new() })
        .collect();
    for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
        let around = packages.iter_mut().filter(|package| file.starts_with(&package.folder));
        if let Some(package) = around.max_by_key(|package| package.folder.components().count()) {
            package.sources.push(file.clone());
        }
    }
    packages
}

/// The modules of a library or program, but for those that are only in tests.
#[derive(Debug, Default)]
pub struct Tree {
    /// The file of each module by the names of its path. The root has no name.
    pub modules: BTreeMap<Vec<String>, PathBuf>,
    /// The files.
    pub sources: BTreeMap<PathBuf, Source>,
}

impl Tree {
    /// Reads the root and all that it declares.
    pub fn read(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Self {
        let mut tree = Self::default();
        let here = |file: &Path| file.parent().map(Path::to_owned).unwrap_or_default();
        let mut open = vec![(Vec::new(), vec![root.to_owned()], here(root))];
        while let Some((name, candidates, folder)) = open.pop() {
            let found = candidates.iter().find_map(|file| Some((file, read(file)?)));
            let Some((file, text)) = found else { continue };
            let source = Source::new(text);
            for module in source.modules() {
                let inner =
                    [&name[..], &module.around, std::slice::from_ref(&module.name)].concat();
                let folder = folder.join(module.around.iter().collect::<PathBuf>());
                let below = folder.join(&module.name);
                open.push(match module.path {
                    Some(path) => (inner, vec![here(file).join(&path)], here(file)),
                    None => (inner, vec![below.with_extension("rs"), below.join("mod.rs")], below),
                });
            }
            tree.modules.insert(name, file.clone());
            tree.sources.insert(file.clone(), source);
        }
        tree
    }
}
