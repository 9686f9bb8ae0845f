//! `examples/04_echo.rs`.

use std::net::SocketAddr;
use std::time::Duration;

use pikake::net::{TcpListener, serve};
use pikake::sim::Runs;
use pikake::{sleep, spawn};

use super::echo_program::{MOST_CONNECTIONS, attend, talk};

#[test]
fn echo_survives_a_partition() {
    let runs = Runs::new("echo::echo_survives_a_partition").seeds(50).check_determinism();
    let summary = runs.run(|sim| {
        sim.host("server", || async {
            let listener = TcpListener::bind("0.0.0.0:7").await?;
            serve(listener, MOST_CONNECTIONS, attend).await.map(drop)
        });
        for client in ["client", "other"] {
            sim.client(client, || async {
                sleep(Duration::from_millis(10)).await?;
                talk(SocketAddr::from(([10, 0, 0, 1], 7))).await
            });
        }
        sim.faults("11ms partition server | client,other; 20s heal-all".parse().unwrap());
    });
    assert!(summary.last.unwrap().time >= Duration::from_secs(20));
}

#[pikake::test]
async fn echo_runs_over_loopback() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = spawn(serve(listener, MOST_CONNECTIONS, attend));
    talk(address).await.unwrap();
    server.cancel().await.unwrap();
}
