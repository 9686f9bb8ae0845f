//! The same HTTP servers on one thread of pikake and of tokio.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use pikake::net::tls::Identity;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

/// More connections than are ever opened: tokio's server has no limit.
const CONNECTIONS: usize = 100_000;

/// As axum's documentation of `with_state` advises a server of its own, routes are made once, and
/// not for each request. `axum::serve` does the same.
fn router() -> Router {
    Router::new()
        .route("/", get(async || "hello, world"))
        .route("/users/{id}", get(async |Path(id): Path<u64>| format!("user {id}")))
        .with_state(())
}

/// A service without a framework, which answers at once.
#[derive(Clone)]
struct Plain;

impl<B> Service<Request<B>> for Plain {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Ok(Response::new(Full::new(Bytes::from_static(b"hello, world")))))
    }
}

/// Serves for ever, and calls `on_bound` with the port. The name has up to three parts, in this
/// order: the runtime (`pikake`, `pikake-unlimited` or `tokio`), `-plain` for a service without
/// axum, and `-tls`.
///
/// # Panics
///
/// When there is no such server, or the server fails.
pub fn serve(name: &str, on_bound: impl FnOnce(u16) + 'static) {
    let (name, is_tls) = split(name, "-tls");
    let (runtime, is_plain) = split(name, "-plain");
    let tls = is_tls.then(certificate);
    match (runtime, is_plain) {
        ("pikake", false) => on_pikake(on_bound, router(), tls, false),
        ("pikake", true) => on_pikake(on_bound, Plain, tls, false),
        ("pikake-unlimited", false) => on_pikake(on_bound, router(), tls, true),
        ("tokio", false) if tls.is_none() => on_axum(on_bound),
        ("tokio", false) => on_tokio(on_bound, router(), tls),
        ("tokio", true) => on_tokio(on_bound, Plain, tls),
        _ => panic!("no runtime {runtime}: pikake, pikake-unlimited or tokio"),
    }
}

fn split<'a>(name: &'a str, part: &str) -> (&'a str, bool) {
    name.strip_suffix(part).map_or((name, false), |rest| (rest, true))
}

fn certificate() -> CertifiedKey<rcgen::KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate")
}

/// Neither server has a limit on the head of a request. tokio's has none on stalled clients either,
/// which pikake's has by default.
fn on_pikake<S, B>(
    on_bound: impl FnOnce(u16) + 'static,
    service: S,
    tls: Option<CertifiedKey<rcgen::KeyPair>>,
    is_unlimited: bool,
) where
    S: Service<Request<pikake::http::Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: hyper::body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pikake::run(async move {
        let listener = pikake::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        on_bound(listener.local_addr().unwrap().port());
        let server = pikake::http::serve(listener, service);
        let mut server = server.connections(CONNECTIONS).header_timeout(None);
        if is_unlimited {
            server = server.stall_timeout(None);
        }
        match tls {
            None => server.await.unwrap(),
            Some(tls) => {
                let identity = Identity::from_pem(
                    tls.cert.pem().as_bytes(),
                    tls.signing_key.serialize_pem().as_bytes(),
                );
                server.tls(identity.unwrap()).await.unwrap()
            }
        };
    });
}

fn with_listener(on_bound: impl FnOnce(u16), serve: impl AsyncFnOnce(tokio::net::TcpListener)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        on_bound(listener.local_addr().unwrap().port());
        serve(listener).await;
    });
}

fn on_axum(on_bound: impl FnOnce(u16)) {
    with_listener(on_bound, async |listener| axum::serve(listener, router()).await.unwrap());
}

/// hyper-util's server, and rustls by tokio-rustls.
fn on_tokio<S, B>(on_bound: impl FnOnce(u16), service: S, tls: Option<CertifiedKey<rcgen::KeyPair>>)
where
    S: Service<Request<hyper::body::Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    async fn attend<S, B>(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, service: S)
    where
        S: Service<Request<hyper::body::Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        B: hyper::body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new());
        builder.http2().timer(TokioTimer::new());
        let served =
            builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        drop(served.await);
    }

    let acceptor = tls.map(|tls| {
        let key = PrivateKeyDer::Pkcs8(tls.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth();
        let mut config = config.with_single_cert(vec![tls.cert.der().clone()], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    });
    with_listener(on_bound, async |listener| {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let (acceptor, service) = (acceptor.clone(), service.clone());
            tokio::spawn(async move {
                match acceptor {
                    None => attend(stream, service).await,
                    Some(acceptor) => {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            attend(stream, service).await;
                        }
                    }
                }
            });
        }
    });
}
