//! kube, against a server that knows one pod.
//!
//! ```text
//! pods: ["web"]
//! ```

use std::error::Error;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, Config, ResourceExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const PODS: &str = r#"{"apiVersion":"v1","kind":"PodList","metadata":{},
    "items":[{"metadata":{"name":"web"}}]}"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?).parse()?;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await? > 0 {}
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", PODS.len());
        stream.write_all((head + PODS).as_bytes()).await
    });
    let client = Client::try_from(Config::new(url))?;
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let names: Vec<String> =
        pods.list(&Default::default()).await?.iter().map(|pod| pod.name_any()).collect();
    println!("pods: {names:?}");
    Ok(())
}
