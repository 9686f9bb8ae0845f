//! What a server knows of its clients, and its end by a signal.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use pikake::net::tls::{TlsAcceptor, TlsConnector};
use pikake::net::{MemoryStream, UnixListener};
use pikake::rpc::{Answer, CallInfo, Client, Error, Executed, Handler, Server, current_call};
use pikake::traps::blocking;
use pikake::{sleep, spawn};

use crate::harness::{once, why};
use crate::tls::authority;

#[pikake::service]
trait Door {
    async fn knock(&self) -> Visitor;
    async fn wait(&self, millis: u64) -> Result<(), String>;
}

/// The address, the user and process, and the number of certificates of a caller.
type Visitor = (String, Option<(u32, Option<u32>)>, u64);

struct House;

impl Door for House {
    async fn knock(&self) -> Visitor {
        let peer = current_call().unwrap().peer.clone();
        let credentials = peer.credentials.map(|it| (it.uid, it.pid));
        (peer.address.clone(), credentials, peer.certificates.len() as u64)
    }

    async fn wait(&self, millis: u64) -> Result<(), String> {
        println!("begun");
        sleep(Duration::from_millis(millis)).await.map_err(|error| error.to_string())
    }
}

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pikake-rpc-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// On real sockets.
#[cfg(target_os = "linux")]
#[pikake::test]
async fn unix_peers_have_credentials() {
    let folder = Folder::new("credentials");
    let path = folder.socket();
    let listener = UnixListener::bind(&path).unwrap();
    let own = std::process::id();
    let only_own = async move |call: Rc<CallInfo>, next: Handler| match call.peer.credentials {
        Some(credentials) if credentials.pid == Some(own) => next.await,
        _ => Answer::refused("not this process"),
    };
    let server = Server::new().add(DoorServer::new(House)).intercept(only_own);
    let server = spawn(server.serve(listener));
    let door = DoorClient::new(Client::builder().unix(path.to_str().unwrap()).build());
    let (address, credentials, certificates) = door.knock().await.unwrap();
    let (uid, pid) = credentials.unwrap();
    assert_eq!(pid, Some(own));
    assert_eq!(address, format!("process {own} of user {uid}"));
    assert_eq!(certificates, 0);
    server.cancel().await.unwrap();
    server.await.unwrap().unwrap();
}

#[pikake::sim(seeds = 1)]
async fn a_simulation_knows_no_credentials() {
    let listener = UnixListener::bind("/run/door").unwrap();
    spawn(Server::new().add(DoorServer::new(House)).serve(listener)).detach();
    let door = DoorClient::new(Client::builder().unix("/run/door").build());
    assert_eq!(door.knock().await.unwrap(), ("a Unix socket".to_owned(), None, 0));
}

/// A client's certificate, checked by the handshake, reaches the interceptors.
#[pikake::sim(seeds = 1)]
async fn tls_peers_have_certificates() {
    let (root, issue) = authority();
    for is_known in [true, false] {
        let (identity, expected) = issue("client.test");
        let acceptor = TlsAcceptor::builder(issue("server.test").0);
        let acceptor = acceptor.ask_clients_of_pem(root.as_bytes()).unwrap().build().unwrap();
        let connector = TlsConnector::builder().roots_pem(root.as_bytes()).unwrap();
        let connector = match is_known {
            true => connector.identity(identity),
            false => connector,
        };
        let (here, there) = MemoryStream::pair(10_000);
        let known =
            async move |call: Rc<CallInfo>, next: Handler| match call.peer.certificates.first() {
                Some(first) if *first == expected => next.await,
                _ => Answer::refused("a certificate is missing"),
            };
        let serving = spawn(async move {
            let stream = acceptor.accept(there).await.unwrap();
            let server = Server::new().add(DoorServer::new(House)).intercept(known);
            server.serve_connection(stream).await
        });
        let stream = connector.build().unwrap().connect("server.test", here).await.unwrap();
        let client = once(Client::builder(), "server.test", stream).build();
        let knocked = DoorClient::new(client.clone()).knock().await;
        match is_known {
            true => assert_eq!(knocked.unwrap(), ("memory".to_owned(), None, 1)),
            false => assert_eq!(why(knocked), "Refused(a certificate is missing), No"),
        }
        client.close().await.unwrap();
        drop(client);
        serving.await.unwrap().unwrap();
    }
}

/// The child that [`a_signal_ends_the_server_gracefully`] starts.
const CHILD: &str = "PIKAKE_RPC_TEST_CHILD";

#[pikake::main(signals)]
async fn serve_until_a_signal() {
    let path = std::env::var_os(CHILD).unwrap();
    let listener = UnixListener::bind(path).unwrap();
    let patience = pikake::net::Patience { soft: Duration::from_secs(60), ..Default::default() };
    let server = Server::new().add(DoorServer::new(House)).patience(patience);
    println!("ready");
    let report = server.serve(listener).await.unwrap();
    assert!(report.is_clean(), "{report}");
    println!("report: {report}");
}

/// Does nothing unless it is run in a child.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        serve_until_a_signal();
    }
}

/// A child, killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server in a PID namespace of its own cannot see the processes outside, and knows their users
/// all the same.
#[cfg(target_os = "linux")]
#[test]
fn processes_of_other_namespaces_have_no_number() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        return eprintln!("skipped: no PID namespace can be made here");
    }
    let folder = Folder::new("namespace");
    let path = folder.socket();
    let mut command = unshare();
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "peers::child", "--nocapture"]).env(CHILD, &path);
    let mut child = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with("ready")), "the child has ended");
    pikake::run(async move {
        let door = DoorClient::new(Client::builder().unix(path.to_str().unwrap()).build());
        let (address, credentials, _) = door.knock().await.unwrap();
        assert!(matches!(credentials, Some((_, None))), "{credentials:?}");
        assert!(address.starts_with("a process of user "), "{address}");
    });
}

/// With real time, a process and SIGTERM: the call under way has its answer, a new one is certainly
/// not executed, and the exit code is 0.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_the_server_gracefully() {
    let folder = Folder::new("signal");
    let path = folder.socket();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "peers::child", "--nocapture"]).env(CHILD, &path);
    let mut child = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with("ready")), "the child has ended");
    let pid = child.0.id().to_string();
    let mut lines = pikake::run({
        let path = path.clone();
        async move {
            let client = Client::builder().unix(path.to_str().unwrap()).attempts(1).build();
            let door = DoorClient::new(client);
            assert_eq!(door.knock().await.unwrap().1.unwrap().1, Some(std::process::id()));
            let call = spawn({
                let door = door.clone();
                async move { door.wait(2_000).await }
            });
            let lines = blocking(move || {
                assert!(lines.any(|line| line.ends_with("begun")), "no call has begun");
                lines
            });
            let lines = lines.await.unwrap();
            assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
            // The server has closed its listener.
            while StdStream::connect(&path).is_ok() {
                sleep(Duration::from_millis(10)).await.unwrap();
            }
            let error = door.wait(1).await.unwrap_err();
            assert_eq!(error.executed(), Executed::No, "{error}");
            assert!(matches!(error, Error::Call(_)));
            call.await.unwrap().unwrap();
            lines
        }
    });
    assert!(lines.any(|line| line.contains("report: ")), "no report");
    assert!(child.0.wait().unwrap().success());
}
