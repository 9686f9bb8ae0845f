//! The broker as tests hold it, and behind a listener.

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
use pikake_traps::{CancelOnDrop, WaitQueue, elapsed_since, ignore_after, now, park, sleep, spawn};

use crate::state::{Exchange, State};

/// A broker that lives in the program. Clones are the same broker.
#[derive(Clone, Default)]
pub struct Broker(Rc<Inner>);

#[derive(Default)]
struct Inner {
    state: RefCell<State>,
    /// Who writes to each connection.
    wires: RefCell<BTreeMap<u64, Rc<Wire>>>,
    /// Its time when it was served last, and when that was. It goes on over restarts.
    begun: Cell<Option<(Duration, Ticks)>>,
}

/// What reader and writer of a connection share.
#[derive(Default)]
struct Wire {
    output: WaitQueue,
    is_cut: Cell<bool>,
}

impl Broker {
    /// A broker without queues, and with the exchanges that are always there.
    pub fn new() -> Self {
        let broker = Self::default();
        for kind in ["direct", "fanout", "topic"] {
            let exchange = Exchange { kind: kind.to_owned(), routes: Vec::new() };
            broker.0.state.borrow_mut().exchanges.insert(format!("amq.{kind}"), exchange);
        }
        broker
    }

    /// A new connection has been made. For programs that bring their own transport; [`serve`] does this.
    pub fn connect(&self) -> u64 {
        self.0.state.borrow_mut().connect()
    }

    /// Takes what came over a connection.
    pub fn input(&self, connection: u64, bytes: &[u8]) {
        self.0.state.borrow_mut().input(connection, bytes);
        self.kick();
    }

    /// What is to be sent over a connection, and whether it is to be closed behind that.
    pub fn output(&self, connection: u64) -> (Vec<u8>, bool) {
        match self.0.state.borrow_mut().peers.get_mut(&connection) {
            Some(peer) => (std::mem::take(&mut peer.output), peer.is_over),
            None => (Vec::new(), true),
        }
    }

    /// A connection has gone: what it had unacknowledged goes back.
    pub fn disconnect(&self, connection: u64) {
        self.0.state.borrow_mut().disconnect(connection);
        self.kick();
    }

    /// Tells the time, counted from any moment: messages expire by it.
    pub fn tick(&self, now: Duration) {
        self.0.state.borrow_mut().tick(now);
        self.kick();
    }

    /// When the next message expires.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.0.state.borrow().next_expiry()
    }

    /// Cuts all connections, without a word.
    pub fn cut(&self) {
        for wire in self.0.wires.borrow().values() {
            wire.is_cut.set(true);
        }
        self.kick();
    }

    /// What is left after a crash: durable queues, with everything that was in them.
    pub fn restart(&self) {
        let mut state = self.0.state.borrow_mut();
        for id in state.peers.keys().copied().collect::<Vec<_>>() {
            state.disconnect(id);
        }
        state.queues.retain(|_, queue| queue.durable);
        drop(state);
        self.0.wires.borrow_mut().clear();
    }

    /// Knows a kind of exchanges no more, nor the exchanges of it, as after a restart without the plugin
    /// that brings it. To declare one costs the connection.
    pub fn forget_kind(&self, kind: &str) {
        let mut state = self.0.state.borrow_mut();
        state.exchanges.retain(|_, exchange| exchange.kind != kind);
        state.forgotten_kinds.insert(kind.to_owned());
    }

    /// Grants connections that are made from now on so many channels.
    pub fn limit_channels(&self, most: u16) {
        self.0.state.borrow_mut().channel_max = Some(most);
    }

    /// Takes no messages any more, for a reason; or does again.
    pub fn block(&self, reason: Option<&str>) {
        let mut state = self.0.state.borrow_mut();
        state.blocked = reason.map(str::to_owned);
        if reason.is_none() {
            for id in state.peers.keys().copied().collect::<Vec<_>>() {
                let was_stopped =
                    state.peers.get_mut(&id).map(|p| std::mem::take(&mut p.is_stopped));
                if was_stopped == Some(true) {
                    let unblocked = connection::AMQPMethod::Unblocked(connection::Unblocked {});
                    state.say(id, 0, AMQPClass::Connection(unblocked));
                    state.frames(id);
                }
            }
        }
        drop(state);
        self.kick();
    }

    /// How many messages of a queue wait to be delivered; none if there is no such queue.
    pub fn ready(&self, queue: &str) -> usize {
        self.0.state.borrow().queues.get(queue).map_or(0, |queue| queue.ready.len())
    }

    /// How many messages of a queue are delivered and not acknowledged.
    pub fn unacked(&self, queue: &str) -> usize {
        self.0.state.borrow().queues.get(queue).map_or(0, |queue| queue.unacked)
    }

    /// How many consumers a queue has.
    pub fn consumers(&self, queue: &str) -> usize {
        self.0.state.borrow().queues.get(queue).map_or(0, |queue| queue.consumers.len())
    }

    /// How many channels are open, of all connections.
    pub fn channels(&self) -> usize {
        self.0.state.borrow().peers.values().map(|peer| peer.channels.len()).sum()
    }

    /// The bodies of all that is in a queue: what waits, oldest first, then what is delivered and not
    /// acknowledged.
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

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.0.state.borrow().peers.len()
    }

    /// Looks at the clock.
    fn look(&self) {
        if let Some((before, begun)) = self.0.begun.get() {
            self.tick(before + elapsed_since(begun));
        }
    }

    /// Every writer looks whether it has something.
    fn kick(&self) {
        for wire in self.0.wires.borrow().values() {
            wire.output.wake(1);
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

/// Serves all who connect, until it is dropped or interrupted.
///
/// # Errors
///
/// The listener's; the interruption.
pub fn serve(broker: Broker, listener: TcpListener) -> impl Future<Output = io::Result<()>> {
    /// How often it looks whether messages expire sooner than was known.
    const LOOK: Duration = Duration::from_millis(20);
    async move {
        let mut tasks: Vec<CancelOnDrop<()>> = Vec::new();
        broker.0.begun.set(Some((broker.0.state.borrow().now, now())));
        let clock = broker.clone();
        tasks.push(
            spawn(async move {
                while sleep(LOOK).await.is_ok() {
                    clock.look();
                }
            })
            .cancel_on_drop(),
        );
        loop {
            let (stream, _) = listener.accept().await?;
            tasks.push(spawn(talk(broker.clone(), stream)).cancel_on_drop());
        }
    }
}

/// One connection, until its end.
async fn talk(broker: Broker, stream: TcpStream) {
    /// After a farewell the peer has so long to hang up.
    const FAREWELL: Duration = Duration::from_secs(1);
    let id = broker.connect();
    let wire = Rc::new(Wire::default());
    broker.0.wires.borrow_mut().insert(id, wire.clone());
    let stream = Rc::new(stream);
    let writer = {
        let (broker, wire, stream) = (broker.clone(), wire.clone(), stream.clone());
        spawn(async move {
            loop {
                let (output, is_over) = broker.output(id);
                if wire.is_cut.get() || (output.is_empty() && is_over) {
                    break;
                }
                let done = match output.is_empty() {
                    true => park(&wire.output).await.is_ok(),
                    false => stream.write_all(&output).await.is_ok(),
                };
                if !done {
                    break;
                }
            }
            if !wire.is_cut.get() {
                drop(stream.shutdown(std::net::Shutdown::Write));
                // What still comes in is read, so that the last words are not lost to a reset.
                let hung_up =
                    async { while !wire.is_cut.get() && park(&wire.output).await.is_ok() {} };
                let _interrupted = ignore_after(FAREWELL, hung_up).await;
            }
            stream.close();
        })
        .cancel_on_drop()
    };
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        broker.look();
        broker.input(id, &buffer[..length]);
    }
    drop(writer);
    broker.0.wires.borrow_mut().remove(&id);
    broker.disconnect(id);
}
