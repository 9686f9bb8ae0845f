//! The spans of tasks: a subscriber sees which span is entered when, and in which spans each event
//! is.

use std::cell::Cell;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use pikake::kernel::{Observer, TaskSpans, observe_new_kernels};
use pikake::traps::TaskRef;
use pikake::{Kernel, spawn, yield_now};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, NoSubscriber, set_default};
use tracing::{Event, Metadata, Subscriber};

use crate::support::{builder, named};

/// Writes down what happens to the spans of tasks, and events of this file.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    /// The name of each task, by the number of its span.
    names: Vec<String>,
    entered: Vec<String>,
    lines: Vec<String>,
}

impl Recorder {
    fn lines(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().lines)
    }

    fn set(&self) -> DefaultGuard {
        set_default(self.clone())
    }

    fn note(&self, what: &str, span: &Id) -> String {
        let mut log = self.0.lock().unwrap();
        let name = log.names[span.into_u64() as usize - 1].clone();
        log.lines.push(format!("{what} {name}"));
        name
    }
}

/// The fields, as text, but for the place.
#[derive(Default)]
struct Fields(Vec<(&'static str, String)>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TaskSpans::TARGET || metadata.target() == module_path!()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        assert!(span.is_root() || span.metadata().target() != TaskSpans::TARGET);
        let named = fields.0.iter().find(|(name, _)| *name == "name");
        let name = named.map_or("?".into(), |(_, name)| name.trim_matches('"').to_owned());
        let mut log = self.0.lock().unwrap();
        log.lines.push(format!("new {name}"));
        log.names.push(name);
        Id::from_u64(log.names.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut log = self.0.lock().unwrap();
        let line = format!("{} in {:?}", fields.0[0].1, log.entered);
        log.lines.push(line);
    }

    fn enter(&self, span: &Id) {
        let name = self.note("enter", span);
        self.0.lock().unwrap().entered.push(name);
    }

    fn exit(&self, span: &Id) {
        let name = self.note("exit", span);
        assert_eq!(self.0.lock().unwrap().entered.pop(), Some(name), "the innermost span");
    }

    fn try_close(&self, span: Id) -> bool {
        self.note("close", &span);
        true
    }
}

#[test]
fn spans_are_entered_for_each_step() {
    let recorder = Recorder::default();
    let _guard = recorder.set();
    let kernel = builder().name("main").observer(TaskSpans::new()).build().unwrap();
    kernel.run(async {
        let child = named("child", async {
            tracing::info!("one");
            yield_now().await.unwrap();
            tracing::info!("two");
        });
        child.await.unwrap();
    });
    tracing::info!("outside");
    let lines = [
        "new main",
        "enter main",
        "new child",
        "exit main",
        "enter child",
        r#"one in ["child"]"#,
        "exit child",
        "enter child",
        r#"two in ["child"]"#,
        "exit child",
        "close child",
        "enter main",
        "exit main",
        "close main",
        "outside in []",
    ];
    assert_eq!(recorder.lines(), lines);
}

#[test]
fn span_has_id_name_kernel_parent_and_place() {
    #[derive(Clone, Default)]
    struct AllFields(Arc<Mutex<Vec<Fields>>>);

    impl Subscriber for AllFields {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == TaskSpans::TARGET
        }
        fn new_span(&self, span: &Attributes<'_>) -> Id {
            let mut fields = Fields::default();
            span.record(&mut fields);
            self.0.lock().unwrap().push(fields);
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    let fields = AllFields::default();
    let _guard = set_default(fields.clone());
    let kernel = builder().name("main").observer(TaskSpans::new()).build().unwrap();
    kernel.run(async {
        let line = line!() + 1;
        spawn(async {}).await.unwrap();
        let main = pikake::current();
        let expected = [
            ("id", "2".to_owned()),
            ("kernel", main.kernel().to_string()),
            ("parent", main.id().0.to_string()),
            ("spawned_at", format!("{}:{line}:9", file!())),
        ];
        assert_eq!(fields.0.lock().unwrap()[1].0, expected);
    });
}

#[test]
fn panic_in_step_leaves_span() {
    let recorder = Recorder::default();
    let _guard = recorder.set();
    let kernel = builder().name("main").observer(TaskSpans::new()).build().unwrap();
    kernel.run(async {
        let child = named("child", async {
            let inner = tracing::info_span!("inner", name = "inner").entered();
            tracing::info!("before");
            drop(inner);
            panic!("in a step");
        });
        assert!(child.await.is_err());
        tracing::info!("after");
    });
    let lines = recorder.lines();
    assert!(lines.contains(&r#"before in ["child", "inner"]"#.into()), "{lines:?}");
    assert!(lines.contains(&r#"after in ["main"]"#.into()), "{lines:?}");
    assert_eq!(recorder.0.lock().unwrap().entered, Vec::<String>::new());
}

/// The kernel refuses to run inside another one's step. The refusal is a panic, which leaves the
/// task's span entered.
#[test]
fn kernel_inside_step_leaves_spans_as_they_were() {
    let recorder = Recorder::default();
    let _guard = recorder.set();
    let kernel = builder().name("outer").observer(TaskSpans::new()).build().unwrap();
    kernel.run(async {
        let inner = builder().name("inner").observer(TaskSpans::new()).build().unwrap();
        let refused = catch_unwind(AssertUnwindSafe(|| inner.run(async {})));
        assert!(refused.is_err());
        tracing::info!("after");
    });
    let lines = recorder.lines();
    assert!(lines.contains(&r#"after in ["outer"]"#.into()), "{lines:?}");
    assert_eq!(recorder.0.lock().unwrap().entered, Vec::<String>::new());
}

/// Another observer's panic leaves the kernel, before the step is over. The next step leaves the
/// span.
#[test]
fn panic_of_observer_leaves_span_at_next_step() {
    struct Bomb(Cell<bool>);

    impl Observer for Bomb {
        fn stepping(&self, _: &TaskRef) {
            if self.0.take() {
                panic!("an observer");
            }
        }
    }

    let recorder = Recorder::default();
    let _guard = recorder.set();
    let kernel = builder()
        .name("main")
        .observer(TaskSpans::new())
        .observer(Bomb(Cell::new(true)))
        .build()
        .unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| kernel.run(async {}))).is_err());
    kernel.run(async { tracing::info!("again") });
    drop(kernel);
    let lines = recorder.lines();
    assert!(lines.contains(&r#"again in ["main"]"#.into()), "{lines:?}");
    assert_eq!(recorder.0.lock().unwrap().entered, Vec::<String>::new());
}

#[test]
fn later_subscriber_sees_earlier_task() {
    let recorder = Recorder::default();
    // Another test of the process may have set a global subscriber.
    let _none = set_default(NoSubscriber::default());
    let kernel = builder().name("main").observer(TaskSpans::new()).build().unwrap();
    let guard = kernel.run(async {
        let guard = recorder.set();
        tracing::info!("in the first step");
        yield_now().await.unwrap();
        tracing::info!("in the second step");
        guard
    });
    let lines = [
        "in the first step in []",
        "new main",
        "enter main",
        r#"in the second step in ["main"]"#,
        "exit main",
        "close main",
    ];
    assert_eq!(recorder.lines(), lines);
    drop(guard);
}

#[test]
fn task_that_is_never_stepped_closes_its_span() {
    let recorder = Recorder::default();
    let _guard = recorder.set();
    let kernel = builder().name("main").observer(TaskSpans::new()).build().unwrap();
    kernel.run(async {
        named("child", async {}).abort();
        yield_now().await.unwrap();
    });
    let lines = recorder.lines();
    assert!(lines.contains(&"close child".into()), "{lines:?}");
    assert!(!lines.contains(&"enter child".into()), "{lines:?}");
}

#[test]
fn new_kernels_of_any_thread_get_observer() {
    const THREAD: &str = "the test of new kernels";

    let recorder = Recorder::default();
    let subscriber = recorder.clone();
    let test = std::thread::Builder::new().name(THREAD.into()).spawn(move || {
        observe_new_kernels(|| {
            // The other tests' kernels get none.
            let is_ours = std::thread::current().name() == Some(THREAD);
            is_ours.then(|| Box::new(TaskSpans::new()) as Box<dyn Observer>)
        });
        let _guard = subscriber.set();
        Kernel::builder().name("main").build().unwrap().run(async { tracing::info!("event") });
    });
    test.unwrap().join().unwrap();
    assert!(recorder.lines().contains(&r#"event in ["main"]"#.into()));
}
