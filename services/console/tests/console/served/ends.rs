//! Tasks that are asked to end.

use std::time::Duration;

use pikake::console::model::TaskKey;
use pikake::console::protocol::Request;
use pikake::{Kernel, shield, sleep, spawn};

use super::{Program, ask, named, ready, refusal};
use crate::support::child::is_child;
use crate::support::named as spawn_named;

const HOUR: Duration = Duration::from_secs(3_600);

#[pikake::main(console)]
async fn tasks_to_end() {
    let obedient = spawn_named("obedient", async { sleep(HOUR).await });
    spawn_named("stubborn", async { while shield(sleep(HOUR)).await.is_ok() {} }).detach();
    spawn(async move { println!("obedient: {:?}", obedient.await) }).detach();
    ready().await;
}

fn end(request: impl Fn(TaskKey) -> Request, program: &Program, name: &str) -> (bool, String) {
    let mut client = program.client();
    let task = named(&ask(&mut client, &Request::Tasks { waits: false }), name).id;
    let ended = ask(&mut client, &request(task)).ended.unwrap();
    if ended.0 {
        let why = refusal(&mut client, &request(task));
        assert!(why.contains("there is no task"), "{why}");
    }
    ended
}

fn cancel(task: TaskKey) -> Request {
    Request::Cancel { task, reason: "by hand".into() }
}

#[test]
fn cancel_ends_a_task_with_the_reason() {
    if is_child("served::ends::cancel_ends_a_task_with_the_reason") {
        return tasks_to_end();
    }
    let program = Program::start("ends::cancel_ends_a_task_with_the_reason");
    assert_eq!(end(cancel, &program, "obedient"), (true, "ended".into()));
    let output = program.finish();
    assert!(output.contains("by hand"), "{output}");
}

#[test]
fn cancel_tells_where_a_task_still_waits() {
    if is_child("served::ends::cancel_tells_where_a_task_still_waits") {
        return tasks_to_end();
    }
    let program = Program::start("ends::cancel_tells_where_a_task_still_waits");
    let (is_over, how) = end(cancel, &program, "stubborn");
    assert!(!is_over);
    assert!(how.starts_with("still running: it waits for"), "{how}");
    assert!(how.contains("ends.rs") && how.contains("shield"), "{how}");
    let answer = program.ask(&Request::Tasks { waits: false });
    assert_eq!(named(&answer, "stubborn").cancelled.as_deref(), Some("by hand"));
    assert_eq!(named(&answer, "obedient").cancelled, None);
}

#[test]
fn abort_ends_a_shielded_task() {
    if is_child("served::ends::abort_ends_a_shielded_task") {
        return tasks_to_end();
    }
    let program = Program::start("ends::abort_ends_a_shielded_task");
    let ended = end(|task| Request::Abort { task }, &program, "stubborn");
    assert_eq!(ended, (true, "ended".into()));
    program.finish();
}

/// The main task that is cancelled ends the run of its kernel, and the kernel with it, or not.
fn cancelled_main_task(test: &str, keeps_kernel: bool) -> Option<Result<(bool, String), String>> {
    if is_child(&format!("served::ends::{test}")) {
        let _console = pikake::console::Console::start().unwrap();
        let kernel = Kernel::new().unwrap();
        kernel.run(async {
            super::say_ready();
            let _ = sleep(HOUR).await;
        });
        let _kept = keeps_kernel.then_some(kernel);
        super::wait_for_parent();
        return None;
    }
    let program = Program::start(&format!("ends::{test}"));
    let mut client = program.client();
    let main = ask(&mut client, &Request::Tasks { waits: false }).tasks[0].id;
    let end = match client.ask(&cancel(main)) {
        Ok(parts) => Ok(pikake::console::answer::Answer::of(parts).unwrap().ended.unwrap()),
        Err(error) => Err(error.to_string()),
    };
    program.finish();
    Some(end)
}

#[test]
fn the_end_of_the_kernel_is_told() {
    let Some(end) = cancelled_main_task("the_end_of_the_kernel_is_told", false) else { return };
    let (is_ended, how) = end.unwrap();
    assert!(is_ended && how.starts_with("ended"), "{how}");
}

#[test]
fn the_end_of_the_run_is_told() {
    let Some(end) = cancelled_main_task("the_end_of_the_run_is_told", true) else { return };
    match end {
        Ok((is_ended, _)) => assert!(is_ended),
        Err(why) => assert!(why.contains("the task was asked to end, and nobody runs"), "{why}"),
    }
}
