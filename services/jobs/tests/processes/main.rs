//! Jobs in worker processes, for real: this program is its own worker process, so it has no
//! harness.

mod connections;
mod trouble;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_jobs::{
    App, Broker, Failure, JobError, MemoryStore, ShutdownHandle, Workflow, current_job,
};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_sync::Promise;
use pikake_traps::{sleep, spawn};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const SECOND: Duration = Duration::from_secs(1);
/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

#[job(crate = pikake_jobs, process)]
fn add(a: i64, b: i64) -> i64 {
    println!("a job may print");
    a + b
}

#[job(crate = pikake_jobs, process)]
fn adds_twice(a: i64) -> Result<Workflow<i64>, String> {
    Ok(add::with(a, a).then(add::after(1)))
}

/// A retry with other arguments.
#[job(crate = pikake_jobs, process, retries = 1, backoff(first = "10ms", cap = "10ms"))]
fn goes_on(from: i64) -> Result<i64, String> {
    current_job().retry_as(&goes_on::with(from + 1));
    if current_job().retries() == 0 { Err("the first time".into()) } else { Ok(from) }
}

#[job(crate = pikake_jobs, process)]
fn whoami() -> (u32, String, String) {
    let job = current_job();
    assert_eq!((job.root_id(), job.soft_limit()), (job.id(), None));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    (id(), job.name().to_owned(), line)
}

#[job(crate = pikake_jobs, process, retries = 1, backoff(first = "10ms", cap = "10ms"))]
fn fails(with_panic: bool) -> Result<(), Failure> {
    if with_panic {
        panic!("a bug");
    }
    let retries = current_job().retries();
    let failure = Failure::new("Broken", "tests", format!("try {retries}"));
    Err(failure.with_arguments(["try".into(), retries.into()]))
}

/// Kills its own process, for the first so many times.
#[job(crate = pikake_jobs, process)]
fn kills(folder: PathBuf, times: usize) -> u32 {
    let before = fs::read_dir(&folder).unwrap().count();
    if before < times {
        fs::write(folder.join(before.to_string()), "").unwrap();
        kill(id(), Signal::KILL);
        std::thread::sleep(PATIENCE);
    }
    current_job().attempt()
}

/// Notes its process and never ends.
#[job(crate = pikake_jobs, process, hard_limit = "3s")]
fn endless(note: PathBuf) {
    fs::write(note, id().to_string()).unwrap();
    loop {
        std::thread::park();
    }
}

#[job(crate = pikake_jobs, process, soft_limit = "4s")]
fn takes_a_second() {
    std::thread::sleep(SECOND);
}

/// Notes its process, and takes a while.
#[job(crate = pikake_jobs, process)]
fn slow(note: PathBuf) -> u32 {
    fs::write(note, id().to_string()).unwrap();
    std::thread::sleep(SECOND);
    current_job().attempt()
}

#[job(crate = pikake_jobs, process)]
fn unlimited(note: PathBuf) {
    endless(note);
}

/// Tells of its progress, and waits until a file is there.
#[job(crate = pikake_jobs, process)]
fn reports(until: PathBuf) {
    for step in 1..=1_000 {
        current_job().progress(step);
    }
    wait_for(|| until.exists(), "the file");
}

/// Leaves a thread behind that tells of its progress.
#[job(crate = pikake_jobs, process)]
fn leaves_a_thread() -> (u32, String) {
    let job = current_job();
    let attempt = job.attempt();
    std::thread::spawn(move || {
        for step in 0..2_000 {
            job.progress((step, "x".repeat(1_000)));
        }
    });
    (attempt, "y".repeat(1 << 20))
}

fn app(store: &MemoryStore) -> App {
    App::on(Rc::new(store.open()))
        .jobs([
            add::JOB,
            adds_twice::JOB,
            goes_on::JOB,
            whoami::JOB,
            fails::JOB,
            kills::JOB,
            endless::JOB,
            slow::JOB,
            unlimited::JOB,
            takes_a_second::JOB,
            reports::JOB,
            leaves_a_thread::JOB,
        ])
        .jobs(trouble::JOBS)
        .processes(2)
}

/// Runs a program beside a worker; gives how many descriptors were open in the middle.
fn with_worker(app: &App, program: impl AsyncFnOnce(ShutdownHandle)) {
    with_worker_in(&Kernel::new().unwrap(), app, program);
}

fn with_worker_in(kernel: &Kernel, app: &App, program: impl AsyncFnOnce(ShutdownHandle)) {
    kernel.run(async {
        let started = Rc::new(Promise::new());
        let told = started.clone();
        let worker = app.worker().grace(SECOND).on_start(move |handle| drop(told.set(handle)));
        let worker = spawn(worker.run());
        let shutdown = started.wait().await.unwrap().clone();
        program(shutdown.clone()).await;
        shutdown.warm();
        worker.await.unwrap().unwrap();
    });
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The children of a process, zombies among them.
fn children(of: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    text.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

fn is_alive(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Its first thread may be gone before the others.
    let threads = fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    !status.is_empty() && (!status.contains(") Z ") || threads > 1)
}

fn wait_for(mut what: impl FnMut() -> bool, name: &str) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < PATIENCE, "waited in vain for {name}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn values_and_failures() {
    let app = app(&MemoryStore::new());
    with_worker(&app, async |_| {
        assert_eq!(add::delay(2, 3).await.unwrap().wait().await.unwrap(), 5);
        assert_eq!(goes_on::delay(2).await.unwrap().wait().await.unwrap(), 3);
        assert_eq!(adds_twice::delay(2).await.unwrap().wait().await.unwrap(), 5);
        let (process, name, line) = whoami::delay().await.unwrap().wait().await.unwrap();
        assert_ne!(process, id());
        assert_eq!((name.as_str(), line.as_str()), ("processes::whoami", ""));
        assert_eq!(
            whoami::delay().await.unwrap().wait().await.unwrap().0,
            process,
            "it is used again"
        );
        match fails::delay(false).await.unwrap().wait().await {
            Err(JobError::Failed(failure)) => {
                assert_eq!(failure.to_string(), r#"Broken: "try", 1"#);
            }
            other => panic!("{other:?}"),
        }
        match fails::delay(true).await.unwrap().wait().await {
            Err(JobError::Failed(failure)) => assert_eq!(failure.kind, "Panic"),
            other => panic!("{other:?}"),
        }
        let wrong =
            pikake_jobs::Call::<i64>::named("processes::add", ("x", 1)).send().await.unwrap();
        match wrong.wait().await {
            Err(JobError::Failed(failure)) => assert_eq!(failure.kind, "TypeError"),
            other => panic!("{other:?}"),
        }
    });
    assert!(children(id()).is_empty(), "all were reaped");
}

fn a_killed_process_costs_one_redelivery() {
    let store = MemoryStore::new();
    let app = app(&store);
    let (twice, ever) = (folder("twice"), folder("ever"));
    with_worker(&app, async |_| {
        let handle = kills::delay(twice, 2).await.unwrap();
        assert_eq!(handle.wait().await.unwrap(), 2);
        match kills::delay(ever.clone(), usize::MAX).await.unwrap().wait().await {
            Err(JobError::Failed(failure)) => {
                assert_eq!(failure.kind, "WorkerLostError");
                assert!(failure.message.contains("signal 9"), "{}", failure.message);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(fs::read_dir(ever).unwrap().count(), 3);
        let broker = store.open();
        while broker.counts("pikake").await.unwrap().dead == 0 {
            sleep(Duration::from_millis(5)).await.unwrap();
        }
        let dead = broker.dead("pikake", 10).await.unwrap();
        assert!(dead[0].reason.contains("ended its worker process 3 times"), "{}", dead[0].reason);
        assert_eq!(add::delay(2, 3).await.unwrap().wait().await.unwrap(), 5, "the worker lives");
    });
    assert_eq!(app.stats().all.dead, 1);
}

fn a_process_tells_of_its_progress() {
    let app = app(&MemoryStore::new());
    let until = folder("progress").join("end");
    with_worker(&app, async |_| {
        let job = reports::delay(until.clone()).await.unwrap();
        while job.progress().await.unwrap() != Some(1_000.into()) {
            sleep(Duration::from_millis(5)).await.unwrap();
        }
        let running = app.control().running().await.unwrap();
        assert_eq!(running[0].progress, Some(1_000.into()));
        fs::write(&until, "").unwrap();
        job.wait().await.unwrap();
    });
}

fn a_thread_that_is_left_behind_does_no_harm() {
    let store = MemoryStore::new();
    let app = app(&store);
    with_worker(&app, async |_| {
        for _ in 0..10 {
            let job = leaves_a_thread::with().on(&app).send().await.unwrap();
            let (attempt, text) = job.wait().await.unwrap();
            assert_eq!((attempt, text.len()), (0, 1 << 20));
        }
    });
}

fn a_hard_limit_kills_the_process() {
    let app = app(&MemoryStore::new());
    let note = folder("limit").join("process");
    with_worker(&app, async |_| match endless::delay(note.clone()).await.unwrap().wait().await {
        Err(JobError::Failed(failure)) => assert_eq!(failure.kind, "TimeLimitExceeded"),
        other => panic!("{other:?}"),
    });
    let process = fs::read_to_string(note).unwrap().parse().unwrap();
    wait_for(|| !is_alive(process), "the end of the process");
    assert!(children(id()).is_empty());
}

/// By a command, with either signal. A job that waits for a process is revoked, too, and never
/// begins.
fn termination_kills_the_process_of_its_job_only() {
    let app = app(&MemoryStore::new()).processes(1);
    let noted = |note: &Path| fs::read_to_string(note).is_ok_and(|text| !text.is_empty());
    with_worker(&app, async |_| {
        for signal in ["SIGTERM", "SIGKILL"] {
            let folder = folder(&format!("terminated-{signal}"));
            let notes = ["first", "second"].map(|name| folder.join(name));
            let [first, second] = notes.clone().map(unlimited::delay);
            let (first, second) = (first.await.unwrap(), second.await.unwrap());
            while !noted(&notes[0]) {
                sleep(Duration::from_millis(5)).await.unwrap();
            }
            let process: u32 = fs::read_to_string(&notes[0]).unwrap().parse().unwrap();
            for job in [second, first] {
                assert!(is_alive(process));
                let arguments = json!({"task_id": job.id().0, "terminate": true, "signal": signal});
                let answers = app.control().tell("revoke", arguments).await.unwrap();
                let terminated = json!({"ok": format!("terminate: {}", job.id())});
                assert_eq!(answers[0].result, Ok(terminated));
                match job.wait().await {
                    Err(JobError::Revoked(why)) => assert_eq!(why, "cancelled"),
                    other => panic!("{other:?}"),
                }
            }
            wait_for(|| !is_alive(process), "the end of the process");
            assert!(!noted(&notes[1]));
            assert_eq!(add::delay(2, 3).await.unwrap().wait().await.unwrap(), 5);
        }
    });
    let stats = app.stats().all;
    assert_eq!((stats.revoked, stats.done, stats.given_back, stats.dead), (4, 2, 0, 0), "{stats}");
    assert!(children(id()).is_empty(), "all were reaped");
}

fn shutdown_kills_and_requeues_an_endless_job() {
    let store = MemoryStore::new();
    let app = app(&store);
    let note = folder("shutdown").join("process");
    with_worker(&app, async |_| {
        unlimited::delay(note.clone()).await.unwrap();
        while !note.exists() {
            sleep(Duration::from_millis(5)).await.unwrap();
        }
    });
    assert_eq!(app.stats().all.given_back, 1);
    let process = fs::read_to_string(note).unwrap().parse().unwrap();
    wait_for(|| !is_alive(process), "the end of the process");
    let kernel = Kernel::new().unwrap();
    assert_eq!(kernel.run(async { store.open().counts("pikake").await.unwrap().ready }), 1);
}

fn kill(process: u32, signal: Signal) {
    let process = process.try_into().ok().and_then(Pid::from_raw).unwrap();
    kill_process(process, signal).unwrap();
}

/// A terminal's Ctrl-C and a service manager's stop go to the worker's processes, too.
fn signal_to_the_worker_spares_its_processes() {
    let app = app(&MemoryStore::new());
    let note = folder("signals").join("process");
    with_worker(&app, async |_| {
        let job = slow::delay(note.clone()).await.unwrap();
        while fs::read_to_string(&note).unwrap_or_default().is_empty() {
            sleep(Duration::from_millis(5)).await.unwrap();
        }
        let process = fs::read_to_string(&note).unwrap().parse().unwrap();
        kill(process, Signal::INT);
        kill(process, Signal::TERM);
        assert_eq!(job.wait().await.unwrap(), 0);
    });
    assert_eq!(app.stats().all.given_back, 0);
}

/// No job has ended it, so none is charged with it.
fn dead_idle_process_is_replaced() {
    let app = app(&MemoryStore::new()).processes(1);
    with_worker(&app, async |_| {
        let (first, ..) = whoami::delay().await.unwrap().wait().await.unwrap();
        kill(first, Signal::KILL);
        wait_for(|| !is_alive(first), "its end");
        let (second, ..) = whoami::delay().await.unwrap().wait().await.unwrap();
        assert_ne!(first, second);
    });
    assert_eq!(app.stats().all.given_back, 0);
    assert!(children(id()).is_empty(), "both were reaped");
}

/// What a process of [`death_of_the_worker_ends_its_processes`] does: a worker with one endless
/// job.
const VICTIM: &str = "victim";

fn victim(note: PathBuf) {
    let app = app(&MemoryStore::new());
    with_worker(&app, async |_| {
        unlimited::delay(note).await.unwrap();
        sleep(PATIENCE).await.unwrap();
    });
}

fn death_of_the_worker_ends_its_processes() {
    let note = folder("death").join("process");
    let program = std::env::current_exe().unwrap();
    let mut worker = Command::new(program).arg(VICTIM).arg(&note).spawn().unwrap();
    wait_for(|| fs::read_to_string(&note).is_ok_and(|text| !text.is_empty()), "the job");
    let process: u32 = fs::read_to_string(note).unwrap().parse().unwrap();
    assert_eq!(children(worker.id()), [process]);
    worker.kill().unwrap();
    worker.wait().unwrap();
    wait_for(|| !is_alive(process), "the end of the process");
}

fn nothing_is_inherited() {
    let before = fs::read_dir("/proc/self/fd").unwrap().count();
    let app = app(&MemoryStore::new());
    with_worker(&app, async |_| {
        let all: Vec<_> = (0..8).map(|n| add::delay(n, n)).collect();
        for handle in all {
            handle.await.unwrap().wait().await.unwrap();
        }
        // Standard input, output, error; the socket, for two threads.
        let process = children(id())[0];
        let links = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
        let links: Vec<_> =
            links.filter_map(|link| fs::read_link(link.unwrap().path()).ok()).collect();
        let sockets =
            links.iter().filter(|link| link.to_string_lossy().contains("socket:")).count();
        assert_eq!(sockets, 2, "{links:?}");
    });
    assert_eq!(fs::read_dir("/proc/self/fd").unwrap().count(), before);
}

fn limits_begin_when_the_job_begins() {
    let app = app(&MemoryStore::new()).processes(1);
    with_worker(&app, async |_| {
        let mut all = Vec::new();
        for _ in 0..6 {
            all.push(takes_a_second::delay().await.unwrap());
        }
        for job in all {
            job.wait().await.unwrap();
        }
    });
}

/// Its worker died before it could ask who that was.
fn a_process_without_its_worker_ends() {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(ours);
    let mut orphan = Command::new(std::env::current_exe().unwrap())
        .args([VICTIM, "/dev/null"])
        .env("PIKAKE_JOBS_CHILD_OF", "1")
        .stdin(std::os::fd::OwnedFd::from(theirs))
        .spawn()
        .unwrap();
    let mut ended = None;
    wait_for(
        || {
            ended = orphan.try_wait().unwrap();
            ended.is_some()
        },
        "the end of the process",
    );
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

fn main() {
    if trouble::play() {
        return;
    }
    connections::run_if_child();
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(VICTIM) {
        app(&MemoryStore::new()).run_if_child();
        return victim(arguments.next().unwrap().into());
    }
    app(&MemoryStore::new()).run_if_child();
    let tests: [(&str, fn()); 19] = [
        ("values_and_failures", values_and_failures),
        ("a_killed_process_costs_one_redelivery", a_killed_process_costs_one_redelivery),
        ("a_process_tells_of_its_progress", a_process_tells_of_its_progress),
        ("a_thread_that_is_left_behind_does_no_harm", a_thread_that_is_left_behind_does_no_harm),
        ("a_hard_limit_kills_the_process", a_hard_limit_kills_the_process),
        (
            "termination_kills_the_process_of_its_job_only",
            termination_kills_the_process_of_its_job_only,
        ),
        ("shutdown_kills_and_requeues_an_endless_job", shutdown_kills_and_requeues_an_endless_job),
        ("signal_to_the_worker_spares_its_processes", signal_to_the_worker_spares_its_processes),
        ("dead_idle_process_is_replaced", dead_idle_process_is_replaced),
        ("death_of_the_worker_ends_its_processes", death_of_the_worker_ends_its_processes),
        ("nothing_is_inherited", nothing_is_inherited),
        ("limits_begin_when_the_job_begins", limits_begin_when_the_job_begins),
        ("a_process_without_its_worker_ends", a_process_without_its_worker_ends),
        ("worker_outlives_every_end_of_a_process", trouble::worker_outlives_every_end_of_a_process),
        (
            "child_of_a_process_does_not_delay_its_end",
            trouble::child_of_a_process_does_not_delay_its_end,
        ),
        ("process_may_end_after_its_job", trouble::process_may_end_after_its_job),
        ("big_arguments_and_values", trouble::big_arguments_and_values),
        ("a_flood_of_output", trouble::a_flood_of_output),
        ("one_connection_for_all_jobs", connections::one_connection_for_all_jobs),
    ];
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
}
