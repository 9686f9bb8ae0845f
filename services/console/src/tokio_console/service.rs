//! The service `Instrument`, which tokio-console calls.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use console_api::instrument::instrument_server::{Instrument, InstrumentServer};
use console_api::instrument::{
    InstrumentRequest, PauseRequest, PauseResponse, ResumeRequest, ResumeResponse, State,
    StateRequest, TaskDetailsRequest, Temporality, Update,
};
use console_api::tasks::{Stats, Task, TaskDetails, TaskUpdate};
use console_api::{
    Field, MetaId, Metadata, PollStats, RegisterMetadata, field, metadata, register_metadata,
};
use pikake_traps::{Bound, Interrupted, sleep};
use prost_types::Timestamp;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::records::{Figures, Identity, Key, Look, Part, Records};

/// The time between two looks, as with tokio's own programs.
const PUBLISH_EVERY: Duration = Duration::from_secs(1);

/// The number of the only metadata: those of a task.
const METADATA: MetaId = MetaId { id: 1 };

/// The service, for a server of HTTP/2.
pub(super) fn service(records: Arc<Records>) -> InstrumentServer<Service> {
    InstrumentServer::new(Service { records, paused: Arc::default() })
}

pub(super) struct Service {
    records: Arc<Records>,
    /// Whether updates pause, for all clients: tokio-console has one key for it.
    paused: Arc<AtomicBool>,
}

type Answer<T> = Result<Response<BoxStream<T>>, Status>;
type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Instrument for Service {
    type WatchUpdatesStream = BoxStream<Update>;
    type WatchTaskDetailsStream = BoxStream<TaskDetails>;
    type WatchStateStream = BoxStream<State>;

    async fn watch_updates(&self, _: Request<InstrumentRequest>) -> Answer<Update> {
        let (records, paused) = (self.records.clone(), self.paused.clone());
        let mut look = Look::new(records.clone());
        let mut is_first = true;
        Ok(repeated(move || {
            let mut next = || if paused.load(Ordering::Relaxed) { None } else { look.next_part() };
            // A client learns at once that it is connected, and what a task is.
            let part = if is_first { Some(next().unwrap_or_default()) } else { next() };
            let metadata = std::mem::take(&mut is_first).then(task_metadata);
            match part {
                Some(part) => Poll::Ready(Some(update(&records, part, metadata))),
                None => Poll::Pending,
            }
        }))
    }

    async fn watch_task_details(
        &self,
        request: Request<TaskDetailsRequest>,
    ) -> Answer<TaskDetails> {
        let unknown = || Status::not_found("there is no record of the task");
        let id = request.into_inner().id.ok_or_else(unknown)?;
        let records = self.records.clone();
        if !records.has(key_of(id.id)) {
            return Err(unknown());
        }
        let mut is_due = true;
        Ok(repeated(move || {
            if !records.has(key_of(id.id)) {
                return Poll::Ready(None);
            }
            is_due = !is_due;
            if is_due {
                return Poll::Pending;
            }
            let now = Some(timestamp(&records, records.now()));
            Poll::Ready(Some(TaskDetails { task_id: Some(id), now, ..TaskDetails::default() }))
        }))
    }

    async fn watch_state(&self, _: Request<StateRequest>) -> Answer<State> {
        let paused = self.paused.clone();
        let mut told = None;
        Ok(repeated(move || {
            let is_paused = paused.load(Ordering::Relaxed);
            if told.replace(is_paused) == Some(is_paused) {
                return Poll::Pending;
            }
            let temporality = if is_paused { Temporality::Paused } else { Temporality::Live };
            Poll::Ready(Some(State { temporality: temporality.into() }))
        }))
    }

    async fn pause(&self, _: Request<PauseRequest>) -> Result<Response<PauseResponse>, Status> {
        self.paused.store(true, Ordering::Relaxed);
        Ok(Response::new(PauseResponse {}))
    }

    async fn resume(&self, _: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        self.paused.store(false, Ordering::Relaxed);
        Ok(Response::new(ResumeResponse {}))
    }
}

/// A stream of the values that a closure returns. After `Pending`, the closure is called again in [`PUBLISH_EVERY`];
/// `None` ends the stream.
///
/// The closure is called when the client has room for a value, so there is at most one value that waits.
fn repeated<T: 'static>(
    next: impl FnMut() -> Poll<Option<T>> + Unpin + Send + 'static,
) -> Response<BoxStream<T>> {
    Response::new(Box::pin(Repeated { next, pause: None }))
}

struct Repeated<N> {
    next: N,
    pause: Option<Pause>,
}

type Pause = Pin<Box<dyn Future<Output = Result<(), Interrupted>> + Send>>;

impl<T, N: FnMut() -> Poll<Option<T>> + Unpin> Stream for Repeated<N> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                match pause.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(())) => self.pause = None,
                    Poll::Ready(Err(interrupted)) => {
                        return Poll::Ready(Some(Err(Status::cancelled(interrupted.to_string()))));
                    }
                }
            }
            match (self.next)() {
                Poll::Ready(value) => return Poll::Ready(value.map(Ok)),
                Poll::Pending => {
                    self.pause = Some(Box::pin(Bound::future(sleep(PUBLISH_EVERY))));
                }
            }
        }
    }
}

/// The id of a task on the wire. A kernel has fewer than 2^40 tasks, that is, one each microsecond for twelve days.
fn id_of((kernel, task): Key) -> u64 {
    (u64::from(kernel) << KERNEL_SHIFT) + task
}

fn key_of(id: u64) -> Key {
    ((id >> KERNEL_SHIFT) as u32, id & ((1 << KERNEL_SHIFT) - 1))
}

const KERNEL_SHIFT: u32 = 40;

fn update(records: &Records, part: Part, new_metadata: Option<RegisterMetadata>) -> Update {
    let new_tasks = part.new.iter().map(|task| new_task(task)).collect();
    let figures = part.figures.iter();
    let stats_update =
        figures.map(|(key, figures)| (id_of(*key), stats(records, figures))).collect();
    Update {
        now: Some(timestamp(records, records.now())),
        task_update: Some(TaskUpdate { new_tasks, stats_update, dropped_events: 0 }),
        new_metadata,
        ..Update::default()
    }
}

/// The description of all tasks, which each client gets first.
fn task_metadata() -> RegisterMetadata {
    let metadata = Metadata {
        name: "runtime.spawn".into(),
        target: "pikake".into(),
        kind: metadata::Kind::Span.into(),
        level: metadata::Level::Trace.into(),
        ..Metadata::default()
    };
    let metadata = register_metadata::NewMetadata { id: Some(METADATA), metadata: Some(metadata) };
    RegisterMetadata { metadata: vec![metadata] }
}

fn new_task(task: &Identity) -> Task {
    let mut fields = vec![
        text_field("kind", "task"),
        number_field("task.id", task.key.1),
        number_field("kernel", task.key.0.into()),
        // Under this name, and not `size.bytes`, tokio-console does not take a future for one on the stack.
        number_field("future.bytes", task.future_bytes),
        text_field("future", &task.future),
    ];
    if !task.name.is_empty() {
        fields.push(text_field("task.name", &task.name));
    }
    if let Some(parent) = task.parent {
        fields.push(number_field("parent", parent));
    }
    Task {
        id: Some(id_of(task.key).into()),
        metadata: Some(METADATA),
        fields,
        location: Some(task.spawned_at.into()),
        ..Task::default()
    }
}

fn text_field(name: &str, text: &str) -> Field {
    field_of(name, field::Value::StrVal(text.into()))
}

fn number_field(name: &str, number: u64) -> Field {
    field_of(name, field::Value::U64Val(number))
}

fn field_of(name: &str, value: field::Value) -> Field {
    Field {
        name: Some(field::Name::StrName(name.into())),
        value: Some(value),
        metadata_id: Some(METADATA),
    }
}

fn stats(records: &Records, figures: &Figures) -> Stats {
    let moment = |moment: Duration| timestamp(records, moment);
    let wakes = figures.steps.saturating_sub(1);
    Stats {
        created_at: Some(moment(figures.spawned)),
        dropped_at: figures.ended.map(moment),
        wakes,
        // The kernel can always wake a task that has not ended. Without a waker tokio-console takes it for lost.
        waker_clones: 1,
        waker_drops: figures.ended.is_some().into(),
        last_wake: figures.step_began.filter(|_| wakes > 0).map(moment),
        self_wakes: figures.yields.min(wakes),
        poll_stats: Some(PollStats {
            polls: figures.steps,
            first_poll: figures.first_step.map(moment),
            last_poll_started: figures.step_began.map(moment),
            last_poll_ended: figures.step_ended.map(moment),
            busy_time: prost_types::Duration::try_from(figures.busy).ok(),
        }),
        scheduled_time: Some(prost_types::Duration::default()),
    }
}

fn timestamp(records: &Records, moment: Duration) -> Timestamp {
    records.time_of_day(moment).into()
}
