//! A watch by the real clock. A step or a closure that never comes back stops the whole world, and
//! nothing inside of it can say so any more.
//!
//! Each world has a [`Pulse`], which it moves as it gets on. One thread looks at all pulses of the
//! process now and then; if one has stood still for too long, it says where, and ends the process:
//! there is no other way out of somebody's endless loop.

use std::fmt::Write as _;
use std::panic::Location;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::shown;

/// After which real time without a step the world counts as hung, unless it is set otherwise. A
/// step takes microseconds; a machine that swaps may take seconds.
pub(crate) const HANG_AFTER: Duration = Duration::from_secs(60);

/// How often the pulses are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What a world shows of itself to the thread that watches.
#[derive(Default, Debug)]
pub(crate) struct Pulse {
    moves: AtomicU64,
    time: AtomicU64,
    host: AtomicU64,
    task: AtomicU64,
    about: Mutex<About>,
}

#[derive(Default, Debug)]
struct About {
    seed: u64,
    hosts: Vec<String>,
    test: Option<String>,
    hang_after: Duration,
    /// The closure that is run, and where it is waited for.
    closure: Option<Option<&'static Location<'static>>>,
}

impl Pulse {
    /// Of a world that is about to be run; watched for as long as that lasts. `None`: never.
    pub(crate) fn start(seed: u64, hosts: Vec<String>, hang_after: Option<Duration>) -> Arc<Self> {
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
                // Without that thread a hang is not told of, and nothing else is different.
                drop(thread::Builder::new().name("pikake-sim-watch".into()).spawn(watch));
            });
        }
        pulse
    }

    /// A host is turned.
    pub(crate) fn turn(&self, host: usize, time: u64) {
        self.moves.fetch_add(1, Ordering::Relaxed);
        self.time.store(time, Ordering::Relaxed);
        self.host.store(host as u64, Ordering::Relaxed);
    }

    /// A task is stepped.
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
        self.turn(host, time);
        lock(&self.about).closure = Some(place);
        run();
        lock(&self.about).closure = None;
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// What is told of a world that has stood still for so long.
    fn text(&self) -> String {
        let about = lock(&self.about);
        let host = about.hosts.get(self.host.load(Ordering::Relaxed) as usize);
        let host = host.map_or("?", String::as_str);
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
            " has not come back for {:?} of real time: does it block, or loop for ever?\n\
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

/// A pulse as it was seen last.
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
        thread::sleep(LOOK_EVERY);
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
