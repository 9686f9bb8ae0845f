//! The connection of one client: frames in, frames out, and how long each may take.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_net::UnixStream;
use pikake_traps::timeout_after;
use serde::Serialize;

use super::Server;
use super::answers::{Sink, Trouble, answer};
use crate::model::{Graph, Samples};
use crate::observed::{Timing, count_of_waits, further_waits};
use crate::protocol::{FRAME_LIMIT, Part, Request, frame, text_length};

/// The time in which a client takes a frame, and in which the rest of a frame follows its begin.
const FRAME_WITHIN: Duration = Duration::from_secs(10);

/// The number of bytes that one read takes.
const READ_BYTES: usize = 4_096;

/// The bytes of later requests that are kept during a request. A client that sends more loses its
/// connection: who does not read does not see that the client has gone.
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
            let is_sent = self.send(&end).await.is_ok();
            sort_freed_memory();
            if !is_sent {
                return;
            }
        }
    }

    async fn answer(&self, request: &Request) -> Result<(), Trouble> {
        if let Request::Time = request {
            let mut timing = self.timing.borrow_mut();
            timing.get_or_insert_with(|| self.server.times.begin(self.server.kernels()));
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

    /// Waits until the client goes, or sends more than it may meanwhile. Keeps the begin of its
    /// next request.
    async fn gone(&self) {
        while self.incoming.borrow().len() < EARLY_BYTES {
            if !matches!(self.read_more().await, Ok(1..)) {
                return;
            }
        }
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
    async fn part(&self, part: Part) -> Result<(), Trouble> {
        let mut parts = vec![part];
        while let Some(part) = parts.pop() {
            match frame(&part) {
                Ok(bytes) => self.write(&bytes).await?,
                Err(_) => {
                    // The refusal ends the answer, and is no part among others.
                    let too_long =
                        || format!("a part of the answer has more than {FRAME_LIMIT} bytes");
                    let (first, rest) = halves(part).ok_or_else(|| Trouble::Failed(too_long()))?;
                    parts.extend(rest);
                    parts.push(first);
                }
            }
        }
        Ok(())
    }
}

/// Has this thread, and no kernel's, sort the memory that an answer has freed.
///
/// The allocator of glibc keeps small blocks that were freed, and sorts all of them at a later
/// large allocation. An answer frees half a million, which takes 30 ms. A kernel's thread that
/// frees or enlarges a block of this thread's memory, such as a closure, would have to wait for
/// that.
fn sort_freed_memory() {
    drop(black_box(Vec::<u8>::with_capacity(READ_BYTES)));
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

/// Divides a part that does not fit into a frame. `None`: it is indivisible.
fn halves(part: Part) -> Option<(Part, Option<Part>)> {
    fn half<T>(list: &mut Vec<T>) -> Vec<T> {
        list.split_off(list.len().div_ceil(2))
    }

    /// The second half of a list that has two.
    fn second<T>(mut list: Vec<T>, part: impl Fn(Vec<T>) -> Part) -> Option<(Part, Option<Part>)> {
        let rest = half(&mut list);
        (!rest.is_empty()).then(|| (part(list), Some(part(rest))))
    }

    match part {
        Part::Tasks(mut tasks) if tasks.len() == 1 && tasks[0].waits.len() > 1 => {
            let waits = &mut tasks[0].waits;
            let mut left_out = half(waits);
            left_out.extend(waits.pop());
            waits.push(further_waits(left_out.iter().map(count_of_waits).sum()));
            Some((Part::Tasks(tasks), None))
        }
        Part::Tasks(tasks) => second(tasks, Part::Tasks),
        Part::Graph(mut graph) => {
            let mut rest = Graph::default();
            // A cycle stays whole: half of it is no deadlock.
            if graph.edges.len() > 1 {
                rest.edges = half(&mut graph.edges);
            } else if graph.unpolled.len() > 1 {
                rest.unpolled = half(&mut graph.unpolled);
            } else if graph.deadlocks.len() > 1 {
                rest.deadlocks = half(&mut graph.deadlocks);
            } else if graph.left_out.len() > 1 {
                rest.left_out = half(&mut graph.left_out);
            } else {
                return None;
            }
            Some((Part::Graph(graph), Some(Part::Graph(rest))))
        }
        Part::Events(events) => second(events, Part::Events),
        Part::Growing(groups) => second(groups, Part::Growing),
        Part::WaitsForEnded(waits) => second(waits, Part::WaitsForEnded),
        Part::Locks(locks) => second(locks, Part::Locks),
        Part::Names(names) => second(names, Part::Names),
        Part::Profile(rows) => second(rows, Part::Profile),
        Part::Samples(mut samples) => {
            let mut rest = Samples { frequency: samples.frequency, ..Samples::default() };
            if samples.stacks.len() > 1 {
                rest.stacks = half(&mut samples.stacks);
            } else if samples.blocked.len() > 1 {
                rest.blocked = half(&mut samples.blocked);
            } else if samples.modules.len() > 1 {
                rest.modules = half(&mut samples.modules);
            } else {
                return None;
            }
            Some((Part::Samples(samples), Some(Part::Samples(rest))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Answer;
    use crate::model::{BlockedSteps, Edge, Module, Stack, TaskKey};

    /// The parts of a part, as long as it can be divided to this number of bytes.
    fn divided(part: Part, limit: usize) -> Vec<Part> {
        let (mut parts, mut small) = (vec![part], Vec::new());
        while let Some(part) = parts.pop() {
            if frame(&part).unwrap().len() <= limit {
                small.push(part);
                continue;
            }
            let (first, rest) = halves(part).unwrap();
            parts.extend(rest);
            parts.push(first);
        }
        small
    }

    #[test]
    fn divided_graphs_and_samples_come_together_again() {
        let key = |task| TaskKey { kernel: 1, task };
        let edge = |task| Edge {
            from: key(task),
            to: key(task + 1),
            trap: "park".into(),
            place: "src/main.rs:1:1".into(),
            about: None,
        };
        let graph = Graph {
            edges: (0..100).map(edge).collect(),
            deadlocks: (0..100).map(|task| vec![key(task), key(task + 1)]).collect(),
            left_out: (0..100).map(|task| (key(task), 1)).collect(),
            unpolled: (0..100).map(key).collect(),
        };
        let parts = divided(Part::Graph(graph.clone()), 200);
        assert!(parts.len() > 50, "{}", parts.len());
        assert_eq!(Answer::of(parts).unwrap().graph, Some(graph));
        let stack = |count| Stack {
            thread: "main".into(),
            frames: vec!["f".into()],
            count,
            addresses: Vec::new(),
        };
        let of_step = |number: u64| BlockedSteps { stack: stack(number), ..Default::default() };
        let module = |begin| Module { begin, ..Default::default() };
        let samples = Samples {
            frequency: 99,
            stacks: (0..100).map(stack).collect(),
            none: None,
            blocked: (0..100).map(of_step).collect(),
            modules: (0..100).map(module).collect(),
        };
        let parts = divided(Part::Samples(samples.clone()), 400);
        assert!(parts.len() > 20, "{}", parts.len());
        assert_eq!(Answer::of(parts).unwrap().samples, Some(samples));
    }

    #[test]
    fn one_of_a_kind_is_indivisible() {
        let one = Graph { unpolled: vec![TaskKey { kernel: 1, task: 1 }], ..Graph::default() };
        for part in [Part::Graph(one), Part::Events(vec![]), Part::Tasks(vec![]), Part::Done] {
            assert!(halves(part.clone()).is_none(), "{part:?}");
        }
    }
}
