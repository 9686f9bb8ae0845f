//! Traces of calls, their spans, figures, and what listings show.

use std::fmt::{Debug, Write};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pikake::kernel::inspect::tasks_from;
use pikake::net::TcpListener;
use pikake::rpc::trace::{self, TRACEPARENT, TRACESTATE, TraceContext};
use pikake::rpc::{Answer, CallInfo, Client, Handler, Server, current_call};
use pikake::traps::figures::{Value, collect, measure_times};
use pikake::{sleep, spawn, timeout_after};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const MS: Duration = Duration::from_millis(1);

#[pikake::service]
trait Post {
    /// What the handler knows of its trace, here and at the servers after this one.
    async fn carry(&self, further: u32) -> Vec<Seen>;
    async fn wait(&self, millis: u64) -> Result<(), String>;
    async fn panic(&self);
}

/// The value of `traceparent` that names the handler, its caller, and the state.
type Seen = Option<(String, Option<u64>, String)>;

struct Office(PostClient);

impl Post for Office {
    async fn carry(&self, further: u32) -> Vec<Seen> {
        let seen = trace::current();
        assert_eq!(seen, current_call().unwrap().trace);
        let seen = seen.map(|it| (it.to_string(), it.parent_id(), it.state().to_owned()));
        let mut all = vec![seen];
        if further > 0 {
            all.extend(self.0.carry(further - 1).await.unwrap());
        }
        all
    }

    async fn wait(&self, millis: u64) -> Result<(), String> {
        sleep(Duration::from_millis(millis)).await.map_err(|error| error.to_string())?;
        if millis == 0 { Err("no time".to_owned()) } else { Ok(()) }
    }

    async fn panic(&self) {
        panic!("the office is on fire");
    }
}

const ADDRESS: &str = "127.0.0.1:7000";

async fn office() -> Client {
    let client = Client::tcp(ADDRESS);
    let listener = TcpListener::bind(ADDRESS).await.unwrap();
    let office = PostServer::new(Office(PostClient::new(client.clone())));
    let refuse = async |info: Rc<CallInfo>, next: Handler| match info.metadata("refuse") {
        Some(_) => Answer::refused("as asked"),
        None => next.await,
    };
    spawn(Server::new().add(office).intercept(refuse).serve(listener)).detach();
    client
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[pikake::sim(seeds = 1)]
async fn traces_go_on_through_handlers() {
    let client = office().await;
    let client = client.with_metadata(TRACEPARENT, PARENT);
    let client = client.with_metadata(TRACESTATE, "congo=t61rcWkgMzE, rojo=00f067aa0ba902b7");
    let seen = PostClient::new(client).carry(2).await.unwrap();
    assert_eq!(seen.len(), 3);
    let mut caller = 0x00f0_67aa_0ba9_02b7;
    for seen in seen {
        let (text, parent, state) = seen.unwrap();
        let context = TraceContext::parse(&text, "").unwrap();
        assert_eq!(context.trace_id(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert!(context.is_sampled());
        assert_eq!(parent, Some(caller));
        assert_ne!(context.span_id(), caller);
        assert_eq!(state, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7");
        caller = context.span_id();
    }
}

#[pikake::sim(seeds = 1)]
async fn calls_without_a_trace_have_none() {
    let client = office().await;
    assert_eq!(PostClient::new(client.clone()).carry(1).await.unwrap(), [None, None]);
    for bad in ["", "00-0-0-00", &PARENT.to_uppercase()] {
        let client = PostClient::new(client.with_metadata(TRACEPARENT, bad));
        assert_eq!(client.carry(0).await.unwrap(), [None]);
    }
    // Two of them name no trace.
    let client = client.with_metadata(TRACEPARENT, PARENT).add_metadata("TraceParent", PARENT);
    assert_eq!(PostClient::new(client).carry(0).await.unwrap(), [None]);
    assert_eq!(trace::current(), None);
}

/// The cases of the recommendation.
#[test]
fn traceparent_is_read_strictly() {
    let good = [
        PARENT,
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
        // Unknown flags, and a later version with and without more fields.
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff",
        "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-else",
    ];
    for text in good {
        let context = TraceContext::parse(text, "").expect(text);
        let flags = if text.contains("-00f067aa0ba902b7-00") { "00" } else { "01" };
        assert_eq!(context.to_string(), format!("{}{flags}", &PARENT[..53]));
        assert_eq!(context.is_sampled(), flags == "01");
    }
    let bad = [
        "",
        "00",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0X",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-else",
        "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01what-else",
        "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
        " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
    ];
    for text in bad {
        assert_eq!(TraceContext::parse(text, "a=b"), None, "{text}");
    }
}

#[test]
fn tracestate_is_read_strictly() {
    let state = |text: &str| TraceContext::parse(PARENT, text).unwrap().state().to_owned();
    let long = |key: usize, value: usize| format!("{}={}", "k".repeat(key), "v".repeat(value));
    let members = |count| (0..count).map(|at| format!("k{at}=v")).collect::<Vec<_>>().join(",");
    let kept =
        ["", "a=b", "a=b,c=d", "1tenant@system=x y", "a-_*/9=!~", &long(256, 256), &members(32)];
    for text in kept {
        assert_eq!(state(text), text);
    }
    assert_eq!(state(" a=b ,\t, c=d,"), "a=b,c=d");
    let dropped = [
        "a",
        "=b",
        "a=",
        "a=b=c",
        "a=b,a=c",
        "A=b",
        "1a=b",
        "t@1=b",
        "t@s@s=b",
        "a b=c",
        "a=é",
        "a=\u{7f}",
        "t@=b",
        "@s=b",
        &long(257, 1),
        &long(1, 257),
        &members(33),
    ];
    for text in dropped {
        assert_eq!(state(text), "", "{text}");
    }
}

#[pikake::sim(seeds = 1)]
async fn roots_and_children_have_ids() {
    let root = TraceContext::root(false);
    assert!(root.trace_id() != 0 && root.span_id() != 0 && !root.is_sampled());
    assert_eq!(root.parent_id(), None);
    let child = root.child();
    assert_eq!((child.trace_id(), child.parent_id()), (root.trace_id(), Some(root.span_id())));
    assert_ne!(child.span_id(), root.span_id());
}

/// Keeps the spans of calls, and what is recorded in them.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("pikake_rpc")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut all = self.0.lock().unwrap();
        assert_eq!(*attributes.metadata().level(), Level::DEBUG);
        let mut text = attributes.metadata().name().to_owned();
        attributes.record(&mut Line(&mut text));
        all.push(text);
        Id::from_u64(all.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let mut all = self.0.lock().unwrap();
        values.record(&mut Line(&mut all[id.into_u64() as usize - 1]));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn each_call_has_a_span() {
    let spans = Spans::default();
    // While there is a single dispatcher, a thread that meets a call site first asks its own one
    // only: another test would turn the site off for all.
    let _second = tracing::Dispatch::new(Spans::default());
    tracing::subscriber::with_default(spans.clone(), || {
        pikake::sim::example(async {
            let client = office().await;
            let post = PostClient::new(client.clone());
            post.wait(1).await.unwrap();
            post.wait(0).await.unwrap_err();
            post.panic().await.unwrap_err();
            timeout_after(MS, post.wait(60_000)).await.unwrap_err();
            sleep(MS).await.unwrap();
            let client = client.with_metadata("refuse", "").with_metadata(TRACEPARENT, PARENT);
            PostClient::new(client).wait(1).await.unwrap_err();
        });
    });
    let spans = spans.0.lock().unwrap().clone();
    let ends = ["answered", "error", "panicked", "ended", "refused"];
    assert_eq!(spans.len(), ends.len(), "{spans:?}");
    for (index, (span, end)) in spans.iter().zip(ends).enumerate() {
        let method = if end == "panicked" { "panic" } else { "wait" };
        let begin = format!("call method=\"Post.{method}\" peer=127.0.0.1:");
        assert!(span.starts_with(&begin), "{span}");
        assert!(span.contains(&format!(" id={}", index + 1)), "{span}");
        assert!(span.ends_with(&format!(" outcome=\"{end}\"")), "{span}");
    }
    assert!(spans[4].contains(" trace=00-4bf92f3577b34da6a3ce929d0e0e4736-"), "{}", spans[4]);
}

#[pikake::sim(seeds = 1)]
async fn figures_count_calls_by_method_and_outcome() {
    let client = office().await;
    let post = PostClient::new(client.clone());
    measure_times();
    let value = |name: &str, labels: &[&str]| {
        let shown = collect();
        let mut found = shown.iter().filter(|figure| {
            let values = figure.labels.iter().map(|(_, value)| value.as_str());
            figure.name == name && values.eq(labels.iter().copied())
        });
        let found = found.next().unwrap_or_else(|| panic!("{name} {labels:?}: {shown:?}"));
        match &found.value {
            Value::Gauge(count) | Value::Counter(count) => *count,
            Value::Times { counts, .. } => counts.iter().sum(),
            other => panic!("{other:?}"),
        }
    };
    post.wait(1).await.unwrap();
    assert_eq!(value("pikake_rpc_connections", &[]), 1);
    assert_eq!(value("pikake_rpc_call_time", &["Post.wait"]), 1);
    post.wait(1).await.unwrap();
    post.wait(0).await.unwrap_err();
    post.panic().await.unwrap_err();
    let call = spawn({
        let post = post.clone();
        async move { post.wait(60_000).await }
    });
    sleep(MS).await.unwrap();
    assert_eq!(value("pikake_rpc_running_calls", &["Post.wait"]), 1);
    call.cancel().await.unwrap();
    sleep(MS).await.unwrap();
    assert_eq!(value("pikake_rpc_running_calls", &["Post.wait"]), 0);
    assert_eq!(value("pikake_rpc_calls", &["Post.wait", "answered"]), 2);
    // The interrupted handler returned the service's error.
    assert_eq!(value("pikake_rpc_calls", &["Post.wait", "error"]), 2);
    assert_eq!(value("pikake_rpc_calls", &["Post.panic", "panicked"]), 1);
    assert_eq!(value("pikake_rpc_call_time", &["Post.wait"]), 4);
    assert_eq!(value("pikake_rpc_refused_calls", &["unknown_method"]), 0);
}

/// Both sides name the method, the peer and the call.
#[pikake::sim(seeds = 1)]
async fn listings_name_calls() {
    let post = PostClient::new(office().await);
    let call = spawn({
        let post = post.clone();
        async move { post.wait(100).await }
    });
    sleep(MS).await.unwrap();
    let page = tasks_from(0, 100);
    page.tasks.iter().for_each(|task| task.inspect());
    sleep(MS).await.unwrap();
    assert!(page.tasks.iter().any(|task| task.name() == "Post.wait"));
    let mut texts = Vec::new();
    for task in &page.tasks {
        for wait in task.waits() {
            let about = wait.about.map(|about| about.text().to_owned());
            texts.push(format!("{}: {}", task.name(), about.unwrap_or_default()));
        }
    }
    let has = |begin: &str, end: &str| {
        texts.iter().any(|text| text.starts_with(begin) && text.ends_with(end))
    };
    assert!(has(": Post.wait at 127.0.0.1:7000", "call 1"), "{texts:#?}");
    assert!(has("connection: 1 call of 127.0.0.1:", ": Post.wait (call 1)"), "{texts:#?}");
    call.await.unwrap().unwrap();
}
