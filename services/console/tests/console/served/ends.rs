//! Tasks that are asked to end.

use std::time::Duration;

use pikake::console::model::TaskKey;
use pikake::console::protocol::Request;
use pikake::{shield, sleep, spawn};

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
