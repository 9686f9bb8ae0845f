//! Kernels that do not answer.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use pikake::console::client::Client;
use pikake::console::model::State;
use pikake::console::protocol::{Part, Request, read_frame, write_frame};
use pikake::console::text;
use pikake::{Kernel, sleep, yield_now};

use super::{
    Program, ask, end_with_parent, eventually, named, refusal, say_ready, wait_for_parent,
};
use crate::support::child::is_child;
use crate::support::named as spawn_named;

const HOUR: Duration = Duration::from_secs(3_600);

/// A step without end begins when the parent removes a file.
#[pikake::main(console)]
async fn endless_step() {
    end_with_parent();
    let _sleeper = spawn_named("sleeper", async { sleep(HOUR).await });
    spawn_named("endless", async {
        let file = std::env::var_os("PIKAKE_TEST_FILE").unwrap();
        while std::path::Path::new(&file).exists() {
            sleep(Duration::from_millis(1)).await.unwrap();
        }
        loop {
            std::hint::spin_loop();
        }
    })
    .detach();
    say_ready();
    let _ = sleep(HOUR).await;
}

fn is_stuck(client: &mut Client) -> bool {
    let kernels = ask(client, &Request::Kernels).kernels;
    kernels[0].stuck.as_ref().is_some_and(|step| step.lasts > 0)
}

#[test]
fn a_stuck_kernel_is_shown_by_its_last_look() {
    if is_child("served::stuck::a_stuck_kernel_is_shown_by_its_last_look") {
        return endless_step();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let program = Program::start_by("stuck::a_stuck_kernel_is_shown_by_its_last_look", |child| {
        child.env("PIKAKE_TEST_FILE", file.path());
    });
    let mut client = program.client();
    let before = ask(&mut client, &Request::Waits);
    assert!(before.kernels[0].stuck.is_none() && before.kernels[0].stale.is_none());
    file.close().unwrap();
    eventually(|| is_stuck(&mut client).then_some(()));

    let endless = named(&before, "endless").id;
    for request in [Request::Tasks { waits: false }, Request::Waits] {
        let answer = ask(&mut client, &request);
        let kernel = &answer.kernels[0];
        let step = kernel.stuck.as_ref().unwrap();
        assert_eq!((step.task, step.name.as_str()), (endless, "endless"));
        assert!(step.spawned_at.contains("support/mod.rs"), "{step:?}");
        assert!(kernel.stale.unwrap() > 0);
        assert_eq!(answer.tasks.len(), before.tasks.len());
        assert_eq!(named(&answer, "endless").state, State::Running);
        assert_eq!(named(&answer, "sleeper").waits, named(&before, "sleeper").waits);
    }
    let stats = ask(&mut client, &Request::Stats);
    assert!(stats.process.is_some() && stats.stats.is_empty() && stats.kernels[0].stuck.is_some());
    let one = ask(&mut client, &Request::Task { task: endless });
    assert_eq!(one.tasks[0].state, State::Running);
    let why = refusal(&mut client, &Request::Abort { task: endless });
    assert!(why.contains("does not answer: it is in a step of task") && why.contains("`endless`"));
    // The process is killed, and its socket stays.
    let path = program.path();
    assert!(path.exists());
}

/// The console itself has looked, and knows the tasks and not all their waits.
#[test]
fn a_stuck_kernel_that_nobody_looked_at_has_a_list() {
    if is_child("served::stuck::a_stuck_kernel_that_nobody_looked_at_has_a_list") {
        return endless_step();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let program =
        Program::start_by("stuck::a_stuck_kernel_that_nobody_looked_at_has_a_list", |child| {
            child.env("PIKAKE_TEST_FILE", file.path());
        });
    // Longer than the console's pause between two looks.
    std::thread::sleep(Duration::from_millis(2_500));
    file.close().unwrap();
    let mut client = program.client();
    eventually(|| is_stuck(&mut client).then_some(()));
    let answer = ask(&mut client, &Request::Waits);
    assert_eq!(named(&answer, "endless").state, State::Running);
    assert_eq!(named(&answer, "sleeper").waits[0].trap, "sleep");
    let text = text::waits(&answer);
    assert!(text.contains("who waits for whom in kernel"), "{text}");
    let list = text::ps(&ask(&mut client, &Request::Tasks { waits: false }), false, None);
    assert!(list.contains("3 tasks as of ") && list.contains(": 1 running, 2 waiting"), "{list}");
}

/// Without a look before, the step itself is all there is.
#[test]
fn a_kernel_stuck_from_the_start_shows_the_step() {
    if is_child("served::stuck::a_kernel_stuck_from_the_start_shows_the_step") {
        return endless_step();
    }
    let program =
        Program::start_by("stuck::a_kernel_stuck_from_the_start_shows_the_step", |child| {
            child.env("PIKAKE_TEST_FILE", "/nonexistent");
        });
    let mut client = program.client();
    eventually(|| is_stuck(&mut client).then_some(()));
    let answer = ask(&mut client, &Request::Tasks { waits: true });
    assert_eq!(answer.tasks.len(), 1, "{answer:?}");
    assert_eq!((named(&answer, "endless").state), State::Running);
    let list = text::ps(&answer, false, None);
    assert!(list.contains("its other tasks are not known"), "{list}");
}

/// Signals write a dump also while the kernel is stuck.
#[test]
fn a_stuck_program_is_dumped() {
    if is_child("served::stuck::a_stuck_program_is_dumped") {
        return endless_step();
    }
    let folder = tempfile::tempdir().unwrap();
    let errors = folder.path().join("errors");
    let program = Program::start_by("stuck::a_stuck_program_is_dumped", |child| {
        child.env("PIKAKE_TEST_FILE", "/nonexistent");
        child.stderr(std::fs::File::create(&errors).unwrap());
    });
    eventually(|| is_stuck(&mut program.client()).then_some(()));
    super::signals::send(&program, rustix::process::Signal::QUIT);
    let text = eventually(|| {
        let text = std::fs::read_to_string(&errors).unwrap();
        text.contains("kernel").then_some(text)
    });
    assert!(text.contains("endless"), "{text}");
}

/// A kernel between two runs is not stuck; nobody runs it.
#[test]
fn a_kernel_that_nobody_runs_is_not_stuck() {
    if is_child("served::stuck::a_kernel_that_nobody_runs_is_not_stuck") {
        let _console = pikake::console::Console::start().unwrap();
        let kernel = Kernel::new().unwrap();
        kernel.run(async {
            spawn_named("left", async { sleep(HOUR).await }).detach();
            yield_now().await.unwrap();
        });
        say_ready();
        return wait_for_parent();
    }
    let program = Program::start("stuck::a_kernel_that_nobody_runs_is_not_stuck");
    let mut client = program.client();
    let kernels = ask(&mut client, &Request::Kernels).kernels;
    assert!(kernels[0].stuck.is_none() && kernels[0].stale.is_some(), "{kernels:?}");
    let task = pikake::console::model::TaskKey { kernel: kernels[0].id, task: 1 };
    let why = refusal(&mut client, &Request::Task { task });
    assert!(why.contains("the program does not run it"), "{why}");
    program.finish();
}

/// The main task blocks its thread until the parent removes a file.
#[pikake::main(console)]
async fn blocked_for_a_while() {
    end_with_parent();
    say_ready();
    let file = std::env::var_os("PIKAKE_TEST_FILE").unwrap();
    while std::path::Path::new(&file).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = sleep(HOUR).await;
}

/// Sends a request with each client, and reads all answers.
fn ask_with_all(clients: &mut [UnixStream], request: &Request) {
    for stream in &mut *clients {
        write_frame(stream, request).unwrap();
    }
    for stream in clients {
        while !matches!(read_frame(stream).unwrap().unwrap(), Part::Done | Part::Failed(_)) {}
    }
}

/// Questions to a kernel that does not answer do not pile up, nor do requests to time its steps.
#[test]
fn the_inbox_of_a_stuck_kernel_does_not_grow() {
    if is_child("served::stuck::the_inbox_of_a_stuck_kernel_does_not_grow") {
        return blocked_for_a_while();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let program = Program::start_by("stuck::the_inbox_of_a_stuck_kernel_does_not_grow", |child| {
        child.env("PIKAKE_TEST_FILE", file.path());
    });
    let messages = |client: &mut Client| {
        let answer = ask(client, &Request::Stats);
        answer.stats.first().map(|stats| stats.messages)
    };
    let mut client = program.client();
    let task = pikake::console::model::TaskKey {
        kernel: ask(&mut client, &Request::Kernels).kernels[0].id,
        task: 9,
    };
    let requests = [
        Request::Kernels,
        Request::Task { task },
        Request::Tasks { waits: false },
        Request::Waits,
        Request::Stats,
        Request::Trace { seconds: None },
    ];
    // All of them together are fewer than the console serves, since it may not have noticed yet
    // that the first ones are gone.
    let twenty = || -> Vec<_> { (0..20).map(|_| super::bare(&program.path())).collect() };
    let mut clients = twenty();
    for request in requests {
        ask_with_all(&mut clients, &request);
    }
    // The drop of a client takes its request for times back.
    for _ in 0..3 {
        ask_with_all(&mut clients, &Request::Time);
        clients = twenty();
    }
    for _ in 0..30 {
        ask_with_all(&mut clients[..1], &Request::Trace { seconds: Some(0.001) });
        ask_with_all(&mut clients[..1], &Request::Profile { seconds: 0.001 });
    }
    file.close().unwrap();
    let count = eventually(|| messages(&mut client));
    assert!(count < 20, "{count} messages");
}
