//! Processes that are killed or hang. The fault run of the example, in its short form: workers and
//! broker are killed, connections cut, and each job is done. Below, processes of a SQLite database,
//! and leaders of schedules.
//!
//! The processes are this program itself, told by the environment what to be.

mod hangs;
mod kills;
mod leaders;
#[path = "../../examples/faults/plan.rs"]
mod plan;
#[path = "../../examples/faults/proxy.rs"]
mod proxy;
#[path = "../../examples/faults/roles.rs"]
mod roles;
#[path = "../../examples/faults/run.rs"]
mod run;

use std::time::Duration;

use plan::{Kind, Plan};
use xtask::Server;

/// What a process does that was started by one of the tests; nothing in the tests' own.
#[test]
fn role() {
    roles::play();
    hangs::play();
    kills::play();
    leaders::play();
}

/// The broker of a run: a RabbitMQ, or none for SQLite. Without it, the test is skipped.
#[track_caller]
fn broker(kind: Kind) -> Option<Option<Server>> {
    run::python(kind).find_or_skip()?;
    match kind {
        Kind::Sqlite => Some(None),
        Kind::Rabbit => Server::start_or_skip(xtask::Kind::RabbitMq).map(Some),
    }
}

#[track_caller]
fn each_job_is_done(kind: Kind) {
    let Some(broker) = broker(kind) else { return };
    let counts = run::run(&Plan::short(kind), broker);
    println!("{counts}");
    assert!(counts.is_good(), "{counts}");
    assert!(counts.kills > 3 && counts.pauses > 0, "{counts}");
    assert!(counts.audit.revoked > 0, "{counts}");
    if kind == Kind::Rabbit {
        assert!(counts.restarts > 0 && counts.cuts > 3, "{counts}");
    }
}

/// The count is no good if it does not see what is lost.
#[track_caller]
fn what_is_lost_is_seen(kind: Kind) {
    let Some(broker) = broker(kind) else { return };
    let short = Plan::short(kind);
    let early = Plan { is_early: true, patience: Duration::from_secs(8), ..short };
    let counts = run::run(&early, broker);
    println!("{counts}");
    assert!(counts.audit.open > 0 && !counts.is_good(), "{counts}");
    assert_eq!(counts.audit.left, 0, "{counts}");
}

#[test]
fn early_on_sqlite() {
    what_is_lost_is_seen(Kind::Sqlite);
}

#[test]
fn early_on_rabbitmq() {
    what_is_lost_is_seen(Kind::Rabbit);
}

#[test]
fn on_sqlite() {
    each_job_is_done(Kind::Sqlite);
}

#[test]
fn on_rabbitmq() {
    each_job_is_done(Kind::Rabbit);
}
