//! The SDK of S3 on pikake, against moto, which imitates AWS.
//!
//! ```text
//! created: bucket `things`
//! put: 5000000 bytes
//! got: the same 5000000 bytes
//! uploaded from a file: 3000000 bytes
//! a range of it: 1000 bytes
//! listed: file 3000000, memory 5000000
//! 20 objects at once: 20 are there
//! an object that is missing: NoSuchKey
//! timeout of the SDK: true
//! timeout_after: timed out
//! timeout_after around future_wait: a deadline passed
//! ```
//!
//! It starts a moto of its own on loopback, if that is installed in the target folder, or takes the
//! one whose port is its argument.
//!
//! The futures of the SDK contain no trap, so they cannot return an interruption: a deadline drops
//! the request. `future_wait` returns the interruption.

use std::error::Error;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{Builder, Credentials, Region};
use aws_sdk_s3::primitives::ByteStream;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use futures::future;
use pikake::net::TcpListener;
use pikake::thread::run_in_thread;
use pikake::{future_wait, timeout_after};
use pikake_tokio_examples::Moto;

const BUCKET: &str = "things";

/// The length of an object made in memory, and of one from a file.
const LENGTH: usize = 5_000_000;
const FILE_LENGTH: usize = 3_000_000;

/// Objects that are under way together.
const AT_ONCE: u32 = 20;

/// How long the client waits for an answer that never comes.
const SHORT: Duration = Duration::from_millis(100);

fn config(port: u16) -> Builder {
    let tls = Provider::Rustls(CryptoMode::Ring);
    let http = aws_smithy_http_client::Builder::new().tls_provider(tls).build_https();
    aws_sdk_s3::Config::builder()
        .http_client(http)
        .endpoint_url(format!("http://127.0.0.1:{port}"))
        .force_path_style(true)
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("id", "secret", None, None, "examples"))
}

/// Bytes that differ from place to place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place % 251) as u8).collect()
}

async fn objects(client: &Client) -> Result<Vec<String>, Box<dyn Error>> {
    client.create_bucket().bucket(BUCKET).send().await?;
    let mut lines = vec![format!("created: bucket `{BUCKET}`")];

    let body = pattern(LENGTH);
    let put = client.put_object().bucket(BUCKET).key("memory");
    put.body(ByteStream::from(body.clone())).send().await?;
    lines.push(format!("put: {LENGTH} bytes"));
    let got = client.get_object().bucket(BUCKET).key("memory").send().await?;
    assert!(got.body.collect().await?.into_bytes() == body);
    lines.push(format!("got: the same {LENGTH} bytes"));

    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(&file, pattern(FILE_LENGTH))?;
    let put = client.put_object().bucket(BUCKET).key("file");
    put.body(ByteStream::from_path(&file).await?).send().await?;
    lines.push(format!("uploaded from a file: {FILE_LENGTH} bytes"));
    let range = client.get_object().bucket(BUCKET).key("file").range("bytes=1000-1999");
    let range = range.send().await?.body.collect().await?.into_bytes();
    assert!(range == pattern(FILE_LENGTH)[1000..2000]);
    lines.push(format!("a range of it: {} bytes", range.len()));

    let listed = client.list_objects_v2().bucket(BUCKET).send().await?;
    let shown = listed.contents().iter().map(|object| {
        let (name, size) = (object.key().unwrap_or_default(), object.size().unwrap_or_default());
        format!("{name} {size}")
    });
    lines.push(format!("listed: {}", shown.collect::<Vec<_>>().join(", ")));
    Ok(lines)
}

async fn shared(client: &Client) -> Result<Vec<String>, Box<dyn Error>> {
    let put = |number| {
        let put = client.put_object().bucket(BUCKET).key(format!("many/{number}"));
        put.body(ByteStream::from_static(b"small")).send()
    };
    future::try_join_all((0..AT_ONCE).map(put)).await?;
    let listed = client.list_objects_v2().bucket(BUCKET).prefix("many/").send().await?;
    let mut lines =
        vec![format!("{AT_ONCE} objects at once: {} are there", listed.contents().len())];

    let missing = client.get_object().bucket(BUCKET).key("missing").send().await;
    let error = missing.expect_err("there is none").into_service_error();
    assert!(error.is_no_such_key());
    lines.push("an object that is missing: NoSuchKey".to_owned());
    Ok(lines)
}

/// Requests to a server that never answers.
async fn cut_short() -> Result<Vec<String>, Box<dyn Error>> {
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let config = config(silent.local_addr()?.port());
    let client = Client::from_conf(config.clone().build());
    let get = |client: &Client| client.get_object().bucket(BUCKET).key("memory");

    let timeouts = TimeoutConfig::builder().operation_timeout(SHORT).build();
    let impatient = Client::from_conf(config.timeout_config(timeouts).build());
    let error = get(&impatient).send().await.expect_err("nothing answers");
    let is_timeout = matches!(error, aws_sdk_s3::error::SdkError::TimeoutError(_));
    let mut lines = vec![format!("timeout of the SDK: {is_timeout}")];

    let timed_out = timeout_after(SHORT, get(&client).send()).await.expect_err("nothing answers");
    lines.push(format!("timeout_after: {timed_out}"));
    let waiting = async {
        let interrupted = future_wait(get(&client).send()).await.expect_err("nothing answers");
        lines.push(format!("timeout_after around future_wait: {interrupted}"));
    };
    timeout_after(SHORT, waiting).await.expect_err("it was interrupted");
    Ok(lines)
}

pub(crate) async fn demo(port: u16) -> Result<Vec<String>, Box<dyn Error>> {
    let client = Client::from_conf(config(port).build());
    let mut lines = objects(&client).await?;
    lines.extend(shared(&client).await?);
    lines.extend(cut_short().await?);
    Ok(lines)
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (port, _server) = match std::env::args().nth(1) {
        Some(port) => (port.parse()?, None),
        None => {
            let server = run_in_thread(Moto::start).await??;
            (server.port(), Some(server))
        }
    };
    for line in demo(port).await? {
        println!("{line}");
    }
    Ok(())
}
