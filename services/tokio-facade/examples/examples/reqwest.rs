//! reqwest on pikake: requests over HTTP and HTTPS, which axum answers in the same thread.
//!
//! ```text
//! GET: 200 OK by HTTP/1.1, "hello"
//! gzip: decoded
//! POST: 21 is answered with 42
//! redirect: 200 OK at /hello
//! streamed body: 3000000 bytes were sent and came back
//! 100 requests at once: the sum of the answers is 4950
//! timeout of reqwest: true
//! timeout_after: timed out
//! timeout_after around future_wait: a deadline passed
//! cancelled task: cancelled: not needed any more
//! its handler: begun, cancelled: the client has gone
//! HTTPS: 200 OK by HTTP/2.0, "hello"
//! HTTPS with another certificate: refused
//! ```
//!
//! The futures of reqwest contain no trap, so they cannot return an interruption: a deadline drops
//! the request, which closes its connection. `future_wait` returns the interruption.

use std::error::Error;
use std::future::ready;
use std::io;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::response::Redirect;
use futures::{TryStreamExt, future, stream};
use pikake::http::axum::Local;
use pikake::http::axum::routing::{get, post};
use pikake::http::serve;
use pikake::net::TcpListener;
use pikake::net::tls::Identity;
use pikake::sync::mpsc::{Receiver, UnboundedSender, unbounded_channel};
use pikake::{Interrupted, future_wait, sleep, spawn, timeout_after};
use reqwest::{Certificate, Client};
use serde::{Deserialize, Serialize};
use tower_http::compression::CompressionLayer;

/// How long the client waits for an answer that never comes.
const SHORT: Duration = Duration::from_millis(100);

/// For so long the handler of such a request waits.
const LONG: Duration = Duration::from_secs(3600);

/// The parts of a streamed body, and the length of each.
const PARTS: usize = 300;
const PART: usize = 10_000;

/// Requests that are under way together.
const AT_ONCE: u32 = 100;

#[derive(Serialize, Deserialize)]
struct Number {
    number: u32,
}

/// Gets what happens to a handler.
type Events = UnboundedSender<String>;

/// A handler whose client does not wait for the answer.
async fn slow(State(events): State<Local<Events>>) {
    drop(events.send("begun".to_owned()));
    if let Err(interrupted) = sleep(LONG).await {
        drop(events.send(interrupted.to_string()));
    }
}

async fn never() {
    drop(sleep(LONG).await);
}

fn text() -> String {
    "a text that can be compressed\n".repeat(1000)
}

fn router(events: Events) -> Router {
    let double = async |Json(Number { number })| Json(Number { number: 2 * number });
    Router::new()
        .route("/hello", get(async || "hello"))
        .route("/text", get(async || text()))
        .route("/double", post(double))
        .route("/old", get(async || Redirect::permanent("/hello")))
        .route("/echo", post(async |body: Body| body))
        .route("/same/{number}", get(async |Path(number): Path<String>| number))
        .route("/never", get(never))
        .route("/slow", get(slow))
        .with_state(Local::new(events))
        .layer(CompressionLayer::new())
}

async fn hello(client: &Client, url: &str) -> reqwest::Result<String> {
    let response = client.get(format!("{url}/hello")).send().await?;
    let (status, version) = (response.status(), response.version());
    Ok(format!("{status} by {version:?}, {:?}", response.text().await?))
}

async fn requests(client: &Client, url: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut lines = vec![format!("GET: {}", hello(client, url).await?)];

    let decoded = client.get(format!("{url}/text")).send().await?.text().await?;
    let raw = Client::builder().no_proxy().no_gzip().build()?.get(format!("{url}/text"));
    let raw = raw.header("accept-encoding", "gzip").send().await?.bytes().await?;
    assert!(decoded == text() && raw.len() < decoded.len());
    lines.push("gzip: decoded".to_owned());

    let number = Number { number: 21 };
    let response = client.post(format!("{url}/double")).json(&number).send().await?;
    let doubled: Number = response.error_for_status()?.json().await?;
    lines.push(format!("POST: {} is answered with {}", number.number, doubled.number));

    let response = client.get(format!("{url}/old")).send().await?;
    lines.push(format!("redirect: {} at {}", response.status(), response.url().path()));

    let parts = (0..PARTS).map(|_| io::Result::Ok(Bytes::from_static(&[b'x'; PART])));
    let body = reqwest::Body::wrap_stream(stream::iter(parts));
    let response = client.post(format!("{url}/echo")).body(body).send().await?;
    let count = |sum, part: Bytes| ready(Ok(sum + part.len()));
    let length = response.bytes_stream().try_fold(0, count).await?;
    assert_eq!(length, PARTS * PART);
    lines.push(format!("streamed body: {length} bytes were sent and came back"));

    let same = async |number| {
        let response = client.get(format!("{url}/same/{number}")).send().await?;
        Ok::<u32, Box<dyn Error>>(response.text().await?.parse()?)
    };
    let answers = future::try_join_all((0..AT_ONCE).map(same)).await?;
    let sum: u32 = answers.iter().sum();
    lines.push(format!("{AT_ONCE} requests at once: the sum of the answers is {sum}"));
    Ok(lines)
}

/// Requests whose answers nobody waits for.
async fn cut_short(
    client: &Client,
    url: &str,
    mut events: Receiver<String>,
) -> Result<Vec<String>, Box<dyn Error>> {
    let never = || client.get(format!("{url}/never"));
    let error = never().timeout(SHORT).send().await.expect_err("nothing answers");
    let mut lines = vec![format!("timeout of reqwest: {}", error.is_timeout())];

    let timed_out = timeout_after(SHORT, never().send()).await.expect_err("nothing answers");
    lines.push(format!("timeout_after: {timed_out}"));

    let waiting = async {
        let interrupted = future_wait(never().send()).await.expect_err("nothing answers");
        lines.push(format!("timeout_after around future_wait: {interrupted}"));
        // Here the client could ask another server.
        Err::<(), Interrupted>(interrupted)
    };
    timeout_after(SHORT, waiting).await.expect_err("it was interrupted");

    let task = spawn(future_wait(client.get(format!("{url}/slow")).send()));
    let mut seen = Vec::from_iter(events.recv().await?);
    task.request_cancel("not needed any more");
    let interrupted = task.await?.expect_err("nothing answers");
    lines.push(format!("cancelled task: {interrupted}"));
    seen.extend(events.recv().await?);
    lines.push(format!("its handler: {}", seen.join(", ")));
    Ok(lines)
}

fn certified() -> Result<(Identity, Certificate), Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes())?;
    Ok((identity, Certificate::from_pem(certificate.as_bytes())?))
}

async fn https(router: Router) -> Result<Vec<String>, Box<dyn Error>> {
    let (identity, certificate) = certified()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("https://localhost:{}", listener.local_addr()?.port());
    let server = serve(listener, router).tls(identity);
    let _server = spawn(server.into_future()).cancel_on_drop();

    let client = Client::builder().no_proxy().tls_certs_only([certificate]).build()?;
    let mut lines = vec![format!("HTTPS: {}", hello(&client, &url).await?)];
    let (_, other) = certified()?;
    let client = Client::builder().no_proxy().tls_certs_only([other]).build()?;
    assert!(hello(&client, &url).await.is_err_and(|error| error.is_connect()));
    lines.push("HTTPS with another certificate: refused".to_owned());
    Ok(lines)
}

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    // reqwest is built without a provider of cryptography. `Err`: there is one.
    drop(rustls::crypto::ring::default_provider().install_default());
    let (sender, events) = unbounded_channel();
    let router = router(sender);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let _server = spawn(serve(listener, router.clone()).into_future()).cancel_on_drop();

    let client = Client::builder().no_proxy().build()?;
    let mut lines = requests(&client, &url).await?;
    lines.extend(cut_short(&client, &url, events).await?);
    lines.extend(https(router).await?);
    Ok(lines)
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for line in demo().await? {
        println!("{line}");
    }
    Ok(())
}
