//! Installs what the tests need and do not find: Debian's packages as root, and Celery into a
//! virtual environment.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use xtask::Need;
use xtask::needs::{self, CELERY_PACKAGES, PYTHON, Source};

use crate::Result;
use crate::run::{run, within};

/// For a download and its installation.
const LIMIT: Duration = Duration::from_secs(600);

/// How often a package index is asked.
const TRIES: u32 = 3;

/// Packages start their services, unless this file says that they must not.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// The policy of ours: no service is started.
const NO_SERVICES: &str =
    "#!/bin/sh\n# Of `cargo xtask install`, for as long as it runs.\nexit 101\n";

/// `cargo xtask install`: everything.
pub(crate) fn install(arguments: &[String]) -> Result {
    if let Some(argument) = arguments.first() {
        return Err(format!("`install` takes no arguments: {argument}").into());
    }
    let mut errors = Vec::new();
    if !packages().is_empty() {
        errors.extend(apt().err());
    }
    if needs::CELERY.find().is_none() {
        errors.extend(environment(&xtask::target(), &[]).err());
    }
    let mut errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    for need in needs::ALL.iter().filter(|need| need.find().is_none()) {
        errors.push(format!("{} is missing", need.name()));
    }
    match errors.is_empty() {
        true => {
            let found: Vec<_> = needs::ALL.iter().map(Need::name).collect();
            eprintln!("installed: {}", found.join(", "));
            Ok(())
        }
        false => Err(errors.join("\nerror: ").into()),
    }
}

/// `cargo xtask celery FOLDER [PACKAGES]`: prints the Python of an environment.
pub(crate) fn celery(arguments: &[String]) -> Result {
    let [folder, packages @ ..] = arguments else {
        return Err("where? cargo xtask celery FOLDER [PACKAGE==VERSION...]".into());
    };
    println!("{}", environment(Path::new(folder), packages)?.display());
    Ok(())
}

/// Debian's packages that are missing.
fn packages() -> Vec<&'static str> {
    let missing = needs::ALL.iter().filter(|need| need.find().is_none());
    let packages = missing.filter_map(|need| match need.source() {
        Source::Debian(package) => Some(package),
        Source::PyPi(_) if !has_venv() => Some("python3-venv"),
        Source::PyPi(_) => None,
    });
    packages.collect()
}

/// Installs them, as root.
fn apt() -> Result {
    if !geteuid().is_root() || needs::program("apt-get").is_none() {
        let packages = packages().join(" ");
        return Err(format!(
            "root on Debian can install what is missing: apt-get install {packages}"
        )
        .into());
    }
    // Of two runs at once, the second finds what the first has installed.
    let lock = File::create(std::env::temp_dir().join("pikake-install.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let packages = packages();
    if packages.is_empty() {
        return Ok(());
    }
    eprintln!("installing {}", packages.join(" "));
    let _policy = Policy::set()?;
    let apt = || {
        let mut command = Command::new("apt-get");
        command.args(["--quiet", "-o", "DPkg::Lock::Timeout=600"]).stdout(std::io::stderr());
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    within(Some(LIMIT), apt().arg("update"))?;
    within(Some(LIMIT), apt().args(["install", "-y", "--no-install-recommends"]).args(packages))
}

/// The policy against services, for as long as this is there. One that was there before is left
/// alone.
struct Policy {
    is_ours: bool,
}

impl Policy {
    fn set() -> Result<Self> {
        // A run that was killed may have left its own.
        let is_ours = fs::read_to_string(POLICY).map_or(true, |policy| policy == NO_SERVICES);
        if is_ours {
            fs::write(POLICY, NO_SERVICES)?;
            fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { is_ours })
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if self.is_ours {
            drop(fs::remove_file(POLICY));
        }
    }
}

/// Whether Python can make a virtual environment.
fn has_venv() -> bool {
    let mut command = Command::new("python3");
    let command = command.args(["-c", "import ensurepip, venv"]).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Makes a virtual environment with Celery and other packages in a folder, unless it is there; its
/// Python.
pub(crate) fn environment(folder: &Path, others: &[String]) -> Result<PathBuf> {
    let others = others.iter().map(String::as_str);
    let packages: Vec<_> = CELERY_PACKAGES.split(' ').chain(others).collect();
    let wanted = packages.join(" ");
    let locked = fs::create_dir_all(folder).and_then(|()| File::create(folder.join("celery.lock")));
    let lock = locked.map_err(|error| format!("{}: {error}", folder.display()))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let (place, has) = (folder.join("celery"), folder.join("celery/has"));
    let is_wanted = fs::read_to_string(&has).is_ok_and(|had| had.trim() == wanted);
    if let (true, Some(python)) = (is_wanted, needs::celery(folder)) {
        return Ok(python);
    }
    if !has_venv() {
        let Some(python) = PYTHON.find() else {
            return Err("python3 is missing, so Celery is".into());
        };
        let python = python.display();
        return Err(format!(
            "{python} makes no virtual environments: apt-get install python3-venv"
        )
        .into());
    }
    eprintln!("installing {wanted} into {}", place.display());
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&place).stdout(std::io::stderr()))?;
    let python = place.join("bin/python");
    for number in 1..=TRIES {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip.args(&packages).stdout(std::io::stderr());
        match within(Some(LIMIT), &mut pip) {
            Ok(()) => break,
            Err(error) if number == TRIES => {
                return Err(format!("{error} (is a package index to be reached?)").into());
            }
            Err(error) => eprintln!("{error}; once more"),
        }
    }
    fs::write(has, wanted)?;
    Ok(python)
}
