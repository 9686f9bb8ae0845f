//! Figures of the kernels, the process and the program, as an [OpenMetrics] text for Prometheus and
//! its like.
//!
//! [`text()`] has four parts: a family for each figure of a kernel, and for each figure that its
//! services keep ([`pikake_traps::figures`]), both named `pikake_…`; the figures that Prometheus
//! knows of each process, `process_…`; and those that the program [`register`]s. These are the
//! counters, gauges and histograms of the library [`prometheus_client`].
//!
//! | family | type | labels | holds |
//! | --- | --- | --- | --- |
//! | `pikake_kernel_up` | gauge | `kernel`, `thread` | 1, or 0 if the kernel does not answer: it is in a long step |
//! | `pikake_tasks` | gauge | the same | the tasks that have not ended |
//! | `pikake_tasks_by_place` | gauge | and `spawned_at` | the same by the place of their spawn: the 20 places with the most |
//! | `pikake_future_bytes` | gauge | the same | the memory of the tasks' futures, without what the futures point to |
//! | `pikake_ready_tasks` | gauge | the same | the tasks that are ready for a step |
//! | `pikake_timers` | gauge | the same | the sleeps and deadlines in the heap |
//! | `pikake_waiters` | gauge | the same | the waiters in queues |
//! | `pikake_sockets` | gauge | the same | the open sockets |
//! | `pikake_helper_threads` | gauge | and `state`: `busy`, `idle` | the helper threads |
//! | `pikake_queued_closures` | gauge | `kernel`, `thread` | the closures that wait for a helper thread |
//! | `pikake_tasks_spawned` | counter | the same | the tasks that were spawned |
//! | `pikake_steps` | counter | the same | the steps of tasks |
//! | `pikake_driver_polls` | counter | the same | the polls of the driver |
//! | `pikake_messages` | counter | the same | the wakes, calls and other messages from other threads |
//! | `pikake_longest_step_seconds` | gauge | the same | the longest step that was timed |
//! | `pikake_timer_lateness_seconds` | histogram | the same | how late timers fired since the kernel records its steps |
//! | `pikake_http_connections` | gauge | the same | the open connections of HTTP servers |
//! | `pikake_http_running_requests` | gauge | the same | the requests whose handlers run |
//! | `pikake_http_upgrades` | gauge | the same | the open connections and streams that were upgraded to another protocol |
//! | `pikake_http_responses` | counter | and `status`: `1xx` to `5xx` | the responses |
//! | `pikake_http_unanswered_requests` | counter | `kernel`, `thread` | the requests without a response, for example because their clients have reset the connection |
//! | `pikake_http_shed_requests` | counter | `kernel`, `thread` | the requests that were answered 503 since the server was late |
//! | `pikake_http_response_time_seconds` | histogram | the same | the time from the head of a request to that of its response |
//! | `pikake_jobs_running` | gauge | and `job` | the jobs that run |
//! | `pikake_jobs_waiting` | gauge | `kernel`, `thread` | jobs that workers hold until another one ends |
//! | `pikake_jobs_ended` | counter | and `job`, `outcome` | the runs of jobs that have ended: `done`, `failed`, `retried`, `revoked`, `dead` or `given_back` |
//! | `pikake_jobs_run_time_seconds` | histogram | and `job` | the time from the start of a job's function to its end |
//! | `pikake_jobs_connected` | gauge | `kernel`, `thread` | the applications with a worker whose connection to the broker is open |
//! | `pikake_rpc_connections` | gauge | `kernel`, `thread` | the open connections of RPC servers |
//! | `pikake_rpc_running_calls` | gauge | and `method` | the calls whose handlers run |
//! | `pikake_rpc_calls` | counter | and `method`, `outcome` | the calls whose handlers have ended: `answered`, `error`, `refused`, `panicked` or `ended` |
//! | `pikake_rpc_refused_calls` | counter | and `why` | the calls without a handler: `unknown_method`, `arguments` or `overloaded` |
//! | `pikake_rpc_call_time_seconds` | histogram | and `method` | the time from a request to the end of its handler |
//! | `pikake_rpc_client_connections` | counter | and `outcome`: `opened`, `failed` | the connections of RPC clients |
//! | `pikake_rpc_client_running_calls` | gauge | and `method` | the calls that wait for their answers |
//! | `pikake_rpc_client_calls` | counter | and `method`, `outcome` | the calls that have ended: `answered`, `error`, `refused`, `ended`, `connection`, `not_sent` or `given_up` |
//! | `pikake_rpc_client_repeats` | counter | `kernel`, `thread` | the attempts after the first |
//! | `pikake_rpc_client_call_time_seconds` | histogram | and `method` | the time from a call to its end, with all attempts |
//! | `pikake_pool_objects` | gauge | and `pool`, `state`: `idle`, `leased`, `creating`, `verifying`, `cleaning`, `destroying` | the objects of pools |
//! | `pikake_pool_waiting_callers` | gauge | and `pool` | the callers who wait for an object |
//! | `pikake_pool_leases`, `pikake_pool_gave_up` | counter | the same | the objects that were lent, and the callers who gave up before |
//! | `pikake_pool_created`, `pikake_pool_added`, `pikake_pool_destroyed`, `pikake_pool_detached`, `pikake_pool_dead` | counter | the same | the objects that were made, added, destroyed, detached, or found dead |
//! | `pikake_pool_create_failures`, `pikake_pool_verify_failures`, `pikake_pool_clean_failures` | counter | the same | what failed |
//! | `pikake_pool_wait_time_seconds` | histogram | the same | the time that callers waited who got an object after a wait |
//! | `pikake_lock_wait_seconds` | histogram | the kernel's, and `lock` | the waits for locks that were not free, as they ended |
//! | `pikake_lock_hold_seconds` | histogram | the same | the time that one task had a lock while others waited |
//! | `process_cpu_seconds` | counter | | the processor time of the process |
//! | `process_resident_memory_bytes` | gauge | | the memory of the process in RAM |
//! | `process_open_fds`, `process_max_fds` | gauge | | its descriptors, and their limit |
//! | `process_threads` | gauge | | its threads |
//! | `process_major_page_faults` | counter | | page faults that needed the disk |
//! | `process_context_switches` | counter | `kind`: `voluntary`, `involuntary` | the switches from one of its threads to another |
//!
//! A kernel that does not answer has its `pikake_kernel_up` only. The sum of the lateness is an
//! estimate from the middle of each bucket. A kernel has figures of HTTP from its first server on,
//! and those of jobs while there is an application with a worker. A service counts from its begin
//! on, whether or not anybody reads the text.
//!
//! The times of HTTP, RPC and pools cost two readings of the clock each. They are measured from the
//! begin of a program under `#[pikake::main]`, and of a [`Console`](crate::Console). In other
//! programs they are measured from the first [`register`] or [`text()`] on.
//!
//! # Examples
//!
//! An HTTP server with a page for Prometheus, and a counter of its own:
//!
//! ```
//! use axum::Router;
//! use axum::http::{StatusCode, header::CONTENT_TYPE};
//! use axum::routing::get;
//! use pikake::console::metrics::{self, prometheus_client::metrics::counter::Counter};
//! use pikake::http;
//! use pikake::net::{TcpListener, TcpStream};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # pikake::run(async {
//! let visits = Counter::<u64>::default();
//! metrics::register(|registry| registry.register("visits", "Visits of the page", visits.clone()));
//!
//! let page = async || {
//!     let text = metrics::text().await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
//!     Ok::<_, StatusCode>(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
//! };
//! let app = Router::new().route("/metrics", get(page));
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! let server = pikake::spawn(http::serve(listener, app).into_future());
//! visits.inc();
//!
//! # let client = TcpStream::connect(address).await?;
//! # client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
//! # let mut answer = Vec::new();
//! # let mut buffer = [0; 4096];
//! # loop {
//! #     match client.read(&mut buffer).await? {
//! #         0 => break,
//! #         read => answer.extend(&buffer[..read]),
//! #     }
//! # }
//! # let answer = String::from_utf8(answer)?;
//! # let (head, text) = answer.split_once("\r\n\r\n").unwrap();
//! # assert!(head.starts_with("HTTP/1.0 200 OK") && head.contains(metrics::CONTENT_TYPE));
//! // What a client gets:
//! assert!(text.contains("# TYPE pikake_tasks gauge\n"));
//! assert!(text.contains("# HELP visits Visits of the page.\n# TYPE visits counter\nvisits_total 1\n"));
//! assert!(text.ends_with("# EOF\n"));
//! # drop(server);
//! # Ok(()) })
//! # }
//! ```
//!
//! [OpenMetrics]: https://prometheus.io/docs/specs/om/open_metrics_spec/

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pikake_kernel::inspect::{KernelView, kernel_figures, kernels};
use pikake_traps::figures::{self, Figure, Value};
use pikake_traps::inspect::KernelFigures;
use pikake_traps::{Bound, Interrupted, check_interrupt};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::groups_of_kernel::{Groups, count};
use crate::model::ProcessStats;
use crate::observed::{ANSWER_WITHIN, Question, Silent, answer, future_bytes};
use crate::system::System;

/// The library of the figures that a program registers.
pub use prometheus_client;

/// The type of the text, for the header `Content-Type` of a response.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The figures of the program.
static PROGRAM: Mutex<Option<Registry>> = Mutex::new(None);

/// The question for the figures of kernels.
static FIGURES: Question<(KernelFigures, Vec<Figure>)> = Question::new();

fn lock() -> MutexGuard<'static, Option<Registry>> {
    // A registry whose collector panicked is whole.
    PROGRAM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the program's registry to a closure, which adds figures.
///
/// The figures are in each [`text()`] from then on. A figure is shared with the registry, as a
/// clone of a [`Counter`](prometheus_client::metrics::counter::Counter) is, and any thread may
/// change it. The registry adds the point to the end of a description, and `_total` to the name of
/// a counter. Names that begin with `pikake_` or `process_` are taken.
///
/// The closure, and a collector in the registry, must call neither `register` nor [`text()`].
///
/// # Examples
///
/// ```
/// use pikake::console::metrics;
/// use pikake::console::metrics::prometheus_client::metrics::family::Family;
/// use pikake::console::metrics::prometheus_client::metrics::gauge::Gauge;
///
/// let open = Family::<[(&str, &str); 1], Gauge>::default();
/// metrics::register(|registry| registry.register("open_orders", "Open orders", open.clone()));
/// open.get_or_create(&[("shop", "north")]).set(3);
///
/// let text = pikake::run(metrics::text()).unwrap();
/// assert!(text.contains("open_orders{shop=\"north\"} 3\n"));
/// ```
pub fn register(add: impl FnOnce(&mut Registry)) {
    figures::measure_times();
    add(lock().get_or_insert_default());
}

/// The figures of all kernels, of the process and of the program, as an OpenMetrics text.
///
/// Each kernel of the process is asked for its figures, and answers between two steps. A kernel
/// that has not answered within a quarter of a second is shown as one that is not up.
///
/// # Cancellation
///
/// An interruption point.
///
/// # Errors
///
/// [`Interrupted`].
///
/// # Panics
///
/// When polled outside a task. When a collector of the program panics, or fails.
pub async fn text() -> Result<String, Interrupted> {
    // Servers such as axum want a future that is `Send`.
    let kernels = Bound::future(look()).await?;
    let mut ours = Registry::default();
    let process = System::open().stats();
    ours.register_collector(Box::new(Figures { kernels, process }));
    let mut text = String::new();
    let program = lock();
    let encoded = text::encode_registry(&mut text, &ours)
        .and_then(|()| program.as_ref().map_or(Ok(()), |it| text::encode_registry(&mut text, it)))
        .and_then(|()| text::encode_eof(&mut text));
    encoded.expect("a collector failed");
    Ok(text)
}

/// Asks all kernels at the same time.
async fn look() -> Result<Vec<SeenKernel>, Interrupted> {
    let asked = Instant::now();
    let kernels = kernels();
    FIGURES.retain(|id| kernels.iter().any(|kernel| kernel.id().number() == id));
    let read = || (kernel_figures(), figures::collect());
    let ask = |kernel: KernelView| (FIGURES.ask(&kernel, read), kernel);
    let asked_kernels: Vec<_> = kernels.into_iter().map(ask).collect();
    let mut seen = Vec::new();
    for (replied, kernel) in asked_kernels {
        let within = ANSWER_WITHIN.saturating_sub(asked.elapsed());
        let answer = async {
            let (figures, of_services) = answer(replied, within).await?;
            let future_bytes = future_bytes(&kernel, ANSWER_WITHIN).await?;
            let (_, groups) = count(&kernel).await?;
            Ok::<_, Silent>(Answer { figures, future_bytes, of_services, groups: largest(groups) })
        };
        let answer = answer.await.ok();
        if answer.is_none() && kernel.handle().is_closed() {
            continue;
        }
        let labels = [("kernel", kernel.id().to_string()), ("thread", kernel.thread_name())];
        let stuck = match &answer {
            None => kernel.current_step().map(|step| step.lasts),
            Some(_) => None,
        };
        seen.push(SeenKernel { labels, answer, stuck });
    }
    check_interrupt()?;
    Ok(seen)
}

/// The groups with the most tasks.
fn largest(groups: Groups) -> Vec<(u64, String)> {
    let mut counts: Vec<(u64, String)> =
        groups.into_iter().map(|(place, group)| (group.count, place.to_string())).collect();
    counts.sort_by(|(a, at), (b, other)| b.cmp(a).then_with(|| at.cmp(other)));
    counts.truncate(PLACES);
    counts
}

/// A kernel, with its figures if it has answered.
#[derive(Debug)]
struct SeenKernel {
    labels: [(&'static str, String); 2],
    answer: Option<Answer>,
    /// The time that the kernel has been in one step, if it has not answered.
    stuck: Option<Duration>,
}

/// The number of places of spawn in the text: a group that grows for long is among them.
const PLACES: usize = 20;

/// The figures of a kernel.
#[derive(Debug)]
struct Answer {
    figures: KernelFigures,
    future_bytes: u64,
    of_services: Vec<Figure>,
    /// The places where most tasks were spawned, and the number of their tasks.
    groups: Vec<(u64, String)>,
}

/// The figures of the kernels and of the process.
#[derive(Debug)]
struct Figures {
    kernels: Vec<SeenKernel>,
    process: ProcessStats,
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_kernels(&mut encoder)?;
        self.encode_peers(&mut encoder)?;
        self.encode_services(&mut encoder)?;
        self.encode_process(&mut encoder)
    }
}

/// A family with a value for each kernel that has answered.
type OfKernel<T> = (&'static str, &'static str, fn(&KernelFigures) -> T);

const GAUGES: [OfKernel<usize>; 6] = [
    ("pikake_tasks", "Tasks that have not ended.", |it| it.tasks),
    ("pikake_ready_tasks", "Tasks that are ready for a step.", |it| it.ready),
    ("pikake_timers", "Sleeps and deadlines in the heap.", |it| it.timers),
    ("pikake_waiters", "Waiters in queues.", |it| it.waiters),
    ("pikake_sockets", "Open sockets.", |it| it.sockets),
    ("pikake_queued_closures", "Closures that wait for a helper thread.", |it| it.queued_closures),
];

const COUNTERS: [OfKernel<u64>; 4] = [
    ("pikake_tasks_spawned", "Tasks that were spawned.", |it| it.spawned),
    ("pikake_steps", "Steps of tasks.", |it| it.steps),
    ("pikake_driver_polls", "Polls of the driver.", |it| it.polls),
    ("pikake_messages", "Wakes, calls and other messages from other threads.", |it| it.messages),
];

impl Figures {
    /// Encodes what compares kernels with each other: for kernels that have others beside them.
    fn encode_peers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let peers: Vec<_> =
            self.answers().filter_map(|(labels, it)| Some((labels, it.peers.as_ref()?))).collect();
        // A kernel that is stuck in a step is late by that step at least.
        let stuck = self.kernels.iter().filter_map(|it| Some((&it.labels, it.stuck?)));
        let late = peers.iter().map(|(labels, it)| (*labels, it.late)).chain(stuck);
        let help = "How long the tasks that are ready may have waited for their steps.";
        seconds("pikake_kernel_late", help, late, encoder)?;
        let late_max = peers.iter().map(|(labels, it)| (*labels, it.late_max));
        let help = "The most that ready tasks may have waited in the last minute, or in up to two.";
        seconds("pikake_kernel_late_max", help, late_max, encoder)?;
        let (name, help) = ("pikake_offers_made", "Work offered to the other kernels.");
        let mut made = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, figures) in &peers {
            counter(figures.offers_made, made.encode_family(*labels)?)?;
        }
        let (name, help) = ("pikake_offers_taken", "Offers of other kernels that were taken.");
        let mut taken = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, figures) in &peers {
            counter(figures.offers_taken, taken.encode_family(*labels)?)?;
        }
        Ok(())
    }

    fn encode_kernels(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Whether the kernel answers.";
        let mut up =
            encoder.encode_descriptor("pikake_kernel_up", help, None, MetricType::Gauge)?;
        for kernel in &self.kernels {
            gauge(u64::from(kernel.answer.is_some()), up.encode_family(&kernel.labels)?)?;
        }
        for (name, help, value) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, figures) in self.answers() {
                gauge(value(figures) as u64, family.encode_family(labels)?)?;
            }
        }
        let (name, help) = ("pikake_future", "Memory of the tasks' futures.");
        let unit = Some(&Unit::Bytes);
        let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for kernel in &self.kernels {
            if let Some(answer) = &kernel.answer {
                gauge(answer.future_bytes, family.encode_family(&kernel.labels)?)?;
            }
        }
        let help = "Tasks by the place of their spawn, for the places with the most.";
        let name = "pikake_tasks_by_place";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for kernel in &self.kernels {
            for (count, place) in kernel.answer.iter().flat_map(|answer| &answer.groups) {
                let labels = (kernel.labels.as_slice(), [("spawned_at", place.as_str())]);
                gauge(*count, family.encode_family(&labels)?)?;
            }
        }
        let (name, help) = ("pikake_helper_threads", "Helper threads.");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, figures) in self.answers() {
            for (state, count) in [("busy", figures.busy_threads), ("idle", figures.idle_threads)] {
                let labels = (labels.as_slice(), [("state", state)]);
                gauge(count as u64, family.encode_family(&labels)?)?;
            }
        }
        for (name, help, value) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, figures) in self.answers() {
                counter(value(figures), family.encode_family(labels)?)?;
            }
        }
        let longest = self.answers().map(|(labels, figures)| (labels, figures.longest_step));
        seconds("pikake_longest_step", "The longest step that was timed.", longest, encoder)?;
        let unit = Some(&Unit::Seconds);
        let (name, help) = ("pikake_timer_lateness", "How late timers fired.");
        let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
        for (labels, figures) in self.answers() {
            if !figures.lateness.is_empty() {
                let sum = estimated_sum(&figures.lateness);
                histogram(sum, &figures.lateness, family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }

    fn answers(&self) -> impl Iterator<Item = (&[(&'static str, String); 2], &KernelFigures)> {
        let kernels = self.kernels.iter();
        kernels.filter_map(|kernel| Some((&kernel.labels, &kernel.answer.as_ref()?.figures)))
    }

    fn encode_services(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        // A family has the figures of all kernels, one after the other.
        let mut families = BTreeMap::<&str, Vec<(&[_], &Figure)>>::new();
        for kernel in &self.kernels {
            for figure in kernel.answer.iter().flat_map(|answer| &answer.of_services) {
                families.entry(figure.name).or_default().push((&kernel.labels, figure));
            }
        }
        for (name, figures) in families {
            let (_, Figure { help, value, .. }) = figures[0];
            let (kind, unit) = match value {
                Value::Gauge(_) => (MetricType::Gauge, None),
                Value::Counter(_) => (MetricType::Counter, None),
                Value::Times { .. } => (MetricType::Histogram, Some(&Unit::Seconds)),
                _ => continue,
            };
            let mut family = encoder.encode_descriptor(name, help, unit, kind)?;
            for (kernel, Figure { labels, value, .. }) in figures {
                let labels = (kernel, labels.as_slice());
                let metric = family.encode_family(&labels)?;
                match value {
                    Value::Gauge(value) => gauge(*value, metric)?,
                    Value::Counter(value) => counter(*value, metric)?,
                    Value::Times { sum, counts } => histogram(sum.as_secs_f64(), counts, metric)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn encode_process(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let process = &self.process;
        let help = "Processor time of the process.";
        let unit = Some(&Unit::Seconds);
        let cpu = encoder.encode_descriptor("process_cpu", help, unit, MetricType::Counter)?;
        let time = Duration::from_nanos(process.user_time + process.system_time);
        ConstCounter::new(time.as_secs_f64()).encode(cpu)?;

        let gauges = [
            (
                "process_resident_memory",
                "Memory of the process in RAM.",
                Some(&Unit::Bytes),
                process.resident_bytes,
            ),
            ("process_open_fds", "Open descriptors.", None, process.descriptors),
            ("process_max_fds", "The limit of open descriptors.", None, process.descriptor_limit),
            ("process_threads", "Threads of the process.", None, process.threads),
        ];
        for (name, help, unit, value) in gauges {
            if let Some(value) = value {
                gauge(value, encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?)?;
            }
        }
        let (name, help) = ("process_major_page_faults", "Page faults that needed the disk.");
        let faults = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        counter(process.major_faults, faults)?;
        let (name, help) = ("process_context_switches", "Switches from a thread of the process.");
        let mut switches = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        let kinds = [
            ("voluntary", process.voluntary_switches),
            ("involuntary", process.involuntary_switches),
        ];
        for (kind, count) in kinds {
            counter(count, switches.encode_family(&[("kind", kind)])?)?;
        }
        Ok(())
    }
}

/// Encodes a gauge in seconds for each of some kernels.
fn seconds<'a>(
    name: &str,
    help: &str,
    kernels: impl Iterator<Item = (&'a [(&'static str, String); 2], Duration)>,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    for (labels, length) in kernels {
        ConstGauge::new(length.as_secs_f64()).encode(family.encode_family(labels)?)?;
    }
    Ok(())
}

fn gauge(value: u64, encoder: MetricEncoder<'_>) -> fmt::Result {
    ConstGauge::new(value).encode(encoder)
}

fn counter(value: u64, encoder: MetricEncoder<'_>) -> fmt::Result {
    ConstCounter::new(value).encode(encoder)
}

/// The number of buckets of times that have a limit: up to four seconds. Always the same ones, as
/// Prometheus wants it.
const LIMITS: usize = 23;

/// The limit of a bucket in seconds.
fn limit(n: usize) -> f64 {
    (n as f64).exp2() / 1e6
}

/// The sum of times in seconds, each taken as the middle of its bucket.
fn estimated_sum(counts: &[u64]) -> f64 {
    counts.iter().enumerate().map(|(n, count)| limit(n) * 0.75 * *count as f64).sum()
}

/// Encodes a histogram in seconds. Element `n` counts what was less than 2^n microseconds, and at
/// least half of that. Zeros at the end may be left out.
fn histogram(sum: f64, counts: &[u64], mut encoder: MetricEncoder<'_>) -> fmt::Result {
    let count = |n: usize| counts.get(n).copied().unwrap_or_default();
    let mut buckets: Vec<_> = (0..LIMITS).map(|n| (limit(n), count(n))).collect();
    buckets.push((f64::INFINITY, counts.iter().skip(LIMITS).sum()));
    encoder.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &buckets, None)
}
