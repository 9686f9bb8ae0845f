//! Traces, profiles and stacks of programs that run, asked for by a client.

use std::fs::File;
use std::future::{Future, pending};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};
use std::thread;
use std::time::Duration;

use pikake::console::Console;
use pikake::console::client::Client;
use pikake::console::model::{
    Blocked, BlockedSteps, Event, Module, ProfileRow, Samples, Stack, TaskName, What,
};
use pikake::console::protocol::{Part, Request};
use pikake::console::trace::TraceWriter;
use pikake::{sleep, spawn, task, yield_now};

use crate::support::child::{child, is_child};

/// The time in which an answer comes, also on a loaded machine.
const LONG: Duration = Duration::from_secs(180);

/// A program in a child process, and a client of its console.
struct Program {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    client: Client,
    folder: tempfile::TempDir,
}

/// The name of the socket.
const SOCKET: &str = "console.sock";

/// Names the path of the console's socket for a child.
const PATH: &str = "CONSOLE_TEST_PATH";

impl Program {
    /// Runs the test in a child, and waits until the child has written a line.
    fn start(test: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SOCKET);
        let mut command = child(test);
        command.env(PATH, &path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(output.any(|line| line.unwrap() == "ready"), "the child has ended");
        let client = Client::connect_to(&path, LONG).unwrap();
        Self { child, output, client, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    /// Has the child go on, and waits until it is ready again.
    fn next_moment(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
        assert!(self.output.any(|line| line.unwrap() == "ready"), "the child has ended");
    }

    fn ask(&mut self, request: &Request) -> Vec<Part> {
        self.client.ask(request).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the console of a child.
fn console() -> Console {
    let path = PathBuf::from(std::env::var_os(PATH).unwrap());
    Console::builder().path(path).start().unwrap()
}

/// Tells the parent that the child is what it should be in a moment.
fn ready() {
    println!("\nready");
}

#[inline(never)]
fn spins_for_ever() {
    loop {
        std::hint::black_box(());
    }
}

#[inline(never)]
fn sleeps_in_a_step() {
    thread::sleep(Duration::from_secs(3600));
}

#[inline(never)]
fn reads_in_a_step() {
    let (mut stream, _other) = UnixStream::pair().unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

/// A child whose main task makes a call that blocks; returns what the console says of that.
fn blocked_in(test: &str, call: fn()) -> Option<Blocked> {
    if is_child(test) {
        let _console = console();
        pikake::run(async {
            let blocks = task::Builder::new().name("blocks").spawn(async move {
                ready();
                call();
            });
            blocks.await.unwrap();
        });
        return None;
    }
    let mut program = Program::start(test);
    // The child may be not yet in its call.
    loop {
        match program.ask(&Request::Blocked).as_slice() {
            [] => {}
            [Part::Blocked(blocked)] => return Some(blocked.clone()),
            parts => panic!("{parts:?}"),
        }
    }
}

/// The functions of a stack of a child, which is this program.
fn functions(stack: &Stack) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let file = program.file_name().unwrap().to_str().unwrap();
    let symbols = addr2line::Loader::new(&program).unwrap();
    let name = |frame: &String| {
        let (at, of_file) = frame.split_once(' ').unwrap_or((frame, ""));
        let at = u64::from_str_radix(at.strip_prefix("0x").unwrap(), 16).unwrap();
        let symbol = (of_file == format!("({file})")).then(|| symbols.find_symbol(at));
        let demangled = |name: &str| addr2line::demangle_auto(name.into(), None).into_owned();
        symbol.flatten().map_or_else(|| frame.clone(), demangled)
    };
    assert_eq!(stack.addresses.len(), stack.frames.len());
    stack.frames.iter().map(name).collect()
}

#[track_caller]
fn check_blocked(blocked: &Blocked, function: &str) {
    assert_eq!(blocked.step.name, "blocks");
    assert!(blocked.step.spawned_at.contains("live.rs"), "{blocked:?}");
    let stack = blocked.stack.as_ref().unwrap_or_else(|| panic!("{blocked:?}"));
    let names = functions(stack);
    let at = |name: &str| names.iter().position(|frame| frame.contains(name));
    let (outer, inner) = (at("blocked_in"), at(function));
    assert!(outer.is_some() && outer < inner, "{names:#?}");
    let of_stack =
        |module: &Module| stack.addresses.iter().any(|at| module.begin <= *at && *at < module.end);
    assert!(!blocked.modules.is_empty() && blocked.modules.iter().all(of_stack), "{blocked:?}");
}

#[test]
fn the_stack_of_an_endless_loop_names_its_function() {
    let test = "live::the_stack_of_an_endless_loop_names_its_function";
    let Some(blocked) = blocked_in(test, spins_for_ever) else { return };
    check_blocked(&blocked, "spins_for_ever");
    assert_eq!(blocked.thread.as_deref(), Some("running"));
}

#[test]
fn the_stack_of_a_sleep_in_a_step_names_its_function() {
    let test = "live::the_stack_of_a_sleep_in_a_step_names_its_function";
    let Some(blocked) = blocked_in(test, sleeps_in_a_step) else { return };
    check_blocked(&blocked, "sleeps_in_a_step");
    assert!(blocked.thread.as_ref().is_some_and(|text| text.starts_with("sleeps")), "{blocked:?}");
}

#[test]
fn the_stack_of_a_read_in_a_step_names_its_function() {
    let test = "live::the_stack_of_a_read_in_a_step_names_its_function";
    let Some(blocked) = blocked_in(test, reads_in_a_step) else { return };
    check_blocked(&blocked, "reads_in_a_step");
}

/// Runs a child with a console and this main task; `None` in the child.
fn program<F: Future<Output = ()> + 'static>(
    test: &str,
    main: impl FnOnce() -> F,
) -> Option<Program> {
    if is_child(test) {
        let _console = console();
        pikake::run(main());
        return None;
    }
    Some(Program::start(test))
}

/// A task that ends soon.
async fn brief() {
    yield_now().await.unwrap();
    sleep(Duration::from_micros(100)).await.unwrap();
}

/// A main task that spawns brief tasks for ever, and a task that waits meanwhile.
async fn spawns_brief_tasks() {
    task::Builder::new().name("waits").spawn(pending::<()>()).detach();
    ready();
    loop {
        task::Builder::new().name("brief").spawn(brief()).await.unwrap();
        spawn(brief()).await.unwrap();
    }
}

fn events(parts: &[Part]) -> Vec<Event> {
    let events = parts.iter().filter_map(|part| match part {
        Part::Events(events) => Some(events.clone()),
        _ => None,
    });
    events.flatten().collect()
}

fn names(parts: &[Part]) -> Vec<TaskName> {
    let names = parts.iter().filter_map(|part| match part {
        Part::Names(names) => Some(names.clone()),
        _ => None,
    });
    names.flatten().collect()
}

fn took(event: &Event) -> Option<u64> {
    match event.what {
        What::Stepped { took, .. } | What::Ended { took, .. } => took,
        What::Spawned => None,
    }
}

/// Waits until the kernel does not time its steps any more.
fn wait_for_untimed_steps(program: &mut Program) {
    loop {
        let events = events(&program.ask(&Request::Trace { seconds: None }));
        let steps: Vec<&Event> =
            events.iter().filter(|event| event.what != What::Spawned).collect();
        if steps.len() > 1_000
            && steps[steps.len() - 1_000..].iter().all(|event| took(event).is_none())
        {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_trace_of_a_time_has_timed_steps_and_names() {
    let test = "live::a_trace_of_a_time_has_timed_steps_and_names";
    let Some(mut program) = program(test, spawns_brief_tasks) else { return };
    let parts = program.ask(&Request::Trace { seconds: Some(0.2) });
    assert!(matches!(parts[0], Part::Kernel(_)), "{:?}", parts[0]);
    let (events, names) = (events(&parts), names(&parts));
    assert!(events.len() > 100, "{}", events.len());
    assert!(events.iter().any(|event| took(event).is_some()));
    assert!(events.is_sorted_by_key(|event| event.at), "the oldest first");
    let length = events[events.len() - 1].at - events[0].at;
    assert!(length > 100_000_000, "the events of {length} ns");
    let name_of = |event: &Event| names.iter().find(|name| name.id == event.task).unwrap();
    let place = "live.rs:";
    assert!(events.iter().all(|event| name_of(event).spawned_at.contains(place)), "{names:?}");
    for name in ["main", "brief", ""] {
        assert!(names.iter().any(|known| known.name == name), "{name}: {names:?}");
    }

    let mut file = TraceWriter::new(Vec::new(), 1, "program").unwrap();
    for part in &parts {
        match part {
            Part::Kernel(kernel) => file.kernel(kernel).unwrap(),
            Part::Names(names) => file.names(names),
            Part::Events(events) => events.iter().for_each(|event| file.event(event).unwrap()),
            part => panic!("{part:?}"),
        }
    }
    crate::trace::check_format(&String::from_utf8(file.finish().unwrap()).unwrap());

    wait_for_untimed_steps(&mut program);
}

/// The kernel makes more events than the console can read.
#[test]
fn a_trace_says_how_many_events_were_lost() {
    let test = "live::a_trace_says_how_many_events_were_lost";
    let main = || async {
        ready();
        loop {
            yield_now().await.unwrap();
        }
    };
    let Some(mut program) = program(test, main) else { return };
    loop {
        let parts = program.ask(&Request::Trace { seconds: Some(0.2) });
        let lost = parts.iter().find(|part| matches!(part, Part::Lost(..)));
        if let Some(Part::Lost(kernel, count)) = lost {
            assert!(*kernel > 0 && *count > 0);
            assert!(!events(&parts).is_empty());
            return;
        }
    }
}

fn profile(parts: Vec<Part>) -> (Vec<ProfileRow>, Samples) {
    let (mut rows, mut samples) = (Vec::new(), Samples::default());
    for part in parts {
        match part {
            Part::Profile(more) => rows.extend(more),
            Part::Samples(more) => {
                samples.stacks.extend(more.stacks);
                samples.none = samples.none.or(more.none);
                samples.blocked.extend(more.blocked);
                samples.modules.extend(more.modules);
            }
            part => panic!("{part:?}"),
        }
    }
    (rows, samples)
}

#[test]
fn a_profile_counts_tasks_that_live_for_a_moment() {
    let test = "live::a_profile_counts_tasks_that_live_for_a_moment";
    let Some(mut program) = program(test, spawns_brief_tasks) else { return };
    let (rows, samples) = profile(program.ask(&Request::Profile { seconds: 0.3 }));
    let row = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
    for row in [row("brief"), row("")] {
        // A yield, a sleep and the end; some of the first and last tasks may be there in part.
        assert!(row.spawned > 10 && row.steps.abs_diff(3 * row.spawned) <= 15, "{row:?}");
        assert_eq!(row.waits.len(), 2, "{row:?}");
        for (trap, count) in &row.waits {
            assert!(["yield", "sleep"].contains(&trap.as_str()), "{row:?}");
            assert!(count.abs_diff(row.spawned) <= 5, "{row:?}");
        }
        assert!(row.busy >= row.longest && row.longest > 0, "{row:?}");
    }
    assert!(rows.iter().all(|row| row.name != "waits"), "it had no step: {rows:?}");
    assert_eq!(samples.none, None);
    wait_for_untimed_steps(&mut program);
}

#[inline(never)]
fn works_for_a_while() {
    let mut sum = 0_u64;
    for number in 0..300_000 {
        sum = std::hint::black_box(sum.wrapping_add(number));
    }
}

/// The task's function is in the samples, and a second profile at the same time is told why it has
/// none.
#[test]
fn a_profile_samples_the_stacks_of_what_uses_the_processor() {
    let test = "live::a_profile_samples_the_stacks_of_what_uses_the_processor";
    let main = || async {
        ready();
        loop {
            works_for_a_while();
            yield_now().await.unwrap();
        }
    };
    let Some(mut program) = program(test, main) else { return };
    let (rows, samples) = loop {
        let other = program.path();
        let other = thread::spawn(move || {
            let mut client = Client::connect_to(other, LONG).unwrap();
            profile(client.ask(&Request::Profile { seconds: 1.0 }).unwrap())
        });
        let profiles =
            [profile(program.ask(&Request::Profile { seconds: 1.0 })), other.join().unwrap()];
        let rows = profiles[0].0.len();
        assert!(profiles.iter().all(|(rows, _)| !rows.is_empty()), "{rows}");
        // Either one may be the first, or they may have missed each other.
        let refused = profiles.iter().filter(|(_, samples)| samples.none.is_some()).count();
        let [(rows, first), (_, second)] = profiles;
        match refused {
            0 => continue,
            1 => break (rows, if first.none.is_none() { first } else { second }),
            _ => panic!("{first:?} {second:?}"),
        }
    };
    assert_eq!(rows[0].name, "main", "{rows:?}");
    let works =
        |stack: &&Stack| functions(stack).iter().any(|name| name.contains("works_for_a_while"));
    let all: u64 = samples.stacks.iter().map(|stack| stack.count).sum();
    let in_work: u64 = samples.stacks.iter().filter(works).map(|stack| stack.count).sum();
    assert!(in_work * 2 > all, "{in_work} of {all}");
    let is_handler = |name: &String| name.contains("handler::on_signal");
    let of_handler = |stack: &Stack| functions(stack).iter().any(is_handler);
    assert!(!samples.stacks.iter().any(of_handler), "{:#?}", samples.stacks);
}

#[inline(never)]
fn sleeps_for_a_while() {
    thread::sleep(Duration::from_millis(150));
}

/// Nobody looks while the step lasts.
#[test]
fn long_steps_that_are_over_have_their_stacks() {
    let test = "live::long_steps_that_are_over_have_their_stacks";
    let main = || async {
        ready();
        sleeps_for_longer();
        std::future::pending::<()>().await;
    };
    let Some(mut program) = program(test, main) else { return };
    let blocked = loop {
        match program.ask(&Request::LongSteps).as_slice() {
            [] => {}
            [Part::Blocked(blocked)] => break blocked.clone(),
            parts => panic!("{parts:?}"),
        }
    };
    let names = functions(blocked.stack.as_ref().unwrap_or_else(|| panic!("{blocked:?}")));
    assert!(names.iter().any(|name| name.contains("sleeps_for_longer")), "{names:#?}");
    assert!(blocked.ago.is_some() && blocked.step.name == "main", "{blocked:?}");
}

#[inline(never)]
fn sleeps_for_longer() {
    thread::sleep(Duration::from_secs(1));
}

/// The task waits as a task should, and now and then blocks the thread.
#[test]
fn a_profile_samples_the_steps_that_block_now_and_then() {
    let test = "live::a_profile_samples_the_steps_that_block_now_and_then";
    let main = || async {
        ready();
        loop {
            sleep(Duration::from_millis(150)).await.unwrap();
            sleeps_for_a_while();
        }
    };
    let Some(mut program) = program(test, main) else { return };
    let (_, samples) = profile(program.ask(&Request::Profile { seconds: 1.0 }));
    let sleeps = |it: &&BlockedSteps| {
        functions(&it.stack).iter().any(|name| name.contains("sleeps_for_a_while"))
    };
    let blocked = samples.blocked.iter().find(sleeps).unwrap_or_else(|| panic!("{samples:?}"));
    assert_eq!(blocked.name, "main");
    assert!(blocked.spawned_at.contains("live.rs"), "{blocked:?}");
    let most = Duration::from_secs(1).as_nanos() as u64;
    assert!(blocked.stack.count > 0 && blocked.time > 0 && blocked.time <= most, "{blocked:?}");
}

/// The step has neither begun nor ended in the profile.
#[test]
fn a_profile_has_the_step_that_lasts_all_the_time() {
    let test = "live::a_profile_has_the_step_that_lasts_all_the_time";
    let main = || async {
        ready();
        sleeps_in_a_step();
    };
    let Some(mut program) = program(test, main) else { return };
    while program.ask(&Request::Blocked).is_empty() {}
    let (rows, _) = profile(program.ask(&Request::Profile { seconds: 0.3 }));
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((row.name.as_str(), row.steps), ("main", 1));
    assert!(row.busy >= 300_000_000 && row.busy == row.longest, "{row:?}");
}

/// A client that goes during a trace and a profile leaves nothing switched on.
#[test]
fn steps_are_not_timed_after_the_client_has_gone() {
    let test = "live::steps_are_not_timed_after_the_client_has_gone";
    let Some(mut program) = program(test, spawns_brief_tasks) else { return };
    for request in [Request::Trace { seconds: Some(60.0) }, Request::Profile { seconds: 60.0 }] {
        let mut client = Client::connect_to(program.path(), LONG).unwrap();
        let _parts = client.request(&request).unwrap();
        // The console has begun when steps are timed.
        loop {
            let events = events(&program.ask(&Request::Trace { seconds: None }));
            if events.iter().any(|event| took(event).is_some()) {
                break;
            }
        }
        drop(client);
        wait_for_untimed_steps(&mut program);
    }
    // No sampler is left, either.
    loop {
        let (_, samples) = profile(program.ask(&Request::Profile { seconds: 0.01 }));
        match samples.none {
            None => break,
            Some(why) => assert!(why.contains("another profile"), "{why}"),
        }
    }
}

/// Without descriptors there is no stack; the next request finds one again.
#[test]
fn a_process_without_descriptors_is_told_as_blocked_without_a_stack() {
    let test = "live::a_process_without_descriptors_is_told_as_blocked_without_a_stack";
    let main = || async {
        let uses_all = || {
            let mut lines = std::io::stdin().lines();
            lines.next();
            let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
            let all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
            ready();
            lines.next();
            drop(all);
            ready();
            lines.next();
        };
        thread::spawn(uses_all);
        ready();
        spins_for_ever();
    };
    let Some(mut program) = program(test, main) else { return };
    program.next_moment();
    let blocked = |program: &mut Program| loop {
        match program.ask(&Request::Blocked).pop() {
            Some(Part::Blocked(blocked)) => return blocked,
            part => assert_eq!(part, None),
        }
    };
    let without = blocked(&mut program);
    assert_eq!((without.step.name.as_str(), &without.stack), ("main", &None));
    assert!(without.no_stack.as_ref().is_some_and(|why| why.contains("descriptor")), "{without:?}");
    program.next_moment();
    let with = blocked(&mut program);
    assert!(with.stack.is_some(), "{with:?}");
}

/// A signal that arrives after the profile, as one to a thread that was deep in the system.
#[test]
fn a_late_signal_does_not_end_the_process() {
    let test = "live::a_late_signal_does_not_end_the_process";
    let Some(mut program) = program(test, spawns_brief_tasks) else { return };
    program.ask(&Request::Profile { seconds: 0.01 });
    let pid = rustix::process::Pid::from_child(&program.child);
    rustix::process::kill_process(pid, rustix::process::Signal::PROF).unwrap();
    program.ask(&Request::Profile { seconds: 0.01 });
}
