//! Calls that come while their kernel is late, and are answered by another one.
//!
//! Two calls meet: each handler blocks its kernel until both have begun. So exactly one of them is
//! answered by the other kernel, and both must look the same to their caller.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pikake::net::{Listener, Replicas, TcpListener, TcpStream, serve_on_all};
use pikake::rpc::{Answer, CallError, CallFailure, Client, Error, Executed, Server, current_call};
use pikake::traps::KernelId;
use pikake::{KernelHandle, Kernels, Task, sleep, spawn, timeout_after};

const SOON: Duration = Duration::from_secs(30);
/// Enough for a kernel to take a call, unless the machine is too busy.
const ALONE: Duration = Duration::from_secs(1);
/// Longer than the lateness with which a kernel offers calls.
const LATE: Duration = Duration::from_millis(5);
const MOMENT: Duration = Duration::from_millis(2);

#[pikake::service]
trait Meeting {
    async fn hello(&self);
    /// What the handler sees of its call, behind its kernel.
    async fn seen(&self, text: String) -> (String, String);
    async fn fails(&self) -> Result<(), String>;
    async fn panics(&self);
    async fn waits(&self);
    async fn refused(&self);
}

#[derive(Clone)]
struct Room {
    met: Arc<(Mutex<usize>, Condvar)>,
    was_alone: Arc<AtomicBool>,
    events: Sender<String>,
}

impl Room {
    /// Blocks the thread until another handler does. Notes if none does: the other kernel had no
    /// time.
    fn meet(&self) {
        let (met, meets) = &*self.met;
        let mut count = met.lock().unwrap();
        *count += 1;
        meets.notify_all();
        let until = count.next_multiple_of(2);
        let met = meets.wait_timeout_while(count, ALONE, |met| *met < until).unwrap();
        let (mut count, wait) = met;
        if wait.timed_out() {
            *count -= 1;
            self.was_alone.store(true, Ordering::SeqCst);
        }
    }
}

impl Meeting for Room {
    async fn hello(&self) {}

    async fn seen(&self, text: String) -> (String, String) {
        self.meet();
        let call = current_call().unwrap();
        let key = call.metadata("key").unwrap_or_default();
        (
            KernelHandle::current().id().to_string(),
            format!("{text}, {}, {key}, {}", call.method, call.deadline.is_never()),
        )
    }

    async fn fails(&self) -> Result<(), String> {
        self.meet();
        Err("as it must".to_owned())
    }

    async fn panics(&self) {
        self.meet();
        panic!("as it must be");
    }

    async fn refused(&self) {
        self.events.send("executed".to_owned()).unwrap();
    }

    async fn waits(&self) {
        self.meet();
        self.events.send("begun".to_owned()).unwrap();
        let why = sleep(SOON * 100).await.unwrap_err();
        sleep(MOMENT).await.unwrap(); // a cleanup
        self.events.send(why.reason().unwrap_or("a deadline").to_owned()).unwrap();
    }
}

/// A listener that says which kernel has accepted a client.
struct Noting(TcpListener, Sender<(SocketAddr, KernelId)>);

impl Listener for Noting {
    type Connection = TcpStream;
    type Address = SocketAddr;

    async fn accept(&self) -> std::io::Result<(TcpStream, SocketAddr)> {
        let (stream, client) = self.0.accept().await?;
        let _ = self.1.send((client, KernelHandle::current().id()));
        Ok((stream, client))
    }

    fn replicas(&self) -> Option<Replicas> {
        self.0.replicas()
    }
}

/// A server on two kernels, and the kernel of the first connection.
struct Site {
    server: JoinHandle<usize>,
    kernels: [KernelHandle; 2],
    address: SocketAddr,
    accepts: Receiver<(SocketAddr, KernelId)>,
    was_alone: Arc<AtomicBool>,
    events: Receiver<String>,
}

impl Site {
    fn new() -> Self {
        let ((bound, addresses), (ready, readies)) = (channel(), channel());
        let ((events, seen), (accepted, accepts)) = (channel(), channel());
        let room = Room { met: Arc::default(), was_alone: Arc::default(), events };
        let was_alone = room.was_alone.clone();
        let server = thread::spawn(move || {
            pikake::run(async move {
                let others = Kernels::start(1).unwrap();
                ready.send([KernelHandle::current(), others.handles().remove(0)]).unwrap();
                let reports = serve_on_all("127.0.0.1:0", &others.handles(), move |listener| {
                    bound.send(listener.local_addr().unwrap()).unwrap();
                    let seen = room.events.clone();
                    let door = room.clone();
                    let server = Server::new().add(MeetingServer::new(room));
                    let server = server.intercept(async move |call, next| {
                        if call.method == "Meeting.refused" {
                            door.meet();
                            return Answer::refused("no");
                        }
                        next.await
                    });
                    let server = server.intercept(async move |call, next| {
                        if call.method == "Meeting.fails" {
                            seen.send("intercepted".to_owned()).unwrap();
                        }
                        next.await
                    });
                    server.serve(Noting(listener, accepted))
                });
                reports.await.unwrap().into_iter().map(Result::unwrap).count()
            })
        });
        let kernels = readies.recv_timeout(SOON).unwrap();
        // Both kernels serve from then on.
        let [address, _] = [(); 2].map(|()| addresses.recv_timeout(SOON).unwrap());
        Self { server, kernels, address, accepts, was_alone, events: seen }
    }

    /// Calls `test` with a client, and a closure that holds the client's kernel for a while.
    fn run(self, test: impl AsyncFnOnce(MeetingClient, &dyn Fn() -> Held, &Receiver<String>)) {
        pikake::run(async {
            let client = Client::tcp(&self.address.to_string()).with_metadata("key", "value");
            let meeting = MeetingClient::new(client.clone());
            meeting.hello().await.unwrap();
            let (_, at) = self.accepts.recv_timeout(SOON).unwrap();
            let home = self.kernels.iter().find(|kernel| kernel.id() == at).unwrap();
            let hold = || {
                let ((held, is_held), (release, released)) = (channel(), channel::<()>());
                let hold: Box<dyn FnOnce() + Send> = Box::new(move || {
                    held.send(()).unwrap();
                    let _ = released.recv_timeout(SOON);
                });
                home.call_there(hold).unwrap();
                is_held.recv_timeout(SOON).unwrap();
                Held { _release: release, was_alone: self.was_alone.clone() }
            };
            test(meeting, &hold, &self.events).await;
            client.close().await.unwrap();
        });
        self.kernels[0].interrupt("enough").unwrap();
        assert_eq!(self.server.join().unwrap(), 2);
    }
}

/// A kernel is held until the drop.
struct Held {
    _release: Sender<()>,
    was_alone: Arc<AtomicBool>,
}

/// The outcomes of two calls that come while their kernel is late, and have met; and how often they
/// were made.
async fn meet<T: 'static, F: Future<Output = T> + 'static>(
    hold: &dyn Fn() -> Held,
    call: impl Fn() -> F,
) -> ([T; 2], usize) {
    for attempt in 1.. {
        let ([one, other], was_alone) = late(hold, &call).await;
        let outcomes = [one.await.unwrap(), other.await.unwrap()];
        if !was_alone.swap(false, Ordering::SeqCst) {
            return (outcomes, attempt);
        }
    }
    unreachable!("it is an endless loop")
}

/// Two calls that come while their kernel is late.
async fn late<T: 'static, F: Future<Output = T> + 'static>(
    hold: &dyn Fn() -> Held,
    call: impl Fn() -> F,
) -> ([Task<T>; 2], Arc<AtomicBool>) {
    let held = hold();
    let calls = [spawn(call()), spawn(call())];
    sleep(LATE).await.unwrap(); // they are sent
    (calls, held.was_alone.clone())
}

#[test]
fn late_calls_are_answered_by_two_kernels() {
    Site::new().run(async |meeting, hold, events| {
        let calls = meet(hold, || {
            let meeting = meeting.clone();
            async move { meeting.seen("hello".to_owned()).await.unwrap() }
        });
        let (answers, _) = calls.await;
        let kernels: BTreeSet<_> = answers.iter().map(|(kernel, _)| kernel).collect();
        assert_eq!(kernels.len(), 2, "{answers:?}");
        assert!(answers.iter().all(|(_, seen)| seen == "hello, Meeting.seen, value, true"));

        let fails = || {
            let meeting = meeting.clone();
            async move { meeting.fails().await }
        };
        let (outcomes, attempts) = meet(hold, fails).await;
        for outcome in outcomes {
            assert!(matches!(&outcome, Err(Error::Service(text)) if text == "as it must"));
        }
        // Once for each call.
        assert_eq!(events.try_iter().collect::<Vec<_>>(), vec!["intercepted"; 2 * attempts]);

        let panics = || {
            let meeting = meeting.clone();
            async move { meeting.panics().await }
        };
        for outcome in meet(hold, panics).await.0 {
            let CallError { failure, .. } = outcome.unwrap_err();
            assert!(matches!(failure, CallFailure::Panicked), "{failure:?}");
        }
    });
}

#[test]
fn callers_who_give_up_interrupt_handlers_of_two_kernels() {
    Site::new().run(async |meeting, hold, events| {
        let waits = || {
            let meeting = meeting.clone();
            async move { meeting.waits().await }
        };
        let (calls, _) = late(hold, waits).await;
        let event = async || {
            loop {
                match events.try_recv() {
                    Ok(event) => return event,
                    Err(_) => sleep(MOMENT).await.unwrap(),
                }
            }
        };
        for _ in 0..2 {
            assert_eq!(event().await, "begun");
        }
        for call in &calls {
            call.cancel().await.unwrap();
        }
        for _ in 0..2 {
            assert_eq!(event().await, "the caller has given up");
        }
        // The connection is as it was.
        meeting.hello().await.unwrap();
    });
}

#[test]
fn refused_call_is_not_executed_on_any_kernel() {
    Site::new().run(async |meeting, hold, events| {
        let refused = || {
            let meeting = meeting.clone();
            async move { meeting.refused().await }
        };
        let (outcomes, _) = meet(hold, refused).await;
        assert_eq!(outcomes.map(|outcome| outcome.unwrap_err().executed), [Executed::No; 2]);
        assert!(events.try_recv().is_err());
    });
}

#[test]
fn deadline_interrupts_a_handler_while_the_kernel_of_its_connection_is_busy() {
    Site::new().run(async |meeting, hold, events| {
        let waits = || {
            let meeting = meeting.clone();
            async move { timeout_after(Duration::from_secs(2), meeting.waits()).await.is_err() }
        };
        let event = async || {
            loop {
                match events.try_recv() {
                    Ok(event) => return event,
                    Err(_) => sleep(MOMENT).await.unwrap(),
                }
            }
        };
        let (calls, _) = late(hold, waits).await;
        for _ in 0..2 {
            assert_eq!(event().await, "begun");
        }
        let held = hold();
        assert_eq!(event().await, "a deadline");
        drop(held);
        for call in calls {
            assert!(call.await.unwrap());
        }
    });
}
