//! The bytes of an idle keep-alive connection: the server's live bytes, by a counting allocator,
//! before and after each connection has had one request answered.
//!
//! ```text
//! memory <runtime> [connections]
//! ```

#[path = "../../../tests/support/live_bytes.rs"]
mod live_bytes;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use live_bytes::live_bytes;

/// Connections, unless told otherwise.
const CONNECTIONS: usize = 2_000;

/// In which the server has come to rest after its last response.
const REST: Duration = Duration::from_millis(200);

const REQUEST: &[u8] = b"GET /users/7 HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// How the response ends.
const END: &[u8] = b"user 7";

/// Has a request answered. The client's buffer is on its stack.
fn ask(connection: &mut TcpStream) {
    connection.write_all(REQUEST).expect("the server lives");
    let (mut response, mut length) = ([0; 1024], 0);
    while !response[..length].ends_with(END) {
        let more = connection.read(&mut response[length..]).expect("the server lives");
        assert!(more > 0, "the server has closed the connection");
        length += more;
    }
}

/// Live bytes per connection.
fn measure(port: u16, count: usize) -> f64 {
    let open = || {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a connection");
        ask(&mut connection);
        connection
    };
    let mut connections = Vec::with_capacity(count);
    // What a server makes once, with its first connection, does not count.
    let _first = open();
    std::thread::sleep(REST);
    let before = live_bytes();
    for _ in 0..count {
        connections.push(open());
    }
    std::thread::sleep(REST);
    (live_bytes() - before) as f64 / count as f64
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let runtime = arguments.next().expect("a runtime");
    let count = arguments.next().map_or(CONNECTIONS, |count| count.parse().expect("a number"));
    let (bound, port) = mpsc::channel();
    let on_bound = move |port| bound.send(port).expect("somebody measures");
    std::thread::spawn(move || pikake_http_bench::serve(&runtime, on_bound));
    println!("{:.0}", measure(port.recv().expect("the server is bound"), count));
}
