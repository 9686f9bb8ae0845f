//! Control over AMQP, on the broker for tests, in virtual time.

use pikake_amqp_testing::Broker as Server;
use pikake_jobs::App;
use pikake_traps::{elapsed_since, now};

use super::fake::{SECOND, ended_after, serving};

/// It reads heartbeats in a task, which ends with the application.
#[test]
fn client_that_has_asked_ends_at_once() {
    let took = ended_after(async {
        let _serving = serving(&Server::new()).await.cancel_on_drop();
        let app = App::new("amqp://127.0.0.1").unwrap().connect().await.unwrap();
        let begin = now();
        assert!(app.control().ping().await.unwrap().is_empty());
        assert!(elapsed_since(begin) >= SECOND, "it does not know that there is no worker");
        app.close().await.unwrap();
    });
    assert!(took < 2 * SECOND, "{took:?}");
}
