//! The handle of the broker, and the tasks that serve it behind a listener.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use amq_protocol::protocol::{AMQPClass, connection};
use pikake_net::{TcpListener, TcpStream};
use pikake_time::Ticks;
use pikake_traps::{
    CancelOnDrop, WaitQueue, elapsed_since, ignore_after, now, park, random, sleep, spawn,
};

use crate::state::{Exchange, State};

/// A broker in the test program. Clones are the same broker.
#[derive(Clone, Default)]
pub struct Broker(Rc<Inner>);

#[derive(Default)]
struct Inner {
    state: RefCell<State>,
    /// The links of served connections, by connection.
    links: RefCell<BTreeMap<u64, Rc<Link>>>,
    /// The broker's time and the kernel's at the last [`serve`]. Time continues over restarts.
    served_since: Cell<Option<(Duration, Ticks)>>,
    /// The longest pause between the ends of two channels of a lost connection.
    longest_end_pause: Cell<Duration>,
}

/// The state that reader and writer of a connection share.
#[derive(Default)]
struct Link {
    output: WaitQueue,
    is_cut: Cell<bool>,
}

impl Broker {
    /// A broker without queues, and with the predeclared exchanges.
    pub fn new() -> Self {
        let broker = Self::default();
        for kind in ["direct", "fanout", "topic"] {
            let exchange = Exchange { kind: kind.to_owned(), routes: Vec::new() };
            broker.0.state.borrow_mut().exchanges.insert(format!("amq.{kind}"), exchange);
        }
        broker
    }

    /// Adds a connection, and returns its id. For programs with their own transport; [`serve`] does
    /// this.
    pub fn connect(&self) -> u64 {
        self.0.state.borrow_mut().connect()
    }

    /// Handles bytes from a connection.
    pub fn input(&self, connection: u64, bytes: &[u8]) {
        self.0.state.borrow_mut().input(connection, bytes);
        self.wake_writers();
    }

    /// Takes the output for a connection, and whether to close the connection after it.
    pub fn output(&self, connection: u64) -> (Vec<u8>, bool) {
        match self.0.state.borrow_mut().peers.get_mut(&connection) {
            Some(peer) => (std::mem::take(&mut peer.output), peer.is_ended),
            None => (Vec::new(), true),
        }
    }

    /// Removes a connection, and requeues its unacknowledged messages.
    pub fn disconnect(&self, connection: u64) {
        self.0.state.borrow_mut().disconnect(connection);
        self.wake_writers();
    }

    /// Sets the time since an arbitrary moment, and expires messages.
    pub fn tick(&self, now: Duration) {
        self.0.state.borrow_mut().tick(now);
        self.wake_writers();
    }

    /// The time at which the next message expires.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.0.state.borrow().next_expiry()
    }

    /// Cuts all connections without connection.close.
    pub fn cut(&self) {
        for link in self.0.links.borrow().values() {
            link.is_cut.set(true);
        }
        self.wake_writers();
    }

    /// Simulates a crash and restart: only durable queues remain, with all their messages.
    pub fn restart(&self) {
        let mut state = self.0.state.borrow_mut();
        for id in state.peers.keys().copied().collect::<Vec<_>>() {
            state.disconnect(id);
        }
        let lost = state.queues.iter().filter(|(_, queue)| !queue.durable);
        for name in lost.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            state.remove_queue(&name);
        }
        drop(state);
        self.0.links.borrow_mut().clear();
    }

    /// Removes a kind of exchange and its exchanges, as a restart without its plugin does.
    /// Declaring one then closes the connection.
    pub fn forget_kind(&self, kind: &str) {
        let mut state = self.0.state.borrow_mut();
        state.exchanges.retain(|_, exchange| exchange.kind != kind);
        state.forgotten_kinds.insert(kind.to_owned());
    }

    /// Limits the channels of later connections to `most`.
    pub fn limit_channels(&self, most: u16) {
        self.0.state.borrow_mut().channel_max = Some(most);
    }

    /// Ends the channels of a lost connection one after the other from now on, with a random pause
    /// of at most this length after each. RabbitMQ requeues the messages of each channel at a
    /// moment of its own, too.
    pub fn pause_between_ends(&self, longest: Duration) {
        self.0.longest_end_pause.set(longest);
    }

    /// Accepts the messages of a queue from now on, and never confirms them.
    pub fn hold_confirms(&self, queue: &str) {
        self.0.state.borrow_mut().held_confirms.insert(queue.to_owned());
    }

    /// Refuses new consumers of direct replies from now on, which closes their channels.
    pub fn refuse_direct_reply(&self) {
        self.0.state.borrow_mut().refuses_direct_reply = true;
    }

    /// Blocks publishers for a reason, or unblocks them (`None`).
    pub fn block(&self, reason: Option<&str>) {
        let mut state = self.0.state.borrow_mut();
        state.blocked = reason.map(str::to_owned);
        if reason.is_none() {
            for id in state.peers.keys().copied().collect::<Vec<_>>() {
                let was_paused = state.peers.get_mut(&id).map(|p| std::mem::take(&mut p.is_paused));
                if was_paused == Some(true) {
                    let unblocked = connection::AMQPMethod::Unblocked(connection::Unblocked {});
                    state.send_method(id, 0, AMQPClass::Connection(unblocked));
                    state.handle_frames(id);
                }
            }
        }
        drop(state);
        self.wake_writers();
    }

    /// The number of ready messages of a queue; 0 if there is no such queue.
    pub fn ready(&self, queue: &str) -> usize {
        self.0.state.borrow().queues.get(queue).map_or(0, |queue| queue.ready.len())
    }

    /// The number of unacknowledged messages of a queue.
    pub fn unacked(&self, queue: &str) -> usize {
        self.0.state.borrow().queues.get(queue).map_or(0, |queue| queue.unacked)
    }

    /// The number of consumers of a queue.
    pub fn consumers(&self, queue: &str) -> usize {
        self.0.state.borrow().queues.get(queue).map_or(0, |queue| queue.consumers.len())
    }

    /// The number of open channels of all connections.
    pub fn channels(&self) -> usize {
        self.0.state.borrow().peers.values().map(|peer| peer.channels.len()).sum()
    }

    /// The bodies of all messages of a queue: first the ready ones, oldest first, then the
    /// unacknowledged.
    pub fn bodies(&self, queue: &str) -> Vec<Vec<u8>> {
        let state = self.0.state.borrow();
        let ready = state.queues.get(queue).into_iter().flat_map(|queue| &queue.ready);
        let channels = state.peers.values().flat_map(|peer| peer.channels.values());
        let unacked = channels.flat_map(|channel| channel.unacked.values());
        let unacked = unacked.filter(|unacked| unacked.queue == queue);
        let stored = ready.chain(unacked.map(|unacked| &unacked.stored));
        stored.map(|stored| stored.message.body.clone()).collect()
    }

    /// The names of all queues.
    pub fn queues(&self) -> Vec<String> {
        self.0.state.borrow().queues.keys().cloned().collect()
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.0.state.borrow().peers.len()
    }

    /// Sets the broker's time to the kernel's.
    fn advance_clock(&self) {
        if let Some((before, served_since)) = self.0.served_since.get() {
            self.tick(before + elapsed_since(served_since));
        }
    }

    /// Wakes all writers, which check for output.
    fn wake_writers(&self) {
        for link in self.0.links.borrow().values() {
            link.output.wake(1);
        }
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker")
            .field("queues", &self.queues())
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}

/// Serves all connections of the listener until the future is dropped or interrupted.
///
/// # Errors
///
/// The error of the listener, or the interruption.
pub fn serve(broker: Broker, listener: TcpListener) -> impl Future<Output = io::Result<()>> {
    /// The period at which messages expire.
    const CLOCK_PERIOD: Duration = Duration::from_millis(20);
    async move {
        let mut tasks: Vec<CancelOnDrop<()>> = Vec::new();
        broker.0.served_since.set(Some((broker.0.state.borrow().now, now())));
        let clock = broker.clone();
        tasks.push(
            spawn(async move {
                while sleep(CLOCK_PERIOD).await.is_ok() {
                    clock.advance_clock();
                }
            })
            .cancel_on_drop(),
        );
        loop {
            let (stream, _) = listener.accept().await?;
            tasks.push(spawn(serve_connection(broker.clone(), stream)).cancel_on_drop());
        }
    }
}

/// Serves one connection until its end.
async fn serve_connection(broker: Broker, stream: TcpStream) {
    /// The time after connection.close in which the peer may hang up.
    const CLOSE_WAIT: Duration = Duration::from_secs(1);
    let id = broker.connect();
    let link = Rc::new(Link::default());
    broker.0.links.borrow_mut().insert(id, link.clone());
    let stream = Rc::new(stream);
    let writer = {
        let (broker, link, stream) = (broker.clone(), link.clone(), stream.clone());
        spawn(async move {
            while !link.is_cut.get() {
                let (output, is_ended) = broker.output(id);
                if output.is_empty() && is_ended {
                    drop(stream.shutdown(std::net::Shutdown::Write));
                    // The reader goes on, so that a reset does not destroy the last output.
                    let hung_up =
                        async { while !link.is_cut.get() && park(&link.output).await.is_ok() {} };
                    let _interrupted = ignore_after(CLOSE_WAIT, hung_up).await;
                    break;
                }
                let done = match output.is_empty() {
                    true => park(&link.output).await.is_ok(),
                    false => stream.write_all(&output).await.is_ok(),
                };
                // The peer has hung up.
                if !done {
                    break;
                }
            }
            stream.close();
        })
        .cancel_on_drop()
    };
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        broker.advance_clock();
        broker.input(id, &buffer[..length]);
    }
    drop(writer);
    broker.0.links.borrow_mut().remove(&id);
    let longest = broker.0.longest_end_pause.get();
    if !longest.is_zero() {
        let channels = broker.0.state.borrow().channels_of(id);
        for number in channels {
            broker.0.state.borrow_mut().end_channel(id, number);
            broker.wake_writers();
            if sleep(longest.mul_f64(random::f64())).await.is_err() {
                break;
            }
        }
    }
    broker.disconnect(id);
}
