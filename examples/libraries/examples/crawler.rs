//! A crawler: follows the links of a site from page to page, several at a time, each within a
//! deadline.
//!
//! ```text
//! /: 200, links to /about /posts
//! /about: 200, links to /
//! /posts: 200, links to /gone /old /posts/1 /posts/2
//! /gone: 404
//! /old: 200 at /posts/2, links to /stuck
//! /posts/1: 200, links to /posts/2
//! /posts/2: 200, links to /stuck
//! /stuck: no answer in time
//! 8 pages by 2 connections
//! ```
//!
//! The site is a router of axum in the same process. The client ([`Client`]) keeps its connections,
//! follows redirects, and closes the connection of a request whose deadline passes.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::error::Error;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::{Html, Redirect};
use pikake::http::axum::Peer;
use pikake::http::axum::routing::get;
use pikake::http::client::{self, Client, Url};
use pikake::http::serve;
use pikake::net::TcpListener;
use pikake::task::in_parallel;
use pikake::{Bound, sleep, spawn, timeout_after};

/// How long a page may take.
const PAGE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a page may be.
const PAGE_LIMIT: u64 = 1 << 20;

/// How many connections the crawler has to a site.
const CONNECTIONS: usize = 2;

/// Clients by their addresses, that is, connections.
type Seen = Arc<Bound<Rc<RefCell<BTreeSet<SocketAddr>>>>>;

fn site(seen: Seen) -> Router {
    let page = |seen: &Seen, links: &'static str| {
        let seen = seen.clone();
        get(async move |Peer(peer): Peer<SocketAddr>| {
            seen.get().borrow_mut().insert(peer);
            let links = links.split_whitespace().map(|to| format!("<a href=\"{to}\">{to}</a>\n"));
            Html(links.collect::<String>())
        })
    };
    let stuck = async || {
        drop(sleep(Duration::from_secs(3600)).await);
        "too late"
    };
    Router::new()
        .route("/", page(&seen, "/about posts"))
        .route("/about", page(&seen, "/"))
        .route("/posts", page(&seen, "/posts/1 /posts/2 /old /gone http://elsewhere.test/"))
        .route("/posts/1", page(&seen, "2#comments"))
        .route("/posts/2", page(&seen, "/stuck"))
        .route("/old", get(async || Redirect::permanent("/posts/2")))
        .route("/stuck", get(stuck))
}

/// The targets of the links in a page.
fn links(page: &str) -> impl Iterator<Item = &str> {
    page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next())
}

// ANCHOR: fetch
/// A page, its status, and its address after redirects.
async fn fetch(client: &Client, url: String) -> Result<(u16, Url, String), client::Error> {
    let response = client.get(url).send().await?;
    let (status, url) = (response.status().as_u16(), response.url().clone());
    Ok((status, url, response.limit(PAGE_LIMIT).text().await?))
}
// ANCHOR_END: fetch

/// The paths that a page links to within its site, and a line about the page.
async fn crawl(client: Client, origin: String, path: String) -> (BTreeSet<String>, String) {
    let asking = fetch(&client, format!("{origin}{path}"));
    let (status, url, text) = match timeout_after(PAGE_TIMEOUT, asking).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return (BTreeSet::new(), format!("{path}: {error}")),
        Err(_) => return (BTreeSet::new(), format!("{path}: no answer in time")),
    };
    let targets = links(&text).filter_map(|target| url.join(target).ok());
    let inside = targets.filter(|target| target.origin() == url.origin());
    let found: BTreeSet<String> = inside.map(|target| target.path().to_owned()).collect();
    let mut line = format!("{path}: {status}");
    if url.path() != path {
        line += &format!(" at {}", url.path());
    }
    if !found.is_empty() {
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        line += &format!(", links to {}", found.join(" "));
    }
    (found, line)
}

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let seen = Seen::new(Bound::new(Rc::default()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let origin = format!("http://{}", listener.local_addr()?);
    let server = spawn(serve(listener, site(seen.clone())).into_future()).cancel_on_drop();

    let client = Client::builder().no_proxy().connections_per_host(CONNECTIONS).build()?;
    let (mut known, mut lines) = (BTreeSet::from(["/".to_owned()]), Vec::new());
    let mut next = known.clone();
    while !next.is_empty() {
        let pages = next.into_iter().map(|path| crawl(client.clone(), origin.clone(), path));
        next = BTreeSet::new();
        for page in in_parallel(pages).await? {
            let (found, line) = page?;
            next.extend(found.into_iter().filter(|path| known.insert(path.clone())));
            lines.push(line);
        }
    }
    let connections = seen.get().borrow().len();
    lines.push(format!("{} pages by {connections} connections", known.len()));
    drop(server);
    Ok(lines)
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for line in demo().await? {
        println!("{line}");
    }
    Ok(())
}
