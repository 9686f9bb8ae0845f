//! Connections and pools on a real PostgreSQL: what statements return, what interruptions leave,
//! and how sessions end.

mod hosts;
mod interruptions;
mod listener;
mod pipelined;
mod pools;
mod resets;
mod statements;
mod tls;
mod transactions;

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::Duration;

use pikake::postgres::{Config, Connection};
use pikake::time::Instant;
use pikake::{shield, sleep, timeout_after};
use xtask::{Kind, Server};

/// What has not happened by then never will.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// The server that the tests of this process share; `None` if there is none, and the test is
/// skipped.
#[track_caller]
pub(crate) fn server() -> Option<&'static Server> {
    static SHARED: OnceLock<Server> = OnceLock::new();
    for need in Kind::Postgres.needs() {
        need.find_or_skip()?;
    }
    Some(SHARED.get_or_init(|| Server::start(Kind::Postgres).expect("PostgreSQL starts")))
}

/// A configuration whose connections have the name of a test.
pub(crate) fn config(server: &Server, name: &str) -> Config {
    let port = server.port();
    format!("host=127.0.0.1 port={port} user=pikake dbname=postgres application_name={name}")
        .parse()
        .expect("a configuration")
}

/// Runs a test on a real kernel, within [`HANG`].
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    pikake::run(async { timeout_after(HANG, test).await }).expect("it hangs")
}

/// Repeats a question until it has an answer.
pub(crate) async fn until<T>(what: &str, mut question: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = question().await {
            return answer;
        }
        assert!(begun.elapsed() < HANG, "never: {what}");
        sleep(Duration::from_millis(5)).await.expect("no interruption");
    }
}

/// The sessions of a test as the server sees them: their state, and the statement that runs or ran
/// last.
pub(crate) async fn sessions(watcher: &Connection, name: &str) -> Vec<(String, String)> {
    let text = "SELECT COALESCE(state, ''), query FROM pg_stat_activity \
                WHERE application_name = $1 AND pid <> pg_backend_pid()";
    let rows = watcher.query(text, &[&name]).await.expect("it can be asked");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Waits until a statement with this text runs.
pub(crate) async fn until_it_runs(watcher: &Connection, name: &str, text: &str) {
    let runs = async || {
        let sessions = sessions(watcher, name).await;
        sessions
            .iter()
            .any(|(state, query)| state == "active" && query.contains(text))
            .then_some(())
    };
    until("it runs", runs).await;
}

/// Polls a future once, and drops it.
pub(crate) async fn poll_and_drop(future: impl Future) {
    let mut future = pin!(future);
    let polled = std::future::poll_fn(|cx: &mut Context<'_>| {
        Poll::Ready(future.as_mut().poll(cx).is_pending())
    });
    assert!(polled.await, "it is over already");
}

/// Polls a future whose first wait that would suspend is interrupted, and returns what the future
/// returns.
pub(crate) async fn interrupted<T>(future: impl Future<Output = T>) -> T {
    let mut output = None;
    let polling = async {
        // The deadline passes meanwhile.
        shield(sleep(Duration::from_millis(1))).await.expect("the shield holds");
        output = Some(future.await);
    };
    assert!(timeout_after(Duration::ZERO, polling).await.is_err());
    output.expect("an interruption is returned")
}
