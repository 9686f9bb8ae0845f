//! `cargo xtask suites [SUITE…]`: suites of HTTP that others have written, against a server of
//! pikake and against axum on tokio, whose failures are those of hyper and h2.
//!
//! The suites and the programs that run them are installed below the target folder: h1spec is
//! cloned (from the repository that `PIKAKE_H1SPEC` names, or from its own), its Deno comes from
//! npm, and httpwg from crates.io. The cases that fail are listed in `suites.tsv`. A case that
//! fails and is not listed is an error, and so is a suite of which pikake passes less than tokio.
//! Cases whose outcome varies from run to run, on both servers, are listed as such and not counted.
//!
//! The suites `amqp`, of AMQP, `autobahn`, of WebSockets, and `celery`, of jobs, run only by their
//! names: see their files.

mod amqp;
mod autobahn;
mod celery;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::Result;
use crate::group::Group;
use crate::run::{cargo, run, within};

/// For one run of a suite, which takes some seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// The servers, ours first.
const SERVERS: [&str; 2] = ["pikake", "tokio"];

/// The cases that fail, in the workspace: a suite, a case, and why.
const LISTED: &str = "xtask/suites.tsv";

/// The beginning of the reasons of cases that are not counted.
const VARIES: &str = "varies: ";

/// The repository of h1spec, which no registry has, and its commit.
const H1SPEC: [&str; 2] =
    ["https://github.com/uNetworking/h1spec", "f0a5650a20c575fbea0f7179a3a9cfa50f20ba6e"];

const DENO: &str = "deno@2.9.6";

const HTTPWG: &str = "httpwg-cli@0.2.5";

/// How long httpwg waits for a frame, in milliseconds. Its own 250 are too few on a busy machine.
const FRAME_MILLIS: &str = "1000";

/// The cases of a suite, and whether each has passed.
type Cases = BTreeMap<String, bool>;

struct Suite {
    name: &'static str,
    about: &'static str,
    /// Installs the suite into a folder.
    install: fn(&Path) -> Result,
    /// Runs the suite in that folder against a port of 127.0.0.1.
    command: fn(&Path, u16) -> Command,
    /// Reads what the suite has printed.
    read: fn(&str) -> Result<Cases>,
    /// Runs of the suite. A case passes if it passes in one of them.
    rounds: usize,
}

const SUITES: [Suite; 2] = [
    Suite {
        name: "h1spec",
        about: "requests of HTTP/1.1, most of them faulty",
        install: install_h1spec,
        command: run_h1spec,
        read: read_h1spec,
        rounds: 1,
    },
    Suite {
        name: "httpwg",
        about: "RFC 9113, HTTP/2",
        install: install_httpwg,
        command: run_httpwg,
        read: read_httpwg,
        // A frame that comes late, on a busy machine, is no failure.
        rounds: 3,
    },
];

pub(crate) fn suites(arguments: &[String]) -> Result {
    if arguments == ["amqp"] {
        return amqp::run();
    }
    if arguments == ["autobahn"] {
        return autobahn::run();
    }
    if let [name, rest @ ..] = arguments {
        if name == "celery" {
            return celery::celery(rest);
        }
    }
    let unknown = arguments.iter().find(|name| !SUITES.iter().any(|suite| suite.name == *name));
    if let Some(name) = unknown {
        let suites = SUITES.iter().map(|suite| format!("\n    {:8}  {}", suite.name, suite.about));
        return Err(format!("there is no suite `{name}`, but{}", suites.collect::<String>()).into());
    }
    let folder = xtask::target().join("suites");
    let listed = fs::read_to_string(xtask::root().join(LISTED))?;
    let mut build = cargo(&["build"]);
    build.current_dir(xtask::root().join("benches/suites")).env("CARGO_TARGET_DIR", &folder);
    run(&mut build)?;
    let (mut table, mut errors) = (String::new(), Vec::new());
    let is_wanted = |name: &str| arguments.is_empty() || arguments.iter().any(|it| it == name);
    for suite in SUITES.iter().filter(|suite| is_wanted(suite.name)) {
        println!("\n=== {}: {}", suite.name, suite.about);
        (suite.install)(&folder)?;
        let (listed, varying) = listed_of(&listed, suite.name);
        let [mut ours, mut theirs] = [outcome(suite, &folder, 0)?, outcome(suite, &folder, 1)?];
        for cases in [&mut ours, &mut theirs] {
            cases.retain(|case, _| !varying.contains(case));
        }
        let compared = Compared::new(&ours, &theirs, &listed);
        print!("{}", compared.text());
        table += &format!("| {} | {} | {} |\n", suite.name, score(&ours), score(&theirs));
        errors.extend(compared.error().map(|error| format!("{}: {error}", suite.name)));
    }
    println!("\n| suite | pikake | axum on tokio |\n| --- | ---: | ---: |\n{table}");
    match errors.is_empty() {
        true => Ok(()),
        false => Err(errors.join("\nerror: ").into()),
    }
}

/// Runs a suite against one of the servers.
fn outcome(suite: &Suite, folder: &Path, server: usize) -> Result<Cases> {
    let mut command = Command::new(folder.join("debug/pikake-suites"));
    command.arg(SERVERS[server]).stdin(Stdio::piped()).stdout(Stdio::piped());
    // The server is ended when this is dropped.
    let mut group = Group::start(&mut command)?;
    let output = group.child().stdout.take().ok_or("the server has no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let port = line.trim().parse().map_err(|_| "the server did not print its port")?;
    let mut cases = Cases::new();
    for _ in 0..suite.rounds {
        let path = folder.join(format!("{}-{}.log", suite.name, SERVERS[server]));
        let log = File::create(&path)?;
        let mut command = (suite.command)(folder, port);
        command.stdout(log.try_clone()?).stderr(log);
        // A suite with a failure fails; one that does not end has not printed all.
        let ended = within(Some(LIMIT), &mut command);
        let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        let read = (suite.read)(&text).map_err(|error| match &ended {
            Ok(()) => error,
            Err(ended) => format!("{error} ({ended}; see {})", path.display()).into(),
        })?;
        for (name, has_passed) in read {
            *cases.entry(name).or_default() |= has_passed;
        }
    }
    Ok(cases)
}

fn install_h1spec(folder: &Path) -> Result {
    let [source, commit] = H1SPEC;
    let source = std::env::var("PIKAKE_H1SPEC").unwrap_or_else(|_| source.to_owned());
    let clone = folder.join("h1spec");
    if !clone.exists() {
        run(Command::new("git").args(["clone", "--quiet", &source]).arg(&clone))?;
    }
    run(Command::new("git").arg("-C").arg(&clone).args(["checkout", "--quiet", commit]))?;
    if deno(folder).exists() {
        return Ok(());
    }
    let place = folder.join("deno");
    run(Command::new("npm").args(["install", "--silent", "--prefix"]).arg(place).arg(DENO))
}

fn deno(folder: &Path) -> PathBuf {
    folder.join("deno/node_modules/.bin/deno")
}

fn run_h1spec(folder: &Path, port: u16) -> Command {
    let mut command = Command::new(deno(folder));
    command.args(["run", "--no-check", "--no-remote", "--allow-net=127.0.0.1"]);
    command.arg(folder.join("h1spec/http_test.ts")).args(["127.0.0.1", &port.to_string()]);
    command.env("DENO_DIR", folder.join("deno/cache")).env("DENO_NO_UPDATE_CHECK", "1");
    command
}

/// A line for each case, and their number in the last one.
fn read_h1spec(text: &str) -> Result<Cases> {
    let mut cases = Cases::new();
    for line in text.lines() {
        let marked = |mark: &str, has_passed| Some((line.strip_prefix(mark)?, has_passed));
        if let Some((case, has_passed)) = marked("✅ ", true).or_else(|| marked("❌ ", false)) {
            let name = case.split(": ").next().unwrap_or(case);
            cases.insert(name.to_owned(), has_passed);
        }
    }
    let count = text.lines().find_map(|line| {
        line.strip_suffix(" tests passed.")?.rsplit(' ').next()?.parse::<usize>().ok()
    });
    match count == Some(cases.len()) {
        true => Ok(cases),
        false => Err(format!("{} of {count:?} cases have printed a result", cases.len()).into()),
    }
}

fn install_httpwg(folder: &Path) -> Result {
    let place = folder.join("httpwg");
    run(cargo(&["install", "--quiet", HTTPWG, "--locked", "--root"]).arg(place))
}

fn run_httpwg(folder: &Path, port: u16) -> Command {
    let mut command = Command::new(folder.join("httpwg/bin/httpwg"));
    command.args(["--verbose", "--frame-timeout", FRAME_MILLIS, "--address"]);
    command.arg(format!("127.0.0.1:{port}"));
    command
}

/// Each case prints when it begins and when it passes, but may panic in between.
fn read_httpwg(text: &str) -> Result<Cases> {
    let after = |mark| text.lines().filter_map(move |line| Some(line.split_once(mark)?.1));
    let mut cases: Cases = after("Running test: ").map(|name| (name.to_owned(), false)).collect();
    for name in after("Test passed: ") {
        cases.insert(name.to_owned(), true);
    }
    match text.contains("🚄 Passed ") && !cases.is_empty() {
        true => Ok(cases),
        false => Err("the suite did not end".into()),
    }
}

/// The cases of a suite that fail, and those that are not counted.
fn listed_of(listed: &str, suite: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut failing, mut varying) = (BTreeSet::new(), BTreeSet::new());
    for line in listed.lines() {
        if let [name, case, why] = line.split('\t').collect::<Vec<_>>()[..] {
            let list = if why.starts_with(VARIES) { &mut varying } else { &mut failing };
            list.extend((name == suite).then(|| case.to_owned()));
        }
    }
    (failing, varying)
}

fn passed(cases: &Cases) -> usize {
    cases.values().filter(|has_passed| **has_passed).count()
}

fn score(cases: &Cases) -> String {
    format!("{} of {}", passed(cases), cases.len())
}

/// What has come of a suite.
#[derive(PartialEq, Eq, Debug)]
struct Compared {
    /// Fail, and are not listed.
    new: Vec<String>,
    /// Are listed, and do not fail.
    mended: Vec<String>,
    /// Fail on one server only.
    only_ours: Vec<String>,
    only_theirs: Vec<String>,
    is_below: bool,
}

impl Compared {
    fn new(ours: &Cases, theirs: &Cases, listed: &BTreeSet<String>) -> Self {
        let failed = |cases: &Cases| -> BTreeSet<String> {
            let failed = cases.iter().filter(|(_, has_passed)| !**has_passed);
            failed.map(|(name, _)| name.clone()).collect()
        };
        let (our_failures, their_failures) = (failed(ours), failed(theirs));
        let without = |all: &BTreeSet<String>, others| all.difference(others).cloned().collect();
        Self {
            new: without(&our_failures, listed),
            mended: without(listed, &our_failures),
            only_ours: without(&our_failures, &their_failures),
            only_theirs: without(&their_failures, &our_failures),
            is_below: passed(ours) < passed(theirs),
        }
    }

    fn text(&self) -> String {
        let lists = [
            ("fails, and is not listed", &self.new),
            ("is listed, and has passed", &self.mended),
            ("fails on pikake only", &self.only_ours),
            ("fails on tokio only", &self.only_theirs),
        ];
        let lines = lists
            .iter()
            .flat_map(|(what, cases)| cases.iter().map(move |case| format!("{what}: {case}\n")));
        lines.collect()
    }

    fn error(&self) -> Option<String> {
        match (self.new.len(), self.is_below) {
            (0, false) => None,
            (0, true) => Some("pikake passes fewer cases than axum on tokio".to_owned()),
            (count, _) => Some(format!("{count} cases fail and are not listed in {LISTED}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(cases: &[(&str, bool)]) -> Cases {
        cases.iter().map(|(name, has_passed)| ((*name).to_owned(), *has_passed)).collect()
    }

    #[test]
    fn h1spec_prints_a_line_for_each_case() {
        let text = "❌ Missing Host header: Read operation timed out\n\
                    ✅ Fragmented URL 1: Server waited successfully\n\
                    \n1 out of 2 tests passed.\n";
        let read = cases(&[("Fragmented URL 1", true), ("Missing Host header", false)]);
        assert_eq!(read_h1spec(text).unwrap(), read);
        let error = read_h1spec(&text.replace("out of 2", "out of 3")).unwrap_err();
        assert_eq!(error.to_string(), "2 of Some(3) cases have printed a result");
        assert!(read_h1spec("").is_err());
    }

    #[test]
    fn httpwg_case_without_a_result_has_failed() {
        let text = "🔷 Running test: RFC :: a\n🔷 Running test: RFC :: b\n\
                    ✅ Test passed: RFC :: b\n";
        assert_eq!(read_httpwg(text).unwrap_err().to_string(), "the suite did not end");
        let read = read_httpwg(&format!("{text}🚄 Passed 1/2 tests")).unwrap();
        assert_eq!(read, cases(&[("RFC :: a", false), ("RFC :: b", true)]));
    }

    #[test]
    fn unlisted_failure_or_fewer_passes_than_tokio_are_errors() {
        let listed = "# a comment\none\ta\twhy\none\tb\twhy\none\td\tvaries: why\nother\tc\twhy\n";
        let (listed, varying) = listed_of(listed, "one");
        assert_eq!((listed.len(), varying), (2, BTreeSet::from(["d".to_owned()])));
        let (all, none) = (&[("a", true), ("b", true)], &[("a", false), ("b", false)]);
        let compared = Compared::new(&cases(none), &cases(none), &listed);
        assert_eq!((compared.text(), compared.error()), (String::new(), None));
        let compared = Compared::new(&cases(all), &cases(none), &listed);
        assert_eq!((compared.mended.len(), compared.only_theirs.len()), (2, 2));
        assert_eq!(compared.error(), None);
        let compared = Compared::new(&cases(none), &cases(all), &listed);
        assert!(compared.text().starts_with("fails on pikake only: a\n"));
        assert!(compared.error().unwrap().starts_with("pikake passes fewer"));
        let compared = Compared::new(&cases(&[("c", false)]), &cases(&[("c", false)]), &listed);
        assert_eq!(compared.new, ["c"]);
        assert!(compared.error().unwrap().starts_with("1 cases fail"));
    }
}
