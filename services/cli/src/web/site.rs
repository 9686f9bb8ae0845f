//! The answers to a browser's requests: the page's files, and what the process tells.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use pikake::console::client::ClientError;
use pikake::console::model::TaskKey;
use pikake::console::protocol;
use pikake::http::Incoming;
use pikake::thread::run_in_thread;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tower_service::Service;

use crate::web::assets::{self, Asset};
use crate::web::bridge::Bridge;

/// The page loads its own files, sends requests to its own server, and does nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The headers of each answer. The address has the token, so no other server may see it as a referrer.
const HEADERS: [(header::HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// The header that has the token in a request that changes the process.
const TOKEN_HEADER: &str = "x-pikake-token";

/// The greatest length of a request's body in bytes: more than a reason needs.
const BODY_LIMIT: usize = 4096;

/// The longest time that a request may have a process recorded, in seconds.
const LONGEST_RECORD: f64 = 60.0;

/// The length of a token in bytes.
const TOKEN_LENGTH: usize = 16;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// What a browser must know to be answered.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl Token {
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; TOKEN_LENGTH];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Takes the same time for each text of the token's length, so that nobody can find the token byte by byte.
    fn is(&self, text: &[u8]) -> bool {
        let token = self.0.as_bytes();
        let differences = token.iter().zip(text).fold(0, |all, (a, b)| all | (a ^ b));
        token.len() == text.len() && std::hint::black_box(differences) == 0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The service of the page's server.
#[derive(Clone)]
pub(crate) struct Site {
    bridge: Arc<Bridge>,
    token: Rc<Token>,
}

/// Why a request gets no answer of the process.
enum Refusal {
    /// The request is not one of this server's.
    Status(StatusCode, &'static str),
    /// The request is malformed.
    Malformed(String),
    /// The process fails the request, or cannot be reached.
    Client(ClientError),
}

impl From<ClientError> for Refusal {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

const NOT_FOUND: Refusal = Refusal::Status(StatusCode::NOT_FOUND, "nothing is here");

/// What a request is for.
enum Route {
    File(&'static Asset),
    Ask(protocol::Request),
    /// The tasks, whose steps are timed for the next seconds.
    Timed(protocol::Request),
    /// A cancellation, whose reason is in the body.
    Cancel(TaskKey),
}

/// The body of a cancellation.
#[derive(Deserialize)]
struct Cancellation {
    #[serde(default)]
    reason: String,
}

impl Site {
    pub(crate) fn new(bridge: Arc<Bridge>, token: Token) -> Self {
        Self { bridge, token: Rc::new(token) }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        match self.try_answer(&head, body).await {
            Ok(response) => response,
            Err(Refusal::Status(status, text)) => respond(status, TEXT, text),
            Err(Refusal::Malformed(error)) => {
                respond_json(StatusCode::BAD_REQUEST, &json!({ "error": error }))
            }
            Err(Refusal::Client(error)) => {
                let status = match error {
                    ClientError::Failed(_) => StatusCode::UNPROCESSABLE_ENTITY,
                    _ => StatusCode::BAD_GATEWAY,
                };
                respond_json(status, &json!({ "error": error.to_string() }))
            }
        }
    }

    async fn try_answer(
        &self,
        head: &Parts,
        body: Incoming,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let mut is_timed = false;
        let request = match self.route(head)? {
            Route::File(asset) => return Ok(respond(StatusCode::OK, asset.media_type, asset.text)),
            Route::Ask(request) => request,
            Route::Timed(request) => {
                is_timed = true;
                request
            }
            Route::Cancel(task) => {
                let malformed = |error: String| Refusal::Malformed(error);
                let body = Limited::new(body, BODY_LIMIT).collect().await;
                let body = body.map_err(|error| malformed(error.to_string()))?.to_bytes();
                let parsed = serde_json::from_slice(&body);
                let Cancellation { reason } =
                    parsed.map_err(|error| malformed(error.to_string()))?;
                protocol::Request::Cancel { task, reason }
            }
        };
        let bridge = self.bridge.clone();
        let ask = move || {
            if is_timed {
                bridge.time_steps()?;
            }
            bridge.ask(&request)
        };
        let asked = run_in_thread(ask).await;
        let answer = asked.map_err(|_| ENDING)??;
        Ok(respond_json(StatusCode::OK, &answer))
    }

    fn route(&self, head: &Parts) -> Result<Route, Refusal> {
        if !has_loopback_host(head) {
            return Err(Refusal::Status(
                StatusCode::FORBIDDEN,
                "use the address that `pikake console --web` has printed",
            ));
        }
        let path = head.uri.path().strip_prefix('/').and_then(|path| path.split_once('/'));
        let (token, path) = path.ok_or(NOT_FOUND)?;
        if !self.token.is(token.as_bytes()) {
            return Err(NOT_FOUND);
        }
        if let Some(asset) = assets::find(path) {
            self.allow(head, false)?;
            return Ok(Route::File(asset));
        }
        let path = path.strip_prefix("api/").ok_or(NOT_FOUND)?;
        let (name, argument) = path.split_once('/').unwrap_or((path, ""));
        let task = || argument.parse::<TaskKey>().map_err(Refusal::Malformed);
        let query = head.uri.query().unwrap_or("");
        let seconds = || seconds(query);
        let (is_change, route) = match name {
            "cancel" => (true, Route::Cancel(task()?)),
            "abort" => (true, Route::Ask(protocol::Request::Abort { task: task()? })),
            "task" => (false, Route::Ask(protocol::Request::Task { task: task()? })),
            _ if !argument.is_empty() => return Err(NOT_FOUND),
            "tasks" => {
                let request = protocol::Request::Tasks { waits: false };
                match query.split('&').any(|pair| pair == "timed") {
                    true => (false, Route::Timed(request)),
                    false => (false, Route::Ask(request)),
                }
            }
            "waits" => (false, Route::Ask(protocol::Request::Waits)),
            "stats" => (false, Route::Ask(protocol::Request::Stats)),
            "blocked" => (false, Route::Ask(protocol::Request::Blocked)),
            "trace" => (false, Route::Ask(protocol::Request::Trace { seconds: seconds()? })),
            "profile" => {
                let needed = || Refusal::Malformed("how long? Add `?seconds=5`".to_owned());
                let seconds = seconds()?.ok_or_else(needed)?;
                (false, Route::Ask(protocol::Request::Profile { seconds }))
            }
            _ => return Err(NOT_FOUND),
        };
        self.allow(head, is_change)?;
        Ok(route)
    }

    /// Checks that a request that changes the process is a POST with the token, and that any other one is a GET.
    fn allow(&self, head: &Parts, is_change: bool) -> Result<(), Refusal> {
        let is_method = match is_change {
            true => head.method == Method::POST,
            false => head.method == Method::GET || head.method == Method::HEAD,
        };
        if !is_method {
            return Err(Refusal::Status(StatusCode::METHOD_NOT_ALLOWED, "not with this method"));
        }
        let token = head.headers.get(TOKEN_HEADER).map_or(&b""[..], HeaderValue::as_bytes);
        if is_change && !self.token.is(token) {
            return Err(Refusal::Status(
                StatusCode::FORBIDDEN,
                "the header x-pikake-token is missing or wrong",
            ));
        }
        Ok(())
    }
}

/// The command ends, by a signal.
const ENDING: Refusal = Refusal::Status(StatusCode::SERVICE_UNAVAILABLE, "the console ends");

/// Whether the host is this machine by a name that no DNS server can give to it. The port may be another one, since
/// it may be forwarded.
fn has_loopback_host(head: &Parts) -> bool {
    let named = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(host) = head.uri.authority().map(|authority| authority.as_str()).or(named) else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    ["127.0.0.1", "localhost", "[::1]"].contains(&name)
}

/// The argument `seconds` of a query.
fn seconds(query: &str) -> Result<Option<f64>, Refusal> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("seconds="));
    let Some(value) = value else { return Ok(None) };
    match value.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= LONGEST_RECORD => Ok(Some(seconds)),
        _ => Err(Refusal::Malformed(format!(
            "`seconds` is a number above 0, and {LONGEST_RECORD} at most"
        ))),
    }
}

fn respond(
    status: StatusCode,
    media_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn respond_json(status: StatusCode, value: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_vec(value) {
        Ok(text) => respond(status, JSON, text),
        Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, TEXT, error.to_string()),
    }
}

impl Service<Request<Incoming>> for Site {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let site = self.clone();
        Box::pin(async move { Ok(site.answer(request).await) })
    }
}
