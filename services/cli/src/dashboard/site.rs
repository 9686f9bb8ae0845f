//! The answers to requests: probes, metrics, the page's files, and what the page asks for and does.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use pikake::console::metrics;
use pikake::http::Incoming;
use pikake::jobs::{BrokerError, DeadJob, JobId, ScheduleError, ScheduleInfo, Schedules};
use pikake::timeout_after;
use pikake::traps::trigger::{Kind, fire};
use serde::Deserialize;
use serde_json::{Value, json};
use tower_service::Service;

use crate::dashboard::assets;
use crate::dashboard::history::Filter;
use crate::dashboard::look::{Looker, seconds};
use crate::page::{
    NOT_FOUND, Refusal, TEXT, Token, has_loopback_host, read_json, respond, respond_json,
};

/// How many jobs an answer has.
const MOST_JOBS: usize = 200;
/// How many dead letters an answer has.
const MOST_DEAD: usize = 200;

/// How long the leader of the schedules has for its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The requests that change something.
const CHANGES: [&str; 7] =
    ["cancel", "pause", "resume", "replay", "pause-schedule", "resume-schedule", "run-schedule"];

/// The service of the server.
#[derive(Clone)]
pub(crate) struct Site(Rc<Shared>);

struct Shared {
    looker: Rc<Looker>,
    token: Token,
    /// Whether a request for the page must name a loopback host.
    checks_host: bool,
}

impl From<BrokerError> for Refusal {
    fn from(error: BrokerError) -> Self {
        match error {
            BrokerError::Refused(why) => Self::Refused(why),
            error => Self::Unreachable(error.to_string()),
        }
    }
}

/// The body of a change. Each kind of change reads what it needs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Change {
    /// Whether a job that runs is interrupted.
    terminate: bool,
    /// The id of the dead letter to replay; `None`: all.
    job: Option<String>,
}

type Answered = Result<Response<Full<Bytes>>, Refusal>;

impl Site {
    pub(crate) fn new(looker: Rc<Looker>, token: Token, checks_host: bool) -> Self {
        Self(Rc::new(Shared { looker, token, checks_host }))
    }
}

impl Shared {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let answered = match head.uri.path() {
            "/healthz" => Ok(respond(StatusCode::OK, TEXT, "ok\n")),
            "/readyz" => Ok(self.readiness()),
            "/metrics" => match metrics::text().await {
                Ok(text) => Ok(respond(StatusCode::OK, metrics::CONTENT_TYPE, text)),
                Err(error) => Err(Refusal::Unreachable(error.to_string())),
            },
            _ => self.of_page(&head, body).await,
        };
        answered.unwrap_or_else(Refusal::respond)
    }

    fn readiness(&self) -> Response<Full<Bytes>> {
        let state = self.looker.state();
        // A broker that is short of memory or disk still delivers.
        let is_connected = state.starts_with("open") || state.starts_with("blocked");
        let problem = match self.looker.readiness() {
            Err(why) => Some(why),
            Ok(()) if is_connected => None,
            Ok(()) => Some(format!("the broker: {state}")),
        };
        match problem {
            None => respond(StatusCode::OK, TEXT, "ready\n"),
            Some(why) => {
                fire(Kind::FailedCheck, || format!("/readyz: {why}"));
                respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n"))
            }
        }
    }

    async fn of_page(&self, head: &Parts, body: Incoming) -> Answered {
        if self.checks_host && !has_loopback_host(head) {
            let text = "use the address that the command has printed";
            return Err(Refusal::Status(StatusCode::FORBIDDEN, text));
        }
        let path = self.token.path_behind(head)?;
        if let Some(asset) = assets::find(path) {
            self.token.allow(head, false)?;
            return Ok(respond(StatusCode::OK, asset.media_type, asset.text));
        }
        let path = path.strip_prefix("api/").ok_or(NOT_FOUND)?;
        let (name, argument) = path.split_once('/').unwrap_or((path, ""));
        let argument = decoded(argument)?;
        let is_change = CHANGES.contains(&name);
        self.token.allow(head, is_change)?;
        let value = match is_change {
            true => self.change(name, &argument, read_json(body).await?).await?,
            false => self.look(name, &argument, head.uri.query().unwrap_or("")).await?,
        };
        Ok(respond_json(StatusCode::OK, &value))
    }

    async fn look(&self, name: &str, argument: &str, query: &str) -> Result<Value, Refusal> {
        self.looker.want();
        match (name, argument) {
            ("overview", "") => {
                let snapshot = self.looker.snapshot().await.map_err(BrokerError::from)?;
                let history = self.looker.history();
                Ok(json!({
                    "snapshot": snapshot,
                    "seconds": history.seconds(),
                    "names": history.names(),
                    "now": seconds(pikake::traps::wall_time()),
                }))
            }
            ("jobs", "") => {
                let mut filter = Filter::default();
                for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
                    match name {
                        "state" => filter.state = decoded(value)?,
                        "find" => filter.text = decoded(value)?,
                        _ => {}
                    }
                }
                let history = self.looker.history();
                let (jobs, count) = history.filtered(&filter, MOST_JOBS);
                Ok(json!({ "jobs": jobs, "count": count }))
            }
            ("job", id) => match self.looker.history().find(id) {
                Some(job) => Ok(json!({ "job": job })),
                None => Err(Refusal::Refused("no event has told of this job".to_owned())),
            },
            ("schedules", "") => self.schedules(async |schedules| schedules.list().await).await,
            ("dead", queue) if !queue.is_empty() => {
                let broker = self.looker.app().broker()?;
                let dead = broker.dead(queue, MOST_DEAD).await?;
                let dead: Vec<Value> = dead.iter().map(json_of_dead).collect();
                Ok(json!({ "dead": dead }))
            }
            _ => Err(NOT_FOUND),
        }
    }

    async fn change(&self, name: &str, argument: &str, change: Change) -> Result<Value, Refusal> {
        let control = self.looker.app().control();
        match name {
            _ if argument.is_empty() => Err(NOT_FOUND),
            "cancel" => Ok(json!({ "answers": control.revoke(argument, change.terminate).await? })),
            "pause" => Ok(json!({ "answers": control.pause(argument).await? })),
            "resume" => Ok(json!({ "answers": control.resume(argument).await? })),
            "pause-schedule" => self.schedules(async |all| all.pause(argument).await).await,
            "resume-schedule" => self.schedules(async |all| all.resume(argument).await).await,
            "run-schedule" => self.schedules(async |all| all.run_now(argument).await).await,
            _ => {
                let broker = self.looker.app().broker()?;
                let job = change.job.map(JobId);
                Ok(json!({ "replayed": broker.replay(argument, job.as_ref()).await? }))
            }
        }
    }
}

impl Shared {
    /// Asks the leader of the schedules, which answers with all of them.
    async fn schedules(
        &self,
        ask: impl AsyncFnOnce(Schedules) -> Result<Vec<ScheduleInfo>, ScheduleError>,
    ) -> Result<Value, Refusal> {
        let asked = timeout_after(PATIENCE, ask(self.looker.app().schedules())).await;
        match asked {
            Ok(Ok(all)) => {
                let all: Vec<Value> = all.iter().map(json_of_schedule).collect();
                Ok(json!({ "schedules": all }))
            }
            Ok(Err(ScheduleError::Broker(error))) => Err(error.into()),
            Ok(Err(error)) => Err(Refusal::Refused(error.to_string())),
            Err(_) => Err(Refusal::Unreachable(format!(
                "the leader of the schedules does not answer within {PATIENCE:?}"
            ))),
        }
    }
}

fn json_of_schedule(schedule: &ScheduleInfo) -> Value {
    json!({
        "name": schedule.name,
        "when": schedule.when,
        "job": schedule.job,
        "arguments": schedule.args.to_string(),
        "missed": schedule.missed,
        "missed_count": schedule.missed_count,
        "is_paused": schedule.is_paused,
        "last": schedule.last.map(seconds),
        "next": schedule.next.map(seconds),
    })
}

fn json_of_dead(dead: &DeadJob) -> Value {
    let header = |name: &str| dead.message.headers.get(name).and_then(Value::as_str);
    json!({
        "id": dead.message.job(),
        "name": header("task"),
        "arguments": header("argsrepr"),
        "kwargs": header("kwargsrepr"),
        "since": dead.since.map(seconds),
        "reason": dead.reason,
    })
}

/// A part of an address, without the escapes of `encodeURIComponent`.
fn decoded(text: &str) -> Result<String, Refusal> {
    let malformed = || Refusal::Malformed("the address is malformed".to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2).ok_or_else(malformed)?;
        rest = behind;
        let digits = std::str::from_utf8(digits).map_err(|_| malformed())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| malformed())?);
    }
    String::from_utf8(bytes).map_err(|_| malformed())
}

impl Service<Request<Incoming>> for Site {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let shared = self.0.clone();
        Box::pin(async move { Ok(shared.answer(request).await) })
    }
}
