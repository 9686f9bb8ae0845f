//! The log of a worker: which lines, and in which form.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Place, Running, application};

/// The lines about jobs that a worker writes for one job that succeeds and one that fails.
fn lines_of_jobs(arguments: &[&str], variable: Option<&str>) -> (Vec<String>, Vec<String>) {
    let place = Place::new();
    let mut command = place.command(&application(), &[&["worker"], arguments].concat());
    command.env_remove("RUST_LOG").envs(variable.map(|value| ("RUST_LOG", value)));
    let mut worker = Running::start(command);
    worker.until("the worker is ready");
    place.pikake(&["send", "add", "2", "3", "--id", "good", "--wait"]);
    place
        .run(&application(), &["send", "fails", "\"no luck\"", "--id", "bad", "--wait"])
        .failed(1, &[]);
    worker.signal(Signal::TERM);
    let ended = worker.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let all: Vec<String> = ended.err.lines().map(str::to_owned).collect();
    let of_jobs = all.iter().filter(|line| line.contains("pikake::jobs")).cloned().collect();
    (of_jobs, all)
}

#[test]
fn level_chooses_the_lines() {
    // Without the time at their begin and that of the job.
    let texts = |lines: &[String]| -> Vec<String> {
        let text = |line: &String| {
            let line = line.split_once(' ').expect("a time").1.trim_start();
            let (head, tail) = line.split_once("seconds=").unwrap_or((line, ""));
            format!("{head}{}", tail.split_once(' ').map_or("", |(_, rest)| rest))
        };
        lines.iter().map(text).collect()
    };
    let (lines, _) = lines_of_jobs(&[], None);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let done = "INFO pikake::jobs: done id=\"good\" job=\"add\" queue=\"pikake\" ";
    for (arguments, variable) in [
        (&["--log-level", "info"][..], None),
        (&[], Some("info")),
        (&["--log-level", "pikake::jobs=info"], Some("off")),
    ] {
        let (lines, _) = lines_of_jobs(arguments, variable);
        let lines = texts(&lines);
        assert_eq!((lines.len(), lines[0].as_str()), (2, done), "{lines:?}");
        assert!(lines[1].starts_with("ERROR pikake::jobs: failed id=\"bad\""), "{lines:?}");
    }
    let (lines, _) = lines_of_jobs(&["--log-level", "off"], Some("info"));
    assert_eq!(lines, Vec::<String>::new());
}

#[test]
fn json_is_one_document_a_line() {
    for arguments in
        [&["--log-format", "json", "--log-level", "debug"][..], &["--log-format", "json"]]
    {
        let (_, all) = lines_of_jobs(arguments, None);
        let documents: Vec<Value> = all
            .iter()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
            .collect();
        let of = |message: &str, id: &str| {
            documents.iter().find(|line| line["message"] == message && line["id"] == id).cloned()
        };
        let failed = of("failed", "bad").expect("a line");
        assert_eq!((&failed["level"], &failed["job"]), (&"ERROR".into(), &"fails".into()));
        assert!(failed["seconds"].is_f64(), "{failed}");
        assert!(failed["error"].as_str().unwrap().contains("no luck"), "{failed}");
        let is_debug = arguments.len() > 2;
        assert_eq!(of("started", "good").is_some(), is_debug, "{all:?}");
        assert_eq!(of("done", "good").is_some(), is_debug, "{all:?}");
    }
}

#[test]
fn misspelt_level_is_refused() {
    let place = Place::new();
    let wrong = place.run(&application(), &["worker", "--log-level", "inof"]);
    wrong.failed(2, &["`inof` is no level"]);
}
