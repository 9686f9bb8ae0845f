//! The HTTP client: against pikake's server, against scripted servers that misbehave, by proxies,
//! and in simulation.

use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use axum::Router;
use pikake::http::{Client, serve};
use pikake::net::{BufReader, TcpListener, TcpStream, Write};
use pikake::{Kernel, Task, future_wait, sleep, spawn, timeout_after};

mod basics;
mod hostile;
mod https;
mod limits;
mod proxies;
mod redirects;
mod retries;
mod worlds;

pub(crate) const LONG: Duration = Duration::from_secs(3600);
/// A limit for anything that should happen.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) fn ms(length: u64) -> Duration {
    Duration::from_millis(length)
}

/// Runs a test, and checks that it leaves no task and no socket.
pub(crate) fn run(test: impl AsyncFnOnce()) {
    let kernel = Kernel::new().unwrap();
    let counts = || (kernel.task_count(), kernel.socket_count());
    kernel.run(async {
        let before = counts();
        timeout_after(SOON, future_wait(test())).await.expect("the test ends").unwrap();
        let since = Instant::now();
        while counts() != before {
            assert!(since.elapsed() < SOON, "left: {:?}, at first: {before:?}", counts());
            sleep(ms(5)).await.unwrap();
        }
    });
}

/// A client that does not read the environment of the tests.
pub(crate) fn client() -> Client {
    Client::builder().no_proxy().build().unwrap()
}

/// A task that is aborted on drop.
pub(crate) struct Guard<T>(pub(crate) Task<T>);

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        self.0.request_cancel("the test is over");
    }
}

/// A server of axum on pikake. Its drop ends it.
pub(crate) struct Site {
    pub(crate) url: String,
    _server: Box<dyn std::any::Any>,
}

pub(crate) async fn site(router: Router) -> Site {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = serve(listener, router).soft_deadline(ms(1)).hard_deadline(ms(2));
    Site { url, _server: Box::new(Guard(spawn(server.into_future()))) }
}

use std::future::IntoFuture as _;

/// A connection of a scripted server.
pub(crate) struct Conn {
    /// How many connections were accepted before.
    pub(crate) number: usize,
    pub(crate) stream: BufReader<TcpStream>,
}

impl Conn {
    /// Reads a request, with its body if that has a length. `None` at the end of the connection.
    pub(crate) async fn request(&self) -> Option<String> {
        let mut all = String::new();
        let mut length = 0;
        loop {
            let line = self.stream.next_line().await.ok()??;
            let line = line.trim_end();
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            all.push_str(line);
            all.push('\n');
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.ok()?;
        all.push_str(&String::from_utf8_lossy(&body));
        Some(all)
    }

    pub(crate) async fn send(&self, text: impl AsRef<[u8]>) {
        drop(self.stream.write_all(text.as_ref()).await);
    }

    /// Answers 200 with this body.
    pub(crate) async fn answer(&self, body: &str) {
        self.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
    }
}

/// A server whose connections follow a script.
pub(crate) struct Scripted {
    pub(crate) url: String,
    pub(crate) accepted: Rc<Cell<usize>>,
    _server: Guard<()>,
}

pub(crate) async fn scripted<F, W>(script: F) -> Scripted
where
    F: Fn(Conn) -> W + 'static,
    W: Future<Output = ()> + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    scripted_at(listener, script)
}

pub(crate) fn scripted_at<F, W>(listener: TcpListener, script: F) -> Scripted
where
    F: Fn(Conn) -> W + 'static,
    W: Future<Output = ()> + 'static,
{
    let address: SocketAddr = listener.local_addr().unwrap();
    let accepted = Rc::<Cell<usize>>::default();
    let counted = accepted.clone();
    let server = spawn(async move {
        let handler = move |stream, _| {
            let number = counted.replace(counted.get() + 1);
            script(Conn { number, stream: BufReader::new(stream) })
        };
        drop(pikake::net::serve(listener, 100, handler).await);
    });
    Scripted { url: format!("http://{address}"), accepted, _server: Guard(server) }
}
