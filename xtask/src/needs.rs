//! What tests need of the system: where it is looked for, and what is said when it is not there.
//!
//! A test that lacks something is skipped: the test passes, and one line on the process's standard
//! error says why. With [`MUST_NOT_SKIP`] set, such a test fails.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};

/// The variable that makes a skipped test a failed one; `cargo xtask test` sets it.
pub const MUST_NOT_SKIP: &str = "PIKAKE_MUST_NOT_SKIP";

/// The Celery that the tests talk to, its client of Redis, and the page that watches its workers.
pub const CELERY_PACKAGES: &str = "celery[redis]==5.7.0 flower==2.2.0";

/// RabbitMQ's folder of programs.
pub const RABBITMQ: Need = Need::new("RabbitMQ", Source::Debian("rabbitmq-server"), find_rabbitmq);
/// Redis's folder of programs.
pub const REDIS: Need = Need::new("Redis", Source::Debian("redis-server"), || {
    folder_of(program("redis-server").into_iter())
});
/// PostgreSQL's folder of programs.
pub const POSTGRESQL: Need = Need::new("PostgreSQL", Source::Debian("postgresql"), find_postgresql);
/// The program `openssl`.
pub const OPENSSL: Need = Need::new("openssl", Source::Debian("openssl"), || program("openssl"));
/// The certificates that the system trusts.
pub const CERTIFICATES: Need =
    Need::new("certificates of the system", Source::Debian("ca-certificates"), find_certificates);
/// The program `python3`.
pub const PYTHON: Need = Need::new("python3", Source::Debian("python3"), || program("python3"));
/// The Python of a virtual environment that has Celery.
pub const CELERY: Need =
    Need::new("Celery", Source::PyPi(CELERY_PACKAGES), || celery(&crate::target()));

/// The browser Chromium, or Chrome.
pub const CHROMIUM: Need = Need::new("Chromium", Source::Debian("chromium"), || {
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(program)
});

/// All of them. Celery is the last, since Python is needed to install it.
pub const ALL: [Need; 8] =
    [RABBITMQ, POSTGRESQL, REDIS, OPENSSL, CERTIFICATES, PYTHON, CHROMIUM, CELERY];

/// A server that tests start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// PostgreSQL, with the superuser `pikake`, who needs no password.
    Postgres,
    /// RabbitMQ, with and without TLS.
    RabbitMq,
    /// Redis, with and without TLS, and with the password `pikake`.
    Redis,
}

impl Kind {
    /// The argument of `cargo xtask server`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::RabbitMq => "rabbitmq",
            Self::Redis => "redis",
        }
    }

    /// What the server takes to run.
    pub fn needs(self) -> &'static [Need] {
        match self {
            Self::Postgres => &[POSTGRESQL],
            // openssl makes the certificates.
            Self::RabbitMq => &[RABBITMQ, OPENSSL],
            Self::Redis => &[REDIS, OPENSSL],
        }
    }
}

/// Where something is to be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A Debian package.
    Debian(&'static str),
    /// A Python package and its version.
    PyPi(&'static str),
}

/// Something of the system that tests need.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    name: &'static str,
    source: Source,
    find: fn() -> Option<PathBuf>,
}

impl Need {
    /// Something with a name, where it is to be had, and how it is found.
    pub const fn new(name: &'static str, source: Source, find: fn() -> Option<PathBuf>) -> Self {
        Self { name, source, find }
    }

    /// What a person calls it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Where it is to be had.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Where it is, if it is there.
    pub fn find(&self) -> Option<PathBuf> {
        (self.find)()
    }

    /// What is missing, and how to get it.
    pub fn hint(&self) -> String {
        let Self { name, source, .. } = self;
        match source {
            Source::Debian(package) => {
                format!("{name}: `cargo xtask test` installs it, or apt-get install {package}")
            }
            Source::PyPi(package) => {
                format!("{name}: `cargo xtask test` installs {package} into the target folder")
            }
        }
    }

    /// Where it is. If it is not there, the test that asks is skipped, and is to return.
    ///
    /// # Panics
    ///
    /// If it is not there, and [`MUST_NOT_SKIP`] is set.
    #[track_caller]
    pub fn find_or_skip(&self) -> Option<PathBuf> {
        let found = self.find();
        if found.is_none() {
            skip(&format!("needs {}", self.hint()));
        }
        found
    }
}

/// Says on standard error, which the test harness does not capture, that the test of this thread is
/// skipped, and why.
///
/// # Panics
///
/// If [`MUST_NOT_SKIP`] is set.
#[track_caller]
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let place = Location::caller();
    // The harness names a test's thread after the test, unless it runs one test at a time.
    let test = match thread.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => format!("the test at {}:{}", place.file(), place.line()),
    };
    if std::env::var_os(MUST_NOT_SKIP).is_some() {
        panic!("{test} {why} (no test may be skipped: {MUST_NOT_SKIP} is set)");
    }
    // One write, so that the lines of tests side by side stay whole.
    drop(io::stderr().write_all(format!("skipped: {test} {why}\n").as_bytes()));
}

/// A program on the search path.
pub fn program(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let at = |folder: PathBuf| folder.join(name.as_ref());
    std::env::split_paths(&path).map(at).find(|file| file.is_file())
}

/// The Python of the virtual environment below a folder, if the environment has the packages it
/// should have.
pub fn celery(folder: &Path) -> Option<PathBuf> {
    let python = folder.join("celery/bin/python");
    let has = std::fs::read_to_string(folder.join("celery/has")).ok()?;
    (has.starts_with(CELERY_PACKAGES) && python.exists()).then_some(python)
}

/// Debian's place comes first: its programs on the search path change to another user.
fn find_rabbitmq() -> Option<PathBuf> {
    let versions = versions(Path::new("/usr/lib/rabbitmq/lib"));
    let debian = versions.map(|version| version.join("sbin/rabbitmq-server"));
    folder_of(debian.chain(program("rabbitmq-server")))
}

fn find_postgresql() -> Option<PathBuf> {
    let debian =
        versions(Path::new("/usr/lib/postgresql")).map(|version| version.join("bin/initdb"));
    folder_of(debian.chain(program("initdb")))
}

fn find_certificates() -> Option<PathBuf> {
    const FILES: [&str; 4] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    FILES.into_iter().map(PathBuf::from).find(|file| file.is_file())
}

/// The folders of a folder, the highest version first.
fn versions(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.sort_by_key(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let numbers =
            name.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
        Reverse(numbers.collect::<Vec<u32>>())
    });
    found.into_iter()
}

fn folder_of(mut files: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    files.find(|file| file.is_file())?.parent().map(Path::to_owned)
}
