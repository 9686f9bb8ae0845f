//! What a worker does on a command, and its reply: as Celery's workers, in the same words.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use pikake_traps::{elapsed_since, sleep, wall_time};
use serde_json::{Map, Value, json};

use crate::broker::Delivery;
use crate::client::app::{Registered, TimeLimits};
use crate::control::EndedRuns;
use crate::control::command::{Command, seconds};
use crate::control::events::load_average;
use crate::control::revoked::{each, stamps_of};
use crate::control::serve::revoked_ids;
use crate::message::Message;
use crate::options::Acks;
use crate::rate::Rate;
use crate::wire::reason::cut;
use crate::wire::request::Request;
use crate::worker::state::{Phase, WorkerState};

/// How long a terminated job may clean up before it is aborted.
const TERMINATE_GRACE: Duration = Duration::from_secs(5);
/// How many bytes of each job's arguments a listing has.
const LONGEST_ARGUMENTS: usize = 1_024;
/// The largest body that is read for a listing, in bytes: all jobs of the kernel stand still
/// meanwhile.
const LARGEST_READ: usize = 64 << 10;
/// How many jobs a listing has at most, so that brokers take it.
const MOST_LISTED: usize = 5_000;
/// The longest name of a queue or job that is kept or listed, in bytes: AMQP's limit.
const LONGEST_NAME: usize = 255;
/// How many queues may be paused.
const MOST_PAUSED: usize = 1_000;
/// The most jobs that run at a time by command.
const MOST_CONCURRENCY: usize = 100_000;

/// Executes a command. `None`: the command is unknown, or has no reply.
pub(crate) fn answer(worker: &Rc<WorkerState>, command: &Command) -> Option<Value> {
    let done = match command.method.as_str() {
        "ping" => ok("pong"),
        "heartbeat" | "election" => Ok(Value::Null),
        "clock" => Ok(json!({"clock": worker.events.clock()})),
        "hello" => return hello(worker, command),
        "stats" => Ok(stats(worker)),
        "active" => Ok(list(worker, Listed::Running)),
        "reserved" => Ok(list(worker, Listed::Reserved)),
        // Messages wait for their time at the broker.
        "scheduled" => Ok(json!([])),
        "query_task" => Ok(query(worker, command)),
        "revoked" => Ok(worker.app.0.revoked.borrow().iter().map(|(id, _)| id).collect()),
        "registered" => Ok(registered(worker, command)),
        "active_queues" => Ok(queues(worker)),
        "conf" => Ok(conf(worker)),
        "report" => ok(report(worker)),
        "revoke" => {
            revoke(worker, command, command.arguments.get("terminate") == Some(&true.into()))
        }
        "terminate" => revoke(worker, command, true),
        "revoke_by_stamped_headers" => revoke_by_stamps(worker, command),
        "rate_limit" => rate_limit(worker, command),
        "time_limit" => time_limit(worker, command),
        "enable_events" => match worker.events.turn(true) {
            false => ok("task events enabled"),
            true => ok("task events already enabled"),
        },
        "disable_events" => match worker.events.turn(false) {
            true => ok("task events disabled"),
            false => ok("task events already disabled"),
        },
        "add_consumer" => with_queue(command, |queue| {
            worker.consumers.add(queue);
            worker.update_consumers();
            format!("add consumer {queue}")
        }),
        "cancel_consumer" => with_queue(command, |queue| {
            worker.consumers.remove(queue);
            worker.update_consumers();
            format!("no longer consuming from {queue}")
        }),
        PAUSE if !may_pause(worker, command) => Err("ValueError('too many queues')".to_owned()),
        PAUSE => with_queue(command, |queue| pause(worker, queue, true)),
        RESUME => with_queue(command, |queue| pause(worker, queue, false)),
        "pool_grow" => resize(worker, command, "pool will grow", usize::saturating_add),
        "pool_shrink" => resize(worker, command, "pool will shrink", usize::saturating_sub),
        CONCURRENCY => resize(worker, command, "pool will be resized", |_, limit| limit),
        "pool_restart" => Err("ValueError('Pool restarts not enabled')".to_owned()),
        "autoscale" => Err("ValueError('Autoscale not enabled')".to_owned()),
        "shutdown" => {
            worker.advance(Phase::Warm);
            return None;
        }
        _ => return None,
    };
    Some(done.unwrap_or_else(|why| json!({ "error": why })))
}

/// The command that pauses a queue; Celery has none.
pub(crate) const PAUSE: &str = "pause_queue";
/// The command that resumes a queue.
pub(crate) const RESUME: &str = "resume_queue";
/// The command that sets how many jobs run at a time.
pub(crate) const CONCURRENCY: &str = "pool_resize";

/// The reply, or the text of an error.
type Done = Result<Value, String>;

fn ok(text: impl Into<String>) -> Done {
    Ok(json!({ "ok": text.into() }))
}

fn missing(argument: &str) -> String {
    format!("TypeError(\"missing the argument '{argument}'\")")
}

/// Executes a command for the queue that it names.
fn with_queue(command: &Command, work: impl FnOnce(&str) -> String) -> Done {
    match command.text("queue") {
        Some("") | None => Err(missing("queue")),
        Some(queue) if queue.len() > LONGEST_NAME => {
            Err(format!("ValueError('the name of a queue has {LONGEST_NAME} bytes at most')"))
        }
        Some(queue) => ok(work(queue)),
    }
}

/// Tells a worker that starts what this one knows, and learns what that one knows.
fn hello(worker: &WorkerState, command: &Command) -> Option<Value> {
    if command.text("from_node") == Some(&*worker.app.worker_name()) {
        return None;
    }
    learn(worker, &Value::Object(command.arguments.clone()));
    let paused = &*worker.app.0.control.paused.borrow();
    Some(json!({
        "revoked": revoked_ids(worker),
        "clock": worker.events.tick(),
        "paused": paused,
    }))
}

/// Learns from another worker which jobs are revoked (a list, or an object by id) and which queues
/// are paused.
pub(crate) fn learn(worker: &WorkerState, told: &Value) {
    let control = &worker.app.0.control;
    let now = wall_time();
    let mut revoked = worker.app.0.revoked.borrow_mut();
    let ids: Vec<String> = match &told["revoked"] {
        Value::Array(ids) => ids.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Value::Object(ids) => ids.keys().cloned().collect(),
        _ => Vec::new(),
    };
    for id in ids {
        if revoked.insert(id, now, now) {
            control.changed.set();
        }
    }
    if let Value::Array(queues) = &told["paused"] {
        let names = queues.iter().filter_map(Value::as_str);
        let names = names.filter(|name| name.len() <= LONGEST_NAME).take(MOST_PAUSED);
        control.set_paused(names.map(str::to_owned).collect());
    }
    worker.events.adjust(told["clock"].as_u64().unwrap_or(0));
}

fn stats(worker: &WorkerState) -> Value {
    let app = &worker.app;
    let stats = app.stats();
    let total: Map<String, Value> = stats
        .by_job
        .iter()
        .map(|(name, job)| (*name, job.done + job.failed + job.retried + job.revoked + job.dead))
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect();
    let uptime = wall_time().duration_since(worker.since).unwrap_or_default().as_secs();
    let limit = app.0.concurrency.get();
    json!({
        "total": total,
        "pid": std::process::id(),
        "clock": worker.events.clock().to_string(),
        "uptime": uptime,
        "pool": {
            "implementation": "pikake_jobs:Worker",
            "max-concurrency": limit,
            "processes": worker.processes.ids(),
            "max-tasks-per-child": "N/A",
            "put-guarded-by-semaphore": true,
            "timeouts": [0, 0],
        },
        "broker": broker(worker),
        "prefetch_count": worker.prefetch(),
        "rusage": {},
        "loadavg": load_average(),
        "paused": &*app.0.control.paused.borrow(),
        "jobs": ended_runs(worker),
    })
}

/// The runs of each job that have ended. Celery's workers do not tell them.
fn ended_runs(worker: &WorkerState) -> BTreeMap<&'static str, EndedRuns> {
    let jobs = worker.app.0.jobs.borrow();
    let ended = jobs.iter().map(|(name, job)| {
        let counts = job.counters.get();
        let runs = EndedRuns {
            succeeded: counts.done,
            failed: counts.failed + counts.dead,
            retried: counts.retried,
            revoked: counts.revoked,
            run_times: job.run_times.counts(),
            longest: job.run_times.longest().as_secs_f64(),
        };
        (*name, runs)
    });
    ended.filter(|(_, runs)| *runs != EndedRuns::default()).collect()
}

/// The broker, without user and password.
fn broker(worker: &WorkerState) -> Value {
    let url = worker.app.redacted_url();
    let (transport, rest) = url.split_once("://").unwrap_or(("", &url));
    let rest = rest.strip_prefix("…@").unwrap_or(rest);
    let (hostname, virtual_host) = rest.split_once('/').unwrap_or((rest, "/"));
    let (hostname, port) = hostname.rsplit_once(':').unwrap_or((hostname, ""));
    json!({
        "transport": transport,
        "hostname": hostname,
        "port": port.parse::<u16>().ok(),
        "virtual_host": virtual_host,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Listed {
    Running,
    Reserved,
}

/// Calls `each` for all jobs here, with their state and the time of their begin.
fn each_job(worker: &WorkerState, mut each: impl FnMut(&Message, &str, Option<Begun>)) {
    let now = wall_time();
    worker.running.each(|delivery: &Delivery, begun| {
        let begun = begun.and_then(|(facts, began)| {
            let at = now.checked_sub(elapsed_since(began))?;
            Some(Begun { at, progress: facts.progress() })
        });
        each(&delivery.message, &delivery.queue, begun);
    });
    worker.consumers.each_reserved(|delivery| each(&delivery.message, &delivery.queue, None));
}

/// A job that runs.
struct Begun {
    at: SystemTime,
    progress: Option<Value>,
}

fn list(worker: &WorkerState, listed: Listed) -> Value {
    let mut jobs = Vec::new();
    each_job(worker, |message, queue, begun| {
        if begun.is_some() == (listed == Listed::Running) && jobs.len() < MOST_LISTED {
            jobs.push(describe(worker, message, queue, begun));
        }
    });
    jobs.into()
}

/// A job as Celery lists it.
fn describe(worker: &WorkerState, message: &Message, queue: &str, begun: Option<Begun>) -> Value {
    let header = |name: &str| message.headers.get(name).and_then(Value::as_str);
    let name = cut(header("task").unwrap_or_default(), LONGEST_NAME);
    let short = |text| Value::from(cut(text, LONGEST_ARGUMENTS / 2));
    let request = (message.body.len() <= LARGEST_READ).then(|| Request::read(message));
    let (args, kwargs) = match request {
        Some(Ok(request)) if request.args.len() + request.kwargs.len() <= LONGEST_ARGUMENTS => {
            let read = |text| serde_json::from_str(text).unwrap_or(Value::Null);
            (read(request.args), read(request.kwargs))
        }
        Some(Ok(request)) => (short(request.args), short(request.kwargs)),
        Some(Err(_)) => (Value::Null, Value::Null),
        None => {
            let shown = |name| header(name).map(short).unwrap_or_default();
            (shown("argsrepr"), shown("kwargsrepr"))
        }
    };
    let definition = worker.app.0.jobs.borrow().get(name).map(|job| job.definition);
    let is_early = definition.is_some_and(|job| job.options.acks == Acks::Early);
    let mut job = json!({
        "id": message.job(),
        "name": name,
        "args": args,
        "kwargs": kwargs,
        "type": name,
        "hostname": worker.app.worker_name(),
        "time_start": begun.as_ref().map(|begun| seconds(begun.at)),
        "acknowledged": begun.is_some() && is_early,
        "delivery_info": {
            "exchange": "",
            "routing_key": queue,
            "priority": message.priority,
            "redelivered": false,
        },
        "worker_pid": begun.as_ref().map(|_| std::process::id()),
    });
    // Celery's workers do not tell it.
    if let Some(progress) = begun.and_then(|begun| begun.progress) {
        job["progress"] = shown(progress);
    }
    job
}

/// A job's progress, as text if it is long.
fn shown(progress: Value) -> Value {
    let text = progress.to_string();
    match text.len() <= LONGEST_ARGUMENTS {
        true => progress,
        false => cut(&text, LONGEST_ARGUMENTS).into(),
    }
}

fn query(worker: &WorkerState, command: &Command) -> Value {
    let ids = match command.arguments.get("ids") {
        Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(id)) => vec![id.as_str()],
        _ => Vec::new(),
    };
    let mut found = Map::new();
    each_job(worker, |message, queue, begun| {
        let Some(id) = message.job().filter(|id| ids.contains(id)) else { return };
        let state = if begun.is_some() { "active" } else { "reserved" };
        found.insert(id.to_owned(), json!([state, describe(worker, message, queue, begun)]));
    });
    found.into()
}

/// The names of the jobs, each with the facts that the command asks for: `tasks.add [priority=3]`.
fn registered(worker: &WorkerState, command: &Command) -> Value {
    let wanted = match command.arguments.get("taskinfoitems") {
        Some(Value::Array(names)) if !names.is_empty() => {
            names.iter().filter_map(Value::as_str).collect()
        }
        _ => vec!["rate_limit"],
    };
    let jobs = worker.app.0.jobs.borrow();
    let describe = |name: &str, job: &Registered| {
        let facts =
            wanted.iter().filter_map(|fact| Some(format!("{fact}={}", fact_of(job, fact)?)));
        let facts: Vec<_> = facts.collect();
        match facts.is_empty() {
            true => name.to_owned(),
            false => format!("{name} [{}]", facts.join(" ")),
        }
    };
    jobs.iter().map(|(name, job)| describe(name, job)).collect()
}

/// An attribute of Celery's tasks that a job has, as Python writes it.
fn fact_of(job: &Registered, name: &str) -> Option<String> {
    let options = &job.definition.options;
    let seconds = |limit: Option<Duration>| limit.map(|limit| limit.as_secs_f64().to_string());
    match name {
        "name" => Some(job.definition.name.to_owned()),
        "queue" => options.queue.map(str::to_owned),
        "rate_limit" => job.limiter.rate().map(|rate| rate.to_string()),
        "max_retries" => Some(options.retries.to_string()),
        "time_limit" => seconds(job.limits.get().hard),
        "soft_time_limit" => seconds(job.limits.get().soft),
        "expires" => seconds(options.expires),
        "priority" => Some(options.priority.to_string()),
        "acks_late" => Some(python(&(options.acks == Acks::Late).into())),
        "ignore_result" => Some(python(&options.ignore_result.into())),
        _ => None,
    }
}

/// The queues in the form of kombu, with the exchange that Celery's senders bind to each.
fn queues(worker: &WorkerState) -> Value {
    let declared = worker.app.queues();
    let describe = |name: String| {
        let options = declared.get(&name).cloned().unwrap_or_default();
        let max_priority = (options.max_priority > 0).then_some(options.max_priority);
        let arguments = options.replicated.then(|| json!({"x-queue-type": "quorum"}));
        json!({
            "name": name,
            "exchange": {
                "name": name,
                "type": "direct",
                "arguments": null,
                "durable": true,
                "passive": false,
                "auto_delete": false,
                "delivery_mode": null,
                "no_declare": false,
            },
            "routing_key": name,
            "queue_arguments": arguments,
            "binding_arguments": null,
            "consumer_arguments": null,
            "durable": true,
            "exclusive": false,
            "auto_delete": false,
            "no_ack": false,
            "no_declare": null,
            "alias": null,
            "bindings": [],
            "expires": null,
            "message_ttl": null,
            "max_length": null,
            "max_length_bytes": null,
            "max_priority": max_priority,
        })
    };
    worker.consumers.queues().into_iter().map(describe).collect()
}

/// The settings under Celery's names, and those that Celery does not have.
fn conf(worker: &WorkerState) -> Value {
    let app = &worker.app;
    let results = app.results_url().map(|url| redacted(&url));
    json!({
        "broker_url": app.redacted_url(),
        "broker_heartbeat": null,
        "result_backend": results,
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        "enable_utc": true,
        "timezone": "UTC",
        "task_acks_late": true,
        "task_default_queue": app.default_queue_name(),
        "worker_concurrency": app.0.concurrency.get(),
        "worker_send_task_events": worker.events.is_on(),
        "worker_hijack_root_logger": false,
        "worker_log_color": false,
        "include": [],
        "deprecated_settings": null,
        "worker_prefetch": worker.prefetch(),
        "max_deliveries": app.0.max_deliveries.get(),
        "max_kills": app.0.max_kills.get(),
    })
}

/// A URL without user and password.
fn redacted(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}

fn report(worker: &WorkerState) -> String {
    let app = &worker.app;
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!(
        "\nsoftware -> pikake:{version}\nplatform -> system:{} arch:{}\nsettings -> broker:{}\n\n",
        std::env::consts::OS,
        std::env::consts::ARCH,
        app.redacted_url(),
    );
    for (name, value) in conf(worker).as_object().into_iter().flatten() {
        text.push_str(&format!("{name}: {value}\n"));
    }
    text
}

fn revoke(worker: &Rc<WorkerState>, command: &Command, terminates: bool) -> Done {
    let ids: Vec<&str> = match command.arguments.get("task_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(id)) => vec![id],
        _ => return Err(missing("task_id")),
    };
    let now = wall_time();
    for id in &ids {
        // A running job is listed, too: its message may be about to be sent again.
        if worker.app.0.revoked.borrow_mut().insert((*id).to_owned(), now, now) {
            worker.app.0.control.changed.set();
        }
    }
    if !terminates {
        let ids: Vec<_> = ids.iter().map(|id| format!("'{id}'")).collect();
        return ok(format!("tasks {{{}}} flagged as revoked", ids.join(", ")));
    }
    let at_once = is_kill(command);
    let terminated: Vec<_> = ids.into_iter().filter(|id| terminate(worker, id, at_once)).collect();
    match terminated.is_empty() {
        true => ok("terminate: tasks unknown"),
        false => ok(format!("terminate: {}", terminated.join(", "))),
    }
}

fn is_kill(command: &Command) -> bool {
    command.text("signal").is_some_and(|signal| signal.ends_with("KILL"))
}

/// Interrupts a job, and aborts it if it does not end. Whether it runs here.
fn terminate(worker: &Rc<WorkerState>, id: &str, at_once: bool) -> bool {
    let runs = worker.running.revoke(id);
    if runs {
        let (id, running) = (id.to_owned(), worker.running.clone());
        worker.app.spawn(async move {
            if at_once || sleep(TERMINATE_GRACE).await.is_ok() {
                running.abort_revoked(&id);
            }
        });
    }
    runs
}

/// Revokes all jobs with one of the values of a stamped header, those that come later and, if the
/// command says so, those that run.
fn revoke_by_stamps(worker: &Rc<WorkerState>, command: &Command) -> Done {
    let headers: Map<String, Value> = match command.arguments.get("headers") {
        Some(Value::Object(headers)) => headers.clone(),
        // As `celery control` sends them.
        Some(Value::Array(pairs)) => {
            let pairs = pairs.iter().filter_map(|pair| pair.as_str()?.split_once('='));
            pairs.map(|(name, value)| (name.to_owned(), value.into())).collect()
        }
        _ => return Err(missing("headers")),
    };
    let (now, shown) = (wall_time(), python(&Value::Object(headers.clone())));
    for (name, values) in &headers {
        for value in each(values) {
            worker.app.0.revoked.borrow_mut().insert_stamp(name, value, now);
        }
    }
    if command.arguments.get("terminate") != Some(&true.into()) {
        return ok(format!("headers {shown} flagged as revoked, but not terminated"));
    }
    let is_meant = |(name, value): (&str, &Value)| {
        headers.get(name).is_some_and(|values| each(values).contains(value))
    };
    let mut meant = Vec::new();
    worker.running.each(|delivery: &Delivery, begun| {
        if begun.is_some() && stamps_of(&delivery.message).any(is_meant) {
            meant.extend(delivery.message.job().map(str::to_owned));
        }
    });
    let at_once = is_kill(command);
    meant.retain(|id| terminate(worker, id, at_once));
    match meant.is_empty() {
        true => ok(format!("headers {shown} were not terminated")),
        false => ok(format!("headers {shown} revoked")),
    }
}

fn time_limit(worker: &WorkerState, command: &Command) -> Done {
    let name = command.text("task_name").ok_or_else(|| missing("task_name"))?;
    let job = worker.app.0.jobs.borrow().get(name).cloned();
    let job = job.ok_or("unknown task")?;
    let limit = |name: &str| match command.arguments.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let length = value.as_f64().and_then(|length| Duration::try_from_secs_f64(length).ok());
            length.map(Some).ok_or_else(|| format!("ValueError('{name} is no number of seconds')"))
        }
    };
    job.limits.set(TimeLimits { soft: limit("soft")?, hard: limit("hard")? });
    ok("time limits set successfully")
}

fn rate_limit(worker: &WorkerState, command: &Command) -> Done {
    let name = command.text("task_name").ok_or_else(|| missing("task_name"))?;
    let rate = match command.arguments.get("rate_limit") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) if text == "0" => None,
        Some(value) if value.as_f64() == Some(0.0) => None,
        Some(value) => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let invalid = |error| format!("Invalid rate limit string: ValueError(\"{error}\")");
            Some(text.parse::<Rate>().map_err(invalid)?)
        }
    };
    match worker.app.set_rate(name, rate) {
        true if rate.is_none() => ok("rate limit disabled successfully"),
        true => ok("new rate limit set successfully"),
        false => Err("unknown task".to_owned()),
    }
}

fn may_pause(worker: &WorkerState, command: &Command) -> bool {
    let paused = worker.app.0.control.paused.borrow();
    paused.len() < MOST_PAUSED || command.text("queue").is_some_and(|queue| paused.contains(queue))
}

fn pause(worker: &Rc<WorkerState>, queue: &str, is_paused: bool) -> String {
    let control = &worker.app.0.control;
    let changed = match is_paused {
        true => control.paused.borrow_mut().insert(queue.to_owned()),
        false => control.paused.borrow_mut().remove(queue),
    };
    if changed {
        control.changed.set();
        worker.update_consumers();
    }
    format!("queue {queue} is {}", if is_paused { "paused" } else { "resumed" })
}

fn resize(
    worker: &Rc<WorkerState>,
    command: &Command,
    text: &str,
    limit: impl FnOnce(usize, usize) -> usize,
) -> Done {
    let by = command.arguments.get("n").map_or(Some(1), Value::as_u64);
    let by = by.and_then(|by| usize::try_from(by).ok());
    let by = by.ok_or("ValueError('n is no number of jobs')")?;
    let now = worker.app.0.concurrency.get();
    match limit(now, by) {
        0 => Err("ValueError('a worker runs at least one job')".to_owned()),
        limit if limit > MOST_CONCURRENCY => Err("ValueError('n is too large')".to_owned()),
        limit => {
            worker.set_concurrency(limit);
            worker.update_consumers();
            ok(text)
        }
    }
}

/// A value as Python writes it.
fn python(value: &Value) -> String {
    let all = |parts: &mut dyn Iterator<Item = String>| parts.collect::<Vec<_>>().join(", ");
    let text = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(it) => text(it),
        Value::Array(values) => format!("[{}]", all(&mut values.iter().map(python))),
        Value::Object(values) => {
            let mut pairs =
                values.iter().map(|(name, value)| format!("{}: {}", text(name), python(value)));
            format!("{{{}}}", all(&mut pairs))
        }
    }
}
