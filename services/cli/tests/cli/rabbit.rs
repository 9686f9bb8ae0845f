//! The commands and the examples on a real RabbitMQ.

use rustix::process::Signal;
use serde_json::json;
use xtask::{Kind, Server};

use crate::support::rabbit::{control, host, over_tls};
use crate::support::{Ended, Place, Running, application, example, pikake, run, wait_for};

/// `None`: there is no RabbitMQ, and the test is skipped.
#[track_caller]
fn fresh() -> Option<Place> {
    xtask::fresh_url().map(Place::at)
}

#[test]
fn each_command_works_on_rabbitmq() {
    let Some(place) = fresh() else { return };
    place.run(&pikake(), &["status", "nope"]).failed(3, &["no queue 'nope'", "`status` shows"]);
    let status = place.run(&pikake(), &["status", "--json"]).json();
    assert_eq!(status["queues"], json!([{ "queue": "pikake", "exists": false }]));
    assert!(!status["broker"].as_str().unwrap().contains("guest"), "{status}");

    place.pikake(&["send", "late", "1"]);
    place.pikake(&["send", "add", "1", "2", "--countdown", "600"]);
    wait_for("both jobs", || {
        let counts = place.counts("pikake");
        (&counts["ready"], &counts["delayed"]) == (&json!(1), &json!(1))
    });
    assert_eq!(place.pikake(&["purge", "pikake", "--yes"]), "removed from pikake: 2 jobs");

    let worker = place.worker(&application(), &["worker", "--json"]);
    wait_for("the consumer", || place.counts("pikake")["consumers"] == 1);
    let all = place.run(&pikake(), &["status", "--json"]).json();
    let names = all["queues"].as_array().unwrap().iter().map(|queue| &queue["queue"]);
    assert_eq!(names.collect::<Vec<_>>(), ["greetings", "pikake", "spare"]);
    assert_eq!(place.pikake(&["send", "add", "2", "3", "--wait"]), "5");
    assert_eq!(
        place.run(&application(), &["send", "greet", "\"ann\"", "--wait"]).good(),
        "\"hello ann\""
    );
    place.run(&pikake(), &["send", "fails", "\"no\"", "--wait"]).failed(1, &["fails failed"]);
    place.run(&pikake(), &["send", "late", "\"x\"", "--wait"]).failed(1, &["NotRegistered"]);
    wait_for("the dead", || place.counts("pikake")["dead"] == 1);
    let dead = place.run(&pikake(), &["dead", "list", "pikake", "--json"]).json();
    assert_eq!(dead["job"], "late");
    place
        .run(&pikake(), &["result", "sum"])
        .failed(3, &["RabbitMQ keeps no results", "send --wait"]);
    worker.signal(Signal::TERM);
    let report = worker.end();
    assert_eq!((report.code, &report.json()["all"]["done"]), (Some(0), &json!(2)));

    let mut knows = place.command(&application(), &["worker"]);
    knows.env("TEST_APP_KNOWS_LATE", "1");
    let mut worker = Running::start(knows);
    worker.until("the worker is ready");
    let id = dead["id"].as_str().unwrap();
    place.run(&pikake(), &["dead", "replay", "--job", "nobody", "pikake"]).failed(3, &["nobody"]);
    let replayed = place.pikake(&["dead", "replay", "--job", id, "pikake"]);
    assert_eq!(replayed, "in pikake again: 1 job");
    worker.signal(Signal::TERM);
    wait_for("the job", || {
        let counts = place.counts("pikake");
        counts["dead"] == 0
    });
    assert_eq!(worker.end().code, Some(0));
}

#[test]
fn second_signal_requeues_running_jobs() {
    let Some(place) = fresh() else { return };
    let mut worker = place.worker(&application(), &["worker", "--json"]);
    place.pikake(&["send", "nap", &place.argument(), "600000"]);
    wait_for("the job", || place.count(".begun") == 1);
    worker.signal(Signal::TERM);
    worker.until("waiting for running jobs");
    worker.signal(Signal::TERM);
    let ended = worker.end();
    ended.failed(143, &["interrupted and requeued: 1 job"]);
    assert_eq!(ended.json()["all"]["given_back"], 1);
    wait_for("the job, in its queue again", || place.counts("pikake")["ready"] == 1);
}

#[test]
fn wrong_password_is_refused() {
    let Some(place) = fresh() else { return };
    let Some(url) = xtask::fresh_url() else { return };
    let url = url.replace("guest:guest", "guest:wrong");
    let refused = place.run(&pikake(), &["status", "--broker", &url]);
    refused.failed(3, &["refuses", "ACCESS_REFUSED"]);
    assert!(!refused.err.contains("wrong"), "{refused:?}");
    // It waits for a broker that is not there, and not for another password.
    let refused = place.run(&application(), &["worker", "--broker", &url]);
    refused.failed(3, &["refuses", "ACCESS_REFUSED"]);
}

#[test]
fn commands_work_over_tls() {
    let Some(rabbit) = xtask::rabbitmq() else { return };
    let url = rabbit.fresh_url();
    let [good, other] =
        ["ca.pem", "other-ca.pem"].map(|authority| over_tls(&rabbit, &url, authority));
    let place = Place::at(good.clone());
    let worker = place.worker(&application(), &["worker", "--json"]);
    assert_eq!(place.pikake(&["send", "add", "2", "3", "--wait"]), "5");
    let status = run_with(&["status", "--broker", &good, "--json"]).json();
    assert_eq!(status["connection"], "open");
    assert!(!status["broker"].as_str().unwrap().contains("guest"), "{status}");
    let said = control(&rabbit, "list_connections vhost ssl");
    assert!(said.contains(&format!("{}\ttrue", host(&url))), "{said:?}");
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().code, Some(0));

    let refused = run_with(&["status", "--broker", &other]);
    refused.failed(3, &["no trusted authority signed"]);
    assert!(!refused.err.contains("Is it running?"), "{refused:?}");
    let misspelt = good.replace("cacertfile", "cacert");
    run_with(&["status", "--broker", &misspelt]).failed(3, &["`cacert` is unknown", "cacertfile"]);
    let nowhere = good.replace("ca.pem", "no.pem");
    run_with(&["status", "--broker", &nowhere]).failed(3, &["no.pem`: No such file"]);
    run_with(&["send", "add", "1", "2", "--broker", &good.replace("amqps", "amqp")])
        .failed(3, &["`cacertfile` is for amqps:// only"]);
}

/// Runs `pikake`, without a broker in its environment.
fn run_with(arguments: &[&str]) -> Ended {
    let mut command = std::process::Command::new(pikake());
    command.args(arguments).env_remove("PIKAKE_BROKER").stdin(std::process::Stdio::null());
    run(command)
}

/// Celery's: durable, classic, and without one for the dead.
#[test]
fn classic_queue_of_celery_is_used_unchanged() {
    let Some(rabbit) = xtask::rabbitmq() else { return };
    let url = rabbit.fresh_url();
    let (host, place) = (host(&url), Place::at(url.clone()));
    let declare = format!(
        "eval rabbit_amqqueue:declare(rabbit_misc:r(<<\"{host}\">>,queue,<<\"celery\">>),\
         true,false,[],none,<<\"celery\">>)."
    );
    let made = control(&rabbit, &declare);
    assert!(made[0].starts_with("{new,"), "{made:?}");
    assert_eq!(place.counts("celery")["dead"], 0);
    assert_eq!(place.pikake(&["purge", "celery", "--yes"]), "removed from celery: 0 jobs");
    for _ in 0..2 {
        place.pikake(&["send", "add", "2", "3", "--queue", "celery"]);
        place.pikake(&["send", "add", "2", "3", "--queue", "celery", "--countdown", "600"]);
    }
    wait_for("the jobs", || {
        let counts = place.counts("celery");
        (&counts["ready"], &counts["delayed"]) == (&json!(2), &json!(2))
    });
    assert_eq!(place.pikake(&["purge", "celery", "--yes"]), "removed from celery: 4 jobs");
    let list = format!("list_queues -p {host} name type durable");
    let kinds = control(&rabbit, &list);
    assert!(kinds.contains(&"celery\tclassic\ttrue".to_owned()), "{kinds:?}");

    let worker = place.worker(&application(), &["worker", "--queue", "celery"]);
    let value = place.pikake(&["send", "add", "2", "3", "--queue", "celery", "--wait"]);
    assert_eq!(value, "5");
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().code, Some(0));
}

#[test]
fn shop_runs_on_rabbitmq() {
    let Some(place) = fresh() else { return };
    let ended = place.run(&example("shop"), &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.starts_with("429 jobs through amqp://"), "{ended:?}");
    assert!(ended.out.contains("all                427        8       1     1\n"), "{ended:?}");
    wait_for("the dead", || place.counts("shop")["dead"] == 1);
}

#[test]
fn async_celery_runs_on_rabbitmq() {
    let Some(rabbit) = xtask::rabbitmq() else { return };
    let url = rabbit.fresh_url();
    let (host, place) = (host(&url), Place::at(url.clone()));
    let mut program = Running::start(place.command(&example("async_celery"), &[]));
    program.until("the worker is ready");
    wait_for("its jobs", || {
        let counts = place.counts("Pikake.q");
        counts["ready"] == 0 && counts["consumers"] == 1
    });
    let asked = |what: &str| control(&rabbit, &format!("{what} -p {host}")).join("\n");
    assert!(asked("list_exchanges").contains("Pikake.x\tdirect"));
    let bound = "Pikake.x\texchange\tPikake.q\tqueue\tPikake.k";
    assert!(asked("list_bindings").contains(bound), "{}", asked("list_bindings"));
    let consumers = asked("list_consumers");
    assert!(consumers.contains("Pikake.q") && consumers.contains("\t10\t"), "{consumers}");
    let connections = control(&rabbit, "list_connections vhost");
    assert_eq!(connections.iter().filter(|of| *of == host).count(), 1, "{connections:?}");
    // Once a second.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    program.signal(Signal::INT);
    let ended = program.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let hellos: Vec<&str> = ended.out.lines().filter(|line| line.starts_with("hello")).collect();
    assert_eq!(hellos, ["hello ann", "hello bob"], "{ended:?}");
    assert!(ended.out.contains("periodic info: open; 2 done"), "{ended:?}");
}

#[test]
fn memory_alarm_of_the_broker_is_reported() {
    let Some(rabbit) = Server::start_or_skip(Kind::RabbitMq) else { return };
    let place = Place::at(rabbit.fresh_url());
    let worker = place.worker(&application(), &["worker", "--connections", "2"]);
    assert_eq!(control(&rabbit, "list_connections pid --no-table-headers").len(), 2);
    control(&rabbit, "eval rabbit_alarm:set_alarm({{resource_limit,memory,node()},[]}).");
    let connection = || place.run(&pikake(), &["status", "--json"]).json()["connection"].clone();
    wait_for("the alarm", || connection() == "blocked: low on memory");
    control(&rabbit, "eval rabbit_alarm:clear_alarm({resource_limit,memory,node()}).");
    wait_for("the end of the alarm", || connection() == "open");
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().code, Some(0));
    place.run(&application(), &["worker", "--connections", "3"]).failed(2, &["<1|2>"]);
}

#[test]
fn results_are_kept_in_redis() {
    let Some(place) = fresh() else { return };
    let Some(redis) = xtask::fresh_redis_url() else { return };
    let with = ["--results", &*redis];
    let worker = place.worker(&application(), &[&["worker"], &with[..]].concat());
    let sent = [&["send", "add", "2", "3", "--id", "sum", "--wait"], &with[..]].concat();
    assert_eq!(place.pikake(&sent), "5");
    let sent = [&["send", "fails", "\"no\"", "--id", "bad"], &with[..]].concat();
    assert_eq!(place.pikake(&sent), "bad");
    let result = |id: &str| place.run(&pikake(), &[&["result", id], &with[..]].concat());
    assert_eq!(result("sum").good(), "5");
    wait_for("the failure", || result("bad").code == Some(1));
    result("bad").failed(1, &["bad failed", "no"]);
    result("nope").failed(3, &["no result of job nope is known"]);
    place.run(&pikake(), &["result", "sum"]).failed(3, &["RabbitMQ keeps no results", "--results"]);
    let wrong = redis.replace("pikake@", "secret@");
    let refused = place.run(&pikake(), &["result", "sum", "--results", &wrong]);
    assert!(!refused.err.contains("secret"), "{refused:?}");
    assert!(!refused.err.contains("broker"), "{refused:?}");
    refused.failed(3, &["Redis at", "WRONGPASS"]);
    let away = place.run(&pikake(), &["result", "sum", "--results", "redis://:secret@127.0.0.1:1"]);
    for other in ["secret", "broker", "rabbitmq"] {
        assert!(!away.err.contains(other), "{away:?}");
    }
    away.failed(3, &["no connection to Redis at 127.0.0.1:1"]);
    place.run(&pikake(), &["result", "sum", "--results", "amqp://h"]).failed(2, &["redis://"]);
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().code, Some(0));
}
