//! `cargo xtask suites celery [-k EXPRESSION]`: Celery's own integration tests, with Celery's
//! worker and with one of pikake, whose jobs are those of the tests
//! (`services/jobs/examples/celery_suite`).
//!
//! Celery's source package and an environment for its tests are installed below the target folder.
//! RabbitMQ and Redis are those of `cargo xtask server`. The cases that do not pass with pikake's
//! worker are listed in `celery.tsv`, each with its reason: a case that fails and is not listed is
//! an error. A case whose reason begins with `not applicable: ` is about Python or about Celery's
//! own process, and is not run. With `-k`, pytest selects cases, for pikake's worker alone.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use xtask::{Kind, Server};

use crate::Result;
use crate::install::environment;
use crate::run::{cargo, run, within};

const SOURCE: &str = "celery==5.7.0";
const FOLDER: &str = "celery-5.7.0";

/// What the tests import and pytest needs, beside Celery with its client of Redis.
const PACKAGES: [&str; 9] = [
    "pytest==9.2.0",
    "pytest-order==1.5.0",
    "pytest-rerunfailures==16.7",
    "pytest-subtests==0.15.0",
    "pytest-timeout==2.4.0",
    "pydantic==2.14.4",
    "django==5.2.19",
    "sqlalchemy==2.1.9",
    "cryptography==50.0.2",
];

/// Tests of a backend that is in a cloud.
const AZURE: &str = "t/integration/test_backend.py";

/// The folder of the plugin of pytest, and the example that is the worker.
const PLUGIN: &str = "services/jobs/examples/celery_suite";
const EXAMPLE: &str = "celery_suite";

/// For the download of the source.
const DOWNLOADS: Duration = Duration::from_secs(300);
/// For all cases, which take half an hour.
const RUNS: Duration = Duration::from_secs(2 * 3_600);

/// The cases that do not pass, in the workspace: a case and why. A `*` at the end of a case stands
/// for any text.
const LISTED: &str = "xtask/celery.tsv";
const NOT_APPLICABLE: &str = "not applicable: ";
const VARIES: &str = "varies: ";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Passed,
    Failed,
    /// By the tests themselves.
    Skipped,
    NotApplicable,
    NotRun,
}

type Cases = BTreeMap<String, Outcome>;

/// The outcomes with pikake's worker and with Celery's.
type Both = BTreeMap<String, [Outcome; 2]>;

/// The servers, and where everything is.
struct Place {
    folder: PathBuf,
    python: PathBuf,
    rabbitmq: Server,
    redis: Server,
}

pub(crate) fn celery(arguments: &[String]) -> Result {
    let selection = match arguments {
        [] => None,
        [option, expression] if option == "-k" => Some(expression.as_str()),
        _ => return Err("which cases? cargo xtask suites celery [-k EXPRESSION]".into()),
    };
    let listed = Listed::read(&fs::read_to_string(xtask::root().join(LISTED))?)?;
    let place = Place::new()?;
    run(&mut cargo(&["build", "-p", "pikake-jobs", "--example", EXAMPLE]))?;
    let ours = place.cases(true, &listed, selection)?;
    let theirs = match selection {
        Some(_) => Cases::new(),
        None => place.cases(false, &listed, None)?,
    };
    let both = listed.both(&ours, &theirs);
    print!("{}", rows(&both, &listed));
    if selection.is_none() {
        print!("\n{}", summary(&both));
    }
    listed.compare(&ours)
}

impl Place {
    fn new() -> Result<Self> {
        let folder = xtask::target().join("suites/celery");
        let python = environment(&folder, &PACKAGES.map(str::to_owned))?;
        if !folder.join(FOLDER).exists() {
            let mut pip = Command::new(&python);
            pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"]);
            pip.args(["--no-deps", "--no-binary", ":all:", "--dest"]).arg(&folder).arg(SOURCE);
            within(Some(DOWNLOADS), &mut pip)?;
            // Renamed at the end, so that a part of the files is no source.
            let part = folder.join("part");
            let archive = folder.join(format!("{FOLDER}.tar.gz"));
            run(Command::new(&python).args(["-m", "tarfile", "-e"]).args([&archive, &part]))?;
            fs::rename(part.join(FOLDER), folder.join(FOLDER))?;
        }
        let [rabbitmq, redis] = [Kind::RabbitMq, Kind::Redis].map(Server::start);
        let (rabbitmq, redis) = (rabbitmq?, redis?);
        // The tests have a client without a password.
        let open = ["AUTH pikake", "CONFIG SET requirepass \"\""];
        tell_redis(redis.port(), &open)?;
        Ok(Self { folder, python, rabbitmq, redis })
    }

    /// Runs the cases with pikake's worker, or with Celery's, on an empty broker and database.
    fn cases(&self, is_ours: bool, listed: &Listed, selection: Option<&str>) -> Result<Cases> {
        let name = if is_ours { "pikake" } else { "celery" };
        println!("\n=== Celery's integration tests with the worker of {name}");
        let broker = self.rabbitmq.fresh_url();
        let port = self.redis.port().to_string();
        tell_redis(self.redis.port(), &["FLUSHALL"])?;
        let at = |end: &str| self.folder.join(format!("{name}.{end}"));
        let mut pytest = Command::new(&self.python);
        pytest.args(["-m", "pytest", "-p", "celery.contrib.pytest", "-p", "pikake_suite"]);
        pytest.args(["-p", "no:cacheprovider", "--tb=short", "-rA", "t/integration"]);
        pytest.args(["--ignore", AZURE]);
        pytest.args(selection.map(|expression| ["-k", expression]).into_iter().flatten());
        pytest.env("PIKAKE_CASES", at("cases")).env("PYTHONPATH", xtask::root().join(PLUGIN));
        pytest.env("TEST_BROKER", broker.replacen("amqp", "pyamqp", 1));
        pytest.env("TEST_BACKEND", format!("redis://127.0.0.1:{port}"));
        pytest.env("REDIS_HOST", "127.0.0.1").env("REDIS_PORT", port);
        // Some cases run the program `celery`.
        let programs = self.python.parent().map(Path::to_owned).unwrap_or_default();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(programs).chain(std::env::split_paths(&path));
        pytest.env("PATH", std::env::join_paths(path)?);
        if is_ours {
            pytest.env("PIKAKE_LEFT_OUT", listed.not_applicable().join("\n"));
            let worker = xtask::target().join("debug/examples").join(EXAMPLE);
            pytest.env("PIKAKE_WORKER", worker).env("PIKAKE_BROKER", broker);
            pytest.env("PIKAKE_LOG", at("worker.log"));
        }
        let log = File::create(at("log"))?;
        pytest.current_dir(self.folder.join(FOLDER)).stdout(log.try_clone()?).stderr(log);
        // It fails if a case does; one that does not end has not noted all.
        let ended = within(Some(RUNS), &mut pytest);
        let noted = fs::read_to_string(at("cases")).unwrap_or_default();
        read_cases(&noted).map_err(|error| match ended {
            Ok(()) => error,
            Err(ended) => format!("{error} ({ended}; see {})", at("log").display()).into(),
        })
    }
}

/// Gives Redis commands, and waits for the answers.
fn tell_redis(port: u16, commands: &[&str]) -> Result {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    for command in commands {
        write!(stream, "{command}\r\n")?;
    }
    let answers = BufReader::new(stream).lines().take(commands.len());
    let answers = answers.collect::<io::Result<Vec<_>>>()?;
    match answers.iter().all(|answer| answer == "+OK") && answers.len() == commands.len() {
        true => Ok(()),
        false => Err(format!("Redis: {}", answers.join(", ")).into()),
    }
}

/// Reads what the plugin has written.
fn read_cases(text: &str) -> Result<Cases> {
    let Some(lines) = text.strip_suffix("end\n") else {
        return Err("the tests did not end".into());
    };
    let cases = lines.lines().map(|line| match line.rsplit_once('\t') {
        Some((case, "passed")) => Ok((case.to_owned(), Outcome::Passed)),
        Some((case, "failed")) => Ok((case.to_owned(), Outcome::Failed)),
        Some((case, "skipped")) => Ok((case.to_owned(), Outcome::Skipped)),
        _ => Err(format!("no case: {line}").into()),
    });
    cases.collect()
}

/// The cases that do not pass with pikake's worker: patterns, and why.
struct Listed(Vec<(String, String)>);

impl Listed {
    fn read(text: &str) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let rows = lines.map(|line| match line.split_once('\t') {
            Some((case, why)) if !why.is_empty() => Ok((case.to_owned(), why.to_owned())),
            _ => Err(format!("{LISTED}: a case has no reason: {line}").into()),
        });
        rows.collect::<Result<_>>().map(Self)
    }

    /// Why a case does not pass.
    fn why(&self, case: &str) -> Option<&str> {
        let is_meant = |pattern: &str| match pattern.strip_suffix('*') {
            Some(begin) => case.starts_with(begin),
            None => case == pattern,
        };
        self.0.iter().find(|(pattern, _)| is_meant(pattern)).map(|(_, why)| why.as_str())
    }

    /// The patterns of the cases that are not run.
    fn not_applicable(&self) -> Vec<&str> {
        let rows = self.0.iter().filter(|(_, why)| why.starts_with(NOT_APPLICABLE));
        rows.map(|(pattern, _)| pattern.as_str()).collect()
    }

    fn compare(&self, ours: &Cases) -> Result {
        let failed = ours.iter().filter(|(_, outcome)| **outcome == Outcome::Failed);
        let new: Vec<_> =
            failed.map(|(case, _)| case.as_str()).filter(|case| self.why(case).is_none()).collect();
        match new.is_empty() {
            true => Ok(()),
            false => {
                Err(format!("fail, and are not listed in {LISTED}: {}", new.join(", ")).into())
            }
        }
    }

    /// The outcomes of all cases with both workers.
    fn both(&self, ours: &Cases, theirs: &Cases) -> Both {
        let outcomes = |case: &String| {
            let is_applicable = !self.why(case).is_some_and(|why| why.starts_with(NOT_APPLICABLE));
            let other = if is_applicable { Outcome::NotRun } else { Outcome::NotApplicable };
            let ours = ours.get(case).copied().unwrap_or(other);
            (case.clone(), [ours, theirs.get(case).copied().unwrap_or(Outcome::NotRun)])
        };
        ours.keys().chain(theirs.keys()).map(outcomes).collect()
    }
}

impl Outcome {
    fn text(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::NotApplicable => "not applicable",
            Self::NotRun => "not run",
        }
    }
}

/// A line for each case: with pikake's worker, with Celery's, its name, and why it does not pass.
fn rows(both: &Both, listed: &Listed) -> String {
    let rows = both.iter().map(|(case, [ours, theirs])| {
        let why = match (ours, listed.why(case)) {
            (Outcome::Passed, Some(why)) if !why.starts_with(VARIES) => ": is listed, and passed",
            (Outcome::Passed | Outcome::Skipped, _) | (_, None) => "",
            (_, Some(why)) => &format!(": {why}"),
        };
        format!("{:14}  {:7}  {case}{why}\n", ours.text(), theirs.text())
    });
    rows.collect()
}

/// The counts. Cases that the tests themselves skip are not counted.
fn summary(both: &Both) -> String {
    let counted = both.values().filter(|[_, theirs]| *theirs != Outcome::Skipped);
    let [mut all, mut applicable] = [[0; 3]; 2];
    for [ours, theirs] in counted {
        let ones = [1, u32::from(*ours == Outcome::Passed), u32::from(*theirs == Outcome::Passed)];
        for (count, one) in all.iter_mut().zip(ones) {
            *count += one;
        }
        if *ours != Outcome::NotApplicable {
            for (count, one) in applicable.iter_mut().zip(ones) {
                *count += one;
            }
        }
    }
    let row = |name: &str, [cases, ours, theirs]: [u32; 3]| {
        format!("| {name} | {cases} | {ours} | {theirs} |\n")
    };
    let head = "| cases | number | passed with pikake | passed with Celery |\n\
                | --- | ---: | ---: | ---: |\n";
    format!("{head}{}{}", row("applicable", applicable), row("all", all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_if_the_tests_have_ended() {
        let text = "a.py::one\tpassed\na.py::two[x y]\tfailed\na.py::three\tskipped\n";
        assert!(read_cases(text).is_err());
        let cases = read_cases(&format!("{text}end\n")).unwrap();
        let outcomes: Vec<_> = cases.iter().map(|(case, how)| (case.as_str(), *how)).collect();
        let [one, two] = [("a.py::one", Outcome::Passed), ("a.py::two[x y]", Outcome::Failed)];
        assert_eq!(outcomes, [one, ("a.py::three", Outcome::Skipped), two]);
        assert!(read_cases("a.py::one\tbroken\nend\n").is_err());
    }

    #[test]
    fn failure_without_a_reason_is_an_error() {
        let listed = "# a comment\na::one\twhy\nb::*\tnot applicable: why\nc::two\tvaries: why\n";
        let listed = Listed::read(listed).unwrap();
        assert!(Listed::read("a::one\n").is_err());
        assert_eq!(listed.not_applicable(), ["b::*"]);
        let cases = |cases: &[(&str, Outcome)]| -> Cases {
            cases.iter().map(|(case, outcome)| ((*case).to_owned(), *outcome)).collect()
        };
        let ours = [("a::one", Outcome::Failed), ("c::two", Outcome::Passed)];
        assert!(listed.compare(&cases(&ours)).is_ok());
        let new = [("a::one", Outcome::Failed), ("a::three", Outcome::Failed)];
        let error = listed.compare(&cases(&new)).unwrap_err();
        assert!(error.to_string().ends_with("celery.tsv: a::three"), "{error}");
        let theirs = [("a::one", Outcome::Passed), ("b::x", Outcome::Passed)];
        let both = listed.both(&cases(&ours), &cases(&theirs));
        assert_eq!(both["b::x"], [Outcome::NotApplicable, Outcome::Passed]);
        assert!(rows(&both, &listed).contains("failed          passed   a::one: why\n"));
        let table = summary(&both);
        assert!(table.ends_with("| applicable | 2 | 1 | 1 |\n| all | 3 | 1 | 2 |\n"), "{table}");
    }
}
