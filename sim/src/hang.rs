//! A watchdog on the real clock. A step or a closure that never returns stops the whole world, so
//! the world itself cannot report it.
//!
//! Each world counts its progress in a [`Pulse`]. One thread checks all pulses of the process. If
//! one has not moved for too long, the thread reports the step or closure, and aborts the process,
//! since an endless loop cannot be interrupted.

use std::fmt::Write as _;
use std::panic::Location;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::shown;
use crate::log::{HostName, KernelKey};

/// The default real time without progress after which a world counts as hung. A step takes
/// microseconds; a machine that swaps may take seconds.
pub(crate) const HANG_AFTER: Duration = Duration::from_secs(60);

/// The interval between two checks of the pulses.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The progress of a world, for the watchdog thread.
#[derive(Default, Debug)]
pub(crate) struct Pulse {
    moves: AtomicU64,
    time: AtomicU64,
    host: AtomicU64,
    kernel: AtomicU64,
    task: AtomicU64,
    about: Mutex<About>,
}

#[derive(Default, Debug)]
struct About {
    seed: u64,
    hosts: Vec<HostName>,
    test: Option<String>,
    hang_after: Duration,
    /// The running closure, with the place of its await if that is known.
    closure: Option<Option<&'static Location<'static>>>,
}

impl Pulse {
    /// Starts to watch a world until its pulse is dropped; with `None`, it is not watched.
    pub(crate) fn start(
        seed: u64,
        hosts: Vec<HostName>,
        hang_after: Option<Duration>,
    ) -> Arc<Self> {
        let test = thread::current().name().filter(|name| *name != "main").map(str::to_owned);
        let about =
            About { seed, hosts, test, hang_after: hang_after.unwrap_or_default(), closure: None };
        let pulse = Arc::new(Self { about: Mutex::new(about), ..Self::default() });
        if hang_after.is_some() {
            lock(&WATCHED).push(Seen {
                pulse: Arc::downgrade(&pulse),
                moves: 0,
                since: Instant::now(),
            });
            static STARTED: Once = Once::new();
            STARTED.call_once(|| {
                // Without this thread a hang is not reported.
                drop(thread::Builder::new().name("pikake-sim-watch".into()).spawn(watch));
            });
        }
        pulse
    }

    /// Notes a turn of a kernel.
    pub(crate) fn turn(&self, key: KernelKey, time: u64) {
        self.moves.fetch_add(1, Ordering::Relaxed);
        self.time.store(time, Ordering::Relaxed);
        self.host.store(key.host as u64, Ordering::Relaxed);
        self.kernel.store(key.kernel as u64, Ordering::Relaxed);
    }

    /// Notes a step of a task.
    pub(crate) fn step(&self, task: u64) {
        self.task.store(task, Ordering::Relaxed);
    }

    /// Runs a closure of a host.
    pub(crate) fn closure(
        &self,
        host: usize,
        time: u64,
        place: Option<&'static Location<'static>>,
        run: impl FnOnce(),
    ) {
        self.turn(KernelKey::main_of(host), time);
        lock(&self.about).closure = Some(place);
        run();
        lock(&self.about).closure = None;
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// The report of a world that hangs.
    fn text(&self) -> String {
        let about = lock(&self.about);
        let host = about.hosts.get(self.host.load(Ordering::Relaxed) as usize);
        let kernel = self.kernel.load(Ordering::Relaxed) as usize;
        let host = match (host, about.closure) {
            (Some(name), Some(_)) => name.host.clone(),
            (Some(name), None) => name.of_kernel(kernel),
            (None, _) => "?".to_owned(),
        };
        let mut text = String::from("simulation failed: it hangs. ");
        // Writing to a string does not fail.
        let _ = match about.closure {
            Some(Some(place)) => write!(text, "On host `{host}`, the closure awaited at {place}"),
            Some(None) => write!(text, "On host `{host}`, a closure on a helper thread"),
            None => {
                let task = self.task.load(Ordering::Relaxed);
                write!(text, "On host `{host}`, the step of task {task}")
            }
        };
        let _ = write!(
            text,
            " has not returned for {:?} of real time: does it block, or loop forever?\n\
             seed {}, at {:?} of virtual time\n\
             replay:  PIKAKE_SEED={} cargo test {}",
            about.hang_after,
            about.seed,
            shown(self.time.load(Ordering::Relaxed)),
            about.seed,
            about.test.as_deref().unwrap_or_default(),
        );
        text
    }
}

/// The last observed state of a pulse.
struct Seen {
    pulse: Weak<Pulse>,
    moves: u64,
    since: Instant,
}

static WATCHED: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch() {
    loop {
        thread::sleep(CHECK_INTERVAL);
        lock(&WATCHED).retain_mut(|seen| {
            let Some(pulse) = seen.pulse.upgrade() else { return false };
            let moves = pulse.moves.load(Ordering::Relaxed);
            if moves != seen.moves {
                (seen.moves, seen.since) = (moves, Instant::now());
            } else if seen.since.elapsed() > lock(&pulse.about).hang_after {
                eprintln!("{}", pulse.text());
                process::abort();
            }
            true
        });
    }
}
