//! Each command on a database: its output, its messages, and its exit code.

use std::io::Read;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Place, Running, application, example, pikake, run, wait_for};

#[test]
fn send_returns_the_value_of_a_job() {
    let place = Place::new();
    let _worker =
        place.worker(&application(), &["worker", "--concurrency", "2", "--processes", "1"]);
    assert_eq!(place.pikake(&["send", "add", "2", "-3", "--wait"]), "-1");
    assert_eq!(place.pikake(&["send", "square", "12", "--wait", "--timeout", "60"]), "144");
    // The application knows in which queue it is.
    let greet = place.run(&application(), &["send", "greet", "\"ann\"", "--wait", "--json"]);
    assert_eq!(greet.json()["queue"], "greetings");
    assert_eq!(greet.json()["value"], "hello ann");
    let by_name = ["send", "greet", "--kwargs", r#"{"tone": "!", "name": "bob"}"#, "--wait"];
    assert_eq!(place.run(&application(), &by_name).good(), "\"hello bob!\"");
    let elsewhere = place.pikake(&["send", "greet", "\"eve\"", "--queue", "greetings", "--wait"]);
    assert_eq!(elsewhere, "\"hello eve\"");
}

#[test]
fn failed_job_is_reported_with_exit_code_one() {
    let place = Place::new();
    let _worker = place.worker(&application(), &["worker"]);
    let failed = place.run(&pikake(), &["send", "fails", "\"no luck\"", "--wait", "--json"]);
    failed.failed(1, &["fails failed", "no luck"]);
    let told = failed.json();
    assert_eq!((&told["state"], &told["error"]["message"]), (&json!("FAILURE"), &json!("no luck")));
    let wrong = place.run(&pikake(), &["send", "add", "1", "--wait"]);
    wrong.failed(1, &["TypeError", "missing the argument 'b'"]);
    assert_eq!(wrong.out, "");
}

#[test]
fn send_times_out_with_an_error() {
    let place = Place::new();
    let late = place.run(&pikake(), &["send", "add", "1", "2", "--wait", "--timeout", "3"]);
    late.failed(4, &["has not ended within 3s", "Does a worker run?"]);
    let late = ["send", "add", "1", "2", "--wait", "--timeout", "3", "--json"];
    let late = place.run(&pikake(), &late);
    late.failed(4, &[]);
    assert_eq!(late.json()["state"], Value::Null);
    assert_eq!(place.counts("pikake")["ready"], 2, "the jobs are there");
}

#[test]
fn status_counts_jobs_and_purge_removes_them() {
    let place = Place::new();
    let id = place.pikake(&["send", "add", "1", "2"]);
    assert_eq!(id.len(), 36, "{id}");
    place.pikake(&["send", "add", "3", "4", "--countdown", "600"]);
    let counts = place.counts("pikake");
    let expected = json!({
        "queue": "pikake", "exists": true, "ready": 1, "taken": 0, "delayed": 1, "dead": 0, "consumers": null,
    });
    assert_eq!(counts, expected);
    let status = place.run(&application(), &["status", "--json"]).json();
    assert_eq!(status["connection"], "open");
    let text = place.pikake(&["status"]);
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["queue", "ready", "taken", "delayed", "dead", "consumers"]);
    assert_eq!(lines[2], ["pikake", "1", "0", "1", "0", "-"]);
    let unsure = place.run(&pikake(), &["purge", "pikake"]);
    unsure.failed(2, &["2 jobs would be removed", "--yes"]);
    assert_eq!(place.pikake(&["purge", "pikake", "--yes"]), "removed from pikake: 2 jobs");
    let none = place.run(&pikake(), &["purge", "pikake", "--yes", "--json"]).json();
    assert_eq!(none, json!({ "queue": "pikake", "purged": 0 }));
}

#[test]
fn replay_runs_a_job_that_was_unknown() {
    let place = Place::new();
    let ids: Vec<String> = {
        let _worker = place.worker(&application(), &["worker"]);
        let send = |value: &str| {
            let sent = place.run(&pikake(), &["send", "late", value, "--wait", "--json"]);
            sent.failed(1, &["NotRegistered", "dead replay pikake"]);
            sent.json()["id"].as_str().expect("text").to_owned()
        };
        let ids = vec![send("\"one\""), send("\"two\"")];
        wait_for("the dead", || place.counts("pikake")["dead"] == 2);
        ids
    };
    let listed = place.pikake(&["dead", "list", "pikake", "--json"]);
    let listed: Vec<Value> =
        listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(listed.iter().map(|dead| dead["id"].as_str().unwrap()).collect::<Vec<_>>(), ids);
    assert_eq!(listed[0]["job"], "late");
    assert!(listed[0]["reason"].as_str().unwrap().contains("no job `late`"), "{listed:?}");
    assert!(listed[0]["body"].as_str().unwrap().starts_with("[[\"one\"]"), "{listed:?}");
    let first = place.run(&pikake(), &["dead", "list", "pikake", "--limit", "1"]);
    assert!(first.out.contains(&ids[0]) && !first.out.contains(&ids[1]), "{first:?}");
    assert!(first.err.contains("these are 1 of 2"), "{first:?}");
    let nobody = place.run(&pikake(), &["dead", "replay", "--job", "nobody", "pikake"]);
    nobody.failed(3, &["no job nobody"]);

    let mut worker = place.command(&application(), &["worker", "--json"]);
    worker.env("TEST_APP_KNOWS_LATE", "1");
    let mut worker = Running::start(worker);
    worker.until("the worker is ready");
    let one =
        place.run(&pikake(), &["dead", "replay", "--job", &ids[1], "pikake", "--json"]).json();
    assert_eq!(one, json!({ "queue": "pikake", "replayed": 1 }));
    assert_eq!(place.pikake(&["dead", "replay", "pikake"]), "in pikake again: 1 job");
    wait_for("the jobs", || {
        let counts = place.counts("pikake");
        counts["ready"] == 0 && counts["taken"] == 0
    });
    assert_eq!(place.counts("pikake")["dead"], 0);
    worker.signal(rustix::process::Signal::TERM);
    let report = worker.end();
    assert_eq!((report.code, &report.json()["jobs"]["late"]["done"]), (Some(0), &json!(2)));
}

#[test]
fn options_of_send_reach_the_job() {
    let place = Place::new();
    let send = |more: &[&str]| place.pikake(&[&["send", "add", "1", "2"], more].concat());
    assert_eq!(send(&["--id", "later", "--eta", "2100-01-31T07:00:00+01:00"]), "later");
    assert_eq!(place.counts("pikake")["delayed"], 1);
    send(&["--id", "late", "--expires", "0"]);
    let worker = place.worker(&application(), &["worker"]);
    wait_for("the expiry", || place.run(&pikake(), &["result", "late"]).code == Some(1));
    place.run(&pikake(), &["result", "late"]).failed(1, &["late was revoked: expired"]);
    assert_eq!(place.counts("pikake")["delayed"], 1);
    drop(worker);
}

#[test]
fn result_has_state_value_and_error() {
    let place = Place::new();
    place.run(&pikake(), &["result", "nope"]).failed(3, &["there is no database"]);
    let worker = place.worker(&application(), &["worker"]);
    place.pikake(&["send", "add", "2", "3", "--id", "sum", "--wait"]);
    assert_eq!(place.pikake(&["result", "sum"]), "5");
    let sum = place.run(&pikake(), &["result", "sum", "--json"]).json();
    assert_eq!(sum, json!({ "id": "sum", "state": "SUCCESS", "value": 5 }));
    place.run(&pikake(), &["send", "fails", "\"no luck\"", "--id", "bad", "--wait"]).failed(1, &[]);
    let bad = place.run(&pikake(), &["result", "bad", "--json"]);
    bad.failed(1, &["bad failed", "no luck"]);
    let bad = bad.json();
    assert_eq!((&bad["state"], &bad["error"]["message"]), (&json!("FAILURE"), &json!("no luck")));
    place.run(&pikake(), &["result", "nope"]).failed(3, &["no result of job nope is known"]);
    drop(worker);
}

#[test]
fn wrong_command_lines_are_refused() {
    let place = Place::new();
    let wrong = |arguments: &[&str], said: &[&str]| place.run(&pikake(), arguments).failed(2, said);
    wrong(&["send", "add", "1", "x y"], &["argument 2 of `add`, `x y`, is not JSON", "'\"x y\"'"]);
    wrong(&["send", "add", "--kwargs", "[1]"], &["--kwargs `[1]` is not a JSON object"]);
    wrong(&["send", "add", "--eta", "noon"], &["--eta"]);
    wrong(&["send", "add", "--eta", "2027-01-31T07:00:00Z", "--countdown", "1"], &["--countdown"]);
    wrong(&["send", "add", "--priority", "256"], &["--priority"]);
    wrong(&["send", "add", "--countdown", "-1"], &["--countdown"]);
    wrong(&["send"], &["NAME"]);
    wrong(&["dance"], &["dance"]);
    wrong(&["status", "--broker", "nonsense"], &["`nonsense` is not a broker's URL", "sqlite://"]);
    wrong(&["status", "--broker", "pigeon://loft"], &["`pigeon://loft` is not a broker's URL"]);
    wrong(&["status", "--broker", "memory://"], &["inside one process"]);
    let typo = place.run(&application(), &["send", "sqare", "12"]);
    typo.failed(2, &["this program has no job `sqare`; did you mean `square`?", "--unregistered"]);
    let unlike = place.run(&application(), &["send", "zzz"]);
    unlike.failed(2, &["no job `zzz`; its jobs are: add, "]);
    let zero = place.run(&application(), &["worker", "--concurrency", "0"]);
    zero.failed(2, &["a number of at least 1"]);
    let mut nowhere = place.command(&pikake(), &["status"]);
    nowhere.env_remove("PIKAKE_BROKER");
    run(nowhere).failed(2, &["which broker?", "PIKAKE_BROKER"]);
    assert_eq!(place.count(""), 0, "and nothing was made");
}

#[test]
fn missing_brokers_and_queues_are_errors() {
    let place = Place::new();
    let missing =
        |arguments: &[&str], said: &[&str]| place.run(&pikake(), arguments).failed(3, said);
    missing(&["status"], &["there is no database", "no job was sent there yet"]);
    missing(&["send", "add", "--broker", "sqlite:///no/such/folder/jobs.db"], &["does not exist"]);
    // A socket that is only bound does not listen at its port.
    let bound = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = bound.local_addr().unwrap();
    drop(bound);
    let url = format!("amqp://ann:secret@{address}/");
    let down = place.run(&pikake(), &["send", "add", "1", "2", "--broker", &url]);
    down.failed(3, &["cannot be reached", &address.to_string(), "rabbitmq-server", "sqlite://"]);
    assert!(!down.err.contains("secret"), "{down:?}");
    place.pikake(&["send", "add", "1", "2"]);
    for command in [&["status", "nope"][..], &["purge", "nope"], &["dead", "list", "nope"]] {
        missing(command, &["there is no queue `nope`", "`status` shows"]);
    }
    std::fs::write(place.folder().join("letter.db"), "not a database, but quite a long text")
        .unwrap();
    let letter = format!("sqlite://{}", place.folder().join("letter.db").display());
    missing(&["status", "--broker", &letter], &["letter.db"]);
}

#[test]
fn worker_runs_only_its_queues() {
    let place = Place::new();
    let _worker =
        place.worker(&application(), &["worker", "-Q", "greetings,other", "--queue", "new"]);
    let send = ["send", "add", "1", "2", "--wait", "--timeout", "3"];
    place.run(&pikake(), &send).failed(4, &[]);
    assert_eq!(place.counts("pikake")["ready"], 1);
    assert_eq!(place.pikake(&["send", "add", "1", "2", "--queue", "new", "--wait"]), "3");
}

#[test]
fn pikake_worker_becomes_the_application() {
    let place = Place::new();
    place.run(&pikake(), &["worker"]).failed(2, &["whose worker?", "pikake_cli::run(app)"]);
    place
        .run(&pikake(), &["worker", "/no/such/program"])
        .failed(2, &["cannot be run", "No such file"]);
    let application = application();
    let path = application.to_str().unwrap();
    let arguments = ["worker", path, "--json", "--", "--queue", "only"];
    let worker = place.worker(&pikake(), &arguments);
    assert_eq!(place.pikake(&["send", "add", "1", "2", "--queue", "only", "--wait"]), "3");
    worker.signal(rustix::process::Signal::INT);
    let ended = worker.end();
    assert_eq!((ended.code, &ended.json()["all"]["done"]), (Some(0), &json!(1)));
}

#[test]
fn failed_setup_of_an_application_is_reported() {
    let place = Place::new();
    let failed = place.run(&example("async_celery"), &[]);
    failed.failed(5, &["the setup of the application failed", "give an `amqp://` URL"]);
}

#[test]
fn broken_pipe_ends_the_program_silently() {
    let place = Place::new();
    place.pikake(&["send", "add", "1", "2"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = place.command(&pikake(), &["status"]);
    let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(0), ""));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = place.command(&pikake(), &["status"]);
    let ended = command.stdout(full).output().unwrap();
    assert_eq!(ended.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("standard output cannot be written"));
}

#[test]
fn worker_of_a_replaced_program_starts_processes() {
    let place = Place::new();
    let program = application().with_file_name(format!("replaced-{}", std::process::id()));
    std::fs::hard_link(application(), &program).unwrap();
    let _worker = place.worker(&program, &["worker"]);
    std::fs::remove_file(&program).unwrap();
    assert_eq!(place.pikake(&["send", "square", "12", "--wait", "--timeout", "20"]), "144");
}

#[test]
fn broken_pipe_keeps_the_exit_code() {
    let place = Place::new();
    let _worker = place.worker(&application(), &["worker"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let arguments = ["send", "fails", "\"no\"", "--wait", "--json"];
    let mut command = place.command(&pikake(), &arguments);
    let ended = command.stdout(writer).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
}

#[test]
fn escape_sequences_do_not_reach_the_terminal() {
    let place = Place::new();
    let name = "\u{1b}[2Jgone\nnot a row";
    let worker = place.worker(&application(), &["worker"]);
    let ended = place.run(&pikake(), &["send", name, "--wait"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    wait_for("the dead", || place.counts("pikake")["dead"] == 1);
    drop(worker);
    let list = place.pikake(&["dead", "list", "pikake"]);
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(!list.contains('\u{1b}') && list.contains(r"\u{1b}[2Jgone\nnot a row"), "{list}");
    let json = place.run(&pikake(), &["dead", "list", "pikake", "--json"]).json();
    assert_eq!(json["job"], name, "as it is");
}
