//! Runs the examples and compares what they print with what their headers say.
//!
//! The binaries are those that cargo has built beside this one: a whole `cargo test` builds them
//! first, `cargo test --test project` does not.

use std::env::consts::EXE_SUFFIX;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

#[path = "../../examples/ten_thousand/histogram.rs"]
mod histogram;

/// An example that has not ended by then never will. The longest guards itself with as much.
const HANG: Duration = Duration::from_secs(150);

fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("a path to this test");
    let target = this.ancestors().nth(2).expect("tests are built in target/<profile>/deps");
    let binary = target.join("examples").join(format!("{name}{EXE_SUFFIX}"));
    assert!(
        binary.exists(),
        "{} is missing: run the whole `cargo test`, or `cargo build --examples` before this one \
         (with the same profile)",
        binary.display()
    );
    binary
}

/// Runs a command to its end.
fn output(mut command: Command) -> Output {
    let (sender, receiver) = mpsc::channel();
    let shown = format!("{command:?}");
    thread::spawn(move || sender.send(command.stdin(Stdio::null()).output()));
    let ended = receiver.recv_timeout(HANG).unwrap_or_else(|_| panic!("{shown} does not end"));
    ended.unwrap_or_else(|error| panic!("{shown} cannot be run: {error}"))
}

fn run(name: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(example(name));
    command.args(arguments);
    output(command)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("examples print text")
}

/// The block of an example's header that shows what it prints.
fn promised(source: &str) -> String {
    let header = source.lines().map_while(|line| line.strip_prefix("//!"));
    let lines: Vec<&str> = header.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let block = lines.split(|line| line.starts_with("```")).nth(1).expect("a block of output");
    block.iter().map(|line| format!("{line}\n")).collect()
}

/// Runs an example, which must end well and print what its header promises.
#[track_caller]
fn keeps_its_promise(name: &str, source: &str) -> Output {
    let output = run(name, &[]);
    assert_eq!(text(&output.stdout), promised(source), "{}", text(&output.stderr));
    assert!(output.status.success(), "{}", output.status);
    output
}

#[test]
fn hello() {
    let output = keeps_its_promise("01_hello", include_str!("../../examples/01_hello.rs"));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn children() {
    let output = keeps_its_promise("02_children", include_str!("../../examples/02_children.rs"));
    let reported = text(&output.stderr).matches("dropped the tray").count();
    assert_eq!(reported, 1, "the panic is reported once, by the panic hook");
}

#[test]
fn deadline() {
    keeps_its_promise("03_deadline", include_str!("../../examples/03_deadline.rs"));
}

#[test]
fn echo_with_itself() {
    keeps_its_promise("04_echo", include_str!("../../examples/04_echo.rs"));
}

#[test]
fn primitive() {
    keeps_its_promise("05_primitive", include_str!("../../examples/05_primitive.rs"));
}

#[test]
fn embedding() {
    keeps_its_promise("06_embedding", include_str!("../../examples/06_embedding.rs"));
}

#[test]
fn chat() {
    keeps_its_promise("chat", include_str!("../../examples/chat/main.rs"));
}

#[test]
fn election() {
    keeps_its_promise("election", include_str!("../../examples/election/main.rs"));
}

#[cfg(feature = "tls")]
#[test]
fn tls() {
    keeps_its_promise("07_tls", include_str!("../../examples/07_tls.rs"));
}

#[cfg(all(feature = "process", feature = "watch"))]
#[test]
fn processes() {
    keeps_its_promise("08_processes", include_str!("../../examples/08_processes.rs"));
}

#[test]
fn task_spans() {
    keeps_its_promise("09_task_spans", include_str!("../../examples/09_task_spans.rs"));
}

/// A process that does not outlive the test.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).expect("the server runs until it is stopped");
    }
}

#[test]
fn echo_with_others() {
    let mut command = Command::new(example("04_echo"));
    command.arg("127.0.0.1:0").stdout(Stdio::piped());
    let mut server = Stopped(command.spawn().expect("a server"));
    let mut printed = BufReader::new(server.0.stdout.take().expect("its output")).lines();
    let mut next_line = || printed.next().expect("a line").expect("text");
    let line = next_line();
    let address = line.strip_prefix("server: listening at ").expect("the server's address");

    let talk = |words: &str| {
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream.write_all(words.as_bytes()).expect("to be heard");
        stream.shutdown(Shutdown::Write).expect("to end");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    assert_eq!(talk("good"), "good");
    assert_eq!(talk("morning"), "morning");
    let printed = [next_line(), next_line()];
    assert_eq!(printed, ["server: echoed 4 bytes", "server: echoed 7 bytes"]);
}

/// The parts of a summary that do not depend on the machine.
#[track_caller]
fn is_a_summary(output: &Output, connections: &str, messages: &str) {
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
    let summary = text(&output.stdout);
    let lines: Vec<&str> = summary.lines().collect();
    let beginnings = [
        &format!("{connections} connections held at once, "),
        &format!("{messages} sent, echoed and compared: "),
        "latency with every connection busy: p50 ",
        "memory: ",
        "time: ",
    ];
    assert_eq!(lines.len(), beginnings.len(), "{summary}");
    for (line, beginning) in lines.iter().zip(beginnings) {
        assert!(line.starts_with(beginning), "{line:?} does not begin with {beginning:?}");
    }
}

#[test]
fn five_hundred_of_ten_thousand() {
    let output = run("ten_thousand", &["--connections", "500"]);
    is_a_summary(&output, "500", "5,000 messages of 64 bytes");
}

#[test]
fn other_numbers_of_ten_thousand() {
    let numbers = ["--connections", "7", "--rounds", "150", "--size", "1001"];
    let output = run("ten_thousand", &numbers);
    is_a_summary(&output, "7", "1,050 messages of 1,001 bytes");
}

/// Runs `ten_thousand` with 500 connections in a process that may open so many files.
fn with_a_limit(descriptors: u32) -> Output {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -n {descriptors} && exec \"$0\" --connections 500"));
    command.arg(example("ten_thousand"));
    output(command)
}

#[test]
fn ten_thousand_in_two_processes() {
    let output = with_a_limit(800);
    is_a_summary(&output, "500", "5,000 messages of 64 bytes");
    // With the right to raise the limit, the example needs no second process.
    let said = text(&output.stderr).contains("a process of their own");
    assert_eq!(text(&output.stdout).contains("a process each"), said);
}

#[test]
fn ten_thousand_where_they_do_not_fit() {
    let output = with_a_limit(300);
    if !output.status.success() {
        assert_eq!(output.status.code(), Some(1));
        let why = text(&output.stderr);
        assert!(why.contains("may open 300 files"), "{why}");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn ten_thousand_with_wrong_options() {
    for wrong in [&["--connections", "0"][..], &["--rounds"], &["--size", "many"], &["--faster"]] {
        let output = run("ten_thousand", wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        let said = text(&output.stderr);
        assert!(said.contains(wrong[0]) && said.contains("usage: ten_thousand"), "{said}");
        assert_eq!(text(&output.stdout), "");
    }
    let output = run("ten_thousand", &["--help"]);
    assert!(output.status.success() && text(&output.stdout).starts_with("usage: ten_thousand"));
}

#[test]
fn histogram_is_exact_for_short_times() {
    let mut times = histogram::Histogram::default();
    for time in 1..=100 {
        times.add(Duration::from_nanos(time));
    }
    assert_eq!(times.below(0.50), Duration::from_nanos(50));
    assert_eq!(times.below(0.99), Duration::from_nanos(99));
    assert_eq!(times.below(1.0), Duration::from_nanos(100));
    assert_eq!(times.slowest(), Duration::from_nanos(100));
}

#[test]
fn histogram_is_close_for_any_time() {
    const PARTS: u64 = 64;
    for power in 0..u64::BITS {
        for time in [1 << power, (1 << power) + (1 << power) / 3, u64::MAX >> (63 - power)] {
            let mut times = histogram::Histogram::default();
            times.add(Duration::from_nanos(time));
            // A second, longer one, so that the answer is a bucket's and not the longest time.
            times.add(Duration::from_nanos(u64::MAX));
            let found = times.below(0.5).as_nanos();
            let (least, most) = (u128::from(time), u128::from(time) + u128::from(time / PARTS));
            assert!((least..=most).contains(&found), "{time}: {found}");
        }
    }
}
