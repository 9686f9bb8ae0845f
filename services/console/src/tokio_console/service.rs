//! The service `Instrument`, which tokio-console calls.

use std::collections::HashMap;
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
use console_api::resources::resource::kind;
use console_api::tasks::task_details::PollTimesHistogram;
use console_api::tasks::{Stats, Task, TaskDetails, TaskUpdate};
use console_api::{
    Attribute, Field, MetaId, Metadata, PollStats, RegisterMetadata, async_ops, field, metadata,
    register_metadata, resources,
};
use pikake_traps::{Bound, Interrupted, sleep};
use prost_types::Timestamp;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::records::{Figures, Identity, Key, Look, Part, Records};
use super::waits::{Change, Changed, Op, PUBLISH_EVERY, Resource, ResourceKind, Waits, WaitsLook};

/// The numbers of the metadata: those of a task, of a resource, of an async op.
const METADATA: MetaId = MetaId { id: 1 };
const RESOURCE_METADATA: MetaId = MetaId { id: 2 };
const OP_METADATA: MetaId = MetaId { id: 3 };

/// The service, for a server of HTTP/2.
pub(super) fn service(records: Arc<Records>, waits: Arc<Waits>) -> InstrumentServer<Service> {
    InstrumentServer::new(Service { records, waits, paused: Arc::default() })
}

pub(super) struct Service {
    records: Arc<Records>,
    waits: Arc<Waits>,
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
        let mut waits_look = WaitsLook::new(self.waits.clone());
        let mut is_first = true;
        Ok(repeated(move || {
            let is_paused = paused.load(Ordering::Relaxed);
            let part = if is_paused { None } else { look.next_part() };
            let change = if is_paused { None } else { waits_look.next_change() };
            // A client learns at once that it is connected, and what a task is.
            let metadata = std::mem::take(&mut is_first).then(metadata);
            if part.is_none() && change.is_none() && metadata.is_none() {
                return Poll::Pending;
            }
            let change = change.unwrap_or_default();
            Poll::Ready(Some(update(&records, part.unwrap_or_default(), change, metadata)))
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
            Poll::Ready(records.times(key_of(id.id)).map(|times| TaskDetails {
                task_id: Some(id),
                now: Some(timestamp(&records, records.now())),
                poll_times_histogram: Some(PollTimesHistogram::Histogram(times.steps.to_message())),
                scheduled_times_histogram: Some(times.scheduled.to_message()),
            }))
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

/// A stream of the values that a closure returns. After `Pending`, the closure is called again in
/// [`PUBLISH_EVERY`]; `None` ends the stream.
///
/// The closure is called when the client has room for a value, so there is at most one value that
/// waits.
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

/// The id of a task on the wire. A kernel has fewer than 2^40 tasks, that is, one each microsecond
/// for twelve days.
fn id_of((kernel, task): Key) -> u64 {
    (u64::from(kernel) << KERNEL_SHIFT) + task
}

fn key_of(id: u64) -> Key {
    ((id >> KERNEL_SHIFT) as u32, id & ((1 << KERNEL_SHIFT) - 1))
}

const KERNEL_SHIFT: u32 = 40;

fn update(
    records: &Records,
    part: Part,
    change: Change,
    new_metadata: Option<RegisterMetadata>,
) -> Update {
    let new_tasks = part.new.iter().map(|task| new_task(task)).collect();
    let figures = part.figures.iter();
    let stats_update =
        figures.map(|(key, figures)| (id_of(*key), stats(records, figures))).collect();
    Update {
        now: Some(timestamp(records, records.now())),
        task_update: Some(TaskUpdate { new_tasks, stats_update, dropped_events: 0 }),
        resource_update: Some(resource_update(records, &change.resources)),
        async_op_update: Some(op_update(records, &change.ops)),
        new_metadata,
    }
}

/// The description of all tasks, resources and async ops, which each client gets first.
fn metadata() -> RegisterMetadata {
    let new = |(id, name): (MetaId, &str)| {
        let metadata = Metadata {
            name: name.into(),
            target: "pikake".into(),
            kind: metadata::Kind::Span.into(),
            level: metadata::Level::Trace.into(),
            ..Metadata::default()
        };
        register_metadata::NewMetadata { id: Some(id), metadata: Some(metadata) }
    };
    let all = [
        (METADATA, "runtime.spawn"),
        (RESOURCE_METADATA, "runtime.resource"),
        (OP_METADATA, "runtime.resource.async_op"),
    ];
    RegisterMetadata { metadata: all.map(new).into() }
}

fn new_task(task: &Identity) -> Task {
    let mut fields = vec![
        text_field("kind", "task"),
        number_field("task.id", task.key.1),
        number_field("kernel", task.key.0.into()),
        // Under this name, and not `size.bytes`, tokio-console does not take a future for one on
        // the stack.
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

fn resource_update(records: &Records, changed: &Changed<Resource>) -> resources::ResourceUpdate {
    let new = |(number, resource): &(u64, Arc<Resource>)| resources::Resource {
        id: Some((*number).into()),
        metadata: Some(RESOURCE_METADATA),
        concrete_type: resource.name.to_string(),
        kind: Some(resources::resource::Kind {
            kind: Some(match &resource.kind {
                ResourceKind::Timer => kind::Kind::Known(kind::Known::Timer.into()),
                ResourceKind::Other(kind) => kind::Kind::Other(kind.to_string()),
            }),
        }),
        location: Some(resource.place.into()),
        ..resources::Resource::default()
    };
    let stats = |resource: &Resource, dropped_at| {
        let fields = [
            number_field("kernel", resource.kernel.into()),
            text_field("state", &resource.state),
            number_field("waits", resource.waits as u64),
        ];
        resources::Stats {
            created_at: Some(timestamp(records, resource.since)),
            dropped_at,
            attributes: fields.map(attribute).into(),
        }
    };
    resources::ResourceUpdate {
        new_resources: changed.new.iter().map(new).collect(),
        stats_update: stats_of(records, changed, stats),
        ..resources::ResourceUpdate::default()
    }
}

fn op_update(records: &Records, changed: &Changed<Op>) -> async_ops::AsyncOpUpdate {
    let new = |(number, op): &(u64, Arc<Op>)| async_ops::AsyncOp {
        id: Some((*number).into()),
        metadata: Some(OP_METADATA),
        source: format!("{} at {}", op.trap, op.place),
        resource_id: Some(op.resource.into()),
        ..async_ops::AsyncOp::default()
    };
    let stats = |op: &Op, dropped_at| async_ops::Stats {
        created_at: Some(timestamp(records, op.since)),
        dropped_at,
        task_id: Some(id_of(op.task).into()),
        // The polls of a wait are not counted.
        poll_stats: Some(PollStats::default()),
        attributes: Vec::new(),
    };
    async_ops::AsyncOpUpdate {
        new_async_ops: changed.new.iter().map(new).collect(),
        stats_update: stats_of(records, changed, stats),
        ..async_ops::AsyncOpUpdate::default()
    }
}

/// The figures of entries that have changed, and of those that are gone, which end now.
fn stats_of<T, S>(
    records: &Records,
    changed: &Changed<T>,
    stats: impl Fn(&T, Option<Timestamp>) -> S,
) -> HashMap<u64, S> {
    let now = timestamp(records, records.now());
    let present = changed.changed.iter().map(|(number, value)| (*number, stats(value, None)));
    let gone = changed.gone.iter().map(|(number, value)| (*number, stats(value, Some(now))));
    present.chain(gone).collect()
}

fn attribute(field: Field) -> Attribute {
    Attribute { field: Some(field), unit: None }
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
        // Only needed for names that are numbers.
        metadata_id: None,
    }
}

fn stats(records: &Records, figures: &Figures) -> Stats {
    let moment = |moment: Duration| timestamp(records, moment);
    let length = |length: Duration| prost_types::Duration::try_from(length).ok();
    Stats {
        created_at: Some(moment(figures.spawned)),
        dropped_at: figures.ended.map(moment),
        wakes: figures.wakes,
        // The kernel can always wake a task that has not ended. Without a waker tokio-console takes
        // it for lost.
        waker_clones: 1,
        waker_drops: figures.ended.is_some().into(),
        last_wake: figures.last_wake.map(moment),
        self_wakes: figures.self_wakes,
        poll_stats: Some(PollStats {
            polls: figures.steps,
            first_poll: figures.first_step.map(moment),
            last_poll_started: figures.step_began.map(moment),
            last_poll_ended: figures.step_ended.map(moment),
            busy_time: length(figures.busy),
        }),
        scheduled_time: length(figures.scheduled),
    }
}

fn timestamp(records: &Records, moment: Duration) -> Timestamp {
    records.time_of_day(moment).into()
}
