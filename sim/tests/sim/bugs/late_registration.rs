//! A client that has many requests under way on one connection.
//!
//! The bug: the client registers its wait for a reply after it has sent the request. A fast reply
//! then finds no registered wait.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, serve};
use pikake::sim::{Cause, Sim};
use pikake::sync::oneshot;
use pikake::thread::run_in_thread;
use pikake::{Flatten, spawn, timeout_after};

const REQUESTS: u8 = 10;
/// Far longer than any reply takes.
const PATIENCE: Duration = Duration::from_secs(5);

async fn log() -> io::Result<()> {
    run_in_thread(|| "as if written to a file").await.map(drop).map_err(io::Error::other)
}

struct Client {
    stream: TcpStream,
    next: Cell<u8>,
    waiting: RefCell<BTreeMap<u8, oneshot::Sender<u8>>>,
}

impl Client {
    async fn call(&self, bug: bool) -> io::Result<u8> {
        let id = self.next.replace(self.next.get() + 1);
        let (sender, receiver) = oneshot::channel();
        let register = || self.waiting.borrow_mut().insert(id, sender);
        if bug {
            self.stream.write_all(&[id]).await?;
            log().await?;
            register();
        } else {
            register();
            self.stream.write_all(&[id]).await?;
            log().await?;
        }
        receiver.await?.map_err(|_| io::Error::other("the receiver has failed"))
    }

    async fn receive(&self) -> io::Result<()> {
        let mut reply = [0; 2];
        loop {
            self.stream.read_exact(&mut reply).await?;
            let waiting = self.waiting.borrow_mut().remove(&reply[0]);
            // Abandoned requests have no waiter.
            waiting.map(|sender| sender.send(reply[1]));
        }
    }
}

fn world(sim: &mut Sim, bug: bool) {
    sim.host("server", || async {
        let listener = TcpListener::bind("0.0.0.0:80").await?;
        let answer = async |stream: TcpStream, _| {
            let mut id = [0];
            while stream.read_exact(&mut id).await.is_ok()
                && stream.write_all(&[id[0], id[0] * 2]).await.is_ok()
            {}
        };
        serve(listener, 10, answer).await.map(drop)
    });
    sim.client("client", move || async move {
        let stream = TcpStream::connect("server:80").await?;
        let (next, waiting) = Default::default();
        let client = Rc::new(Client { stream, next, waiting });
        let receiving = client.clone();
        let receiver = spawn(async move { receiving.receive().await });
        for request in 0..REQUESTS {
            let reply = timeout_after(PATIENCE, client.call(bug)).await;
            assert_eq!(reply.flatten()?, request * 2);
        }
        receiver.cancel().await.map(drop).map_err(io::Error::other)
    });
}

#[test]
fn early_reply_is_found_within_300_seeds() {
    let failure = super::found_within(300, world);
    assert!(matches!(failure.cause, Cause::Failed { ref host, .. } if host == "client"));
}

#[test]
fn sound_program_fails_no_seed() {
    super::sound(world);
}
