//! Where a server runs: a folder of its own, the user who owns the folder, and a log.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;
use xtask::needs::Kind;

use super::is_over;
use crate::Result;
use crate::group::{Group, LOOK};
use crate::run::{ENDS, name};

/// So many lines of a log tell why a server has not started.
const LINES: usize = 20;

/// Below the ports that systems give to clients: no client takes the port of a broker that is to
/// start again.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A folder, removed when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    folder: PathBuf,
    /// Servers do not run as root. `None`: this program does not, either.
    user: Option<(u32, u32)>,
    programs: PathBuf,
    log: PathBuf,
}

impl Place {
    pub(super) fn new(kind: Kind) -> Result<Self> {
        let programs = kind.needs()[0].find().ok_or("it was there")?;
        let name = kind.name();
        let user = match geteuid().is_root() {
            true => Some(user(name)?),
            false => None,
        };
        let number = RandomState::new().hash_one(std::process::id());
        let folder = std::env::temp_dir().join(format!("pikake-{name}.{number:016x}"));
        DirBuilder::new().mode(0o700).create(&folder)?;
        let place = Self { log: folder.join("log"), folder, user, programs };
        File::create(&place.log)?;
        if let Some((user, group)) = user {
            chown(&place.folder, Some(user), Some(group))?;
        }
        Ok(place)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// One of the server's programs, to be run as the user in the folder.
    pub(super) fn program(&self, name: &str) -> Command {
        let beside = self.programs.join(name);
        let mut command = Command::new(if beside.is_file() { beside } else { name.into() });
        command.env("HOME", &self.folder).current_dir(&self.folder).stdin(Stdio::null());
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command
    }

    /// The log, for what a program prints.
    pub(super) fn log(&self) -> Result<File> {
        Ok(OpenOptions::new().append(true).open(&self.log)?)
    }

    pub(super) fn end_of_log(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    /// Starts a program that stays; the log has what it prints.
    pub(super) fn start(&self, command: &mut Command) -> Result<Group> {
        Ok(Group::start(command.stdout(self.log()?).stderr(self.log()?))?)
    }

    /// Runs a program to its end.
    pub(super) fn run(&self, command: &mut Command) -> Result {
        let mut group = self.start(command)?;
        while !is_over() {
            if let Some(status) = group.status()? {
                return match status.success() {
                    true => Ok(()),
                    false => Err(format!("{}: {status}", name(command)).into()),
                };
            }
            std::thread::sleep(LOOK);
        }
        group.end(ENDS);
        Err("interrupted".into())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// User and group of a name.
fn user(name: &str) -> Result<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd")?;
    let ids = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then_some(())?;
        let (user, group) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        Some((user, group))
    });
    ids.ok_or_else(|| format!("root needs a user `{name}` to run the server as").into())
}

/// A port on which nobody listens.
pub(super) fn free_port() -> u16 {
    let random = RandomState::new();
    let ports = (0_u64..).map(|number| {
        let span = u64::from(PORTS.end - PORTS.start);
        PORTS.start + u16::try_from(random.hash_one(number) % span).expect("it is less")
    });
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    ports.take(10_000).find(is_free).expect("a port is free")
}

/// Whether somebody listens.
pub(super) fn answers(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}
