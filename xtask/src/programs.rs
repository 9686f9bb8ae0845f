//! The test programs of the workspace: cargo builds them, and this program runs them.
//!
//! `cargo test` runs one program after another, though many of them mostly wait. Here three run at
//! a time, the longest ones first. Programs that must run alone follow.
//!
//! A program's output goes to a file, and is printed when the program has ended.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Result;
use crate::group::Group;
use crate::run::{cargo, wait};

/// For one program. The longest one takes less than three minutes.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// A program that takes less is not listed among the longest, in seconds.
const SHOWN: f64 = 5.0;

/// How many programs run at a time.
const LANES: usize = 3;

/// How many tests run at a time in a program that mostly waits.
const THREADS: &str = "4";

/// The programs that mostly wait for servers, a browser or processes, the longest first: their
/// packages and names.
const WAITING: [(&str, &str); 10] = [
    ("pikake-jobs", "servers"),
    ("pikake-jobs", "crashes"),
    ("pikake-cli", "cli"),
    ("pikake-jobs", "processes"),
    ("pikake-jobs", "conformance"),
    ("pikake-console", "console"),
    ("pikake-amqp", "rabbit"),
    ("pikake-postgres", "postgres"),
    ("pikake-libraries", "libraries"),
    ("xtask", "xtask"),
];

/// The programs that use up what the system has, or measure what it does.
const ALONE: [(&str, &str); 1] = [("pikake", "alone")];

/// A program that cargo has built of a package's tests.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) package: String,
    /// The name of the test, or of the library, program or example whose unit tests these are.
    pub(crate) name: String,
    file: PathBuf,
    /// The package's folder, in which it runs.
    folder: PathBuf,
    /// Whether it takes the arguments of Rust's test harness.
    pub(crate) has_harness: bool,
}

impl Program {
    fn is_in(&self, list: &[(&str, &str)]) -> bool {
        list.contains(&(&*self.package, &*self.name))
    }

    /// Whether it mostly waits for servers, a browser or processes.
    pub(crate) fn mostly_waits(&self) -> bool {
        self.is_in(&WAITING)
    }

    /// Its place among all: that in the list, or behind it.
    fn place(&self) -> usize {
        let is_it = |listed: &(&str, &str)| *listed == (&*self.package, &*self.name);
        WAITING.iter().position(is_it).unwrap_or(WAITING.len())
    }

    /// The names of its tests that contain one of the filters.
    pub(crate) fn tests(&self, filters: &[String]) -> Result<Vec<String>> {
        if !self.has_harness {
            return Ok(if filters.is_empty() { vec![self.name.clone()] } else { Vec::new() });
        }
        let mut command = self.command();
        let output = command.args(["--list", "--format", "terse"]).args(filters).output()?;
        if !output.status.success() {
            return Err(format!("{} --list: {}", self.file.display(), output.status).into());
        }
        let lines = String::from_utf8_lossy(&output.stdout);
        Ok(lines
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .map(str::to_owned)
            .collect())
    }

    fn command(&self) -> Command {
        self.command_under(&[])
    }

    /// The program, run by another one with these words.
    pub(crate) fn command_under(&self, words: &[&str]) -> Command {
        let program = self.file.as_os_str();
        let mut words = words.iter().map(OsStr::new).chain([program]);
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words).current_dir(&self.folder).stdin(Stdio::null());
        command
    }
}

/// What a program has come to.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) package: String,
    pub(crate) name: String,
    pub(crate) seconds: f64,
    pub(crate) is_ok: bool,
    pub(crate) output: String,
}

/// Builds all test programs, and the examples and programs that the tests start.
pub(crate) fn build(options: &[&str]) -> Result<Vec<Program>> {
    let mut cargo = cargo(&["test", "--workspace", "--no-run", "--quiet"]);
    cargo.args(["--message-format", "json-render-diagnostics"]).args(options);
    cargo.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut group = Group::start(&mut cargo)?;
    let output = group.child().stdout.take().expect("it is piped");
    let reader = std::thread::spawn(move || std::io::read_to_string(output));
    wait(group, None, "cargo test --workspace --no-run")?;
    let messages = reader.join().expect("it does not panic")?;
    let found = messages.lines().filter_map(|line| program(line).transpose());
    let mut programs = found.collect::<Result<Vec<_>>>()?;
    programs.sort_by(|one, other| (&one.package, &one.name).cmp(&(&other.package, &other.name)));
    for (package, name) in WAITING.iter().chain(&ALONE) {
        let is_it = |program: &Program| program.package == *package && program.name == *name;
        if !programs.iter().any(is_it) {
            return Err(format!("there is no test program `{name}` of {package}").into());
        }
    }
    Ok(programs)
}

/// The program of a message of cargo's, if the message is of one.
fn program(message: &str) -> Result<Option<Program>> {
    let message: Value = serde_json::from_str(message)?;
    let Some(file) = message["executable"].as_str() else { return Ok(None) };
    if message["profile"]["test"] != true {
        return Ok(None);
    }
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or("cargo says no name");
    let folder = PathBuf::from(text(&message["manifest_path"])?);
    let folder = folder.parent().ok_or("a manifest has a folder")?.to_owned();
    let manifest = fs::read_to_string(folder.join("Cargo.toml"))?;
    let name = text(&message["target"]["name"])?;
    let package = package_of(&text(&message["package_id"])?, &folder);
    let has_harness = !is_without_harness(&manifest, &name);
    Ok(Some(Program { package, name, file: file.into(), folder, has_harness }))
}

/// The name in a package's identifier: `path+file:///folder#name@1.0.0`, or with the folder's name
/// `path+file:///folder/name#1.0.0`.
fn package_of(id: &str, folder: &Path) -> String {
    let named = id.rsplit_once('#').and_then(|(_, name)| name.split_once('@'));
    named.map_or_else(
        || folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        |(name, _)| name.to_owned(),
    )
}

/// Whether a manifest says of a test that it has no harness.
fn is_without_harness(manifest: &str, name: &str) -> bool {
    let tests = manifest.split("[[test]]").skip(1);
    let mut of_tests = tests.map(|test| test.split("\n[").next().unwrap_or(test));
    of_tests.any(|test| {
        test.contains(&format!("name = \"{name}\"")) && test.contains("harness = false")
    })
}

/// How programs are run.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    /// Arguments for those with a harness.
    pub(crate) arguments: &'a [String],
    pub(crate) variables: Vec<(&'a str, String)>,
    /// Where each program's output goes.
    pub(crate) folder: PathBuf,
    /// For each program.
    pub(crate) limit: Option<Duration>,
    /// Whether the output of those that passed is left out.
    pub(crate) is_quiet: bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        let folder = xtask::target().join("tests");
        Self { arguments: &[], variables: Vec::new(), folder, limit: Some(LIMIT), is_quiet: false }
    }
}

/// Runs programs, some at a time, and returns what each has come to.
pub(crate) fn run_all(programs: &[&Program], options: &Options) -> Result<Vec<Ended>> {
    fs::create_dir_all(&options.folder)?;
    let (alone, mut others): (Vec<&Program>, Vec<_>) =
        programs.iter().partition(|program| program.is_in(&ALONE));
    others.sort_by_key(|program| program.place());
    let (next, ended) = (Mutex::new(others.into_iter()), Mutex::new(Vec::new()));
    let lane = || {
        let next = || next.lock().expect("no lane panicked").next();
        std::iter::from_fn(next).try_for_each(|program| run(program, options, &ended))
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().expect("it does not panic"))
    })?;
    alone.into_iter().try_for_each(|program| run(program, options, &ended))?;
    Ok(ended.into_inner().expect("no lane panicked"))
}

/// Runs a program to its end; a program that fails is no error of this function.
fn run(
    program: &Program,
    options: &Options,
    ended: &Mutex<Vec<Ended>>,
) -> std::result::Result<(), String> {
    let Program { package, name, .. } = program;
    let said = |error: std::io::Error| format!("{package}, {name}: {error}");
    // The name of the file alone tells a library from a program and a test of the same name.
    let path = options.folder.join(program.file.file_name().unwrap_or_default());
    let file = File::create(&path).map_err(said)?;
    let mut command = program.command();
    command.stderr(file.try_clone().map_err(said)?).stdout(file);
    command.envs(options.variables.iter().map(|(name, value)| (name, value)));
    if program.has_harness {
        command.args(options.arguments);
    }
    if program.mostly_waits() {
        command.env("RUST_TEST_THREADS", THREADS);
    }
    let since = Instant::now();
    let group = Group::start(&mut command).map_err(said)?;
    let end = wait(group, options.limit, &format!("{name} of {package}"));
    let seconds = since.elapsed().as_secs_f64();
    let bytes = fs::read(&path).map_err(said)?;
    let output = String::from_utf8_lossy(&bytes).into_owned();
    let mut ended = ended.lock().expect("no lane panicked");
    if !options.is_quiet || end.is_err() {
        println!("\n--- {package}, {name}: {seconds:.1} s\n{output}");
    }
    if let Err(error) = &end {
        println!("error: {error}");
    }
    let is_ok = end.is_ok();
    ended.push(Ended { package: package.clone(), name: name.clone(), seconds, is_ok, output });
    match crate::run::is_told_to_end() {
        true => Err("interrupted".into()),
        false => Ok(()),
    }
}

/// What the test harnesses have printed, added up.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    passed: u64,
    ignored: u64,
    failed: Vec<String>,
    /// Seconds of each program.
    times: Vec<(f64, String)>,
}

impl Summary {
    pub(crate) fn add(&mut self, ended: &Ended) {
        let Ended { package, name, seconds, is_ok, output } = ended;
        self.times.push((*seconds, format!("{package}, {name}")));
        let failed = self.failed.len();
        for (test, result) in results(output) {
            if result == "FAILED" {
                self.failed.push(format!("{package}, {name}: {test}"));
            }
        }
        if !is_ok && self.failed.len() == failed {
            self.failed.push(format!("{package}, {name}: the program"));
        }
        for counts in output.lines().filter_map(|line| line.strip_prefix("test result: ")) {
            let words: Vec<_> = counts.split_whitespace().collect();
            for pair in words.windows(2) {
                let Ok(count) = pair[0].parse::<u64>() else { continue };
                match pair[1] {
                    "passed;" => self.passed += count,
                    "ignored;" => self.ignored += count,
                    _ => {}
                }
            }
        }
    }

    /// An error if a test failed.
    pub(crate) fn check(&self) -> Result {
        match self.failed.is_empty() {
            true => Ok(()),
            false => Err(format!("{} tests failed", self.failed.len()).into()),
        }
    }

    /// The longest programs, the counts, and the tests that failed.
    pub(crate) fn text(&self) -> String {
        let Self { passed, ignored, failed, times } = self;
        let mut times: Vec<_> = times.iter().filter(|(seconds, _)| *seconds >= SHOWN).collect();
        times.sort_by(|one, other| other.0.total_cmp(&one.0));
        let lines = times.iter().map(|(seconds, name)| format!("{seconds:6.1} s  {name}\n"));
        let mut text: String = lines.collect();
        text.push_str(&format!("{passed} passed, {} failed, {ignored} ignored", failed.len()));
        for test in failed {
            text.push_str(&format!("\n    failed: {test}"));
        }
        text
    }
}

/// The tests in a harness's output, with `ok`, `FAILED` or `ignored`.
pub(crate) fn results(output: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("test "));
    lines.filter_map(|line| line.split_once(" ... "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(output: &[&str], is_ok: bool) -> Ended {
        let (package, name) = ("pikake".into(), "net".into());
        Ended { package, name, seconds: 7.5, is_ok, output: output.join("\n") }
    }

    #[test]
    fn results_are_added_up_and_failures_named() {
        let mut summary = Summary::default();
        summary.add(&ended(
            &[
                "test a::b ... ok",
                "test a::c ... FAILED",
                "test slow - should panic ... ok",
                "test result: FAILED. 2 passed; 1 failed; 3 ignored; 0 measured; 7 filtered out; \
                 finished in 0.00s",
            ],
            false,
        ));
        assert!(summary.check().is_err());
        assert_eq!(
            summary.text(),
            "   7.5 s  pikake, net\n2 passed, 1 failed, 3 ignored\n    failed: pikake, net: a::c"
        );
    }

    #[test]
    fn program_without_results_fails_as_a_whole() {
        let mut summary = Summary::default();
        summary.add(&ended(&["Segmentation fault"], false));
        assert!(summary.text().ends_with("failed: pikake, net: the program"));
        assert!(summary.check().is_err());
    }

    #[test]
    fn package_is_read_from_its_identifier() {
        let folder = Path::new("/a/net");
        assert_eq!(package_of("path+file:///a/net#pikake-net@0.1.0", folder), "pikake-net");
        assert_eq!(package_of("path+file:///a/net#0.1.0", folder), "net");
    }

    #[test]
    fn only_a_named_test_has_no_harness() {
        let manifest = "[[test]]\nname = \"a\"\nharness = false\n\n[[test]]\nname = \"b\"\n\n[x]\n";
        assert!(is_without_harness(manifest, "a"));
        assert!(!is_without_harness(manifest, "b"));
    }
}
