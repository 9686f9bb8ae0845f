//! TLS against the programs of openssl.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pikake::net::tls::{TlsAcceptor, TlsConnector};
use pikake::net::{TcpListener, TcpStream};
use pikake::thread::run_in_thread;
use pikake::{spawn, timeout_after};
use xtask::needs::{CERTIFICATES, OPENSSL};

use super::certificates::{Authority, Pem, SERVER};
use crate::support::scratch::Scratch;

/// Longer than openssl takes on a machine that has other things to do.
const LIMIT: Duration = Duration::from_secs(30);

/// A child that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes the authority's certificates into files.
fn files(authority: &Authority, scratch: &Scratch) {
    let write = |name: &str, text: &str| std::fs::write(scratch.path(name), text).unwrap();
    write("root.pem", &authority.root);
    for (name, Pem { certificate, key }) in
        [("server", &authority.server), ("client", &authority.client)]
    {
        write(&format!("{name}.pem"), certificate);
        write(&format!("{name}.key"), key);
    }
}

/// Starts `openssl s_client`, says a line, and gives all it prints until the end.
fn s_client(at: SocketAddr, folder: &Path, more: &[&str]) -> std::io::Result<(String, bool)> {
    let mut client = Command::new("openssl")
        .current_dir(folder)
        .args(["s_client", "-connect", &at.to_string(), "-CAfile", "root.pem"])
        .args(["-servername", SERVER, "-verify_hostname", SERVER, "-verify_return_error"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut input = client.stdin.take().unwrap();
    // It may have ended by then.
    let _ = input.write_all(b"hello from openssl\n");
    let output = client.wait_with_output()?;
    drop(input);
    let text = [output.stdout, output.stderr].concat();
    Ok((String::from_utf8_lossy(&text).into_owned(), output.status.success()))
}

/// A server of ours that answers one line in capitals, and what openssl made of it.
async fn with_s_client(
    acceptor: TlsAcceptor,
    folder: &Path,
    more: &'static [&'static str],
) -> (std::io::Result<Option<String>>, String, bool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let folder = folder.to_owned();
    let client = spawn(run_in_thread(move || s_client(address, &folder, more)));
    let (stream, _) = timeout_after(LIMIT, listener.accept()).await.unwrap().unwrap();
    let served = async {
        let reader = pikake::net::BufReader::new(acceptor.accept(stream).await?);
        let line = reader.next_line().await?.unwrap();
        reader.get_ref().write_all(line.to_uppercase().as_bytes()).await?;
        reader.get_ref().finish().await?;
        std::io::Result::Ok(Some(line))
    };
    let served = timeout_after(LIMIT, served).await.unwrap();
    let (text, is_well) = client.await.unwrap().unwrap().unwrap();
    (served, text, is_well)
}

#[pikake::test]
async fn openssl_is_served() {
    let Some(_) = OPENSSL.find_or_skip() else { return };
    let (authority, scratch) = (Authority::for_openssl(), Scratch::new());
    files(&authority, &scratch);
    for (version, name) in [("-tls1_3", "TLSv1.3"), ("-tls1_2", "TLSv1.2")] {
        let acceptor = TlsAcceptor::builder(authority.server.identity());
        let acceptor = acceptor.alpn(["pikake/1"]).build().unwrap();
        let more: &[&str] = match version {
            "-tls1_3" => &["-tls1_3", "-alpn", "other,pikake/1"],
            _ => &["-tls1_2", "-alpn", "other,pikake/1"],
        };
        let (served, text, is_well) = with_s_client(acceptor, &scratch.path(""), more).await;
        assert_eq!(served.unwrap().as_deref(), Some("hello from openssl"));
        assert!(is_well, "{text}");
        for part in
            ["HELLO FROM OPENSSL", "Verify return code: 0 (ok)", "ALPN protocol: pikake/1", name]
        {
            assert!(text.contains(part), "{part:?} is missing in {text}");
        }
    }
}

#[pikake::test]
async fn openssl_shows_its_certificate_or_is_refused() {
    let Some(_) = OPENSSL.find_or_skip() else { return };
    let (authority, scratch) = (Authority::for_openssl(), Scratch::new());
    files(&authority, &scratch);
    let acceptor = || {
        let builder = TlsAcceptor::builder(authority.server.identity());
        builder.require_clients_of_pem(authority.root.as_bytes()).unwrap().build().unwrap()
    };
    let shown = &["-cert", "client.pem", "-key", "client.key"];
    let (served, text, _) = with_s_client(acceptor(), &scratch.path(""), shown).await;
    assert_eq!(served.unwrap().as_deref(), Some("hello from openssl"), "{text}");
    let (served, text, is_well) = with_s_client(acceptor(), &scratch.path(""), &[]).await;
    assert!(served.is_err() && !is_well, "{text}");
    assert!(text.contains("certificate required"), "{text}");
}

/// Starts `openssl s_server`, which sends each line back reversed; also where it listens.
fn s_server(folder: &Path, more: &[&str]) -> (Running, SocketAddr) {
    let mut server = Command::new("openssl")
        .current_dir(folder)
        .args(["s_server", "-accept", "127.0.0.1:0", "-cert", "server.pem", "-key", "server.key"])
        .args(["-rev"])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(server.stdout.take().unwrap());
    let server = Running(server);
    loop {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "s_server ended early");
        if let Some(address) = line.trim().strip_prefix("ACCEPT ") {
            let address = address.parse().unwrap();
            // The rest of its output must not fill the pipe.
            std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
            return (server, address);
        }
    }
}

#[pikake::test]
async fn openssl_serves() {
    let Some(_) = OPENSSL.find_or_skip() else { return };
    let (authority, scratch) = (Authority::for_openssl(), Scratch::new());
    files(&authority, &scratch);
    for version in ["-tls1_3", "-tls1_2"] {
        let (_server, address) = s_server(&scratch.path(""), &[version, "-alpn", "pikake/1"]);
        let connector = TlsConnector::builder().roots_pem(authority.root.as_bytes()).unwrap();
        let connector = connector.alpn(["pikake/1"]).build().unwrap();
        let talk = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let stream = connector.connect(SERVER, stream).await.unwrap();
            assert_eq!(stream.alpn_protocol().as_deref(), Some(&b"pikake/1"[..]));
            let reader = pikake::net::BufReader::new(&stream);
            for _ in 0..3 {
                stream.write_all(b"desserts\n").await.unwrap();
                let line = reader.next_line().await.unwrap();
                assert_eq!(line.as_deref(), Some("stressed"));
            }
            stream.finish().await.unwrap();
            stream.description()
        };
        let description = timeout_after(LIMIT, talk).await.unwrap();
        assert!(
            description
                .replace('_', ".")
                .to_lowercase()
                .contains(&version[1..].replace('_', ".").replace("tls", "tlsv")),
            "{description}"
        );
    }
}

#[pikake::test]
async fn openssl_asks_for_a_certificate() {
    let Some(_) = OPENSSL.find_or_skip() else { return };
    let (authority, scratch) = (Authority::for_openssl(), Scratch::new());
    files(&authority, &scratch);
    let (_server, address) = s_server(
        &scratch.path(""),
        &["-Verify", "1", "-CAfile", "root.pem", "-verify_return_error"],
    );
    let roots = || TlsConnector::builder().roots_pem(authority.root.as_bytes()).unwrap();
    let known = roots().identity(authority.client.identity()).build().unwrap();
    let unknown = roots().build().unwrap();
    let ask = async |connector: &TlsConnector| {
        let stream = TcpStream::connect(address).await?;
        let stream = connector.connect(SERVER, stream).await?;
        stream.write_all(b"desserts\n").await?;
        pikake::net::BufReader::new(&stream).next_line().await
    };
    let line = timeout_after(LIMIT, ask(&known)).await.unwrap();
    assert_eq!(line.unwrap().as_deref(), Some("stressed"));
    let error = timeout_after(LIMIT, ask(&unknown)).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("ertificate"), "{error}");
}

/// The platform's roots do not sign the tests' certificates, but some exist.
#[pikake::test]
async fn platform_roots_load_or_the_error_helps() {
    let Some(_) = OPENSSL.find_or_skip() else { return };
    let Some(_) = CERTIFICATES.find_or_skip() else { return };
    let (authority, scratch) = (Authority::for_openssl(), Scratch::new());
    files(&authority, &scratch);
    let (_server, address) = s_server(&scratch.path(""), &[]);
    let connector = TlsConnector::builder().platform_roots().unwrap().build().unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let error = connector.connect(SERVER, stream).await.unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
}
