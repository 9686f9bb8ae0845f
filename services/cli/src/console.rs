//! The commands that look into a live process: one request each, answered as text or JSON.

mod lines;
mod top;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use pikake::console::answer::Answer;
use pikake::console::client::{Client, ClientError, TIMEOUT};
use pikake::console::groups;
use pikake::console::model::{Kernel, Process, TaskKey};
use pikake::console::page::write_page;
use pikake::console::place;
use pikake::console::protocol::Request;
use pikake::console::text::{self, Ids};
use pikake::console::trace::TraceWriter;
use serde_json::{Value, json};

pub(crate) use self::lines::read_lines;
use crate::arguments::{LookCommand, PsOptions};
use crate::functions::name_functions;
use crate::output::{Output, Spinner, note};
use crate::stop::Stop;

/// How long the list of processes waits for each of them.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// How a program gets a console.
const HINT: &str = "A process has one if its program has the feature `console` of pikake, and either\n\
                    `#[pikake::main(console)]` or the variable PIKAKE_CONSOLE=1.";

/// Lists the processes that have a console.
pub(crate) fn list(output: Output) -> Result<(), Stop> {
    let mut found = Vec::new();
    for listening in place::processes().map_err(Stop::other)? {
        let pid = listening.pid;
        match Client::connect_to(&listening.path, LIST_TIMEOUT) {
            Ok(mut client) => {
                let process = client.process().clone();
                found.push((process, count_tasks(&mut client)));
            }
            // It has ended since.
            Err(ClientError::Closed(_)) => {}
            Err(error) => note(&format!("process {pid}: {}", text::escaped(&error.to_string()))),
        }
    }
    output.answer(
        || {
            let all = found.iter().map(|(process, tasks)| with(process, json!({ "tasks": tasks })));
            json!({ "processes": all.collect::<Vec<Value>>() })
        },
        || {
            let table = match found.is_empty() {
                true => format!("no process has a console\n{HINT}\n"),
                false => text::processes(&found),
            };
            table + "\n`pikake ps PID` lists the tasks of a process, and `pikake --help` all commands.\n"
        },
    )
}

/// The number of a process' tasks, if all its kernels answer.
fn count_tasks(client: &mut Client) -> Option<u64> {
    let kernels = Answer::of(client.ask(&Request::Kernels).ok()?).ok()?.kernels;
    if kernels.iter().any(is_silent) {
        return None;
    }
    let stats = Answer::of(client.ask(&Request::Stats).ok()?).ok()?.stats;
    Some(stats.iter().map(|stats| stats.tasks).sum())
}

/// Whether the kernel did not answer.
fn is_silent(kernel: &Kernel) -> bool {
    kernel.stuck.is_some() || kernel.stale.is_some()
}

/// The fields of an object, and those of another one.
fn with(process: &Process, more: Value) -> Value {
    let mut value = json!(process);
    if let (Value::Object(fields), Value::Object(more)) = (&mut value, more) {
        fields.extend(more);
    }
    value
}

/// The process that a command is for.
pub(crate) fn choose(pid: Option<u32>) -> Result<u32, Stop> {
    if let Some(pid) = pid {
        return Ok(pid);
    }
    let all = place::processes().map_err(Stop::other)?;
    match &all[..] {
        [one] => Ok(one.pid),
        [] => Err(Stop::absent(format!("no process has a console\n{HINT}"))),
        _ => {
            let pids: Vec<String> = all.iter().map(|listening| listening.pid.to_string()).collect();
            Err(Stop::usage(format!("which process? These have a console: {}", pids.join(", "))))
        }
    }
}

/// Connects to a process.
pub(crate) fn connect(pid: u32) -> Result<Client, Stop> {
    Client::connect(pid, TIMEOUT).map_err(Stop::console)
}

fn ask(client: &mut Client, request: &Request) -> Result<Answer, Stop> {
    match client.ask(request) {
        Err(ClientError::Failed(why)) if why.contains("no request of the protocol") => {
            let version = text::escaped(&client.process().pikake);
            Err(Stop::refused(format!(
                "the process has pikake {version}, which cannot answer this"
            )))
        }
        Err(error) => Err(Stop::console(error)),
        Ok(parts) => Answer::of(parts).map_err(Stop::refused),
    }
}

/// Asks for or about a task of one of these kernels.
fn ask_of_task(
    client: &mut Client,
    request: &Request,
    task: TaskKey,
    kernels: &[Kernel],
) -> Result<Answer, Stop> {
    match client.ask(request) {
        Err(ClientError::Failed(why))
            if kernels.iter().any(|kernel| kernel.id == task.kernel && is_silent(kernel)) =>
        {
            Err(Stop::timed_out(text::escaped(&why)))
        }
        Err(error) => Err(Stop::console(error)),
        Ok(parts) => Answer::of(parts).map_err(Stop::refused),
    }
}

/// Runs a command. If the process is fixed, the command does not name one.
pub(crate) fn look(command: LookCommand, fixed: Option<u32>, output: Output) -> Result<(), Stop> {
    let pid = match (&command, fixed) {
        (LookCommand::Cancel(_), Some(pid)) => pid,
        (command, Some(pid)) if command.pid().is_none() => pid,
        (_, Some(pid)) => {
            let message = format!("the commands are for process {pid}: leave the number out");
            return Err(Stop::usage(message));
        }
        (command, None) => choose(command.pid())?,
    };
    let mut client = connect(pid)?;
    match command {
        LookCommand::Ps(options) => ps(client, &options, output),
        LookCommand::Tree(_) => tasks(client, true, output, text::tree),
        LookCommand::Where { task, .. } => {
            let (task, kernels) = find(&mut client, &task)?;
            let request = Request::Task { task };
            let answer = ask_of_task(&mut client, &request, task, &kernels)?;
            if answer.tasks.is_empty() {
                return Err(no_task(task, &kernels));
            }
            let answer = Answer { kernels, ..answer };
            output.answer(|| tasks_json(&answer), || text::where_(&answer))
        }
        LookCommand::Waits { leaks: true, .. } => {
            let answer = ask(&mut client, &Request::Leaks)?;
            let json = || {
                json!({
                    "kernels": answer.kernels, "growing": answer.growing,
                    "waits_for_ended": answer.waits_for_ended,
                })
            };
            output.answer(json, || text::leaks(&answer))
        }
        LookCommand::Waits { dot, .. } => {
            let answer = ask(&mut client, &Request::Waits)?;
            let json = || json!({ "kernels": answer.kernels, "tasks": answer.tasks, "graph": answer.graph });
            output.answer(json, || if dot { text::dot(&answer) } else { text::waits(&answer) })
        }
        LookCommand::Stats(_) => {
            let kernels = ask(&mut client, &Request::Kernels)?.kernels;
            let answer = Answer { kernels, ..ask(&mut client, &Request::Stats)? };
            let json = || json!({ "process": answer.process, "kernels": answer.kernels, "stats": answer.stats });
            output.answer(json, || text::stats(&answer))
        }
        LookCommand::Locks(_) => {
            let kernels = ask(&mut client, &Request::Kernels)?.kernels;
            let answer = Answer { kernels, ..ask(&mut client, &Request::Locks)? };
            output.answer(|| json!({ "locks": answer.locks }), || text::locks(&answer))
        }
        LookCommand::Blocked(_) => {
            let kernels = ask(&mut client, &Request::Kernels)?.kernels;
            let mut answer = Answer { kernels, ..ask(&mut client, &Request::Blocked)? };
            // A process of a version before keeps no long steps.
            if let Ok(over) = ask(&mut client, &Request::LongSteps) {
                answer.blocked.extend(over.blocked);
            }
            name_functions(pid, &mut answer);
            output.answer(|| json!({ "blocked": answer.blocked }), || text::blocked(&answer))
        }
        LookCommand::Cancel(options) if options.terminates() => {
            Err(Stop::usage("`--terminate` is for the id of a job; `abort` drops a task"))
        }
        LookCommand::Cancel(options) => {
            let (_, task, reason) = options.parts(fixed.is_some());
            let (task, kernels) = find(&mut client, task)?;
            end(&mut client, &Request::Cancel { task, reason }, task, &kernels, output)
        }
        LookCommand::Abort { task, .. } => {
            let (task, kernels) = find(&mut client, &task)?;
            end(&mut client, &Request::Abort { task }, task, &kernels, output)
        }
        LookCommand::Trace { seconds, perfetto, .. } => {
            trace(client, seconds, perfetto.as_deref(), output)
        }
        LookCommand::Profile { seconds, html, .. } => {
            profile(client, pid, seconds, html.as_deref(), output)
        }
        LookCommand::Top(_) if output.is_json() => {
            Err(Stop::usage("`top` needs a terminal; `ps --json` is for programs"))
        }
        LookCommand::Top(_) => top::run(client, connect(pid).ok()),
    }
}

fn tasks(
    mut client: Client,
    waits: bool,
    output: Output,
    text: fn(&Answer) -> String,
) -> Result<(), Stop> {
    let answer = ask(&mut client, &Request::Tasks { waits })?;
    output.answer(|| tasks_json(&answer), || text(&answer))
}

fn ps(mut client: Client, options: &PsOptions, output: Output) -> Result<(), Stop> {
    let mut answer = ask(&mut client, &Request::Tasks { waits: false })?;
    if let Some(name) = &options.name {
        answer.tasks.retain(|task| task.name.contains(name));
    }
    if let Some(key) = options.sort {
        groups::sort(&mut answer.tasks, key.into());
    }
    let json = || {
        let shown = options.limit.unwrap_or(answer.tasks.len()).min(answer.tasks.len());
        json!({ "kernels": answer.kernels, "tasks": answer.tasks[..shown] })
    };
    output.answer(json, || match options.group {
        true => text::ps_groups(&answer, options.limit),
        false => text::ps(&answer, options.all, options.limit),
    })
}

fn tasks_json(answer: &Answer) -> Value {
    json!({ "kernels": answer.kernels, "tasks": answer.tasks })
}

/// The task that the text names, and the kernels of the process.
fn find(client: &mut Client, task: &str) -> Result<(TaskKey, Vec<Kernel>), Stop> {
    let kernels = ask(client, &Request::Kernels)?.kernels;
    let task = Ids::of(&kernels).parse(task).map_err(Stop::usage)?;
    Ok((task, kernels))
}

fn no_task(task: TaskKey, kernels: &[Kernel]) -> Stop {
    let id = Ids::of(kernels).show(task);
    Stop::absent(format!("there is no task {id}: it has ended, or never was; `ps` lists the tasks"))
}

/// Cancels or aborts a task.
fn end(
    client: &mut Client,
    request: &Request,
    task: TaskKey,
    kernels: &[Kernel],
    output: Output,
) -> Result<(), Stop> {
    let answer = ask_of_task(client, request, task, kernels)?;
    let (has_ended, how) = answer.ended.ok_or_else(|| no_task(task, kernels))?;
    let id = Ids::of(kernels).show(task);
    output.answer(
        || json!({ "task": task, "ended": has_ended, "text": how }),
        || format!("task {id}: {}", text::escaped(&how)),
    )?;
    if has_ended { Ok(()) } else { Err(Stop::task_lives()) }
}

/// The seconds of a request, and a spinner for that time.
fn record(what: &str, length: Duration) -> (f64, Spinner) {
    let seconds = length.as_secs_f64();
    (seconds, Spinner::new(format!("{what} for {seconds} s")))
}

fn trace(
    mut client: Client,
    length: Option<Duration>,
    perfetto: Option<&Path>,
    output: Output,
) -> Result<(), Stop> {
    let file = perfetto.map(create).transpose()?;
    // Their names: also of tasks that end meanwhile, and of those that begin.
    let mut named = ask(&mut client, &Request::Tasks { waits: false })?.tasks;
    let spinner = length.map(|length| record("recording", length));
    let seconds = spinner.as_ref().map(|(seconds, _)| *seconds);
    let traced = ask(&mut client, &Request::Trace { seconds })?;
    drop(spinner);
    let after = ask(&mut client, &Request::Tasks { waits: false })?;
    named.extend(after.tasks);
    let answer = Answer { kernels: after.kernels, tasks: named, ..traced };
    let (Some(path), Some(file)) = (perfetto, file) else {
        let json = || json!({ "kernels": answer.kernels, "events": answer.events });
        return output.answer(json, || text::events(&answer));
    };
    write_trace(client.process(), &answer, file).map_err(|error| unwritten(path, &error))?;
    let count = answer.events.len();
    output.answer(
        || json!({ "file": path, "events": count }),
        || format!("{count} events in {}: open it at https://ui.perfetto.dev", path.display()),
    )
}

pub(crate) fn write_trace(process: &Process, answer: &Answer, file: File) -> io::Result<()> {
    let mut trace = TraceWriter::new(BufWriter::new(file), process.pid, &process.program)?;
    for kernel in &answer.kernels {
        trace.kernel(kernel)?;
    }
    for task in &answer.tasks {
        trace.name(task.id, &task.name);
    }
    trace.names(&answer.names);
    for event in &answer.events {
        trace.event(event)?;
    }
    trace.finish().map(drop)
}

fn profile(
    mut client: Client,
    pid: u32,
    length: Duration,
    html: Option<&Path>,
    output: Output,
) -> Result<(), Stop> {
    let file = html.map(create).transpose()?;
    let (seconds, spinner) = record("profiling", length);
    let mut answer = ask(&mut client, &Request::Profile { seconds })?;
    drop(spinner);
    name_functions(pid, &mut answer);
    let (Some(path), Some(file)) = (html, file) else {
        let json = || json!({ "profile": answer.profile, "samples": answer.samples });
        return output.answer(json, || text::profile(&answer));
    };
    let program = &client.process().program;
    let title = format!("{program} ({pid}), {seconds} s");
    let samples = answer.samples.unwrap_or_default();
    let mut file = BufWriter::new(file);
    let written = write_page(&mut file, &title, &answer.profile, &samples);
    written.and_then(|()| file.flush()).map_err(|error| unwritten(path, &error))?;
    output.answer(|| json!({ "file": path }), || format!("the profile is in {}", path.display()))
}

pub(crate) fn create(path: &Path) -> Result<File, Stop> {
    File::create(path).map_err(|error| unwritten(path, &error))
}

pub(crate) fn unwritten(path: &Path, error: &io::Error) -> Stop {
    Stop::other(format!("{} cannot be written: {error}", path.display()))
}
