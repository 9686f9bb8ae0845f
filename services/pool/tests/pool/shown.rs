//! What listings, `Debug` and the log show of a pool.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use pikake::kernel::inspect::tasks_from;
use pikake::task::Builder;
use pikake::traps::figures::Value;
use pikake::{sleep, yield_now};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::objects::{MS, builder, pool, world};

/// Keeps the lines of the log.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pikake_pool")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A caller who waits is shown with the pool's name and the holders, who can end the wait.
#[pikake::test]
async fn a_wait_names_the_pool_and_its_holders() {
    let world = world();
    let pool = pool(&world, 1);
    let (one, other) = (pool.clone(), pool.clone());
    let holder = Builder::new().name("holder").spawn(async move {
        let _thing = one.get().await.unwrap();
        sleep(1000 * MS).await
    });
    sleep(MS).await.unwrap();
    let caller = Builder::new().name("caller").spawn(async move { other.get().await.map(drop) });
    yield_now().await.unwrap();
    let page = tasks_from(0, 100);
    page.tasks.iter().for_each(|task| task.inspect());
    while page.tasks.iter().any(|task| task.id() == caller.id() && task.is_ready()) {
        yield_now().await.unwrap();
    }
    let waits = caller.task_ref().waits();
    let about = waits[0].about.as_ref().unwrap();
    assert!(
        about.text().starts_with("object of pool `things`, 1 of 1 in use, held by task "),
        "{about}"
    );
    assert!(about.text().contains("`holder` for "), "{about}");
    assert_eq!(about.owners(), [holder.id()]);
    let names: Vec<_> = page.tasks.iter().map(|task| task.name().to_owned()).collect();
    assert!(names.iter().any(|name| name == "pool `things`"), "{names:?}");
    holder.request_cancel("");
    caller.await.unwrap().unwrap();
}

#[pikake::sim]
async fn debug_shows_the_holders() {
    let world = world();
    let pool = pool(&world, 3);
    let thing = pool.get().await.unwrap();
    let shown = format!("{pool:?}");
    assert!(
        shown
            .starts_with("Pool { name: \"things\", limit: 3, idle: 0, leased_by: [Holder { task: "),
        "{shown}"
    );
    assert!(format!("{thing:?}").starts_with("Lease(Thing { id: 1"));
    let [holder] = &*pool.holders() else { panic!() };
    assert!(holder.place.file().ends_with("shown.rs"));
}

#[pikake::sim]
async fn figures_count_what_happened() {
    let world = world();
    let pool = pool(&world, 1);
    let thing = pool.get().await.unwrap();
    let other = pool.clone();
    let waiting = pikake::spawn(async move { other.get().await.map(drop) });
    sleep(10 * MS).await.unwrap();
    drop(thing);
    waiting.await.unwrap().unwrap();
    sleep(MS).await.unwrap();
    let stats = pool.stats();
    assert_eq!((stats.lent, stats.waited, stats.created, stats.idle), (2, 2, 1, 1));
    assert_eq!(
        stats.waited_for.as_millis(),
        10,
        "the first one waited for a new object, and no time"
    );
}

/// Once of each lease, and in time also if younger leases came back before.
#[pikake::test]
async fn a_lease_that_is_held_for_long_is_warned_of() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let world = world();
    let pool = builder(&world).limit(3).warn_if_held_for(Some(20 * MS)).build();
    let other = pool.clone();
    let holder = Builder::new().name("holder").spawn(async move {
        let _thing = other.get().await.unwrap();
        sleep(60 * MS).await
    });
    for _ in 0..3 {
        let _brief = pool.get().await.unwrap();
        sleep(MS).await.unwrap();
    }
    holder.await.unwrap().unwrap();
    let lines = log.lines();
    let warned: Vec<_> = lines.iter().filter(|line| line.contains("held for long")).collect();
    let [line] = &warned[..] else { panic!("{lines:?}") };
    assert!(line.contains("pool=things") && line.contains("`holder`"), "{line}");
    assert!(line.contains("held_for=") && line.contains("shown.rs"), "{line}");
}

fn figures(named: &str) -> Vec<(String, String, u64)> {
    let shown = pikake::traps::figures::collect().into_iter();
    let shown = shown.filter(|it| it.labels[0] == ("pool", named.to_owned()));
    let rows = shown.filter_map(|it| match it.value {
        Value::Gauge(count) | Value::Counter(count) if count > 0 => {
            let state = it.labels.get(1).map_or(String::new(), |(_, state)| state.clone());
            Some((it.name.to_owned(), state, count))
        }
        Value::Times { counts, .. } if !counts.is_empty() => {
            Some((it.name.to_owned(), String::new(), counts.iter().sum()))
        }
        _ => None,
    });
    rows.collect()
}

/// Pools of one name are shown together, and those that have ended stay in the counters.
#[pikake::sim]
async fn the_figures_of_pools_are_shown_by_name() {
    let world = world();
    let (one, other) = (pool(&world, 1), pool(&world, 1));
    let held = one.get().await.unwrap();
    assert!(!figures("things").is_empty());
    let waiter = one.clone();
    let waiting = pikake::spawn(async move { waiter.get().await.map(drop) });
    drop(other.get().await.unwrap());
    sleep(MS).await.unwrap();
    let row = |name: &str, state: &str, count| (name.to_owned(), state.to_owned(), count);
    let before = [
        row("pikake_pool_objects", "idle", 1),
        row("pikake_pool_objects", "leased", 1),
        row("pikake_pool_waiting_callers", "", 1),
        row("pikake_pool_leases", "", 2),
        row("pikake_pool_created", "", 2),
    ];
    assert_eq!(figures("things")[..5], before);
    drop(held);
    waiting.await.unwrap().unwrap();
    sleep(MS).await.unwrap();
    assert!(one.close(MS).await.is_complete() && other.close(MS).await.is_complete());
    drop((one, other));
    sleep(MS).await.unwrap();
    let after = figures("things");
    assert_eq!(after[0], row("pikake_pool_leases", "", 3));
    assert!(after.contains(&row("pikake_pool_destroyed", "", 2)), "{after:?}");
    assert!(after.iter().any(|(name, ..)| name == "pikake_pool_wait_time"), "{after:?}");
}
