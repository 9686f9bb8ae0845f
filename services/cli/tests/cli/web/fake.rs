//! A process with a console that answers what a test wants. Its number is that of the test's own
//! process.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use pikake::console::model::{
    Edge, Graph, Kernel, KernelStats, Process, ProcessStats, State, Step, Task, TaskKey, Wait,
};
use pikake::console::protocol::{Part, Request, VERSION, read_frame, write_frame};
use tempfile::TempDir;

type Answers = dyn Fn(&Request) -> Vec<Part> + Send + Sync;

/// A process with a console.
pub(super) struct Fake {
    folder: TempDir,
    asked: Arc<Mutex<Vec<Request>>>,
    connections: Arc<Mutex<Vec<UnixStream>>>,
    /// How many connections are open.
    open: Arc<AtomicUsize>,
}

impl Fake {
    /// A process with these answers. [`Part::Done`] is added.
    pub(super) fn new(answers: impl Fn(&Request) -> Vec<Part> + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let sockets = folder.path().join("pikake");
        DirBuilder::new().mode(0o700).create(&sockets).expect("a folder");
        let socket = sockets.join(format!("{}.sock", std::process::id()));
        let listener = UnixListener::bind(&socket).expect("a socket");
        std::fs::set_permissions(&socket, Permissions::from_mode(0o600)).expect("a mode");
        let (asked, connections, open) = <_>::default();
        let fake = Self { folder, asked, connections, open };
        let (asked, connections) = (fake.asked.clone(), fake.connections.clone());
        let open = fake.open.clone();
        let answers: Arc<Answers> = Arc::new(answers);
        let made_at = Instant::now();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (asked, answers, open) = (asked.clone(), answers.clone(), open.clone());
                connections.lock().unwrap().push(stream.try_clone().expect("a descriptor"));
                thread::spawn(move || {
                    open.fetch_add(1, Ordering::SeqCst);
                    serve(stream, made_at, &asked, &*answers);
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        fake
    }

    /// The folder that is `XDG_RUNTIME_DIR` for those who look for this process.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What was asked since the last call.
    pub(super) fn take_asked(&self) -> Vec<Request> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    pub(super) fn open_connections(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Closes all connections; returns how many there were.
    pub(super) fn close_connections(&self) -> usize {
        let all = std::mem::take(&mut *self.connections.lock().unwrap());
        all.iter().for_each(|stream| drop(stream.shutdown(std::net::Shutdown::Both)));
        all.len()
    }

    /// As if the process had ended.
    pub(super) fn end(&self) {
        let socket = self.folder().join(format!("pikake/{}.sock", std::process::id()));
        std::fs::remove_file(socket).expect("it is there");
        self.close_connections();
    }
}

/// The age of a console at its first connection, in nanoseconds.
const AGE: u64 = 5_000_000_000;

/// Ends with its connection.
fn serve(
    mut stream: UnixStream,
    made_at: Instant,
    asked: &Mutex<Vec<Request>>,
    answers: &Answers,
) -> Option<()> {
    let process = Process {
        pid: std::process::id(),
        program: "shop".to_owned(),
        pikake: "1.2.3".to_owned(),
        protocol: VERSION,
        age: AGE + u64::try_from(made_at.elapsed().as_nanos()).expect("less than centuries"),
    };
    write_frame(&mut stream, &process).ok()?;
    while let Ok(Some(request)) = read_frame::<Request>(&mut stream) {
        asked.lock().unwrap().push(request.clone());
        for part in answers(&request).iter().chain([&Part::Done]) {
            write_frame(&mut stream, part).ok()?;
        }
    }
    None
}

pub(super) fn key(task: u64) -> TaskKey {
    TaskKey { kernel: 1, task }
}

pub(super) fn kernel() -> Kernel {
    Kernel { id: 1, thread: "main".to_owned(), tid: Some(17), stuck: None, stale: None }
}

/// The kernel in a step of a task that lasts half a minute.
pub(super) fn stuck_kernel() -> Kernel {
    let step = Step {
        task: key(2),
        name: "crunch".to_owned(),
        spawned_at: "src/main.rs:20:5".to_owned(),
        lasts: 30_000_000_000,
    };
    Kernel { stuck: Some(step), stale: Some(29_000_000_000), ..kernel() }
}

/// A task that waits for others.
pub(super) fn task(number: u64, name: &str, parent: Option<u64>, owners: &[u64]) -> Task {
    let wait = Wait {
        trap: "park".to_owned(),
        place: "src/bank.rs:3:9".to_owned(),
        about: Some("mutex `accounts`".to_owned()),
        owners: owners.iter().copied().map(key).collect(),
        scopes: Vec::new(),
    };
    Task {
        id: key(number),
        name: name.to_owned(),
        parent: parent.map(key),
        state: State::Waiting,
        since: Some(2_000_000),
        steps: 12,
        busy: 0,
        longest: 0,
        spawned_at: "src/main.rs:12:5".to_owned(),
        future: "shop::transfer::{{closure}}".to_owned(),
        bytes: 480,
        cancelled: None,
        goes_on: None,
        waits: vec![wait],
    }
}

/// Who waits for whom among tasks.
pub(super) fn graph(tasks: &[Task], deadlocks: Vec<Vec<TaskKey>>) -> Graph {
    let edges = tasks.iter().flat_map(|task| {
        let waits = task.waits.iter();
        waits.flat_map(|wait| {
            wait.owners.iter().map(|owner| Edge {
                from: task.id,
                to: *owner,
                trap: wait.trap.clone(),
                place: wait.place.clone(),
                about: wait.about.clone(),
            })
        })
    });
    Graph { edges: edges.collect(), deadlocks, ..Graph::default() }
}

/// The answers of a process with these tasks.
pub(super) fn answers(
    kernel: Kernel,
    tasks: Vec<Task>,
    deadlocks: Vec<Vec<TaskKey>>,
) -> impl Fn(&Request) -> Vec<Part> + Send + Sync {
    move |request| {
        let all = || vec![Part::Kernel(kernel.clone()), Part::Tasks(tasks.clone())];
        match request {
            Request::Tasks { .. } => all(),
            Request::Waits => {
                let graph = Part::Graph(graph(&tasks, deadlocks.clone()));
                all().into_iter().chain([graph]).collect()
            }
            Request::Task { task } => {
                let one = tasks.iter().filter(|found| found.id == *task).cloned();
                vec![Part::Tasks(one.collect())]
            }
            Request::Stats => {
                let stats = KernelStats { kernel: 1, tasks: 3, steps: 4711, ..Default::default() };
                vec![Part::Process(ProcessStats::default()), Part::Stats(stats)]
            }
            Request::Cancel { .. } | Request::Abort { .. } => {
                vec![Part::Ended(true, "the task has ended".to_owned())]
            }
            _ => Vec::new(),
        }
    }
}
