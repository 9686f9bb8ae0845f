//! An AMQP broker in a thread of this process, and addresses at which none answers.

use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::thread;

use pikake_amqp_testing::{Broker, serve};

/// Serves a broker at a port of this machine, or at any (0), until the process ends. Returns its
/// URL.
pub(crate) fn start(port: u16, prepare: fn(&Broker)) -> String {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        pikake::run(async move {
            let broker = Broker::new();
            prepare(&broker);
            let listener =
                pikake::net::TcpListener::bind(("127.0.0.1", port)).await.expect("a free port");
            sender.send(listener.local_addr().expect("bound").port()).expect("the test waits");
            drop(serve(broker, listener).await);
        })
    });
    url(receiver.recv().expect("it is bound"))
}

/// The URL of a broker at a port of this machine.
pub(crate) fn url(port: u16) -> String {
    format!("amqp://ann:secret@127.0.0.1:{port}/")
}

/// A port of this machine at which nobody listens.
pub(crate) fn free_port() -> u16 {
    let bound = TcpListener::bind("127.0.0.1:0").expect("a free port");
    bound.local_addr().expect("bound").port()
}

/// A peer that accepts connections and says nothing, and its URL.
pub(crate) fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    (listener, url(port))
}
