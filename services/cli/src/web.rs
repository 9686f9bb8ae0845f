//! `console --web`: a page about a process, for a browser of the same machine.
//!
//! Besides what holds for each page (`page.rs`), the server listens on loopback only, and a request
//! must name a loopback host: a foreign name that resolves to this machine (DNS rebinding) is
//! refused.

mod assets;
mod bridge;
mod site;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use pikake::console::client::{Client, ClientError};
use pikake::http;
use pikake::net::TcpListener;
use pikake::{sleep, spawn};
use serde_json::json;

use crate::output::{Output, note};
use crate::page::Token;
use crate::session::{self, SignalMode};
use crate::stop::Stop;
use crate::web::bridge::Bridge;
use crate::web::site::Site;

/// How many connections of browsers are open at a time. A page has six.
const CONNECTIONS: usize = 100;

/// How long Ctrl-C waits for answers that are being sent.
const GRACE: Duration = Duration::from_millis(500);

/// How often connections that nobody needs any more are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// Serves the page until SIGINT or SIGTERM. `connect` connects to the process; port 0 is any free
/// one.
pub(crate) fn run(
    connect: impl Fn() -> Result<Client, ClientError> + Send + Sync + 'static,
    port: u16,
    output: Output,
) -> Result<(), Stop> {
    let bridge = Bridge::new(connect).map_err(Stop::console)?;
    session::run(SignalMode::Interrupt, async move {
        let no_listener = |error| Stop::other(format!("port {port} of 127.0.0.1: {error}"));
        let listener = TcpListener::bind((IpAddr::from(Ipv4Addr::LOCALHOST), port))
            .await
            .map_err(no_listener)?;
        let port = listener.local_addr().map_err(no_listener)?.port();
        let token = Token::random().map_err(|error| Stop::other(format!("no token: {error}")))?;
        let address = format!("http://127.0.0.1:{port}/{token}/");
        output.answer(|| json!({ "address": address }), || address.clone())?;
        note("Ctrl-C ends the page. Keep the address to yourself: it admits everyone who has it.");
        let bridge = Arc::new(bridge);
        let _sweeper = spawn(sweep(bridge.clone())).cancel_on_drop();
        let server = http::serve(listener, Site::new(bridge, token)).connections(CONNECTIONS);
        let report = server.soft_deadline(Duration::ZERO).hard_deadline(GRACE).await;
        report.map(drop).map_err(Stop::other)
    })
}

/// Ends the timing of steps when no page wants it any more.
async fn sweep(bridge: Arc<Bridge>) {
    while sleep(SWEEP).await.is_ok() {
        bridge.end_old_timing();
    }
}
