//! `cargo xtask tokio source`: tokio's own package, below the target folder.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Result;
use crate::run::cargo;

/// Where that package expects tokio's files, in the repository.
const SOURCE: &str = "target/tokio-source";

/// In that folder: the version. It is written last.
const UNPACKED: &str = ".unpacked";

/// The folder with tokio's package, which is unpacked if need be.
pub(super) fn unpack() -> Result<PathBuf> {
    let folder = xtask::root().join(SOURCE);
    let (version, package) = package()?;
    if fs::read_to_string(folder.join(UNPACKED)).is_ok_and(|unpacked| unpacked == version) {
        return Ok(folder);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    copy(&package, &folder)?;
    let manifest = folder.join("Cargo.toml");
    // The folder is in no workspace, though it lies below one.
    let text = fs::read_to_string(&manifest)? + "\n[workspace]\n";
    fs::write(manifest, text)?;
    fs::write(folder.join(UNPACKED), version)?;
    Ok(folder)
}

/// The version of tokio in `Cargo.lock`, and the folder where cargo keeps its package.
fn package() -> Result<(String, PathBuf)> {
    let output = cargo(&["metadata", "--format-version=1", "--locked"]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let tokio = packages.find(|it| it["name"] == "tokio").ok_or("Cargo.lock has no tokio")?;
    let [version, manifest] = ["version", "manifest_path"].map(|key| tokio[key].as_str());
    let folder = manifest.and_then(|path| Path::new(path).parent());
    match (version, folder) {
        (Some(version), Some(folder)) => Ok((version.to_owned(), folder.to_owned())),
        _ => Err("cargo's metadata of tokio has no version or no path".into()),
    }
}

fn copy(from: &Path, to: &Path) -> Result {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &to)?,
            false => drop(fs::copy(entry.path(), to)?),
        }
    }
    Ok(())
}
