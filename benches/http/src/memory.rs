//! The bytes of an idle keep-alive connection: the server's live bytes, by a counting allocator, before and after
//! each connection has had one request answered.
//!
//! ```text
//! memory <runtime> [connections]
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

/// Connections, unless told otherwise.
const CONNECTIONS: usize = 2_000;

/// In which the server has come to rest after its last response.
const REST: Duration = Duration::from_millis(200);

const REQUEST: &[u8] = b"GET /users/7 HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// How the response ends.
const END: &[u8] = b"user 7";

/// The system's allocator, which counts the bytes that are in use.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: it does what the system's allocator does.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's obligations are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's obligations are the same.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_add(size, Relaxed);
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's obligations are the same.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

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
    let before = LIVE.load(Relaxed);
    for _ in 0..count {
        connections.push(open());
    }
    std::thread::sleep(REST);
    (LIVE.load(Relaxed) - before) as f64 / count as f64
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
