//! Notifications, and connections that are cut.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use pikake::postgres::{Connection, Error, Event, Listener};
use pikake::timeout_after;

use crate::{config, run, server};

async fn notify(connection: &Connection, channel: &str, payload: &str) {
    connection.query("SELECT pg_notify($1, $2)", &[&channel, &payload]).await.unwrap();
}

async fn payload(listener: &mut Listener) -> String {
    match listener.next().await.unwrap() {
        Event::Notification(it) => it.payload().to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn listener_returns_notifications_in_order() {
    let Some(server) = server() else { return };
    run(async {
        let sender = config(server, "sender").connect().await.unwrap();
        let name = "odd \"name\"";
        let mut listener = Listener::connect(&config(server, "listener"), [name]).await.unwrap();
        for n in 0..3 {
            notify(&sender, name, &n.to_string()).await;
        }
        for n in 0..3 {
            assert_eq!(payload(&mut listener).await, n.to_string());
        }
        // An interrupted wait loses nothing, and other channels come and go.
        assert!(timeout_after(Duration::from_millis(20), listener.next()).await.is_err());
        listener.listen("second").await.unwrap();
        notify(&sender, "second", "a").await;
        listener.unlisten("second").await.unwrap();
        notify(&sender, "second", "b").await;
        notify(&sender, name, "c").await;
        assert_eq!(payload(&mut listener).await, "a");
        assert_eq!(payload(&mut listener).await, "c");
        // A name that no channel can have is forgotten.
        for wrong in ["", "a\0b"] {
            assert!(matches!(listener.listen(wrong).await, Err(Error::Config(_))));
            let config = config(server, "listener");
            assert!(matches!(Listener::connect(&config, [wrong]).await, Err(Error::Config(_))));
        }
        notify(&sender, name, "d").await;
        assert_eq!(payload(&mut listener).await, "d");
    });
}

#[test]
fn listener_tells_that_it_was_cut() {
    let Some(server) = server() else { return };
    run(async {
        let sender = config(server, "sender").connect().await.unwrap();
        let mut listener = Listener::connect(&config(server, "cut"), ["a", "b"]).await.unwrap();
        notify(&sender, "a", "before").await;
        assert_eq!(payload(&mut listener).await, "before");
        let terminate = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'cut'";
        sender.query(terminate, &[]).await.unwrap();
        notify(&sender, "a", "lost").await;
        assert!(matches!(listener.next().await.unwrap(), Event::Reconnected));
        notify(&sender, "b", "after").await;
        assert_eq!(payload(&mut listener).await, "after");

        // Cut while channels are changed.
        sender.query(terminate, &[]).await.unwrap();
        listener.listen("c").await.unwrap();
        assert!(matches!(listener.next().await.unwrap(), Event::Reconnected));
        notify(&sender, "c", "new").await;
        assert_eq!(payload(&mut listener).await, "new");
    });
}

/// A wait that connects again is dropped after each number of polls, and another call listens in
/// its place.
#[test]
fn interrupted_reconnection_is_told() {
    let Some(server) = server() else { return };
    for polls in 0.. {
        let is_whole = run(async {
            let name = format!("again{polls}");
            let sender = config(server, "sender").connect().await.unwrap();
            let mut listener = Listener::connect(&config(server, &name), ["again"]).await.unwrap();
            let terminate = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = $1";
            sender.query(terminate, &[&name]).await.unwrap();
            if let Some(event) = poll_times(listener.next(), polls).await {
                assert!(matches!(event.unwrap(), Event::Reconnected));
                return true;
            }
            // A call that listens again in place of `next`.
            listener.listen("other").await.unwrap();
            notify(&sender, "again", "after").await;
            let event = listener.next().await.unwrap();
            assert!(matches!(event, Event::Reconnected), "{polls}: {event:?}");
            false
        });
        if is_whole {
            assert!(polls > 0, "the wait was never dropped");
            return;
        }
    }
}

/// Polls a future some times, and drops it.
async fn poll_times<T>(future: impl Future<Output = T>, polls: u32) -> Option<T> {
    let mut future = pin!(future);
    let mut polled = 0;
    poll_fn(|cx| {
        if polled == polls {
            return Poll::Ready(None);
        }
        polled += 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}
