//! The tunnel that a proxy opens for `CONNECT`.

use std::io;

use pikake_net::{Read, Write};

use super::proxy::Proxy;

/// How long the head of an answer to `CONNECT` may be.
const HEAD_LIMIT: usize = 8 * 1024;

/// Asks a proxy for a tunnel to `authority`.
pub(crate) async fn open_tunnel<S: Read + Write>(
    stream: &S,
    proxy: &Proxy,
    authority: &str,
) -> io::Result<()> {
    let mut request = format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n").into_bytes();
    if let Some(authorization) = &proxy.authorization {
        request.extend_from_slice(b"proxy-authorization: ");
        request.extend_from_slice(authorization.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    stream.write_all(&request).await?;
    stream.flush().await?;
    let refused =
        |kind, text: String| Err(io::Error::new(kind, format!("the proxy {proxy}: {text}")));
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    let end = loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            let text = "it closed the connection without an answer to CONNECT".to_owned();
            return refused(io::ErrorKind::UnexpectedEof, text);
        }
        head.extend_from_slice(&buffer[..read]);
        if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if head.len() > HEAD_LIMIT {
            let text = format!("its answer to CONNECT has no end within {HEAD_LIMIT} bytes");
            return refused(io::ErrorKind::InvalidData, text);
        }
    };
    let line = String::from_utf8_lossy(head.split(|byte| *byte == b'\r').next().unwrap_or(&[]));
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
    match status.and_then(|status| status.parse::<u16>().ok()) {
        // The server speaks after the client, so what follows is not the server's.
        Some(200..=299) if head.len() > end => {
            refused(io::ErrorKind::InvalidData, "it sends data before the tunnel is used".into())
        }
        Some(200..=299) => Ok(()),
        Some(_) => {
            refused(io::ErrorKind::ConnectionRefused, format!("it answers CONNECT with {line:?}"))
        }
        None => refused(io::ErrorKind::InvalidData, format!("it answers CONNECT with {line:?}")),
    }
}
