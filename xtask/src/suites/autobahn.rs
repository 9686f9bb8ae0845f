//! `cargo xtask suites autobahn`: Autobahn's test suite for WebSockets, against a server of
//! `pikake::http::upgrade` and async-tungstenite.
//!
//! The suite is a program in Python 2.7, which must be there with pip: as `python2.7`, or where
//! `PIKAKE_PYTHON2` says. The suite itself is installed below the target folder. Its cases 12 and
//! 13, of compression, are left out, since async-tungstenite does not compress.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Result;
use crate::group::Group;
use crate::run::{self, cargo, within};

const PACKAGE: &str = "autobahntestsuite==25.10.1";

/// For a download and its installation.
const INSTALLS: Duration = Duration::from_secs(600);

/// For all cases, which take a minute or two.
const RUNS: Duration = Duration::from_secs(900);

/// The server, and its name in the report.
const EXAMPLE: &str = "echo_websockets";
const AGENT: &str = "pikake";

/// What a case may come to, and its closing handshake.
const PASSED: [&str; 3] = ["OK", "NON-STRICT", "INFORMATIONAL"];

/// Python's code that runs the suite in a folder of packages.
fn code(packages: &Path) -> String {
    let packages = packages.display();
    format!(
        "import site; site.addsitedir('{packages}'); from autobahntestsuite.wstest import run; run()"
    )
}

/// Runs the suite, and fails on a case that has not passed.
pub(crate) fn run() -> Result {
    let folder = xtask::target().join("suites/autobahn");
    fs::create_dir_all(&folder)?;
    let python = env::var_os("PIKAKE_PYTHON2").map_or("python2.7".into(), PathBuf::from);
    let packages = folder.join(PACKAGE);
    if !packages.exists() {
        // Renamed at the end, so that a part of an installation is none.
        let part = folder.join("part");
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]);
        within(Some(INSTALLS), pip.arg("--target").arg(&part).arg(PACKAGE)).map_err(|error| {
            format!("{error} (Python 2.7 with pip is needed; PIKAKE_PYTHON2 says where it is)")
        })?;
        fs::rename(part, &packages)?;
    }
    run::run(&mut cargo(&["build", "-p", "pikake-http", "--example", EXAMPLE]))?;
    let server = xtask::target().join("debug/examples").join(EXAMPLE);
    let mut server = Command::new(server);
    // The server is ended when this is dropped.
    let mut server = Group::start(server.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let mut address = String::new();
    let output = server.child().stdout.take().ok_or("the server has no output")?;
    BufReader::new(output).read_line(&mut address)?;
    let reports = folder.join("reports");
    let specification = json!({
        "outdir": reports,
        "servers": [{ "agent": AGENT, "url": format!("ws://{}", address.trim()) }],
        "cases": ["*"],
        "exclude-cases": ["12.*", "13.*"],
        "exclude-agent-cases": {},
    });
    let written = folder.join("fuzzingclient.json");
    fs::write(&written, specification.to_string())?;
    let mut suite = Command::new(&python);
    suite.arg("-c").arg(code(&packages)).args(["--mode", "fuzzingclient", "--spec"]).arg(written);
    within(Some(RUNS), suite.current_dir(&folder))?;
    let index = fs::read_to_string(reports.join("index.json"))?;
    let (passed, failed) = outcome(&serde_json::from_str(&index)?)?;
    println!("autobahn: {passed} cases passed, {} failed", failed.len());
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("{}; see {}", failed.join(", "), reports.display()).into()),
    }
}

/// How many cases have passed, and those that have not.
fn outcome(index: &Value) -> Result<(usize, Vec<String>)> {
    let cases = index[AGENT].as_object().filter(|cases| !cases.is_empty());
    let cases = cases.ok_or("the suite has run no case")?;
    let (mut passed, mut failed) = (0, Vec::new());
    for (name, case) in cases {
        let results = [&case["behavior"], &case["behaviorClose"]];
        match results.iter().all(|it| it.as_str().is_some_and(|it| PASSED.contains(&it))) {
            true => passed += 1,
            false => failed.push(format!("{name}: {}, {}", results[0], results[1])),
        }
    }
    Ok((passed, failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_that_have_not_passed_are_named() {
        let case = |behavior, close| json!({ "behavior": behavior, "behaviorClose": close });
        let index = json!({ AGENT: {
            "1.1": case("OK", "OK"),
            "1.2": case("NON-STRICT", "INFORMATIONAL"),
            "1.3": case("OK", "FAILED"),
            "1.4": case("UNIMPLEMENTED", "OK"),
            "1.5": {},
        }});
        let (passed, failed) = outcome(&index).unwrap();
        let expected =
            [r#"1.3: "OK", "FAILED""#, r#"1.4: "UNIMPLEMENTED", "OK""#, "1.5: null, null"];
        assert_eq!((passed, &*failed), (2, &expected.map(str::to_owned)[..]));
        assert!(outcome(&json!({ "another": {} })).is_err());
    }
}
