//! Several hosts, and errors of those that cannot be connected to.

use std::time::Duration;

use pikake::net::TcpListener;
use pikake::postgres::{Config, Error, Refusal};
use pikake::time::Instant;
use pikake::timeout_after;
use xtask::{Kind, Server};

use crate::{run, server};

/// A port at which nobody listens.
async fn closed_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

fn on(ports: &[u16], more: &str) -> Config {
    let hosts = vec!["127.0.0.1"; ports.len()].join(",");
    let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
    let ports = ports.join(",");
    format!("host={hosts} port={ports} user=pikake dbname=postgres {more}").parse().unwrap()
}

#[test]
fn hosts_are_tried_in_order() {
    let Some(server) = server() else { return };
    run(async {
        let closed = closed_port().await;
        let connection = on(&[closed, server.port()], "").connect().await.unwrap();
        let port = connection.query_one("SELECT inet_server_port()", &[]).await.unwrap();
        assert_eq!(port.get::<_, i32>(0), i32::from(server.port()));

        let error = on(&[closed, closed], "").connect().await.unwrap_err();
        let Error::Connect(error) = error else { panic!("{error:?}") };
        assert_eq!(error.attempts().len(), 2);
        assert!(matches!(error.attempts()[0].1, Refusal::Io(_)));
        assert!(error.to_string().contains("refused"), "{error}");

        let error = on(&[server.port()], "dbname=nowhere").connect().await.unwrap_err();
        assert!(error.to_string().contains("\"nowhere\" does not exist"), "{error}");
    });
}

#[test]
fn silent_host_is_given_up() {
    let Some(server) = server() else { return };
    run(async {
        // The system accepts for it, and nobody answers.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let begun = Instant::now();
        let both = on(&[port, server.port()], "connect_timeout=1");
        both.connect().await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(1));
        let error = on(&[port], "connect_timeout=1").connect().await.unwrap_err();
        assert!(error.to_string().contains("no answer in time"), "{error}");

        // A deadline of the caller is not one of the host.
        let limit = Duration::from_millis(50);
        assert!(timeout_after(limit, on(&[port, port], "").connect()).await.is_err());
    });
}

#[test]
fn session_attributes_choose_the_host() {
    let Some(server) = server() else { return };
    let Ok(replica) = Server::start(Kind::Postgres) else { panic!("a second server") };
    run(async {
        let ports = [replica.port(), server.port()];
        let admin = on(&[replica.port()], "").connect().await.unwrap();
        let read_only = "ALTER SYSTEM SET default_transaction_read_only = on";
        admin.batch_execute(read_only).await.unwrap();
        admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        for (wanted, expected) in [("read-write", ports[1]), ("any", ports[0])] {
            let config = on(&ports, &format!("target_session_attrs={wanted}"));
            let reached = async || {
                let connection = config.connect().await.unwrap();
                let row = connection.query_one("SELECT inet_server_port()", &[]).await.unwrap();
                (row.get::<_, i32>(0) == i32::from(expected)).then_some(())
            };
            // The server reads its configuration a moment later.
            crate::until(wanted, reached).await;
        }
        let ports = [ports[1], ports[0]];
        let config = on(&ports, "target_session_attrs=read-only");
        let connection = config.connect().await.unwrap();
        assert!(connection.batch_execute("CREATE TABLE no (n INTEGER)").await.is_err());
        let error = on(&ports[..1], "target_session_attrs=read-only").connect().await.unwrap_err();
        assert!(error.to_string().contains("target_session_attrs"), "{error}");
    });
}

#[test]
fn configuration_errors_are_told() {
    let told = |text: &str| text.parse::<Config>().unwrap_err().to_string();
    assert!(told("host=a colour=red").contains("colour"), "{}", told("host=a colour=red"));
    pikake::run(async {
        let config: Config = "user=a".parse().unwrap();
        assert!(matches!(config.connect().await, Err(Error::Config(_))));
        let config: Config = "host=a,b,c port=1,2".parse().unwrap();
        assert!(matches!(config.connect().await, Err(Error::Config(_))));
        let config: Config = "host=a sslmode=require".parse().unwrap();
        let error = config.connect().await.unwrap_err();
        assert!(error.to_string().contains("Config::tls"), "{error}");
        assert!(!format!("{:?}", "password=secret".parse::<Config>()).contains("secret"));
    });
}
