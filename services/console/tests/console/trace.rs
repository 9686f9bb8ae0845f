//! The file of a trace.

use std::collections::BTreeMap;

use pikake::console::model::{Event, Kernel, TaskKey, What};
use pikake::console::trace::TraceWriter;
use proptest::prelude::*;
use serde_json::Value;

fn task(number: u64) -> TaskKey {
    TaskKey { kernel: 1, task: number }
}

fn stepped(took: Option<u64>, trap: Option<&str>, place: Option<&str>) -> What {
    What::Stepped { took, trap: trap.map(str::to_owned), place: place.map(str::to_owned) }
}

fn ended(took: Option<u64>) -> What {
    What::Ended { took, exit: "returned".to_owned() }
}

fn kernel(id: u32, thread: &str) -> Kernel {
    Kernel { id, thread: thread.to_owned(), tid: None, stuck: None, stale: None }
}

fn trace(names: &[(TaskKey, &str)], events: &[(u64, TaskKey, What)]) -> String {
    let mut trace = TraceWriter::new(Vec::new(), 7, "pro\"gram").unwrap();
    trace.kernel(&kernel(1, "main")).unwrap();
    for (task, name) in names {
        trace.name(*task, name);
    }
    for (at, task, what) in events {
        trace.event(&Event { at: *at, task: *task, what: what.clone() }).unwrap();
    }
    String::from_utf8(trace.finish().unwrap()).unwrap()
}

/// A task that is spawned, sleeps and returns, and one that is older than the trace and lives on.
#[test]
fn timed_steps_are_complete_events() {
    let events = [
        (1_000, task(2), What::Spawned),
        (3_500, task(2), stepped(Some(2_000), Some("sleep"), Some("src/a.rs:1:2"))),
        (3_700, task(1), stepped(Some(100), Some("yield"), None)),
        (5_000, task(1), stepped(Some(0), None, None)),
        (9_001, task(2), ended(Some(1))),
    ];
    let lines = [
        r#"{"displayTimeUnit":"ns","traceEvents":["#,
        r#"{"ph":"M","name":"process_name","pid":7,"args":{"name":"pro\"gram"}},"#,
        r#"{"ph":"M","name":"thread_name","pid":7,"tid":1,"args":{"name":"kernel 1 (main)"}},"#,
        r#"{"ph":"M","name":"thread_sort_index","pid":7,"tid":1,"args":{"sort_index":1}},"#,
        r#"{"ph":"b","name":"a\nb","pid":7,"cat":"task","id2":{"local":"1.2"},"tid":1,"ts":1.000},"#,
        concat!(
            r#"{"ph":"X","name":"a\nb","pid":7,"cat":"step","tid":1,"ts":1.500,"dur":2.000,"#,
            r#""args":{"task":"1.2","trap":"sleep","place":"src/a.rs:1:2"}},"#,
        ),
        concat!(
            r#"{"ph":"b","name":"sleep at src/a.rs:1:2","pid":7,"cat":"task","id2":{"local":"1.2"},"tid":1,"#,
            r#""ts":3.500},"#,
        ),
        r#"{"ph":"b","name":"task 1.1","pid":7,"cat":"task","id2":{"local":"1.1"},"tid":1,"ts":3.600},"#,
        concat!(
            r#"{"ph":"X","name":"task 1.1","pid":7,"cat":"step","tid":1,"ts":3.600,"dur":0.100,"#,
            r#""args":{"task":"1.1","trap":"yield"}},"#,
        ),
        r#"{"ph":"b","name":"yield","pid":7,"cat":"task","id2":{"local":"1.1"},"tid":1,"ts":3.700},"#,
        r#"{"ph":"e","name":"yield","pid":7,"cat":"task","id2":{"local":"1.1"},"tid":1,"ts":5.000},"#,
        concat!(
            r#"{"ph":"X","name":"task 1.1","pid":7,"cat":"step","tid":1,"ts":5.000,"dur":0.000,"#,
            r#""args":{"task":"1.1"}},"#,
        ),
        concat!(
            r#"{"ph":"e","name":"sleep at src/a.rs:1:2","pid":7,"cat":"task","id2":{"local":"1.2"},"tid":1,"#,
            r#""ts":9.000},"#,
        ),
        concat!(
            r#"{"ph":"X","name":"a\nb","pid":7,"cat":"step","tid":1,"ts":9.000,"dur":0.001,"#,
            r#""args":{"task":"1.2","exit":"returned"}},"#,
        ),
        r#"{"ph":"e","name":"a\nb","pid":7,"cat":"task","id2":{"local":"1.2"},"tid":1,"ts":9.001},"#,
        r#"{"ph":"e","name":"task 1.1","pid":7,"cat":"task","id2":{"local":"1.1"},"tid":1,"ts":9.001}"#,
        "]}",
    ];
    let text = trace(&[(task(2), "a\nb")], &events);
    assert_eq!(text.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn untimed_steps_are_instants() {
    let text = trace(&[], &[(2_000, task(1), stepped(None, Some("park"), None))]);
    let line = text.lines().find(|line| line.contains(r#""cat":"step""#)).unwrap();
    assert_eq!(
        line,
        concat!(
            r#"{"ph":"i","name":"task 1.1","pid":7,"cat":"step","tid":1,"ts":2.000,"s":"t","#,
            r#""args":{"task":"1.1","trap":"park"}},"#,
        )
    );
}

#[test]
fn a_trace_without_events_is_valid() {
    let file: Value = serde_json::from_str(&trace(&[], &[])).unwrap();
    assert_eq!(file["traceEvents"].as_array().unwrap().len(), 3);
}

/// The rules of the format for the phases in use: the fields that each phase has, and asynchronous
/// events that nest.
pub(crate) fn check_format(text: &str) {
    let file: Value = serde_json::from_str(text).unwrap();
    let mut open: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    let track_of = |event: &Value| event["id2"]["local"].as_str().unwrap().to_owned();
    for event in file["traceEvents"].as_array().unwrap() {
        let text = |key: &str| event[key].as_str().unwrap_or_else(|| panic!("{key} of {event}"));
        let number = |key: &str| event[key].as_f64().unwrap_or_else(|| panic!("{key} of {event}"));
        assert!(event["pid"].is_u64() && event["name"].is_string(), "{event}");
        let phase = text("ph");
        if phase == "M" {
            continue;
        }
        assert!(event["tid"].is_u64() && !text("cat").is_empty() && number("ts") >= 0.0, "{event}");
        match phase {
            "X" => assert!(number("dur") >= 0.0),
            "i" => assert_eq!(text("s"), "t"),
            "b" => {
                let track = open.entry(track_of(event)).or_default();
                track.push((text("name").to_owned(), number("ts")));
            }
            "e" => {
                let (name, begin) = open.get_mut(&track_of(event)).unwrap().pop().unwrap();
                assert_eq!(name, text("name"));
                assert!(begin <= number("ts"), "{event} ends before its begin, {begin}");
            }
            _ => panic!("no such phase: {phase}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "{open:?}");
}

proptest! {
    #[test]
    fn random_traces_have_the_format(
        events in prop::collection::vec((-1..5_i64, 0..3_u64, 0..4_u8, any::<Option<u8>>(), ".{0,3}"), 0..60),
    ) {
        let mut at = 0;
        let events = events.into_iter().map(|(later, number, kind, took, text)| {
            // A rate that is measured better makes later times earlier.
            at = u64::saturating_add_signed(at, later);
            let took = took.map(u64::from);
            let what = match kind {
                0 => What::Spawned,
                1 => stepped(took, None, None),
                2 => stepped(took, Some("park"), Some(&text)),
                _ => ended(took),
            };
            (at, task(number), what)
        });
        let events: Vec<_> = events.collect();
        check_format(&trace(&[(task(0), "\u{7}</script>")], &events));
    }
}
