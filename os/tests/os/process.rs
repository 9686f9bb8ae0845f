//! Child processes: spawning, pipes, statuses, signals, graces, and drops.

use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

use pikake::net::{BufReader, interruption};
use pikake::process::{Child, Command, CommandError, Stdio, TooMuchOutput};
use pikake::signal::{SIGKILL, SIGTERM, SIGUSR1};

use pikake::{
    Interrupted, TaskGroup, TimedOut, shield, sleep, spawn, timed, timeout_after, yield_now,
};

use crate::support::scratch::Scratch;

/// A child that has not ended by then never will.
const FOREVER: Duration = Duration::from_secs(60);

/// Long enough to be seen as a wait.
const A_MOMENT: Duration = Duration::from_millis(50);

/// Long enough for a child to start and to say what it is told to.
const STARTED: Duration = Duration::from_secs(2);

/// A limit for immediate effects, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(10);

/// A pipe of Linux holds less.
const MORE_THAN_A_PIPE: usize = 300_000;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// Whether a process is in the system's table: running, or a zombie.
fn is_listed(id: u32) -> bool {
    Path::new(&format!("/proc/{id}")).exists()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < AT_ONCE, "{what} takes too long");
        sleep(Duration::from_millis(5)).await.unwrap();
    }
}

/// The error of a command that ran into a deadline around it.
async fn cut_short(command: &mut Command, after: Duration) -> CommandError {
    let since = Instant::now();
    let done = timed(after, command.output()).await;
    assert!(done.expired && since.elapsed() < after + AT_ONCE);
    let error = done.output.expect("it was told").unwrap_err();
    assert!(interruption(&error.source).is_some_and(Interrupted::is_timeout), "{error}");
    error
}

#[pikake::test]
async fn wait_for_child_tells_process_and_program() {
    let mut child = Command::new("sleep").arg("60").kill_on_drop(true).spawn().unwrap();
    let expected = format!("end of process {} (`sleep`)", child.id());
    let waiting = spawn(async move { child.wait().await });
    let abouts = || {
        let waits = waiting.task_ref().waits().into_iter();
        waits.filter_map(|wait| wait.about.map(String::from)).collect::<Vec<_>>()
    };
    yield_now().await.unwrap();
    waiting.task_ref().inspect();
    until("the step", || !waiting.task_ref().is_ready()).await;
    assert_eq!(abouts(), [expected]);
    waiting.cancel().await.unwrap();
}

#[pikake::test]
async fn output_has_both_streams_and_the_status() {
    let output = shell("echo out; echo err >&2; exit 3").output().await.unwrap();
    assert_eq!((&*output.stdout, &*output.stderr), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!((output.status.code(), output.status.signal()), (Some(3), None));
}

#[pikake::test]
async fn status_reports_the_signal_and_core_dump() {
    let status = shell("kill -TERM $$").status().await.unwrap();
    assert_eq!((status.code(), status.signal()), (None, Some(SIGTERM)));
    assert!(!status.core_dumped());
}

#[pikake::test]
async fn child_has_its_directory_and_environment() {
    let output = shell("pwd; echo $ONE-$TWO")
        .env_clear()
        .env("ONE", "1")
        .env("TWO", "2")
        .env_remove("TWO")
        .current_dir("/")
        .output()
        .await
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "/\n1-\n");
}

#[pikake::test]
async fn large_output_on_both_streams_does_not_deadlock() {
    let script =
        format!("head -c {MORE_THAN_A_PIPE} /dev/zero >&2; head -c {MORE_THAN_A_PIPE} /dev/zero");
    let output = shell(&script).output().await.unwrap();
    assert_eq!((output.stdout.len(), output.stderr.len()), (MORE_THAN_A_PIPE, MORE_THAN_A_PIPE));
}

/// The output up to the limit is kept.
#[pikake::test]
async fn output_over_the_limit_ends_the_child() {
    let error = shell("yes").limit(1000).output().await.unwrap_err();
    let inside = error.source.get_ref().and_then(|inside| inside.downcast_ref::<TooMuchOutput>());
    assert_eq!(inside.map(|too_much| too_much.limit), Some(1000));
    assert_eq!(error.stdout, b"y\n".repeat(500));
    assert_eq!(error.status.and_then(|status| status.signal()), Some(SIGTERM));
    assert!(error.to_string().starts_with("sh: the program wrote more than 1000 bytes"), "{error}");
    // As much as the limit is not more.
    assert!(shell("printf 12345").limit(5).output().await.is_ok());
}

#[pikake::test]
async fn spawn_error_names_the_command() {
    let error = Command::new("/no/such/program").spawn().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().starts_with("run /no/such/program: No such file"), "{error}");
    let error = Command::new("/etc/passwd").output().await.unwrap_err();
    assert_eq!((error.source.kind(), error.status), (ErrorKind::PermissionDenied, None));
    assert!(error.to_string().starts_with("run /etc/passwd: Permission denied"), "{error}");
    let error = io::Error::from(Command::new("a\0b").status().await.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let error = Command::new("true").current_dir("/no/such/place").spawn().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[pikake::test]
async fn interrupted_wait_for_a_child_can_repeat() {
    let mut child = shell("read line; exit 7").stdin(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    for _ in 0..3 {
        assert!(matches!(timeout_after(A_MOMENT, child.wait()).await, Err(TimedOut)));
        assert_eq!(child.try_wait().unwrap(), None);
    }
    stdin.write_all(b"go\n").await.unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(7));
    // And once more, when it has long ended.
    assert_eq!(child.wait().await.unwrap().code(), Some(7));
    assert_eq!(child.try_wait().unwrap().and_then(|status| status.code()), Some(7));
    assert_eq!(child.signal(SIGTERM).unwrap_err().kind(), ErrorKind::NotFound);
}

#[pikake::test]
async fn early_exit_status_is_kept_until_the_wait() {
    let mut child = shell("exit 9").spawn().unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    until("the end", || std::fs::read_to_string(&stat).unwrap().contains(") Z ")).await;
    assert_eq!(child.wait().await.unwrap().code(), Some(9));
    assert!(!is_listed(child.id()));
}

#[pikake::test]
async fn waiting_closes_the_input() {
    let mut child =
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    assert!(timeout_after(AT_ONCE, child.wait()).await.unwrap().unwrap().success());
}

#[pikake::test]
async fn signals_reach_the_child() {
    let script = "trap 'echo usr1' USR1; echo ready; while :; do sleep 0.01; done";
    let mut child = shell(script).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("ready"));
    child.signal(SIGUSR1).unwrap();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("usr1"));
    assert_eq!(child.signal(12345).unwrap_err().kind(), ErrorKind::InvalidInput);
    child.kill().unwrap();
    assert_eq!(child.wait().await.unwrap().signal(), Some(SIGKILL));
}

#[pikake::test]
async fn interrupted_output_ends_the_child_keeping_its_output() {
    let error = cut_short(&mut shell("echo t-minus 4; sleep 20 & exec sleep 100"), STARTED).await;
    assert_eq!(error.stdout, b"t-minus 4\n");
    assert_eq!(error.status.and_then(|status| status.signal()), Some(SIGTERM));
}

#[pikake::test]
async fn grace_lets_a_child_write_much() {
    let script = format!(
        "trap 'head -c {MORE_THAN_A_PIPE} /dev/zero; exit 4' TERM; echo ready; while :; do sleep 0.01; done"
    );
    let mut command = shell(&script);
    let error = cut_short(command.grace(AT_ONCE), STARTED).await;
    assert_eq!(error.stdout.len(), "ready\n".len() + MORE_THAN_A_PIPE);
    assert_eq!(error.status.and_then(|status| status.code()), Some(4));
}

#[pikake::test]
async fn grace_ends_with_sigkill() {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    let since = Instant::now();
    let error = cut_short(shell(script).grace(A_MOMENT * 2), STARTED).await;
    assert!(since.elapsed() >= STARTED + A_MOMENT * 2);
    assert_eq!(error.stdout, b"ready\n");
    assert_eq!(error.status.and_then(|status| status.signal()), Some(SIGKILL));
}

#[pikake::test]
async fn grandchild_holding_the_pipe_delays_no_deadline() {
    let error = cut_short(&mut shell("echo first; sleep 20 & exit 0"), STARTED).await;
    assert_eq!(error.stdout, b"first\n");
    // The child itself had ended well.
    assert_eq!(error.status.and_then(|status| status.code()), Some(0));
}

#[pikake::test]
async fn cancel_ends_the_child_before_a_second_cause() {
    let task = spawn(async {
        let mut command = shell("trap 'sleep 2; exit 5' TERM; while :; do sleep 0.01; done");
        // The timeout falls into the goodbye of the cancel.
        let done = timed(STARTED + STARTED / 2, command.grace(AT_ONCE).output()).await;
        done.output.expect("it was told").unwrap_err()
    });
    sleep(STARTED).await.unwrap();
    task.request_cancel("enough");
    let error = task.await.unwrap();
    assert_eq!(interruption(&error.source).and_then(Interrupted::reason), Some("enough"));
    assert_eq!(error.status.and_then(|status| status.code()), Some(5));
}

#[pikake::test]
async fn stop_sends_sigterm_then_sigkill() {
    let mut polite = shell("trap 'exit 6' TERM; echo; while :; do sleep 0.01; done");
    let mut polite = polite.stdout(Stdio::piped()).spawn().unwrap();
    let mut deaf = shell("trap '' TERM; echo; while :; do sleep 0.01; done");
    let mut deaf = deaf.stdout(Stdio::piped()).spawn().unwrap();
    for child in [&mut polite, &mut deaf] {
        child.stdout.as_ref().unwrap().read_exact(&mut [0]).await.unwrap();
    }
    assert_eq!(polite.stop(AT_ONCE).await.unwrap().code(), Some(6));
    assert_eq!(polite.stop(AT_ONCE).await.unwrap().code(), Some(6));
    assert_eq!(deaf.stop(A_MOMENT).await.unwrap().signal(), Some(SIGKILL));
}

#[pikake::test]
async fn dropped_child_goes_on_and_leaves_no_zombie() {
    let child = shell("sleep 2").spawn().unwrap();
    let id = child.id();
    drop(child);
    assert!(is_listed(id));
    until("the end of a dropped child", || !is_listed(id)).await;
    // Some at once, of which the first lives longest.
    let ids: Vec<u32> = ["0.4", "0.1", "0"]
        .map(|for_| Command::new("sleep").arg(for_).spawn().unwrap().id())
        .into();
    until("the end of the second", || !is_listed(ids[1])).await;
    until("the end of all", || !ids.iter().any(|id| is_listed(*id))).await;
}

#[pikake::test]
async fn kill_on_drop_kills_the_child() {
    let child = shell("exec sleep 100").kill_on_drop(true).spawn().unwrap();
    let id = child.id();
    drop(child);
    until("the end of a killed child", || !is_listed(id)).await;
}

#[pikake::test]
async fn an_output_that_is_dropped_kills_its_child() {
    let scratch = Scratch::new();
    let path = scratch.path("id");
    let script = format!("echo $$ > {}; exec sleep 100", path.display());
    let task = spawn(async move { shell(&script).output().await });
    let id = || std::fs::read_to_string(&path).ok()?.trim().parse::<u32>().ok();
    until("the start", || id().is_some()).await;
    let id = id().unwrap();
    assert!(is_listed(id));
    task.abort();
    assert!(task.await.is_err());
    until("the end of an aborted output's child", || !is_listed(id)).await;
}

/// Has a child turn a text into another one.
async fn upper(mut child: Child, text: &str) -> io::Result<String> {
    let stdin = child.stdin.take().expect("piped");
    let stdout = child.stdout.take().expect("piped");
    let text = text.to_owned();
    let writing = spawn(async move { stdin.write_all(text.as_bytes()).await });
    let mut all = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match stdout.read(&mut buffer).await? {
            0 => break,
            length => all.extend(&buffer[..length]),
        }
    }
    writing.await.unwrap()?;
    assert!(child.wait().await?.success());
    Ok(String::from_utf8(all).unwrap())
}

#[pikake::test]
async fn large_input_and_output_pass_a_child() {
    let child = Command::new("tr")
        .args(["a-z", "A-Z"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let text = "pikake ".repeat(50_000);
    assert_eq!(upper(child.unwrap(), &text).await.unwrap(), text.to_uppercase());
}

#[pikake::test]
async fn failed_write_to_a_child_reports_its_progress() {
    let mut child = shell("exec 0<&-; echo closed; exec sleep 5")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    child.stdout.as_ref().unwrap().read_exact(&mut [0]).await.unwrap();
    let stdin = child.stdin.take().unwrap();
    // Another test that starts a child has the reading end for the moment until that is one.
    let error = loop {
        if let Err(error) = stdin.write_all(b"?").await {
            break error;
        }
        sleep(Duration::from_millis(1)).await.unwrap();
    };
    assert_eq!((error.written, error.source.kind()), (0, ErrorKind::BrokenPipe));
    // One that does not read, and a deadline: the error has what the pipe took.
    let mut child = shell("exec sleep 5").stdin(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    let much = vec![0; MORE_THAN_A_PIPE];
    let error = timed(A_MOMENT, stdin.write_all(&much)).await.output.unwrap().unwrap_err();
    assert!(error.written > 0 && error.written < much.len());
    drop(child);
}

#[pikake::test]
async fn output_pipes_from_child_to_child() {
    let (reader, writer) = io::pipe().unwrap();
    let mut first = shell("printf 'b\\na\\n'");
    let mut child = first.stdout(writer).spawn().unwrap();
    // The first command has the writing end for as long as it lives.
    drop(first);
    let sorted = Command::new("sort").stdin(reader).output().await.unwrap();
    assert!(child.wait().await.unwrap().success());
    assert_eq!(sorted.stdout, b"a\nb\n");
}

#[pikake::test]
async fn two_hundred_children_run_at_once() {
    let mut group = TaskGroup::new();
    for number in 0..200 {
        group.spawn(async move {
            let output = shell(&format!("echo {number}; exit {}", number % 5)).output().await?;
            Ok::<_, CommandError>((output.status.code(), String::from_utf8(output.stdout).unwrap()))
        });
    }
    let all = timeout_after(FOREVER, group.try_join_all()).await.unwrap().unwrap();
    for (number, (code, text)) in all.into_iter().enumerate() {
        assert_eq!((code, text), (Some(number as i32 % 5), format!("{number}\n")));
    }
}

#[pikake::test]
async fn shielded_child_runs_to_its_end() {
    let done = timed(A_MOMENT, shield(shell("sleep 0.3; echo done").output())).await;
    assert_eq!(done.output.unwrap().unwrap().stdout, b"done\n");
}
