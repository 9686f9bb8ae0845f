//! Files, children, signals and watched directories: no child, byte, signal or change is lost.

use std::cell::Cell;
use std::time::Duration;

use pikake::fs::{self, Change, File, OpenOptions, watch};
use pikake::net::{BufReader, interruption};
use pikake::process::{Command, Stdio};
use pikake::signal::{SIGURG, Signals};
use pikake::testing::Injector;
use pikake::{sleep, spawn};

use crate::support::insist::{Insistent, THREADS, a_moment, insist, insist_outside, ms};
use crate::support::scratch::Scratch;

/// An event that comes in the moment of an interruption wins. This wait then returns the
/// interruption.
async fn last_wait(insistent: &Insistent) {
    insistent.on(|| sleep(ms(1))).await;
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn listening_to_signals() {
    insist_outside(2, async |insistent| {
        let mut signals = Signals::new([SIGURG]).unwrap();
        let mut told = 0;
        for _ in 0..2 {
            spawn(async {
                a_moment().await;
                signal_hook::low_level::raise(SIGURG).unwrap();
            })
            .detach();
            assert_eq!(insistent.on(async || signals.next().await).await, SIGURG);
            told += 1;
        }
        last_wait(insistent).await;
        told
    });
}

#[test]
fn waiting_for_children() {
    // Time is virtual, and a child's is not: it has so long to hear of what it is sent.
    let injector = Injector::new().patience(ms(100));
    insist(injector, (Some(3), Some(4)), async |insistent| {
        let mut child = shell("read line; exit 3").stdin(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        spawn(async move {
            a_moment().await;
            stdin.write_all(b"\n").await.unwrap();
        })
        .detach();
        let ended = insistent.on(async || child.wait().await).await;
        let mut child = shell("trap 'exit 4' TERM; echo; read line");
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let reader = BufReader::new(child.stdout.take().unwrap());
        insistent.on(async || reader.next_line().await).await;
        let stopped = insistent.on(async || child.stop(Duration::MAX).await).await;
        last_wait(insistent).await;
        (ended.code(), stopped.code())
    });
}

#[test]
fn running_programs_to_their_end() {
    let program = || async {
        let mut command = shell("echo begun; sleep 0.02; echo done");
        let output = command.output().await;
        let status = shell("sleep 0.01").status().await;
        (output, status)
    };
    let report = Injector::new().patience(THREADS).run(program, |run| {
        let (output, status) = run.output.as_ref().expect("it waits on traps");
        match output {
            Ok(output) => assert_eq!(output.stdout, b"begun\ndone\n"),
            Err(error) => {
                assert!(interruption(&error.source).is_some(), "{error}");
                // It is known how it ended, so nobody is left.
                assert!(error.status.is_some());
                assert!(b"begun\ndone\n".starts_with(&error.stdout));
            }
        }
        match status {
            Ok(status) => assert!(status.success()),
            Err(error) => {
                assert!(interruption(&error.source).is_some() && error.status.is_some(), "{error}");
            }
        }
        let told = usize::from(output.is_err()) + usize::from(status.is_err());
        assert!(told <= usize::from(run.interruption.is_some()));
    });
    assert!(report.suspensions > 1 && report.cancels > 1, "{report:?}");
}

#[test]
fn files() {
    let scratch = Scratch::new();
    let number = Cell::new(0);
    insist_outside("hello, reader and writer".to_owned(), async |insistent| {
        number.set(number.get() + 1);
        let directory = scratch.path(&number.get().to_string());
        // All of these may have been done by a call that was interrupted, and may be done again.
        insistent.on(async || fs::create_dir_all(&directory).await).await;
        let path = directory.join("file");
        let options = OpenOptions::new().read(true).write(true).create(true).clone();
        let file = insistent.on(async || File::open_with(&path, options.clone()).await).await;
        for piece in ["hello, ", "reader", " and writer"] {
            let mut rest = piece.as_bytes();
            while let Err(error) = file.write_all(rest).await {
                insistent.note(&error.source);
                rest = &rest[error.written..];
            }
        }
        insistent.on(async || file.sync_all().await).await;
        insistent.on(async || file.seek(std::io::SeekFrom::Start(0)).await).await;
        let mut buffer = [0; 7];
        let length = insistent.on(async || file.read(&mut buffer).await).await;
        let mut all = buffer[..length].to_vec();
        all.extend(insistent.on(async || file.read_to_end(100).await).await);
        assert_eq!(insistent.on(async || file.metadata().await).await.len(), all.len() as u64);
        let whole = insistent.on(async || fs::read(&path).await).await;
        assert_eq!(whole, all);
        if let Err(error) = file.close().await {
            insistent.note(&error);
        }
        last_wait(insistent).await;
        String::from_utf8(all).unwrap()
    });
}

#[test]
fn watching_a_directory() {
    let scratch = Scratch::new();
    let number = Cell::new(0);
    insist_outside(3, async |insistent| {
        number.set(number.get() + 1);
        let directory = scratch.path(&number.get().to_string());
        std::fs::create_dir(&directory).unwrap();
        let mut watcher = insistent.on(async || watch(&directory, false).await).await;
        for name in ["one", "two", "three"] {
            let path = directory.join(name);
            let made = path.clone();
            spawn(async move {
                a_moment().await;
                std::fs::create_dir(made).unwrap();
            })
            .detach();
            let change = insistent.on(async || watcher.next().await).await;
            assert_eq!(change, Change::Created(path));
        }
        last_wait(insistent).await;
        3
    });
}
