//! Brokers that stop to answer while an application connects.

use std::time::Duration;

use pikake_amqp_testing::Broker as Server;
use pikake_jobs::App;
use pikake_net::{TcpListener, TcpStream};
use pikake_sim::Sim;
use pikake_traps::{sleep, spawn, timeout_after};

use super::fake::SECOND;

const HEARTBEAT: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, 0xce];

/// Answers so often, and then says nothing but heartbeats, ten in a second.
async fn stall(server: Server, stream: TcpStream, answers: usize) -> std::io::Result<()> {
    let id = server.connect();
    let mut buffer = [0; 4096];
    let mut answered = 0;
    while answered < answers {
        let length = stream.read(&mut buffer).await?;
        server.input(id, &buffer[..length]);
        let output = server.output(id).0;
        answered += usize::from(!output.is_empty());
        stream.write_all(&output).await?;
    }
    loop {
        stream.write_all(&HEARTBEAT).await?;
        sleep(SECOND / 10).await?;
    }
}

/// How long a program runs that connects an application within eight seconds, and keeps the
/// application until its kernel has ended.
fn ran_for(answers: usize, connections: usize) -> Duration {
    let mut sim = Sim::new(0);
    sim.host("broker", move || async move {
        let listener = TcpListener::bind("0.0.0.0:5672").await.unwrap();
        let server = Server::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let server = server.clone();
            spawn(async move { drop(stall(server, stream, answers).await) }).detach();
        }
    });
    let app = App::new("amqp://broker").unwrap().jobs([crate::add::JOB]).connections(connections);
    let kept = app.clone();
    let ran =
        sim.run_here("client", async { timeout_after(8 * SECOND, app.connect()).await.is_err() });
    let ran = ran.unwrap_or_else(|failure| panic!("{answers}: {failure}"));
    assert!(ran.outcome.unwrap(), "{answers}: it has connected");
    drop(kept);
    ran.report.time
}

#[test]
fn connecting_ends_with_its_timeout() {
    for connections in [1, 2] {
        for answers in 0..7 {
            let took = ran_for(answers, connections);
            // A connection that was opened is closed, for which the client waits three seconds.
            let close = if answers < 3 { Duration::ZERO } else { 3 * SECOND };
            let limit = 9 * SECOND + close;
            assert!(took >= 8 * SECOND && took < limit, "{connections} {answers}: {took:?}");
        }
    }
}
