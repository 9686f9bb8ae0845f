//! Dumps on signals.

use std::fs::{self, File};

use pikake::console::protocol::Request;
use rustix::process::{Pid, Signal, kill_process};

use super::{Program, eventually, ready};
use crate::support::child::is_child;
use crate::support::named as spawn_named;

pub(super) fn send(program: &Program, signal: Signal) {
    kill_process(Pid::from_child(&program.child), signal).unwrap();
}

#[pikake::main(console)]
async fn sleeping_task() {
    spawn_named("a sleeping task", std::future::pending::<()>()).detach();
    ready().await;
}

#[test]
fn each_signal_writes_a_dump() {
    if is_child("served::signals::each_signal_writes_a_dump") {
        return sleeping_task();
    }
    let folder = tempfile::tempdir().unwrap();
    let errors = folder.path().join("errors");
    let program = Program::start_by("signals::each_signal_writes_a_dump", |child| {
        child.stderr(File::create(&errors).unwrap());
    });
    for (count, signal) in [Signal::USR1, Signal::QUIT].into_iter().enumerate() {
        send(&program, signal);
        let text = eventually(|| {
            let text = fs::read_to_string(&errors).unwrap();
            (text.matches("page faults").count() > count).then_some(text)
        });
        assert_eq!(text.matches("a sleeping task").count(), count + 1, "{text}");
    }
    program.finish();
}

/// The dump of signals needs no socket.
#[test]
fn signals_work_without_a_socket() {
    if is_child("served::signals::signals_work_without_a_socket") {
        return sleeping_task();
    }
    let folder = tempfile::tempdir().unwrap();
    let errors = folder.path().join("errors");
    let program = Program::start_by("signals::signals_work_without_a_socket", |child| {
        child.env("PIKAKE_CONSOLE", "/nonexistent/folder/socket");
        child.stderr(File::create(&errors).unwrap());
    });
    send(&program, Signal::USR1);
    eventually(|| fs::read_to_string(&errors).unwrap().contains("a sleeping task").then_some(()));
    let text = fs::read_to_string(&errors).unwrap();
    assert!(text.contains("the console has no socket"), "{text}");
    assert!(text.contains("/nonexistent/folder/socket"), "{text}");
    program.finish();
}

/// The variable alone brings a socket, and leaves the signals as they are.
#[pikake::main]
async fn by_variable() {
    ready().await;
}

#[test]
fn the_variable_gives_any_program_a_socket() {
    if is_child("served::signals::the_variable_gives_any_program_a_socket") {
        return by_variable();
    }
    let test = "signals::the_variable_gives_any_program_a_socket";
    let program = Program::start_by(test, |child| {
        child.env("PIKAKE_CONSOLE", "1");
    });
    assert_eq!(program.ask(&Request::Kernels).kernels.len(), 1);
    let path = program.path();
    program.finish();
    assert!(!path.exists(), "the end of the program removes the socket");
    for value in [None, Some(""), Some("0")] {
        let program = Program::start_by(test, |child| {
            value.map(|value| child.env("PIKAKE_CONSOLE", value));
        });
        assert!(!program.path().exists());
        program.finish();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("here.sock");
    let program = Program::start_by(test, |child| {
        child.env("PIKAKE_CONSOLE", &path);
    });
    let client = pikake::console::client::Client::connect_to(&path, super::PATIENCE).unwrap();
    assert_eq!(client.process().pid, program.child.id());
    program.finish();
    assert!(!path.exists());
}

/// The descriptors for signals go with their console.
#[cfg(target_os = "linux")]
#[test]
fn the_drop_takes_signals_back() {
    if is_child("served::signals::the_drop_takes_signals_back") {
        let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
        let folder = tempfile::tempdir().unwrap();
        let start = || {
            let path = folder.path().join("app.sock");
            pikake::console::Console::builder().path(path).dump_on_signals().start().unwrap()
        };
        // The first use of signals opens what the process keeps.
        drop(start());
        let before = descriptors();
        (0..10).for_each(|_| drop(start()));
        // The thread of a console may end a moment later.
        eventually(|| (descriptors() <= before).then_some(()));
        return println!("it was checked");
    }
    let mut child = crate::support::child::child("served::signals::the_drop_takes_signals_back");
    let (succeeded, output) = crate::support::child::run(&mut child);
    assert!(succeeded && output.contains("it was checked"), "{output}");
}
