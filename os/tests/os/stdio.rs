//! Standard input and output. Each test runs this binary anew as a child.

use std::io::{BufRead, BufReader as StdReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio, exit};
use std::time::{Duration, Instant};

use pikake::net::{BufReader, Write as _, interruption};
use pikake::stdio::{stderr, stdin, stdout};
use pikake::testing::Injector;
use pikake::{TimedOut, sleep, spawn, timed, timeout_after};
use rustix::fs::{OFlags, fcntl_getfl};

/// Tells the child which program to be.
const PROGRAM: &str = "PIKAKE_TEST_PROGRAM";

/// Long enough to be seen as a wait.
const A_MOMENT: Duration = Duration::from_millis(20);

/// A limit for immediate effects, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(10);

/// A pipe of Linux holds less.
const MORE_THAN_A_PIPE: usize = 300_000;

/// More data than one read returns.
const MUCH: usize = 8_000_000;

#[test]
fn child() {
    let Ok(program) = std::env::var(PROGRAM) else { return };
    match &*program {
        "echo" => pikake::run(async {
            // Others go on while it waits for input.
            spawn(async {
                sleep(A_MOMENT).await.unwrap();
                stderr().write_all(b"awake\n").await.unwrap();
            })
            .detach();
            let reader = BufReader::new(stdin()).limit(100);
            while let Some(line) = reader.next_line().await.unwrap() {
                stdout().write_all(format!("you said {line}\n").as_bytes()).await.unwrap();
            }
            stdout().write_all(b"the end\n").await.unwrap();
        }),
        "interrupted" => pikake::run(async {
            let mut buffer = [0; 3];
            for _ in 0..5 {
                assert!(matches!(
                    timeout_after(A_MOMENT / 4, stdin().read(&mut buffer)).await,
                    Err(TimedOut)
                ));
            }
            stderr().write_all(b"ready\n").await.unwrap();
            let mut all = Vec::new();
            loop {
                match timed(A_MOMENT / 20, stdin().read(&mut buffer)).await.output.unwrap() {
                    Ok(0) => break,
                    Ok(length) => all.extend(&buffer[..length]),
                    Err(error) => assert!(interruption(&error).is_some(), "{error}"),
                }
            }
            stdout().write_all(&all).await.unwrap();
        }),
        "impatient" => {
            pikake::run(async {
                assert!(timeout_after(A_MOMENT, stdin().read(&mut [0])).await.is_err());
            });
            // Its thread still reads.
            exit(42);
        }
        "loud" => pikake::run(async {
            let data = vec![b'x'; MORE_THAN_A_PIPE];
            let error = stdout().write_all(&data).await.unwrap_err();
            let kind = error.source.kind();
            let all = format!("{} {kind:?}\n", error.written > 0 && error.written < data.len());
            stderr().write_all(all.as_bytes()).await.unwrap();
        }),
        "stalled" => pikake::run(async {
            let data = vec![b'x'; MORE_THAN_A_PIPE];
            // Its thread is there, and begins at once.
            stdout().write_all(b"").await.unwrap();
            let done = timed(100 * A_MOMENT, stdout().write_all(&data)).await;
            let error = done.output.unwrap().unwrap_err();
            // Its thread goes on with it; what comes behind it has not begun.
            let behind = timed(A_MOMENT, stdout().write(b"y")).await.output.unwrap().unwrap_err();
            let behind = pikake::net::WriteAllError::written_in(&behind);
            let told = format!("{} {behind}\n", error.written == data.len());
            stderr().write_all(told.as_bytes()).await.unwrap();
            stdout().write_all(b"z").await.unwrap();
        }),
        "injected" => {
            let program = || async {
                let data = vec![b'x'; MUCH];
                let mut rest = &data[..];
                while let Err(error) = stdout().write_all(rest).await {
                    assert!(interruption(&error.source).is_some(), "{error}");
                    rest = &rest[error.written..];
                }
            };
            let mut runs = 0;
            let injector = Injector::new().cleanup_limit(None).patience(A_MOMENT);
            let report = injector.run(program, |run| {
                assert!(run.output.is_some());
                runs += 1;
            });
            assert!(report.cancels > 0, "{report:?}");
            // Behind all that goes on.
            pikake::run(async { stdout().write_all(b"!").await.unwrap() });
            eprint!("{runs}");
        }
        "in_order" => pikake::run(async {
            let tasks: Vec<_> = (0..100)
                .map(|number| {
                    spawn(async move { stdout().write_all(format!("{number}\n").as_bytes()).await })
                })
                .collect();
            for task in tasks {
                task.await.unwrap().unwrap();
            }
        }),
        other => unreachable!("no program is called {other}"),
    }
    exit(42);
}

/// The lines that the harness itself writes before a test.
const PREAMBLE: usize = 2;

fn start(program: &str, stdin: impl Into<Stdio>, stdout: impl Into<Stdio>) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["stdio::child", "--exact", "--nocapture", "--quiet"])
        .env(PROGRAM, program)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ends_well(mut child: Child) -> (String, String) {
    let (mut out, mut err) = (String::new(), String::new());
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut out).unwrap();
    }
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(42), "{err}");
    let out = out.split_inclusive('\n').skip(PREAMBLE).collect();
    (out, err)
}

const SAID: &str = "you said one\nyou said two\nthe end\n";

#[test]
fn pipe_is_read_while_other_tasks_run() {
    let mut child = start("echo", Stdio::piped(), Stdio::piped());
    let mut stdin = child.stdin.take().unwrap();
    let mut errors = StdReader::new(child.stderr.as_mut().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert_eq!(line, "awake\n");
    stdin.write_all(b"one\ntw").unwrap();
    std::thread::sleep(A_MOMENT);
    stdin.write_all(b"o\n").unwrap();
    drop(stdin);
    assert_eq!(ends_well(child).0, SAID);
}

#[test]
fn files_sockets_and_closed_input_are_read() {
    let path = std::env::temp_dir().join(format!("pikake-stdin-{}", std::process::id()));
    std::fs::write(&path, "one\ntwo\n").unwrap();
    let file = std::fs::File::open(&path).unwrap();
    assert_eq!(ends_well(start("echo", file, Stdio::piped())).0, SAID);
    std::fs::remove_file(&path).unwrap();
    let (mut here, there) = UnixStream::pair().unwrap();
    let child = start("echo", OwnedFd::from(there), Stdio::piped());
    here.write_all(b"one\ntwo\n").unwrap();
    drop(here);
    assert_eq!(ends_well(child).0, SAID);
    assert_eq!(ends_well(start("echo", Stdio::null(), Stdio::piped())).0, "the end\n");
}

#[test]
fn shared_stream_keeps_its_flags() {
    for is_nonblocking in [false, true] {
        let (here, there) = UnixStream::pair().unwrap();
        there.set_nonblocking(is_nonblocking).unwrap();
        let child = start("echo", OwnedFd::from(there.try_clone().unwrap()), Stdio::piped());
        std::thread::sleep(4 * A_MOMENT);
        let flags = fcntl_getfl(&there).unwrap();
        (&here).write_all(b"one\ntwo\n").unwrap();
        here.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(ends_well(child).0, SAID);
        assert_eq!(flags.contains(OFlags::NONBLOCK), is_nonblocking);
        assert_eq!(fcntl_getfl(&there).unwrap(), flags);
    }
}

#[test]
fn an_interrupted_read_loses_nothing() {
    let mut child = start("interrupted", Stdio::piped(), Stdio::piped());
    let mut stdin = child.stdin.take().unwrap();
    let mut errors = StdReader::new(child.stderr.as_mut().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let data = "0123456789\n".repeat(100);
    for chunk in data.as_bytes().chunks(7) {
        stdin.write_all(chunk).unwrap();
        std::thread::sleep(Duration::from_micros(500));
    }
    drop(stdin);
    assert_eq!(ends_well(child).0, data);
}

#[test]
fn waiting_read_does_not_delay_the_exit() {
    let mut child = start("impatient", Stdio::piped(), Stdio::null());
    let _kept_open = child.stdin.take();
    let since = Instant::now();
    ends_well(child);
    assert!(since.elapsed() < AT_ONCE);
}

#[test]
fn broken_pipe_error_reports_the_bytes_written() {
    let mut child = start("loud", Stdio::null(), Stdio::piped());
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 1000]).unwrap();
    drop(stdout);
    assert_eq!(ends_well(child).1, format!("true {:?}\n", ErrorKind::BrokenPipe));
}

#[test]
fn abandoned_write_reports_whether_it_goes_on() {
    let mut child = start("stalled", Stdio::null(), Stdio::piped());
    let mut line = String::new();
    StdReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "true 0\n");
    let out = ends_well(child).0;
    assert_eq!(out, "x".repeat(MORE_THAN_A_PIPE) + "z");
}

#[test]
fn interrupted_writes_neither_lose_nor_repeat_bytes() {
    let (out, runs) = ends_well(start("injected", Stdio::null(), Stdio::piped()));
    let runs: usize = runs.parse().unwrap();
    assert!(runs > 3 && out.ends_with("x!"));
    assert_eq!(out.len(), runs * MUCH + 1);
}

#[test]
fn writes_are_in_order_of_request() {
    let path = std::env::temp_dir().join(format!("pikake-stdout-{}", std::process::id()));
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    ends_well(start("in_order", Stdio::null(), file.try_clone().unwrap()));
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    std::fs::remove_file(&path).unwrap();
    let lines: Vec<_> = text.lines().skip(PREAMBLE).map(str::to_owned).collect();
    assert_eq!(lines, (0..100).map(|number: u32| number.to_string()).collect::<Vec<_>>());
}
