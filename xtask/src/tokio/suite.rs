//! `cargo xtask tokio tests`: tokio's own integration tests, on the package under its name, or with
//! `--real` on tokio itself.
//!
//! The tests are a package of their own below the target folder, in which `tokio` is the one or the
//! other. Each test runs in a process of its own, so one that hangs or aborts fails alone. A file
//! that does not compile counts as all its tests failed.
//!
//! `tests.tsv` beside that package lists all tests and their outcomes. A test that has passed there
//! and fails is an error; `--write` renews the list. The log of a failed test, and all results with
//! the reasons of failures, stay in the folder of the package.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Result;
use crate::group::{Group, LOOK};
use crate::run::{cargo, is_told_to_end};

pub(super) const USAGE: &str = "tests [--module NAME] [--real] [--write]";

/// All tests and their outcomes, in the workspace.
const LISTED: &str = "services/tokio-facade/tests.tsv";

/// The columns of outcomes in that list, which are also the folders of the packages.
const COLUMNS: [&str; 2] = ["tokio", "facade"];

/// For one test. On tokio, the slowest one takes ten seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// The modules of tokio, and how the files of their tests begin.
const MODULES: [(&str, &[&str]); 10] = [
    ("net", &["net_", "tcp_", "udp", "uds_", "unix_shutdown"]),
    ("time", &["time_", "test_clock"]),
    ("sync", &["sync_"]),
    ("task", &["join_handle_", "task_"]),
    ("rt", &["no_rt", "rt_"]),
    ("io", &["io_"]),
    ("fs", &["fs"]),
    ("process", &["process_"]),
    ("signal", &["signal_"]),
    ("macros", &["macros_"]),
];

/// A file without tests, whose assertions the compiler checks. It counts as one test.
const COMPILED: &str = "async_send_sync";

/// The features of tokio that its tests look at, and that are on.
const FEATURES: [&str; 14] = [
    "fs",
    "full",
    "io-std",
    "io-util",
    "macros",
    "net",
    "parking_lot",
    "process",
    "rt",
    "rt-multi-thread",
    "signal",
    "sync",
    "test-util",
    "time",
];

/// The file of a test, and its name.
type Test = (String, String);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Outcome {
    Passed,
    Ignored,
    /// With the reason.
    Failed(String),
}

impl Outcome {
    fn name(&self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Ignored => "ignored",
            Outcome::Failed(_) => "failed",
        }
    }
}

type Outcomes = BTreeMap<Test, Outcome>;

pub(super) fn tests(options: &[String]) -> Result {
    let (mut module, mut column, mut is_written) = (None, 1, false);
    let mut options = options.iter().map(String::as_str);
    while let Some(option) = options.next() {
        match option {
            "--module" => module = Some(options.next().ok_or("--module has a name")?),
            "--real" => column = 0,
            "--write" => is_written = true,
            _ => return Err(format!("unknown option `{option}` of `{USAGE}`").into()),
        }
    }
    let source = super::source::unpack()?;
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(source.join("tests"))? {
        let file = entry?.path();
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_wanted = module.is_none_or(|module| module == module_of(&name));
        if is_wanted && file.extension().is_some_and(|kind| kind == "rs") {
            files.insert(name);
        }
    }
    let path = xtask::root().join(LISTED);
    let mut listed = Listed::parse(&fs::read_to_string(&path).unwrap_or_default())?;
    let outcomes = outcomes(&source, &files, column, &listed)?;
    print!("{}", table(&outcomes));
    let broken = listed.broken(&outcomes, column);
    if is_written {
        listed.renew(&files, &outcomes, column);
        fs::write(path, listed.text())?;
        return Ok(());
    }
    match broken.is_empty() {
        true => Ok(()),
        false => {
            Err(format!("{} tests passed before:\n{}", broken.len(), broken.join("\n")).into())
        }
    }
}

fn module_of(file: &str) -> &'static str {
    let begins = |beginnings: &[&str]| beginnings.iter().any(|it| file.starts_with(it));
    MODULES.iter().find(|(_, files)| begins(files)).map_or("other", |(module, _)| module)
}

/// Builds and runs the tests of these files.
fn outcomes(
    source: &Path,
    files: &BTreeSet<String>,
    column: usize,
    listed: &Listed,
) -> Result<Outcomes> {
    let folder = xtask::target().join("tokio-tests");
    let package = folder.join(COLUMNS[column]);
    let tokio = [source.to_owned(), xtask::root().join("services/tokio-facade")][column].clone();
    fs::create_dir_all(package.join("src"))?;
    fs::write(package.join("src/lib.rs"), "")?;
    let manifest = manifest(&fs::read_to_string(source.join("Cargo.toml"))?, &tokio);
    fs::write(package.join("Cargo.toml"), manifest)?;
    if !package.join("tests").exists() {
        symlink(source.join("tests"), package.join("tests"))?;
    }
    let programs = build(&package, &folder.join("build"), files)?;
    let (mut outcomes, mut runs) = (Outcomes::new(), Vec::new());
    for file in files {
        let Some(program) = programs.get(file) else {
            let unbuilt = Outcome::Failed("does not compile".to_owned());
            outcomes.extend(listed.of(file).map(|test| (test.clone(), unbuilt.clone())));
            continue;
        };
        if file == COMPILED {
            outcomes.insert((file.clone(), "compiles".to_owned()), Outcome::Passed);
        }
        let ignored = list(program, &["--ignored"])?;
        for name in list(program, &[])? {
            match ignored.contains(&name) {
                true => drop(outcomes.insert((file.clone(), name), Outcome::Ignored)),
                false => runs.push((program, (file.clone(), name))),
            }
        }
    }
    let logs = package.join("logs");
    if logs.exists() {
        fs::remove_dir_all(&logs)?;
    }
    fs::create_dir_all(&logs)?;
    outcomes.extend(run_all(source, &logs, &runs)?);
    let mut results = String::new();
    for ((file, name), outcome) in &outcomes {
        let why = if let Outcome::Failed(why) = outcome { why } else { "" };
        writeln!(results, "{}\t{file}\t{name}\t{}\t{why}", module_of(file), outcome.name())?;
    }
    fs::write(package.join("results.tsv"), results)?;
    Ok(outcomes)
}

/// The manifest of the package with the tests: the dependencies are those of tokio's own tests.
fn manifest(of_tokio: &str, tokio: &Path) -> String {
    let features: String = FEATURES.iter().map(|name| format!("{name} = []\n")).collect();
    let tokio = tokio.display();
    let head = format!(
        "[package]\nname = \"tokio-tests\"\nedition = \"2021\"\n\n[workspace]\n\n\
         [features]\ndefault = {FEATURES:?}\n{features}\n\
         [dependencies]\nbytes = \"1\"\npin-project-lite = \"0.2\"\ntokio = {{ path = {tokio:?}, features = [\"full\", \"test-util\"] }}\n\n\
         [patch.crates-io]\ntokio = {{ path = {tokio:?} }}\n\n\
         [lints.rust]\nunexpected_cfgs = \"allow\"\n\n\
         [profile.dev]\ndebug = false\n",
        tokio = tokio.to_string(),
    );
    let sections = of_tokio
        .split("\n[")
        .filter(|it| it.lines().next().unwrap_or("").contains("dev-dependencies"));
    head + &sections.map(|section| format!("\n[{}\n", section.trim_end())).collect::<String>()
}

/// Builds the tests of these files, as far as they compile: the program of each.
fn build(
    package: &Path,
    target: &Path,
    files: &BTreeSet<String>,
) -> Result<BTreeMap<String, PathBuf>> {
    let mut command = cargo(&["build", "--keep-going", "--message-format=json-render-diagnostics"]);
    for file in files {
        command.args(["--test", file]);
    }
    let messages = package.join("messages.json");
    command.current_dir(package).env("CARGO_TARGET_DIR", target).stdout(File::create(&messages)?);
    command.stderr(File::create(package.join("build.log"))?).stdin(Stdio::null());
    // A file that does not compile is no error here.
    drop(crate::run::run(&mut command));
    let mut programs = BTreeMap::new();
    for line in fs::read_to_string(messages)?.lines() {
        let message: Value = serde_json::from_str(line)?;
        let names = [&message["target"]["name"], &message["executable"]].map(Value::as_str);
        if let [Some(file), Some(program)] = names {
            programs.insert(file.to_owned(), PathBuf::from(program));
        }
    }
    match programs.is_empty() {
        true => Err(format!("nothing was built: see {}/build.log", package.display()).into()),
        false => Ok(programs),
    }
}

/// The tests in a program.
fn list(program: &Path, options: &[&str]) -> Result<Vec<String>> {
    let output = Command::new(program).args(["--list", "--format=terse"]).args(options).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect())
}

/// Runs tests, as many at a time as there are processors.
fn run_all(folder: &Path, logs: &Path, runs: &[(&PathBuf, Test)]) -> Result<Outcomes> {
    let (queue, outcomes) = (Mutex::new(runs.iter()), Mutex::new(Ok(Outcomes::new())));
    let work = || {
        while let Some((program, test)) = { queue.lock().unwrap().next() } {
            let log = logs.join(format!("{}.{}", test.0, test.1));
            let outcome = run(folder, program, &test.1, &log).map_err(|error| error.to_string());
            let mut outcomes = outcomes.lock().unwrap();
            match (outcome, &mut *outcomes) {
                (Ok(outcome), Ok(all)) => drop(all.insert(test.clone(), outcome)),
                (Ok(_), Err(_)) => return,
                (Err(error), outcomes) => return *outcomes = Err(error),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    Ok(outcomes.into_inner()??)
}

/// Runs a test in tokio's folder, some of whose files tests read. The log stays if the test fails.
fn run(folder: &Path, program: &Path, name: &str, log: &Path) -> Result<Outcome> {
    let output = File::create(log)?;
    let mut command = Command::new(program);
    command.args(["--exact", name, "--nocapture"]).current_dir(folder).stdin(Stdio::null());
    command.stdout(output.try_clone()?).stderr(output);
    let (mut group, since) = (Group::start(&mut command)?, Instant::now());
    loop {
        if is_told_to_end() {
            return Err("interrupted".into());
        }
        if let Some(status) = group.status()? {
            if status.success() {
                fs::remove_file(log)?;
                return Ok(Outcome::Passed);
            }
            let text = String::from_utf8_lossy(&fs::read(log)?).into_owned();
            return Ok(Outcome::Failed(reason(&text).unwrap_or_else(|| status.to_string())));
        }
        if since.elapsed() >= LIMIT {
            return Ok(Outcome::Failed(format!("not over within {} s", LIMIT.as_secs())));
        }
        thread::sleep(LOOK);
    }
}

/// The place and message of the last panic in a log, or why there is no panic.
fn reason(log: &str) -> Option<String> {
    let lines: Vec<&str> = match log.rsplit_once("panicked at ") {
        Some((_, panic)) => panic.lines().take(2).collect(),
        None => vec![
            log.lines().find(|it| ["note: ", "Error: "].iter().any(|mark| it.starts_with(mark)))?,
        ],
    };
    Some(lines.join(" ").replace('\t', " "))
}

/// The numbers of outcomes in each module.
fn table(outcomes: &Outcomes) -> String {
    let mut rows: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for ((file, _), outcome) in outcomes {
        let column = match outcome {
            Outcome::Passed => 0,
            Outcome::Failed(_) => 1,
            Outcome::Ignored => 2,
        };
        for row in [module_of(file), "total"] {
            rows.entry(row).or_default()[column] += 1;
        }
    }
    let mut text =
        String::from("| module | passed | failed | ignored |\n| --- | ---: | ---: | ---: |\n");
    let modules = MODULES.iter().map(|(module, _)| *module).chain(["other", "total"]);
    for (module, row) in modules.filter_map(|module| Some((module, rows.get(module)?))) {
        text += &format!("| {module} | {} | {} | {} |\n", row[0], row[1], row[2]);
    }
    text
}

/// All tests, and the outcomes of [`COLUMNS`].
#[derive(Default)]
struct Listed(BTreeMap<Test, [String; 2]>);

impl Listed {
    fn parse(text: &str) -> Result<Self> {
        let mut tests = BTreeMap::new();
        for line in text.lines().skip(1) {
            let [_, file, name, tokio, facade] = line.split('\t').collect::<Vec<_>>()[..] else {
                return Err(format!("{LISTED}: {line}").into());
            };
            let test = (file.to_owned(), name.to_owned());
            tests.insert(test, [tokio, facade].map(str::to_owned));
        }
        Ok(Self(tests))
    }

    /// Those of a file.
    fn of(&self, file: &str) -> impl Iterator<Item = &Test> {
        self.0.keys().filter(move |test| test.0 == file)
    }

    /// Tests that have passed and fail.
    fn broken(&self, outcomes: &Outcomes, column: usize) -> Vec<String> {
        let has_passed = |test: &Test| self.0.get(test).is_some_and(|it| it[column] == "passed");
        let is_broken = |(test, outcome): &(&Test, &Outcome)| {
            matches!(outcome, Outcome::Failed(_)) && has_passed(test)
        };
        let broken = outcomes.iter().filter(is_broken);
        broken.map(|((file, name), _)| format!("{file}\t{name}")).collect()
    }

    /// Lists the outcomes of the tests in these files.
    fn renew(&mut self, files: &BTreeSet<String>, outcomes: &Outcomes, column: usize) {
        for (_, old) in self.0.iter_mut().filter(|(test, _)| files.contains(&test.0)) {
            old[column] = "-".to_owned();
        }
        for (test, outcome) in outcomes {
            let new =
                self.0.entry(test.clone()).or_insert_with(|| ["-".to_owned(), "-".to_owned()]);
            new[column] = outcome.name().to_owned();
        }
        self.0.retain(|_, outcomes| outcomes.iter().any(|outcome| outcome != "-"));
    }

    fn text(&self) -> String {
        let mut text = format!("module\tfile\ttest\t{}\n", COLUMNS.join("\t"));
        for ((file, name), outcomes) in &self.0 {
            text += &format!("{}\t{file}\t{name}\t{}\n", module_of(file), outcomes.join("\t"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(file: &str, name: &str) -> Test {
        (file.to_owned(), name.to_owned())
    }

    fn failed(why: &str) -> Outcome {
        Outcome::Failed(why.to_owned())
    }

    #[test]
    fn manifest_has_the_dependencies_of_tokios_tests() {
        let of_tokio = "[features]\nfull = []\n\n[dependencies.mio]\nversion = \"1\"\n\n\
                        [dev-dependencies.rand]\nversion = \"2\"\n\n\
                        [target.'cfg(unix)'.dev-dependencies.nix]\nversion = \"3\"\n\n[lints]\n";
        let manifest = manifest(of_tokio, Path::new("/tokio"));
        let end = "\n[dev-dependencies.rand]\nversion = \"2\"\n\n\
                   [target.'cfg(unix)'.dev-dependencies.nix]\nversion = \"3\"\n";
        assert!(manifest.ends_with(end), "{manifest}");
        assert!(!manifest.contains("mio"), "{manifest}");
        let patch = "[patch.crates-io]\ntokio = { path = \"/tokio\" }\n";
        assert!(manifest.contains(patch), "{manifest}");
    }

    #[test]
    fn reason_is_the_last_panic_or_a_note() {
        let log = "thread 'a' panicked at a.rs:1:2:\none\n\nthread 'b' (7) panicked at b.rs:3:4:\n\
                   two\tthree\nnote: more\n";
        assert_eq!(reason(log).as_deref(), Some("b.rs:3:4: two three"));
        let log = "test a - should panic ... FAILED\nnote: test did not panic\n";
        assert_eq!(reason(log).as_deref(), Some("note: test did not panic"));
        assert_eq!(reason("test a ... ok"), None);
    }

    #[test]
    fn test_that_has_passed_may_not_fail() {
        let mut listed = Listed::default();
        let files = BTreeSet::from(["tcp_echo".to_owned(), "fs".to_owned()]);
        let before = Outcomes::from([
            (test("fs", "a"), Outcome::Passed),
            (test("fs", "gone"), Outcome::Passed),
            (test("tcp_echo", "b"), failed("why")),
            (test("tcp_echo", "c"), Outcome::Ignored),
        ]);
        listed.renew(&files, &before, 1);
        assert_eq!(listed.broken(&before, 1), Vec::<String>::new());
        let after = Outcomes::from([
            (test("fs", "a"), failed("why")),
            (test("tcp_echo", "b"), failed("why")),
        ]);
        assert_eq!(listed.broken(&after, 1), ["fs\ta"]);
        assert_eq!(listed.broken(&after, 0), Vec::<String>::new());
        // Those of other files stay.
        listed.renew(&BTreeSet::from(["fs".to_owned()]), &after, 1);
        let text = "module\tfile\ttest\ttokio\tfacade\nfs\tfs\ta\t-\tfailed\n\
                    net\ttcp_echo\tb\t-\tfailed\nnet\ttcp_echo\tc\t-\tignored\n";
        assert_eq!(listed.text(), text);
        assert_eq!(Listed::parse(text).unwrap().text(), text);
    }

    #[test]
    fn table_counts_each_module() {
        let outcomes = Outcomes::from([
            (test("fs_copy", "a"), Outcome::Passed),
            (test("udp", "b"), failed("why")),
            (test("unwindsafe", "c"), Outcome::Ignored),
        ]);
        let rows = "| net | 0 | 1 | 0 |\n| fs | 1 | 0 | 0 |\n| other | 0 | 0 | 1 |\n\
                    | total | 1 | 1 | 1 |\n";
        assert!(table(&outcomes).ends_with(rows), "{}", table(&outcomes));
    }
}
