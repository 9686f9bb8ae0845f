//! Requests that are refused without a call of the service, and their neighbours that are not.
//!
//! A case of HTTP/1 is the bytes of a request, after which a second request comes on the same
//! connection. So the answers show whether the connection has ended, and where the server saw the
//! end of the first request.

use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper::header::HOST;
use pikake::http::{Executor, Io, Report, ServeError, serve};
use pikake::net::{TcpListener, TcpStream};
use pikake::sync::Event;
use pikake::{Task, spawn, timeout_after};

const MOMENT: Duration = Duration::from_millis(20);

/// The request after that of a case.
const NEXT: &str = "GET /next HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

/// The answer to a request with an invalid body.
const BROKEN_OFF: &str = "the body broke off";

/// A server that echoes bodies, and notes which requests its service gets.
struct Site {
    address: std::net::SocketAddr,
    called: Arc<Mutex<Vec<String>>>,
    stop: Rc<Event>,
    server: Task<Result<Report, ServeError>>,
}

impl Site {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let called = Arc::<Mutex<Vec<String>>>::default();
        let noted = called.clone();
        let echo = async move |request: Request| {
            noted.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
            request
                .into_body()
                .collect()
                .await
                .map_or_else(|_| Bytes::from_static(BROKEN_OFF.as_bytes()), |body| body.to_bytes())
        };
        let stop = Rc::<Event>::default();
        let stopping = stop.clone();
        let server = serve(listener, Router::new().fallback(echo))
            .shutdown_when(async move { drop(stopping.wait().await) });
        Self { address, called, stop, server: spawn(server.into_future()) }
    }

    /// The requests that the service got since the last call of this.
    fn take_called(&self) -> Vec<String> {
        std::mem::take(&mut self.called.lock().unwrap())
    }

    /// All that the server says to a client that sends this.
    async fn answers(&self, sent: &[u8]) -> String {
        let client = TcpStream::connect(self.address).await.unwrap();
        client.write_all(sent).await.unwrap();
        rest(&client).await
    }

    async fn end(self) -> Report {
        self.stop.set();
        self.server.await.unwrap().unwrap()
    }
}

/// Reads until the end of a connection, which is a reset if the server did not read the second
/// request.
async fn rest(client: &TcpStream) -> String {
    let (mut all, mut part) = (Vec::new(), [0; 1024]);
    loop {
        match client.read(&mut part).await {
            Ok(0) => return String::from_utf8(all).unwrap(),
            Ok(length) => all.extend_from_slice(&part[..length]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                return String::from_utf8(all).unwrap();
            }
        }
    }
}

/// The statuses of these answers.
fn statuses(answers: &str) -> Vec<u16> {
    let heads = answers.split("HTTP/1.").skip(1);
    heads.map(|head| head[2..5].parse().unwrap()).collect()
}

/// The expected treatment of a request.
struct Case {
    /// The section of RFC 9112; of RFC 9110 after an S.
    section: &'static str,
    sent: &'static str,
    status: u16,
}

const fn case(section: &'static str, sent: &'static str, status: u16) -> Case {
    Case { section, sent, status }
}

/// Refused before the service is called; the connection ends. The faults of the suite h1spec are
/// among them.
const REFUSED: &[Case] = &[
    case("2.2", "GET / HTTP/1.1\r\nhost: a\r\n\rx: y\r\n\r\n", 400),
    case("2.2", "GET / HTTP/1.1\r\n host: a\r\n\r\n", 400),
    case("2.3", "GET / HTTP/9.9\r\nhost: a\r\n\r\n", 400),
    case("2.3", "GET / HTTP/1.2\r\nhost: a\r\n\r\n", 400),
    case("2.3", "GET / http/1.1\r\nhost: a\r\n\r\n", 400),
    case("3", "GET / \r\n\r\n", 400),
    case("3", "GET /\r\n\r\n", 400),
    case("3", "Extra lineGET / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    case("3", " GET / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    case("3", "GET  / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    case("3.1", "G@T / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    case("3.2", "GET a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    case("3.2.3", "CONNECT / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    case("3.2.4", "GET * HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    case("3.2", "GET / a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    case("3.2", "GET / HTTP/1.1\r\n\r\n", 400),
    case("3.2", "GET / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello", 400),
    case("3.2", "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
    case("3.2", "GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", 400),
    case("3.2", "GET / HTTP/1.0\r\nhost: a\r\nhost: a\r\n\r\n", 400),
    case("3.2", "GET / HTTP/1.1\r\nhost: a b\r\n\r\n", 400),
    case("3.2", "GET / HTTP/1.1\r\nhost: a, b\r\n\r\n", 400),
    case("3.2", "GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", 400),
    case("3.2", "GET / HTTP/1.1\r\nhost: b@a\r\n\r\n", 400),
    case("3.2", "GET / HTTP/1.1\r\nhost: a:x\r\n\r\n", 400),
    case("3.2", "GET / HTTP/1.1\r\nhost: [::1\r\n\r\n", 400),
    case("3.2", "GET / HTTP/1.1\r\nhost: \u{e4}\r\n\r\n", 400),
    case("3.2", "GET / HTTP/1.0\r\nhost: a b\r\n\r\n", 400),
    case("3.2.2", "GET http://a/ HTTP/1.1\r\n\r\n", 400),
    case("3.2.2", "GET http://a/ HTTP/1.1\r\nhost:\r\n\r\n", 400),
    case("3.2.2", "GET http://a/ HTTP/1.1\r\nhost: a b\r\n\r\n", 400),
    case("3.2.2", "GET http://a/ HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", 400),
    case("S4.2.4", "GET http://b@a/ HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    case("3.2.2", "GET http:/// HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    case("3.2.3", "CONNECT a:1 HTTP/1.1\r\n\r\n", 400),
    case("5", "GET / HTTP/1.1\r\nhost: a\r\n: x\r\n\r\n", 400),
    case("5", "GET / HTTP/1.1\r\nhost: a\r\nx\r\n\r\n", 400),
    case("5.1", "GET / HTTP/1.1\r\nhost : a\r\n\r\n", 400),
    case("5.1", "GET / HTTP/1.1\r\nhost: a\r\nx[]: y\r\n\r\n", 400),
    case("5.2", "GET / HTTP/1.1\r\nhost: a\r\nx: y\r\n z\r\n\r\n", 400),
    case("S5.5", "GET / HTTP/1.1\r\nhost: a\r\nx: y\x07\r\n\r\n", 400),
    case("S5.5", "GET / HTTP/1.1\r\nhost: a\r\nx: y\0\r\n\r\n", 400),
    case("S5.5", "GET / HTTP/1.1\r\nhost: a\r\nx: y\rz\r\n\r\n", 400),
    case("6.1", "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n", 400),
    case("6.1", "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, gzip\r\n\r\n", 400),
    case(
        "6.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        501,
    ),
    case(
        "6.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        501,
    ),
    case(
        "6.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        501,
    ),
    case("6.1", "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    case("6.1", "POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    case(
        "6.3",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        400,
    ),
    case("6.3", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5, 6\r\n\r\nhello", 400),
    case("6.3", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5, 5\r\n\r\nhello", 400),
    case("6.3", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length:\r\n\r\nhello", 400),
    case("6.3", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: abc\r\n\r\n", 400),
    case("6.3", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +5\r\n\r\nhello", 400),
    case("6.3", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1234\r\n\r\n", 400),
    case(
        "6.3",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -123456789123456789123456789\r\n\r\n",
        400,
    ),
    case(
        "6.3",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 123456789123456789123456789\r\n\r\n",
        400,
    ),
    case("6.3", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 18446744073709551615\r\n\r\n", 431),
];

/// Bodies that are found to be invalid while the service reads them; the connection ends.
const BROKEN: &[Case] = &[
    case(
        "7.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nx\r\nhello\r\n0\r\n\r\n",
        200,
    ),
    case(
        "7.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
        200,
    ),
    case(
        "7.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloo\r\n0\r\n\r\n",
        200,
    ),
    case(
        "7.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5 5\r\nhello\r\n0\r\n\r\n",
        200,
    ),
    case(
        "7.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
        200,
    ),
    case(
        "7.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5;\nhello\r\n0\r\n\r\n",
        200,
    ),
    case(
        "7.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        200,
    ),
];

/// Served, on a connection that goes on.
const SERVED: &[Case] = &[
    case("3.2", "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", 200),
    case("3.2", "GET / HTTP/1.1\r\nhost: a\r\n\r\n", 200),
    case("3.2", "GET / HTTP/1.1\r\nhost:\r\n\r\n", 200),
    case("3.2", "GET / HTTP/1.1\r\nhoSt:\ta\r\nempty:\r\n\r\n", 200),
    case("3.2", "GET / HTTP/1.1\r\nhost: a:8080\r\n\r\n", 200),
    case("3.2", "GET / HTTP/1.1\r\nhost: a:\r\n\r\n", 200),
    case("3.2", "GET / HTTP/1.1\r\nhost: [::1]\r\n\r\n", 200),
    case("3.2", "GET / HTTP/1.1\r\nhost: [::1]:8080\r\n\r\n", 200),
    case("3.2.2", "GET http://a/ HTTP/1.1\r\nhost: a\r\n\r\n", 200),
    case("3.2.2", "GET http://a/ HTTP/1.1\r\nhost: b\r\n\r\n", 200),
    case("3.2.2", "GET http://a/ HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", 200),
    case("3.2.4", "OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", 200),
    case("2.2", "\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", 200),
    case("2.2", "GET / HTTP/1.1\nhost: a\n\n", 200),
    case("5.1", "GET / HTTP/1.1\r\nhost: a\r\nx: \r\n\r\n", 200),
    case("6.3", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello", 200),
    case(
        "6.3",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
        200,
    ),
    case(
        "7.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        200,
    ),
    case(
        "7.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: Chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nx: y\r\n\r\n",
        200,
    ),
];

/// Served, on a connection that ends.
const LAST: &[Case] = &[
    case(
        "6.1",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        200,
    ),
    case(
        "6.1",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 6\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        200,
    ),
];

/// Sends each of these, and the next request. Returns the answers to both, and the calls.
async fn outcomes(site: &Site, cases: &[Case]) -> Vec<(String, Vec<u16>, usize, bool)> {
    let mut outcomes = Vec::new();
    for Case { section, sent, .. } in cases {
        let answers = site.answers(format!("{sent}{NEXT}").as_bytes()).await;
        let is_broken = answers.contains(BROKEN_OFF);
        let called = site.take_called().len();
        outcomes.push((format!("{section}: {sent:?}"), statuses(&answers), called, is_broken));
    }
    outcomes
}

/// The expected outcomes of these cases, if the answer to the next request follows or not.
fn expected(
    cases: &[Case],
    calls: usize,
    goes_on: bool,
    is_broken: bool,
) -> Vec<(String, Vec<u16>, usize, bool)> {
    let of = |Case { section, sent, status }: &Case| {
        let mut statuses = vec![*status];
        statuses.extend(goes_on.then_some(200));
        (format!("{section}: {sent:?}"), statuses, calls, is_broken)
    };
    cases.iter().map(of).collect()
}

#[pikake::sim(seeds = 3)]
async fn faulty_request_calls_no_service() {
    let site = Site::start().await;
    assert_eq!(outcomes(&site, REFUSED).await, expected(REFUSED, 0, false, false));
}

#[pikake::sim(seeds = 3)]
async fn neighbours_of_faulty_requests_are_served() {
    let site = Site::start().await;
    assert_eq!(outcomes(&site, SERVED).await, expected(SERVED, 2, true, false));
    assert_eq!(outcomes(&site, LAST).await, expected(LAST, 1, false, false));
}

#[pikake::sim(seeds = 3)]
async fn invalid_chunk_ends_the_connection() {
    let site = Site::start().await;
    assert_eq!(outcomes(&site, BROKEN).await, expected(BROKEN, 1, false, true));
}

/// Until the last byte of the head, the server waits.
#[pikake::sim(seeds = 3)]
async fn head_may_come_in_fragments() {
    let site = Site::start().await;
    let head = "GET /hello HTTP/1.1\r\nHost: localhost\r\nconnection: close\r\n\r\n";
    for (first, second) in (1..head.len()).map(|length| head.split_at(length)) {
        let client = TcpStream::connect(site.address).await.unwrap();
        client.write_all(first.as_bytes()).await.unwrap();
        let early = timeout_after(MOMENT, client.read(&mut [0; 1])).await;
        assert!(early.is_err(), "{first:?}");
        client.write_all(second.as_bytes()).await.unwrap();
        assert_eq!(statuses(&rest(&client).await), [200], "{first:?}");
    }
}

#[pikake::sim(seeds = 3)]
async fn refusal_is_an_answer_with_close() {
    let site = Site::start().await;
    let answer = site.answers(b"GET / HTTP/1.1\r\n\r\n").await;
    let lines: Vec<_> = answer.lines().filter(|line| !line.starts_with("date: ")).collect();
    assert_eq!(lines, ["HTTP/1.1 400 Bad Request", "connection: close", "content-length: 0", ""]);
    assert_eq!(site.end().await.to_string(), "1 requests were answered");
}

/// Over HTTP/2, other requests of the connection go on.
#[pikake::sim(seeds = 3)]
async fn host_that_differs_from_authority_is_refused() {
    let site = Site::start().await;
    let stream = TcpStream::connect(site.address).await.unwrap();
    let (mut client, connection) = http2::handshake(Executor, Io::new(stream)).await.unwrap();
    spawn(connection).detach();
    let cases: [(&str, &[&str], u16); 8] = [
        ("http://a/1", &[], 200),
        ("http://a/2", &["b"], 400),
        ("http://a/3", &["A:80"], 200),
        ("http://a/4", &["a:81"], 400),
        ("http://a/5", &["a", "a"], 400),
        ("http://a/6", &[""], 400),
        ("http://b@a/7", &[], 400),
        ("http://a/8", &["a"], 200),
    ];
    for (target, hosts, status) in cases {
        let mut request = hyper::Request::get(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let answer = client.send_request(request).await.unwrap();
        assert_eq!(answer.status(), status, "{target} {hosts:?}");
    }
    assert_eq!(site.take_called().len(), 3);
}
