//! Looks that are repeated, and completions for shells.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Ended, Place, application, pikake, run, wait_for};

/// The looks of a command with `--watch`, until there are two, in a file.
fn watched(place: &Place, line: &[&str], is_enough: fn(&str) -> bool) -> String {
    let path = place.folder().join("looks");
    let mut command = place.command(&pikake(), line);
    let file = File::create(&path).expect("a folder");
    let mut child = command.stdout(file).stderr(Stdio::piped()).spawn().expect("it runs");
    wait_for("two looks", || is_enough(&std::fs::read_to_string(&path).expect("it is there")));
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let code = child.wait().expect("it ends").code();
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert_eq!((code, &*said), (Some(130), ""));
    std::fs::read_to_string(&path).expect("it is there")
}

#[test]
fn watch_prints_a_block_for_each_look() {
    let place = Place::new();
    place.pikake(&["send", "add", "1", "2"]);
    let line = ["status", "--watch=0.05"];
    let text = watched(&place, &line, |text| text.matches("sqlite://").count() > 2);
    let blocks: Vec<&str> = text.split("\n\n").collect();
    assert!(blocks[0].starts_with("sqlite://") && blocks[0] == blocks[1], "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let line = ["status", "--watch=0.05", "--json"];
    let text = watched(&place, &line, |text| text.lines().count() > 2);
    let first: Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    assert_eq!(first["queues"][0]["ready"], 1, "{text}");
}

/// The words that bash offers for a line whose last word is to be completed, sorted.
fn offered(place: &Place, line: &str) -> Option<Vec<String>> {
    let script = place.folder().join("completions");
    std::fs::write(&script, place.pikake(&["completions", "bash"])).expect("a folder");
    let ask = r#"
        source "$1" || exit 1
        COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _pikake pikake "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut command = std::process::Command::new("bash");
    command.args(["-c", ask, "bash"]).arg(&script).arg(line).stdin(Stdio::null());
    // Not every system has it.
    command.output().ok()?;
    let ended: Ended = run(command);
    let mut words: Vec<String> = ended.good().lines().map(str::to_owned).collect();
    words.sort();
    Some(words)
}

#[test]
fn completions_are_offered() {
    let place = Place::new();
    let Some(words) = offered(&place, "pikake sta") else { return };
    assert_eq!(words, ["stats", "status"]);
    assert_eq!(offered(&place, "pikake send --time").unwrap(), ["--timeout"]);
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(place.pikake(&["completions", shell]).contains("timeout"), "{shell}");
    }
    // The script of an application is for its own name.
    let own = place.run(&application(), &["completions", "bash"]).good();
    assert!(own.contains("_cli_test_app()") && own.contains("worker"), "{own}");
    place.run(&pikake(), &["completions", "dos"]).failed(2, &["dos"]);
}
