//! `cargo xtask msrv`: the crates, built with the oldest Rust that is supported.
//!
//! That Rust is rustup's, if rustup has it. Otherwise it is unpacked from the packages of Debian
//! 12, which needs neither root nor rustup. Nothing is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::needs::program;

use crate::Result;
use crate::run::run;

/// `rust-version` of the workspace.
const VERSION: &str = env!("CARGO_PKG_RUST_VERSION");

/// The packages of Debian 12 with that Rust.
const RUST: [&str; 3] = ["cargo-web", "rustc-web", "libstd-rust-web-dev"];

/// The libraries that its programs need, and Debian's other programs do not.
const LIBRARIES: [&str; 4] = [
    concat!("libstd-rust-web-", env!("CARGO_PKG_RUST_VERSION")),
    "libhttp-parser2.9",
    "libllvm19",
    "libpcre3",
];

/// The features of `pikake` whose dependencies build with that Rust. RELEASING.md has the others.
const FEATURES: &str = "process,watch,tls,io-traits,http,pool,http-client,postgres,rpc,console,profile,tokio-console,tokio,jobs";

/// `cargo xtask msrv`.
pub(crate) fn msrv(arguments: &[String]) -> Result {
    if !arguments.is_empty() {
        return Err("`msrv` takes no arguments".into());
    }
    build(&Rust::find()?)
}

/// Builds the crates with that Rust.
pub(crate) fn build(rust: &Rust) -> Result {
    let sets: [&[&str]; 3] = [&["--no-default-features"], &[], &["--features", FEATURES]];
    for features in sets {
        let mut cargo = rust.program("cargo");
        cargo.current_dir(xtask::root()).env("CARGO_TARGET_DIR", folder().join("build"));
        run(cargo.args(["check", "--locked", "--quiet", "-p", "pikake"]).args(features))?;
    }
    println!(
        "msrv: pikake builds with Rust {VERSION}: without features, by default, and with {FEATURES}"
    );
    Ok(())
}

fn folder() -> PathBuf {
    xtask::target().join("msrv")
}

/// The oldest Rust that is supported.
pub(crate) enum Rust {
    OfRustup,
    /// Unpacked into this folder.
    OfDebian(PathBuf),
}

impl Rust {
    pub(crate) fn find() -> Result<Rust> {
        if program("rustup").is_some() && Rust::OfRustup.is_oldest() {
            return Ok(Rust::OfRustup);
        }
        let found = Rust::OfDebian(unpacked()?);
        match found.is_oldest() {
            true => Ok(found),
            false => {
                Err(format!("Debian's Rust is not {VERSION}, the oldest that is supported").into())
            }
        }
    }

    /// Whether this Rust is there, and of that version.
    fn is_oldest(&self) -> bool {
        let output = self.program("rustc").arg("--version").output();
        output.is_ok_and(|output| output.stdout.starts_with(format!("rustc {VERSION}.").as_bytes()))
    }

    /// A program of this Rust, which runs others of the same.
    fn program(&self, name: &str) -> Command {
        match self {
            Rust::OfRustup => {
                let mut command = Command::new("rustup");
                command.args(["run", VERSION, name]);
                command
            }
            Rust::OfDebian(folder) => {
                let bin = folder.join("usr/bin");
                let mut command = Command::new(bin.join(name));
                let system = format!("{}-linux-gnu", std::env::consts::ARCH);
                let libraries = ["usr/lib", "lib"].map(|lib| folder.join(lib).join(&system));
                let libraries = std::env::join_paths(libraries).unwrap_or_default();
                command.env("LD_LIBRARY_PATH", libraries);
                command.env("RUSTC", bin.join("rustc"));
                command
            }
        }
    }
}

/// The folder with Debian's Rust, which is downloaded first if need be.
fn unpacked() -> Result<PathBuf> {
    let (folder, downloads) = (folder().join("debian"), folder().join("downloads"));
    if folder.is_dir() {
        return Ok(folder);
    }
    for tool in ["apt-get", "dpkg"] {
        if program(tool).is_none() {
            return Err(
                format!("Rust {VERSION} is missing: rustup toolchain install {VERSION}").into()
            );
        }
    }
    std::fs::create_dir_all(&downloads)?;
    // Debian's updates have newer ones.
    let rust = RUST.map(|package| format!("{package}={VERSION}*"));
    let mut apt = Command::new("apt-get");
    run(apt.current_dir(&downloads).arg("download").args(rust).args(LIBRARIES))?;
    let half = folder.with_extension("half");
    for entry in std::fs::read_dir(&downloads)? {
        unpack(&entry?.path(), &half)?;
    }
    std::fs::rename(half, &folder)?;
    Ok(folder)
}

fn unpack(package: &Path, folder: &Path) -> Result {
    run(Command::new("dpkg").arg("-x").arg(package).arg(folder))
}
