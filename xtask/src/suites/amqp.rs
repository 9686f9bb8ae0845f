//! `cargo xtask suites amqp`: the tests of py-amqp and kombu that need a broker, against RabbitMQ
//! and the broker of `pikake-amqp-testing`.
//!
//! The source packages, which have the tests, and an environment for them are installed below the
//! target folder. `suites.tsv` has the cases that fail, and those that do not apply; the suite of a
//! case that is about one broker is `SUITE:BROKER` there. A case that fails and is not listed is an
//! error.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use xtask::{Kind, Server, root, target};

use super::{Cases, LISTED, passed};
use crate::Result;
use crate::group::Group;
use crate::install::environment;
use crate::run::{self, cargo, within};

/// The packages that the suites are in.
const SOURCES: [&str; 2] = ["amqp==5.4.2", "kombu==5.7.0"];

/// The packages that run the suites.
const RUNNERS: [&str; 2] = ["pytest==9.1.1", "pytest-rerunfailures==16.7"];

/// The suites: the name, the folder of the source, and the tests in that folder.
const SUITES: [[&str; 3]; 2] = [
    ["py-amqp", "amqp-5.4.2", "t/integration/test_rmq.py"],
    ["kombu", "kombu-5.7.0", "t/integration/test_py_amqp.py"],
];

/// The beginning of the reasons of cases that are not run.
const NOT_APPLICABLE: &str = "not applicable: ";

const EXAMPLE: &str = "serve_amqp";

/// For the download of the sources.
const DOWNLOADS: Duration = Duration::from_secs(300);

/// For a suite, which takes up to a minute, and repeats the cases that fail.
const RUNS: Duration = Duration::from_secs(600);

/// Runs the suites, and fails on a case that fails and is not listed.
pub(crate) fn run() -> Result {
    let folder = target().join("suites/amqp");
    let python = install(&folder)?;
    run::run(&mut cargo(&["build", "-p", "pikake-amqp-testing", "--example", EXAMPLE]))?;
    let listed = fs::read_to_string(root().join(LISTED))?;
    let (mut table, mut errors) = (String::new(), Vec::new());
    let mut compare = |broker: &str, port: u16, tls: u16| -> Result {
        for [suite, source, tests] in SUITES {
            let recorded = Recorded::of(&listed, suite, broker);
            let log = folder.join(format!("{suite}-{broker}.log"));
            let mut pytest = Command::new(&python);
            pytest.args(["-m", "pytest", "-rA", "--tb=short", "-p", "no:cacheprovider", tests]);
            let absent = recorded.absent.iter();
            pytest.args(absent.map(|case| format!("--deselect={tests}::{case}")));
            pytest.current_dir(folder.join(source)).env("RABBITMQ_HOST", "127.0.0.1");
            pytest.env("RABBITMQ_5672_TCP", port.to_string());
            pytest.env("RABBITMQ_5671_TCP", tls.to_string());
            pytest.stdout(File::create(&log)?).stderr(Stdio::inherit());
            // A suite with a failure fails; one that does not end has not printed all.
            let ended = within(Some(RUNS), &mut pytest);
            let cases = read(&fs::read_to_string(&log)?).map_err(|error| match &ended {
                Ok(()) => error,
                Err(ended) => format!("{error} ({ended}; see {})", log.display()).into(),
            })?;
            let (passed, absent) = (passed(&cases), recorded.absent.len());
            let failed = cases.len() - passed;
            table += &format!("| {suite} | {broker} | {passed} | {failed} | {absent} |\n");
            let (new, mended) = recorded.compare(&cases);
            let new =
                new.map(|case| format!("{suite}: {case} fails on {broker}, and is not listed"));
            errors.extend(new.map(|error| format!("{error}; see {}", log.display())));
            mended.for_each(|case| println!("{suite}: {case} is listed, and passes on {broker}"));
        }
        Ok(())
    };
    // Both servers are ended when they are dropped.
    let mut ours = Command::new(target().join("debug/examples").join(EXAMPLE));
    let mut ours = Group::start(ours.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let mut address = String::new();
    let output = ours.child().stdout.take().ok_or("the broker has no output")?;
    BufReader::new(output).read_line(&mut address)?;
    let port = address.trim().rsplit(':').next().and_then(|port| port.parse().ok());
    compare("pikake", port.ok_or("the broker did not print its address")?, 0)?;
    let rabbit = Server::start(Kind::RabbitMq)?;
    let (tls, certificates) = rabbit.tls();
    // py-amqp logs in with the certificate where it can.
    rabbit.command("ctl add_user client -");
    rabbit.command("ctl set_permissions client .* .* .*");
    give_certificates(&folder.join(SUITES[0][1]), Path::new(&certificates))?;
    compare("rabbitmq", rabbit.port(), tls)?;
    println!("\n| suite | broker | passed | failed | not applicable |");
    println!("| --- | --- | ---: | ---: | ---: |\n{table}");
    match errors.is_empty() {
        true => Ok(()),
        false => Err(errors.join("\nerror: ").into()),
    }
}

/// Installs what runs the suites, and unpacks their sources, unless they are there; Python.
fn install(folder: &Path) -> Result<PathBuf> {
    let packages = [SOURCES, RUNNERS].concat().into_iter().map(str::to_owned);
    let python = environment(folder, &packages.collect::<Vec<_>>())?;
    if SUITES.iter().any(|[_, source, _]| !folder.join(source).exists()) {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"]);
        pip.args(["--no-deps", "--no-binary", ":all:", "--dest"]).arg(folder).args(SOURCES);
        within(Some(DOWNLOADS), &mut pip)?;
    }
    for [_, source, _] in SUITES {
        if !folder.join(source).exists() {
            // Renamed at the end, so that a part of the files is no source.
            let (archive, part) = (folder.join(format!("{source}.tar.gz")), folder.join("part"));
            let mut unpack = Command::new(&python);
            run::run(unpack.args(["-m", "tarfile", "-e"]).args([&archive, &part]))?;
            fs::rename(part.join(source), folder.join(source))?;
        }
    }
    Ok(python)
}

/// Puts the certificates of RabbitMQ where py-amqp's tests look for theirs, which are not in the
/// package.
fn give_certificates(source: &Path, certificates: &Path) -> Result {
    let place = source.join("t/certs");
    fs::create_dir_all(&place)?;
    let names = [
        ("ca.pem", "ca_certificate.pem"),
        ("client.pem", "client_certificate.pem"),
        ("client.key", "client_key.pem"),
    ];
    for (ours, theirs) in names {
        fs::copy(certificates.join(ours), place.join(theirs))?;
    }
    for broken in ["client_certificate_broken.pem", "client_key_broken.pem"] {
        fs::write(place.join(broken), "no certificate and no key\n")?;
    }
    Ok(())
}

/// The line of each case at the end of what pytest has printed.
fn read(text: &str) -> Result<Cases> {
    let Some((_, summary)) = text.rsplit_once("= short test summary info =") else {
        return Err("the suite did not end".into());
    };
    let mut cases = Cases::new();
    for line in summary.lines() {
        let result = [("PASSED ", true), ("FAILED ", false), ("ERROR ", false)]
            .into_iter()
            .find_map(|(mark, has_passed)| Some((line.strip_prefix(mark)?, has_passed)));
        if let Some((case, has_passed)) = result {
            let case = case.split(" - ").next().unwrap_or(case);
            let name = case.split_once("::").map_or(case, |(_, name)| name);
            // A case may pass, and then have an error when it is cleaned up.
            let passed = cases.entry(name.to_owned()).or_insert(true);
            *passed &= has_passed;
        }
    }
    match cases.is_empty() {
        true => Err("the suite has run no case".into()),
        false => Ok(cases),
    }
}

/// The cases of a suite that are listed for a broker.
#[derive(Debug, PartialEq, Eq)]
struct Recorded {
    failing: BTreeSet<String>,
    /// Are not run.
    absent: BTreeSet<String>,
}

impl Recorded {
    fn of(listed: &str, suite: &str, broker: &str) -> Self {
        let (mut failing, mut absent) = (BTreeSet::new(), BTreeSet::new());
        for line in listed.lines() {
            if let [name, case, why] = line.split('\t').collect::<Vec<_>>()[..] {
                let (name, only) = name.split_once(':').unwrap_or((name, broker));
                if (name, only) == (suite, broker) {
                    match why.starts_with(NOT_APPLICABLE) {
                        true => absent.insert(case.to_owned()),
                        false => failing.insert(case.to_owned()),
                    };
                }
            }
        }
        Self { failing, absent }
    }

    /// The cases that fail and are not listed, and those that are listed and do not fail.
    fn compare<'a>(
        &'a self,
        cases: &'a Cases,
    ) -> (impl Iterator<Item = &'a str>, impl Iterator<Item = &'a str>) {
        let failed = cases.iter().filter(|(_, has_passed)| !**has_passed).map(|(name, _)| &**name);
        let new = failed.filter(|name| !self.failing.contains(*name));
        let mended = self.failing.iter().filter(|name| cases.get(*name).copied().unwrap_or(true));
        let mended = mended.map(String::as_str);
        (new, mended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_without_a_pass_or_with_an_error_has_failed() {
        let text = "PASSED of a test's own output\n\
                    ==== short test summary info ====\n\
                    PASSED t/a.py::one\n\
                    PASSED t/a.py::Class::two[a]\n\
                    ERROR t/a.py::Class::two[a] - why\n\
                    FAILED t/a.py::three - why\n\
                    ==== 1 failed, 2 passed, 1 error in 0.2s ====\n";
        let read_cases = read(text).unwrap();
        let expected = [("Class::two[a]", false), ("one", true), ("three", false)];
        let expected = expected.map(|(name, has_passed)| (name.to_owned(), has_passed));
        assert_eq!(read_cases, Cases::from(expected));
        assert_eq!(read("PASSED a::b\n").unwrap_err().to_string(), "the suite did not end");
        let none = "= short test summary info =\n";
        assert_eq!(read(none).unwrap_err().to_string(), "the suite has run no case");
    }

    #[test]
    fn unlisted_failures_and_listed_passes_are_found() {
        let listed = "# a comment\n\
                      one\ta\twhy\n\
                      one:ours\tb\twhy\n\
                      one:theirs\tc\twhy\n\
                      one:ours\td\tnot applicable: why\n\
                      two\te\twhy\n";
        let recorded = Recorded::of(listed, "one", "ours");
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected = Recorded { failing: set(&["a", "b"]), absent: set(&["d"]) };
        assert_eq!(recorded, expected);
        let cases = [("a", true), ("b", false), ("c", false), ("f", true)];
        let cases = Cases::from(cases.map(|(name, has_passed)| (name.to_owned(), has_passed)));
        let (new, mended) = recorded.compare(&cases);
        assert_eq!((new.collect::<Vec<_>>(), mended.collect::<Vec<_>>()), (vec!["c"], vec!["a"]));
    }
}
