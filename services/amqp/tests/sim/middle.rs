//! One between client and broker, who cuts, falls silent, and puts other words into the broker's
//! mouth.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp::Address;
use pikake_amqp_testing::Broker;
use pikake_net::{TcpListener, TcpStream};
use pikake_traps::{CancelOnDrop, sleep, spawn, timeout_after};

/// How soon it notices what it is told.
const LOOK: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(crate) struct Middle {
    /// It passes nothing on.
    pub(crate) is_silent: Cell<bool>,
    /// It reads nothing.
    pub(crate) is_deaf: Cell<bool>,
    /// What the broker says, and what it is made to say: as many octets.
    pub(crate) others: RefCell<Vec<(Vec<u8>, Vec<u8>)>>,
    /// What it says next besides.
    pub(crate) besides: RefCell<Vec<u8>>,
    /// It cuts the connection over which the client says this, and does not pass it on.
    pub(crate) poison: RefCell<Vec<u8>>,
    /// Connections that came.
    pub(crate) came: Cell<usize>,
    cuts: Cell<usize>,
}

impl Middle {
    /// Listens at a port of its own.
    pub(crate) async fn new(broker: &Broker) -> (Rc<Self>, Address, CancelOnDrop<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("amqp://{}", listener.local_addr().unwrap()).parse().unwrap();
        let middle = Rc::new(Self::default());
        let (this, broker) = (middle.clone(), broker.clone());
        let listening = spawn(async move {
            let mut talks = Vec::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                this.came.set(this.came.get() + 1);
                talks.push(spawn(talk(this.clone(), broker.clone(), stream)).cancel_on_drop());
            }
        });
        (middle, address, listening.cancel_on_drop())
    }

    /// Cuts all connections that there are.
    pub(crate) fn cut(&self) {
        self.cuts.set(self.cuts.get() + 1);
    }

    fn is_poisoned(&self, said: &[u8]) -> bool {
        let poison = self.poison.borrow();
        !poison.is_empty() && said.windows(poison.len()).any(|part| part == *poison)
    }

    fn said(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        for (one, other) in &*self.others.borrow() {
            for at in 0..bytes.len() {
                if bytes[at..].starts_with(one) {
                    bytes[at..at + other.len()].copy_from_slice(other);
                }
            }
        }
        bytes.append(&mut self.besides.borrow_mut());
        bytes
    }
}

async fn talk(middle: Rc<Middle>, broker: Broker, stream: TcpStream) {
    let id = broker.connect();
    let cuts = middle.cuts.get();
    let mut buffer = [0; 4096];
    loop {
        while middle.is_deaf.get() && sleep(LOOK).await.is_ok() {}
        let read = timeout_after(LOOK, stream.read(&mut buffer)).await;
        if middle.cuts.get() != cuts {
            break;
        }
        match read {
            Ok(Ok(0) | Err(_)) => break,
            Ok(Ok(_)) if middle.is_silent.get() => {}
            Ok(Ok(length)) if middle.is_poisoned(&buffer[..length]) => break,
            Ok(Ok(length)) => broker.input(id, &buffer[..length]),
            Err(_) => {}
        }
        if middle.is_silent.get() {
            continue;
        }
        let said = middle.said(broker.output(id).0);
        if !said.is_empty() && stream.write_all(&said).await.is_err() {
            break;
        }
    }
    broker.disconnect(id);
}
