//! The answers to a browser's requests: the page's files, and what the process tells.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use pikake::console::client::ClientError;
use pikake::console::model::TaskKey;
use pikake::console::protocol;
use pikake::http::Incoming;
use pikake::thread::run_in_thread;
use serde::Deserialize;
use tower_service::Service;

use crate::page::{
    Asset, NOT_FOUND, Refusal, Token, has_loopback_host, read_json, respond, respond_json,
};
use crate::web::assets;
use crate::web::bridge::Bridge;

/// The longest time that a request may have a process recorded, in seconds.
const LONGEST_RECORD: f64 = 60.0;

/// The service of the page's server.
#[derive(Clone)]
pub(crate) struct Site {
    bridge: Arc<Bridge>,
    token: Rc<Token>,
}

impl From<ClientError> for Refusal {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Failed(_) => Self::Refused(error.to_string()),
            _ => Self::Unreachable(error.to_string()),
        }
    }
}

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
        self.try_answer(&head, body).await.unwrap_or_else(Refusal::respond)
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
                let Cancellation { reason } = read_json(body).await?;
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
        let path = self.token.path_behind(head)?;
        if let Some(asset) = assets::find(path) {
            self.token.allow(head, false)?;
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
            "locks" => (false, Route::Ask(protocol::Request::Locks)),
            "leaks" => (false, Route::Ask(protocol::Request::Leaks)),
            "blocked" => (false, Route::Ask(protocol::Request::Blocked)),
            "trace" => (false, Route::Ask(protocol::Request::Trace { seconds: seconds()? })),
            "profile" => {
                let needed = || Refusal::Malformed("how long? Add `?seconds=5`".to_owned());
                let seconds = seconds()?.ok_or_else(needed)?;
                (false, Route::Ask(protocol::Request::Profile { seconds }))
            }
            _ => return Err(NOT_FOUND),
        };
        self.token.allow(head, is_change)?;
        Ok(route)
    }
}

/// The command ends, by a signal.
const ENDING: Refusal = Refusal::Status(StatusCode::SERVICE_UNAVAILABLE, "the console ends");

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
