//! The connection to the process, and an answer of it as one JSON object.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pikake::console::answer::Answer;
use pikake::console::client::{Client, ClientError};
use pikake::console::model::Process;
use pikake::console::protocol::Request;
use serde::Serialize;

use crate::functions::name_functions;

/// An answer of the process.
#[derive(Debug, Serialize)]
pub(crate) struct Told {
    /// The process, with its age now.
    process: Process,
    answer: Answer,
}

/// How long steps are timed after a request that wants it: longer than a page lets pass between two
/// of them, also if the answers take their time.
const TIMING_LEASE: Duration = Duration::from_secs(10);

/// A connection, and when it was made.
#[derive(Debug)]
struct Connected {
    client: Client,
    at: Instant,
}

impl Connected {
    fn ask(&mut self, request: &Request) -> Result<Told, ClientError> {
        let parts = self.client.ask(request)?;
        let mut process = self.client.process().clone();
        let elapsed = u64::try_from(self.at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        process.age = process.age.saturating_add(elapsed);
        let mut answer = Answer::of(parts).map_err(ClientError::Failed)?;
        name_functions(process.pid, &mut answer);
        Ok(Told { process, answer })
    }
}

/// Connects to the process, and keeps one connection for the next request: a process that has no
/// descriptor left admits no new one.
pub(crate) struct Bridge {
    connect: Box<dyn Fn() -> Result<Client, ClientError> + Send + Sync>,
    /// The process and the time when its console started, as the first connection has shown them.
    first: (Process, Instant),
    kept: Mutex<Option<Connected>>,
    /// While there is this connection, the process times steps. With the time until which somebody
    /// wants that.
    timing: Mutex<Option<(Connected, Instant)>>,
}

impl Bridge {
    /// Connects.
    pub(crate) fn new(
        connect: impl Fn() -> Result<Client, ClientError> + Send + Sync + 'static,
    ) -> Result<Self, ClientError> {
        let client = connect()?;
        let first = (client.process().clone(), Instant::now());
        let kept = Mutex::new(Some(Connected { client, at: first.1 }));
        Ok(Self { connect: Box::new(connect), first, kept, timing: Mutex::default() })
    }

    /// Connects again. Another process may have the number of the first one by now.
    fn connect(&self) -> Result<Connected, ClientError> {
        let (client, at) = ((self.connect)()?, Instant::now());
        if !is_same(&self.first, (client.process(), at)) {
            let why = "the process has ended, and another one has its number";
            return Err(ClientError::Failed(why.into()));
        }
        Ok(Connected { client, at })
    }

    fn keep(&self, connected: Connected) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(connected);
    }

    /// Asks the process, which takes as long as it takes: call this function in a helper thread.
    pub(crate) fn ask(&self, request: &Request) -> Result<Told, ClientError> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut connected) = kept {
            match connected.ask(request) {
                // The connection was lost meanwhile.
                Err(ClientError::Closed(_) | ClientError::Io(..)) if is_repeatable(request) => {}
                answer => {
                    self.keep_unless_broken(connected, &answer);
                    return answer;
                }
            }
        }
        let mut connected = self.connect()?;
        let answer = connected.ask(request);
        self.keep_unless_broken(connected, &answer);
        answer
    }

    /// Has the process time steps for some seconds more.
    pub(crate) fn time_steps(&self) -> Result<(), ClientError> {
        let until = Instant::now() + TIMING_LEASE;
        let mut timing = self.timing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, lease)) = &mut *timing {
            *lease = until;
            return Ok(());
        }
        let mut connected = self.connect()?;
        connected.ask(&Request::Time)?;
        *timing = Some((connected, until));
        Ok(())
    }

    /// Ends the timing of steps that nobody wants any more.
    pub(crate) fn end_old_timing(&self) {
        // A request that holds the lock wants the timing.
        let Ok(mut timing) = self.timing.try_lock() else { return };
        *timing = timing.take().filter(|(_, lease)| *lease > Instant::now());
    }

    fn keep_unless_broken(&self, connected: Connected, answer: &Result<Told, ClientError>) {
        if matches!(answer, Ok(_) | Err(ClientError::Failed(_))) {
            self.keep(connected);
        }
    }
}

/// Whether a request may be sent again if its answer is lost. The process may have done what the
/// first one asks for.
fn is_repeatable(request: &Request) -> bool {
    !matches!(request, Request::Cancel { .. } | Request::Abort { .. })
}

/// How far the start of a console may seem to move: a greeting may take its time.
const START_WITHIN: Duration = Duration::from_secs(5);

/// Whether a process is the one that was seen before: the program is the same, and the console has
/// started at the same time.
fn is_same((first, then): &(Process, Instant), (process, at): (&Process, Instant)) -> bool {
    let age = Duration::from_nanos(process.age);
    let expected = Duration::from_nanos(first.age) + at.saturating_duration_since(*then);
    (process.pid, &process.program) == (first.pid, &first.program)
        && age.abs_diff(expected) < START_WITHIN
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge").field("kept", &self.kept).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    use pikake::console::client::TIMEOUT;
    use pikake::console::model::TaskKey;
    use pikake::console::protocol::{Part, read_frame, write_frame};

    use super::*;

    fn process(program: &str, age: Duration) -> Process {
        Process {
            pid: 1,
            program: program.into(),
            pikake: "0".into(),
            protocol: pikake::console::protocol::VERSION,
            age: age.as_nanos() as u64,
        }
    }

    #[test]
    fn another_process_with_the_number_is_refused() {
        let now = Instant::now();
        let first = (process("shop", Duration::from_secs(100)), now);
        let later = now + Duration::from_secs(100);
        let same = process("shop", Duration::from_secs(200));
        assert!(is_same(&first, (&same, later)));
        assert!(!is_same(&first, (&process("shop", Duration::from_secs(9)), later)));
        assert!(!is_same(&first, (&process("bank", Duration::from_secs(200)), later)));
    }

    /// Answers one request on each connection by closing it, but for the request for the figures.
    fn serve(mut stream: UnixStream) -> Option<Request> {
        write_frame(&mut stream, &process("shop", Duration::ZERO)).ok()?;
        let request = read_frame(&mut stream).ok()??;
        if request == Request::Stats {
            write_frame(&mut stream, &Part::Done).ok()?;
            let _ = stream.flush();
            let _ = stream.read(&mut [0]);
        }
        Some(request)
    }

    #[test]
    fn a_lost_cancel_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let (sender, seen) = std::sync::mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let sender = sender.clone();
                thread::spawn(move || serve(stream).map(|request| sender.send(request)));
            }
        });
        let bridge = Bridge::new(move || Client::connect_to(&path, TIMEOUT)).unwrap();
        let cancel = Request::Abort { task: TaskKey { kernel: 1, task: 1 } };
        let lost = bridge.ask(&cancel).unwrap_err();
        assert!(matches!(lost, ClientError::Closed(_)), "{lost:?}");
        assert_eq!(seen.recv().unwrap(), cancel);
        assert!(bridge.ask(&Request::Stats).is_ok());
        drop(bridge);
        assert_eq!(seen.iter().next(), Some(Request::Stats));
    }
}
