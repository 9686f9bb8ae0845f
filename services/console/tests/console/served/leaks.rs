//! Leaks of tasks.

use std::rc::Rc;
use std::time::Duration;

use pikake::console::protocol::Request;
use pikake::console::text;
use pikake::sleep;
use pikake::sync::{Mutex, oneshot};

use super::{Program, ask, end_with_parent, say_ready};
use crate::support::child::is_child;
use crate::support::named as spawn_named;

const HOUR: Duration = Duration::from_secs(3_600);

/// Each request waits for an answer that never comes, and a task has ended without its lock.
#[pikake::main(console)]
async fn leaking() {
    end_with_parent();
    let lock = Rc::new(Mutex::new(()).named("ledger"));
    let forgotten = lock.clone();
    let ended = spawn_named("ended", async move {
        std::mem::forget(forgotten.lock().await);
    });
    ended.await.unwrap();
    spawn_named("waiting", async move { lock.lock().await.map(drop) }).detach();
    let _steady: Vec<_> = (0..50).map(|_| spawn_named("steady", sleep(HOUR))).collect();
    say_ready();
    let mut senders = Vec::new();
    loop {
        sleep(Duration::from_millis(10)).await.unwrap();
        let (sender, answer) = oneshot::channel::<()>();
        senders.push(sender);
        pikake::task::Builder::new().name("request").spawn(async { answer.await.is_ok() }).detach();
    }
}

#[test]
fn growing_groups_and_waits_for_ended_tasks_are_told() {
    if is_child("served::leaks::growing_groups_and_waits_for_ended_tasks_are_told") {
        return leaking();
    }
    let program = Program::start("leaks::growing_groups_and_waits_for_ended_tasks_are_told");
    let mut client = program.client();
    let answer = ask(&mut client, &Request::Leaks);
    let [growing] = &*answer.growing else { panic!("{answer:?}") };
    assert_eq!(growing.name, "request");
    assert!(growing.spawned_at.contains("leaks.rs") && growing.grown > 10, "{growing:?}");
    assert_eq!(growing.wait.as_ref().unwrap().about.as_deref(), Some("oneshot channel"));
    let [ended] = &*answer.waits_for_ended else { panic!("{answer:?}") };
    assert_eq!(ended.name, "waiting");
    let text = text::leaks(&answer);
    assert!(text.contains("GROWING: ") && text.contains("like `request`"), "{text}");
    let waits = "`waiting` waits for a task that has ended: ";
    assert!(text.contains(waits) && text.contains("mutex `ledger`, held by task 2"), "{text}");
}
