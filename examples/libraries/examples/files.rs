//! Static files on pikake: ranges, conditional requests, gzip and a limit for request bodies.
//!
//! ```text
//! GET: 200 OK, 2600 bytes
//! its last ten bytes: 206 Partial Content, bytes 2590-2599/2600, qrstuvwxyz
//! behind the end: 416 Range Not Satisfiable, bytes */2600
//! same ETag: 304 Not Modified, 0 bytes
//! not modified since: 304 Not Modified, 0 bytes
//! gzip: 200 OK, the same when decoded: true
//! outside the folder: 404 Not Found
//! upload of 2000 bytes: 413 Payload Too Large
//! ```
//!
//! Compression, the limit and the fixed header are layers of tower-http. Its `ServeDir` needs
//! tokio's runtime for its files, so the files are served by a handler over `pikake::fs`.

use std::error::Error;
use std::io::{self, Read, SeekFrom};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract;
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use flate2::read::GzDecoder;
use futures::{StreamExt, stream};
use pikake::fs::File;
use pikake::http::axum::routing::{get, post};
use pikake::net::{TcpListener, TcpStream};
use pikake::{Bound, spawn};
use tower_http::compression::CompressionLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::set_header::SetResponseHeaderLayer;

/// The length of the parts in which files are read.
const PART: usize = 64 * 1024;
/// The most bytes of a request's body.
const MOST: usize = 1000;

// ANCHOR: files
fn router(folder: PathBuf) -> Router {
    let file =
        async move |extract::Path(path): extract::Path<String>, headers: HeaderMap| match answer(
            &folder, &path, &headers,
        )
        .await
        {
            Ok(response) => response,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                StatusCode::NOT_FOUND.into_response()
            }
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        };
    let no_sniffing = HeaderValue::from_static("nosniff");
    Router::new()
        .route("/files/{*path}", get(file))
        .route("/upload", post(async |body: String| body.len().to_string()))
        .layer(CompressionLayer::new())
        .layer(SetResponseHeaderLayer::overriding(header::X_CONTENT_TYPE_OPTIONS, no_sniffing))
        .layer(RequestBodyLimitLayer::new(MOST))
}

/// Answers with a file, a part of it, or that the client has it.
async fn answer(folder: &Path, path: &str, headers: &HeaderMap) -> io::Result<Response> {
    let path = Path::new(path);
    // Neither the folder above nor the root of the system.
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let file = File::open(folder.join(path)).await?;
    let metadata = file.metadata().await?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let (length, modified) = (metadata.len(), metadata.modified()?);
    let age = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    // Weak, since the compressed file has the same.
    let tag = format!("W/\"{length:x}-{:x}\"", age.as_nanos());
    let known = [
        (header::ETAG, tag.clone()),
        (header::LAST_MODIFIED, httpdate::fmt_http_date(modified)),
        (header::ACCEPT_RANGES, "bytes".to_owned()),
        (header::CONTENT_TYPE, content_type(path).to_owned()),
    ];
    if is_known(headers, &tag, modified) {
        return Ok((StatusCode::NOT_MODIFIED, known).into_response());
    }
    let whole = 0..length;
    let (status, range) = match range_of(headers, length) {
        None => (StatusCode::OK, whole),
        Some(Some(range)) => (StatusCode::PARTIAL_CONTENT, range),
        Some(None) => {
            let length = [(header::CONTENT_RANGE, format!("bytes */{length}"))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, length).into_response());
        }
    };
    file.seek(SeekFrom::Start(range.start)).await?;
    let mut response = (status, known, body(file, range.end - range.start)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    if status == StatusCode::PARTIAL_CONTENT {
        let shown = format!("bytes {}-{}/{length}", range.start, range.end - 1);
        headers.insert(header::CONTENT_RANGE, shown.try_into().expect("digits are a header"));
    }
    Ok(response)
}
// ANCHOR_END: files

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Whether the client has this version. Tags come before dates (RFC 9110, 13.2.2).
fn is_known(headers: &HeaderMap, tag: &str, modified: SystemTime) -> bool {
    if let Some(tags) = text(headers, header::IF_NONE_MATCH) {
        let weak = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
        return tags.split(',').any(|other| other.trim() == "*" || weak(other) == weak(tag));
    }
    let since = text(headers, header::IF_MODIFIED_SINCE);
    let since = since.and_then(|date| httpdate::parse_http_date(date).ok());
    // A date of HTTP has whole seconds.
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    since.is_some_and(|since| seconds(modified) <= seconds(since))
}

/// The range that the client wants: `None`, all; `Some(None)`, none that there is. Several ranges,
/// and those that depend on a version, are answered with all, as the standard permits.
fn range_of(headers: &HeaderMap, length: u64) -> Option<Option<Range<u64>>> {
    let range = text(headers, header::RANGE)?.strip_prefix("bytes=")?;
    if headers.contains_key(header::IF_RANGE) {
        return None;
    }
    let (first, last) = range.split_once('-')?;
    let range = match (first, last) {
        ("", last) => length.saturating_sub(last.parse().ok()?)..length,
        (first, "") => first.parse().ok()?..length,
        (first, last) => {
            let (first, last) = (first.parse().ok()?, last.parse::<u64>().ok()?);
            if last < first {
                return None;
            }
            first..length.min(last.saturating_add(1))
        }
    };
    Some(Some(range).filter(|range| range.start < range.end))
}

fn content_type(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css",
        Some("js") => "text/javascript",
        Some("txt") => "text/plain; charset=utf-8",
        Some("png") => "image/png",
        _ => "application/octet-stream",
    }
}

/// The next bytes of a file, read in parts while the client takes them.
fn body(file: File, length: u64) -> Body {
    let parts = stream::try_unfold((file, length), async |(file, left)| {
        let mut part = vec![0; PART.min(usize::try_from(left).unwrap_or(PART))];
        if part.is_empty() {
            return Ok(None);
        }
        let count = file.read(&mut part).await?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        part.truncate(count);
        Ok(Some((part, (file, left - count as u64))))
    });
    // axum demands `Send` of a body.
    let mut parts = Bound::new(Box::pin(parts));
    Body::from_stream(stream::poll_fn(move |cx| parts.get_mut().poll_next_unpin(cx)))
}

/// An answer: its head, and its body without chunks.
struct Answer {
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn status(&self) -> &str {
        self.head.lines().next().and_then(|line| line.split_once(' ')).map_or("", |line| line.1)
    }

    fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|line| line.0 == name).map(|line| line.1).next().unwrap_or_default()
    }
}

/// Asks as a client of HTTP/1.0, which gets no chunks.
async fn ask(address: std::net::SocketAddr, request: &str) -> io::Result<Answer> {
    let client = TcpStream::connect(address).await?;
    client.write_all(request.as_bytes()).await?;
    let (mut all, mut buffer) = (Vec::new(), [0; 1000]);
    while let length @ 1.. = client.read(&mut buffer).await? {
        all.extend(&buffer[..length]);
    }
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").ok_or(io::ErrorKind::Other)?;
    let body = all.split_off(end + 4);
    Ok(Answer { head: String::from_utf8_lossy(&all).into_owned(), body })
}

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let letters = "abcdefghijklmnopqrstuvwxyz".repeat(100);
    std::fs::write(folder.path().join("letters.txt"), &letters)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = router(folder.path().to_owned());
    let _server = spawn(pikake::http::serve(listener, app).into_future()).cancel_on_drop();
    let get = async |header: &str| {
        ask(address, &format!("GET /files/letters.txt HTTP/1.0\r\n{header}\r\n\r\n")).await
    };
    let mut lines = Vec::new();

    let all = get("accept: */*").await?;
    assert_eq!(all.header("x-content-type-options"), "nosniff");
    assert_eq!(all.body, letters.as_bytes());
    lines.push(format!("GET: {}, {} bytes", all.status(), all.body.len()));

    let part = get("range: bytes=-10").await?;
    let (range, body) = (part.header("content-range"), str::from_utf8(&part.body)?);
    lines.push(format!("its last ten bytes: {}, {range}, {body}", part.status()));
    let none = get("range: bytes=2600-").await?;
    let range = none.header("content-range");
    lines.push(format!("behind the end: {}, {range}", none.status()));

    let same = get(&format!("if-none-match: {}", all.header("etag"))).await?;
    lines.push(format!("same ETag: {}, {} bytes", same.status(), same.body.len()));
    let same = get(&format!("if-modified-since: {}", all.header("last-modified"))).await?;
    lines.push(format!("not modified since: {}, {} bytes", same.status(), same.body.len()));

    let zipped = get("accept-encoding: gzip").await?;
    assert_eq!(zipped.header("content-encoding"), "gzip");
    let mut decoded = String::new();
    GzDecoder::new(&*zipped.body).read_to_string(&mut decoded)?;
    let is_same = decoded == letters && zipped.body.len() < letters.len();
    lines.push(format!("gzip: {}, the same when decoded: {is_same}", zipped.status()));

    let outside = ask(address, "GET /files/..%2fsecret HTTP/1.0\r\n\r\n").await?;
    lines.push(format!("outside the folder: {}", outside.status()));
    let upload = format!("POST /upload HTTP/1.0\r\ncontent-length: 2000\r\n\r\n{:2000}", "");
    let refused = ask(address, &upload).await?;
    lines.push(format!("upload of 2000 bytes: {}", refused.status()));
    Ok(lines)
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for line in demo().await? {
        println!("{line}");
    }
    Ok(())
}
