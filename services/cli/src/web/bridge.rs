//! The connection to the process, and an answer of it as one JSON object.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pikake::console::answer::Answer;
use pikake::console::client::{Client, ClientError};
use pikake::console::model::Process;
use pikake::console::protocol::Request;
use serde::Serialize;

/// An answer of the process.
#[derive(Debug, Serialize)]
pub(crate) struct Told {
    /// The process, with its age now.
    process: Process,
    answer: Answer,
}

/// How long steps are timed after a request that wants it: longer than a page lets pass between two of them, also if
/// the answers take their time.
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
        let answer = Answer::of(parts).map_err(ClientError::Failed)?;
        Ok(Told { process, answer })
    }
}

/// Connects to the process, and keeps one connection for the next request: a process that has no descriptor left
/// admits no new one.
pub(crate) struct Bridge {
    connect: Box<dyn Fn() -> Result<Client, ClientError> + Send + Sync>,
    kept: Mutex<Option<Connected>>,
    /// While there is this connection, the process times steps. With the time until which somebody wants that.
    timing: Mutex<Option<(Connected, Instant)>>,
}

impl Bridge {
    /// Connects.
    pub(crate) fn new(
        connect: impl Fn() -> Result<Client, ClientError> + Send + Sync + 'static,
    ) -> Result<Self, ClientError> {
        let bridge =
            Self { connect: Box::new(connect), kept: Mutex::default(), timing: Mutex::default() };
        bridge.keep(bridge.connect()?);
        Ok(bridge)
    }

    fn connect(&self) -> Result<Connected, ClientError> {
        Ok(Connected { client: (self.connect)()?, at: Instant::now() })
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
                Err(ClientError::Closed(_) | ClientError::Io(..)) => {}
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

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge").field("kept", &self.kept).finish_non_exhaustive()
    }
}
