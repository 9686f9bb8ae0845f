//! The connection of one client: frames in, frames out, and how long each may take.

use std::cell::RefCell;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_kernel::inspect::{KernelView, time_steps};
use pikake_net::UnixStream;
use pikake_traps::{future_wait, timeout_after};
use serde::Serialize;

use super::Server;
use super::answers::{Sink, Trouble, answer};
use crate::model::{Graph, Samples};
use crate::observed::further_waits;
use crate::protocol::{FRAME_LIMIT, Part, Request, frame, text_length};

/// The time in which a client takes a frame, and in which the rest of a frame follows its begin.
const FRAME_WITHIN: Duration = Duration::from_secs(10);

/// The number of bytes that one read takes.
const READ_BYTES: usize = 4_096;

/// The bytes of later requests that are kept during a request.
const EARLY_BYTES: usize = 16_384;

/// The bytes of a text in a refusal.
const REASON_BYTES: usize = 10_000;

/// The connection of a client.
pub(super) struct Connection {
    server: Rc<Server>,
    stream: UnixStream,
    /// Bytes that were read, and belong to no request so far.
    incoming: RefCell<Vec<u8>>,
    timing: RefCell<Option<Timing>>,
}

/// A request that cannot be read.
struct Malformed(String);

impl Connection {
    pub(super) fn new(server: Rc<Server>, stream: UnixStream) -> Self {
        let (incoming, timing) = (RefCell::default(), RefCell::default());
        Self { server, stream, incoming, timing }
    }

    /// Introduces the process, and closes the connection.
    pub(super) async fn refuse(&self, why: &Part) {
        if self.send(&self.server.process()).await.is_ok() {
            let _ = self.send(why).await;
        }
    }

    /// Answers requests until the client goes.
    pub(super) async fn serve(&self) {
        if self.send(&self.server.process()).await.is_err() {
            return;
        }
        loop {
            let request = match self.next_request().await {
                Ok(Some(Ok(request))) => request,
                Ok(Some(Err(Malformed(why)))) => {
                    let _ = self.send(&failed(why)).await;
                    return;
                }
                Ok(None) | Err(_) => return,
            };
            let end = match self.while_connected(self.answer(&request)).await {
                Some(Ok(())) => Part::Done,
                Some(Err(Trouble::Failed(why))) => failed(why),
                Some(Err(Trouble::Lost(_))) | None => return,
            };
            if self.send(&end).await.is_err() {
                return;
            }
        }
    }

    async fn answer(&self, request: &Request) -> Result<(), Trouble> {
        if let Request::Time = request {
            let mut timing = self.timing.borrow_mut();
            timing.get_or_insert_with(|| Timing::begin(self.server.kernels()));
            return Ok(());
        }
        answer(&self.server, request, self).await
    }

    /// The next request. `None` if the client has gone.
    async fn next_request(&self) -> io::Result<Option<Result<Request, Malformed>>> {
        const HEAD: usize = size_of::<u32>();
        while self.incoming.borrow().is_empty() {
            if self.read_more().await? == 0 {
                return Ok(None);
            }
        }
        let rest = async {
            if !self.has_read(HEAD).await? {
                return Ok(None);
            }
            let head = *self.incoming.borrow().first_chunk().expect("so many bytes were read");
            let length = match text_length(head) {
                Ok(length) => length,
                Err(error) => return Ok(Some(Err(Malformed(error.to_string())))),
            };
            if !self.has_read(HEAD + length).await? {
                return Ok(None);
            }
            let mut incoming = self.incoming.borrow_mut();
            let request = serde_json::from_slice(&incoming[HEAD..HEAD + length]);
            incoming.drain(..HEAD + length);
            incoming.shrink_to(EARLY_BYTES);
            let malformed =
                |error| Malformed(format!("this is no request of the protocol: {error}"));
            Ok(Some(request.map_err(malformed)))
        };
        match timeout_after(FRAME_WITHIN, rest).await {
            Ok(request) => request,
            Err(_) => Ok(Some(Err(Malformed("the rest of the request did not follow".into())))),
        }
    }

    /// Reads until there are so many bytes. `false`: the client has gone before.
    async fn has_read(&self, count: usize) -> io::Result<bool> {
        while self.incoming.borrow().len() < count {
            if self.read_more().await? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn read_more(&self) -> io::Result<usize> {
        let mut bytes = [0; READ_BYTES];
        let read = self.stream.read(&mut bytes).await?;
        self.incoming.borrow_mut().extend_from_slice(&bytes[..read]);
        Ok(read)
    }

    /// Runs a future until the client goes, which drops the future. `None`: the client has gone.
    async fn while_connected<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut gone = pin!(self.gone());
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => gone.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Waits until the client goes. Keeps the begin of its next request.
    async fn gone(&self) {
        while self.incoming.borrow().len() < EARLY_BYTES {
            if !matches!(self.read_more().await, Ok(1..)) {
                return;
            }
        }
        let _ = future_wait(pending::<()>()).await;
    }

    async fn send(&self, value: &impl Serialize) -> io::Result<()> {
        self.write(&frame(value)?).await
    }

    async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let written = timeout_after(FRAME_WITHIN, self.stream.write_all(bytes)).await;
        Ok(written.map_err(io::Error::from)??)
    }
}

impl Sink for Connection {
    async fn part(&self, part: Part) -> io::Result<()> {
        let mut parts = vec![part];
        while let Some(part) = parts.pop() {
            match frame(&part) {
                Ok(bytes) => self.write(&bytes).await?,
                Err(_) => {
                    let (first, rest) = halves(part);
                    parts.extend(rest);
                    parts.push(first);
                }
            }
        }
        Ok(())
    }
}

/// A refusal, with a reason that fits into a frame.
fn failed(mut why: String) -> Part {
    let mut end = why.len().min(REASON_BYTES);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    why.truncate(end);
    Part::Failed(why)
}

/// Divides a part that does not fit into a frame.
fn halves(part: Part) -> (Part, Option<Part>) {
    fn half<T>(list: &mut Vec<T>) -> Vec<T> {
        list.split_off(list.len().div_ceil(2))
    }

    match part {
        Part::Tasks(mut tasks) if tasks.len() > 1 => {
            let rest = half(&mut tasks);
            (Part::Tasks(tasks), Some(Part::Tasks(rest)))
        }
        Part::Tasks(mut tasks) if tasks.first().is_some_and(|task| task.waits.len() > 1) => {
            let waits = &mut tasks[0].waits;
            let left_out = half(waits).len();
            waits.pop();
            waits.push(further_waits(left_out + 1));
            (Part::Tasks(tasks), None)
        }
        Part::Graph(mut graph) if graph.edges.len() > 1 => {
            let edges = half(&mut graph.edges);
            (Part::Graph(graph), Some(Part::Graph(Graph { edges, ..Graph::default() })))
        }
        Part::Events(mut events) if events.len() > 1 => {
            let rest = half(&mut events);
            (Part::Events(events), Some(Part::Events(rest)))
        }
        Part::Names(mut names) if names.len() > 1 => {
            let rest = half(&mut names);
            (Part::Names(names), Some(Part::Names(rest)))
        }
        Part::Profile(mut rows) if rows.len() > 1 => {
            let rest = half(&mut rows);
            (Part::Profile(rows), Some(Part::Profile(rest)))
        }
        Part::Samples(mut samples) if samples.stacks.len() > 1 => {
            let stacks = half(&mut samples.stacks);
            let rest = Samples { stacks, none: None, frequency: samples.frequency };
            (Part::Samples(samples), Some(Part::Samples(rest)))
        }
        _ => (failed(format!("a part of the answer has more than {FRAME_LIMIT} bytes")), None),
    }
}

/// Requests to time steps. The drop takes them back.
pub(super) struct Timing(Vec<KernelView>);

impl Timing {
    pub(super) fn begin(kernels: Vec<KernelView>) -> Self {
        set(&kernels, true);
        Self(kernels)
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        set(&self.0, false);
    }
}

fn set(kernels: &[KernelView], is_wanted: bool) {
    for kernel in kernels {
        // A kernel that has ended times nothing.
        let _ = kernel.handle().call_there(Box::new(move || time_steps(is_wanted)));
    }
}
