//! What a program without a subscriber prints to standard error. Each program is a child process.

use std::error::Error;
use std::io::{BufRead, BufReader, pipe};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use pikake::{Interrupted, yield_now};
use tracing::{debug, error, info, info_span, trace, warn};

use crate::support::child::{child, is_child};

/// The lines that a program prints to standard error, without their times.
fn lines(test: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let mut command = child(test);
    let output = command.env_remove("RUST_LOG").envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().map(|line| line.split_once(' ').unwrap().1.trim_start().to_owned()).collect()
}

/// Logs an event of each level after the first step of the main task.
async fn log_late() -> Result<(), Interrupted> {
    yield_now().await?;
    trace!(target: "app::part", "a trace");
    debug!(target: "app::part", "a debug");
    info!(target: "other", "an info");
    warn!(target: "other", "a warning");
    error!(target: "app", "an error");
    Ok(())
}

#[pikake::main]
async fn plain() -> Result<(), Interrupted> {
    log_late().await
}

#[test]
fn program_without_subscriber_prints_warnings() {
    let test = "log::program_without_subscriber_prints_warnings";
    if is_child(test) {
        return plain().unwrap();
    }
    let expected = ["WARN other: a warning", "ERROR app: an error"];
    assert_eq!(lines(test, &[]), expected);
    assert_eq!(lines(test, &[("RUST_LOG", " , ")]), expected);
}

#[test]
fn every_form_of_main_prints_warnings() {
    #[pikake::main(signals)]
    async fn with_signals() -> Result<(), Interrupted> {
        log_late().await
    }

    #[pikake::main(threads = 2, name = "first")]
    async fn with_threads() -> Result<(), Interrupted> {
        // The other kernel would log before there is a subscriber.
        yield_now().await?;
        let other = &pikake::other_kernels()[0];
        let logged = other.call(log_late);
        logged.await.unwrap()
    }

    #[pikake::main(signals, threads = 2)]
    async fn with_both() -> Result<(), Interrupted> {
        log_late().await
    }

    let test = "log::every_form_of_main_prints_warnings";
    if is_child(test) {
        let run = match &*std::env::var("FORM").unwrap() {
            "signals" => with_signals,
            "threads" => with_threads,
            _ => with_both,
        };
        return run().unwrap();
    }
    for form in ["signals", "threads", "both"] {
        let printed = lines(test, &[("FORM", form)]);
        assert_eq!(printed, ["WARN other: a warning", "ERROR app: an error"], "{form}");
    }
}

#[test]
fn variable_chooses_events() {
    let test = "log::variable_chooses_events";
    if is_child(test) {
        return plain().unwrap();
    }
    let with = |value: &str| lines(test, &[("RUST_LOG", value)]);
    assert_eq!(with("off"), [""; 0]);
    assert_eq!(with("app=debug"), ["DEBUG app::part: a debug", "ERROR app: an error"]);
    assert_eq!(
        with("info, app::part=TRACE,"),
        [
            "TRACE app::part: a trace",
            "DEBUG app::part: a debug",
            "INFO other: an info",
            "WARN other: a warning",
            "ERROR app: an error"
        ]
    );
}

/// The kernel asks for its tracer when it is built, before there is a subscriber.
#[test]
fn variable_turns_on_traces_of_the_kernel() {
    let test = "log::variable_turns_on_traces_of_the_kernel";
    if is_child(test) {
        return plain().unwrap();
    }
    let printed = lines(test, &[("RUST_LOG", "pikake=trace")]);
    let has = |text: &str| printed.iter().any(|line| line.contains(text));
    assert!(has("TRACE pikake_kernel::observe: stepping task="), "{printed:?}");
    assert!(!has("app"), "{printed:?}");
}

#[test]
fn lines_show_fields_and_escape_control_characters() {
    #[pikake::main]
    async fn program() -> Result<(), Interrupted> {
        yield_now().await?;
        let error = std::io::Error::other("two words\x1b[2J");
        let _span = info_span!("request").entered();
        warn!(rows = 2, name = "pen", error = &error as &dyn Error, "from a peer: {}", "\u{9b}2J");
        Ok(())
    }

    let test = "log::lines_show_fields_and_escape_control_characters";
    if is_child(test) {
        return program().unwrap();
    }
    let text = r#"from a peer: \u{9b}2J rows=2 name="pen" error=two words\u{1b}[2J"#;
    assert_eq!(lines(test, &[("RUST_LOG", "info")]), [format!("WARN os::log: {text}")]);
}

#[test]
fn malformed_variable_is_reported() {
    let test = "log::malformed_variable_is_reported";
    if is_child(test) {
        return plain().unwrap();
    }
    let printed = lines(test, &[("RUST_LOG", "app=verbose")]);
    assert_eq!(
        printed[0],
        "WARN pikake_os::log: RUST_LOG is `app=verbose` (error parsing level filter: expected one of \
         \"off\", \"error\", \"warn\", \"info\", \"debug\", \"trace\", or a number 0-5): warnings \
         and errors are shown; write for example `debug` or `warn,my_app=debug`"
    );
    assert_eq!(printed[1..], ["WARN other: a warning", "ERROR app: an error"]);
}

/// The usual first line of a `main`, which panics if there is a subscriber.
#[test]
fn subscriber_of_the_program_stays() {
    #[pikake::main]
    async fn global() -> Result<(), Interrupted> {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
        log_late().await
    }

    #[pikake::main]
    async fn scoped() -> Result<(), Interrupted> {
        let silent = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
        let guard = tracing::subscriber::set_default(silent);
        log_late().await?;
        drop(guard);
        log_late().await
    }

    let test = "log::subscriber_of_the_program_stays";
    if is_child(test) {
        let run = if std::env::var_os("SCOPED").is_some() { scoped } else { global };
        return run().unwrap();
    }
    assert_eq!(
        lines(test, &[]),
        ["INFO other: an info", "WARN other: a warning", "ERROR app: an error"]
    );
    assert_eq!(lines(test, &[("SCOPED", "")]), [""; 0]);
}

#[test]
fn closed_standard_error_is_harmless() {
    #[pikake::main]
    async fn program() -> Result<(), Interrupted> {
        log_late().await?;
        println!("the program goes on");
        Ok(())
    }

    let test = "log::closed_standard_error_is_harmless";
    if is_child(test) {
        return program().unwrap();
    }
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let full = std::fs::File::options().write(true).open("/dev/full");
    let errors = [Stdio::from(writer), full.map_or(Stdio::null(), Stdio::from)];
    for stderr in errors {
        let output = child(test).stderr(stderr).stdout(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8(output.stdout).unwrap().contains("the program goes on"));
    }
}

/// The subscriber comes after the first step, so its end is what can be reported.
#[test]
fn long_first_step_is_reported_at_its_end() {
    #[pikake::main]
    async fn program() {
        // Twice the kernel's limit: the subject of the test.
        thread::sleep(Duration::from_millis(400));
        yield_now().await.unwrap();
        let mut byte = [0];
        pikake::stdio::stdin().read(&mut byte).await.unwrap();
    }

    let test = "log::long_first_step_is_reported_at_its_end";
    if is_child(test) {
        return program();
    }
    let mut program = child(test)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(program.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("a long step is over kernel=1 task=1 name=\"program\""), "{line}");
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

/// A test shares its process with others.
#[pikake::test]
async fn test_sets_no_subscriber() {
    let test = "log::test_sets_no_subscriber";
    if is_child(test) {
        log_late().await.unwrap();
        assert!(!tracing::dispatcher::has_been_set());
        return;
    }
    assert_eq!(lines(test, &[]), [""; 0]);
}

/// A library may call `run`, and does not choose its program's log.
#[test]
fn run_sets_no_subscriber() {
    let test = "log::run_sets_no_subscriber";
    if is_child(test) {
        pikake::run(log_late()).unwrap();
        assert!(!tracing::dispatcher::has_been_set());
        return;
    }
    assert_eq!(lines(test, &[]), [""; 0]);
}
