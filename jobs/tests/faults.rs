//! The fault run of the example, in its short form: workers and broker are killed, connections cut, and each job is done.

#[path = "../examples/faults/plan.rs"]
mod plan;
#[path = "../examples/faults/proxy.rs"]
mod proxy;
#[path = "support/rabbit.rs"]
mod rabbit;
#[path = "../examples/faults/roles.rs"]
mod roles;
#[path = "../examples/faults/run.rs"]
mod run;

use plan::{Kind, Plan};

/// What a process that was started by the tests below does; nothing in the tests' own.
#[test]
fn role() {
    roles::play();
}

fn each_job_is_done(kind: Kind) {
    let counts = run::run(&Plan::short(kind));
    println!("{counts}");
    assert!(counts.is_good(), "{counts}");
    assert!(counts.kills > 3, "{counts}");
    if kind == Kind::Rabbit {
        assert!(counts.restarts > 0 && counts.cuts > 3, "{counts}");
    }
}

#[test]
fn on_sqlite() {
    each_job_is_done(Kind::Sqlite);
}

#[test]
fn on_rabbitmq() {
    each_job_is_done(Kind::Rabbit);
}
