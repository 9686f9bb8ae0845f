use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::answer::Answer;
use crate::model::{
    Edge, Graph, Kernel, KernelStats, ProcessStats, Scope, State, Task, TaskKey, Wait,
};

const TASK: fn(u64) -> TaskKey = |task| TaskKey { kernel: 2, task };

/// Tasks, each of which waits for the next one.
pub(super) fn answer(name: &str, tasks: u64) -> Answer {
    let place = |line: u64| format!("src/main.rs:{line}:5");
    let wait = |task: u64| Wait {
        trap: "park".into(),
        place: place(task % 7),
        about: Some(format!("mutex `{task}`")),
        owners: vec![TASK((task + 1) % tasks)],
        scopes: vec![Scope { left: Some(1_000_000_000), set_at: Some(place(9)) }],
    };
    let task = |task: u64| Task {
        id: TASK(task),
        name: name.into(),
        parent: (task > 0).then(|| TASK(0)),
        state: State::Waiting,
        since: Some(5),
        steps: 1,
        busy: 0,
        longest: 0,
        spawned_at: place(1),
        future: "{async block}".into(),
        bytes: 64,
        cancelled: (task == 1).then(|| "closing time".into()),
        goes_on: None,
        waits: vec![wait(task)],
    };
    let edge = |task: u64| Edge {
        from: TASK(task),
        to: TASK((task + 1) % tasks),
        trap: "park".into(),
        place: place(task % 7),
        about: None,
    };
    let kernel = Kernel { id: 2, thread: "main".into(), tid: Some(17), stuck: None, stale: None };
    Answer {
        kernels: vec![kernel],
        tasks: (0..tasks).map(task).collect(),
        graph: Some(Graph {
            edges: (0..tasks).map(edge).collect(),
            deadlocks: vec![(0..tasks).map(TASK).collect()],
            ..Graph::default()
        }),
        process: Some(ProcessStats { threads: Some(2), ..ProcessStats::default() }),
        stats: vec![KernelStats { kernel: 2, tasks, ..KernelStats::default() }],
        ..Answer::default()
    }
}

/// Writes a snapshot of three tasks at 1,000 ns, and events; returns the only file.
fn written(folder: &Path) -> PathBuf {
    let mut writer = Writer::new(Settings::new(folder)).unwrap();
    let answer = answer("worker", 3);
    let snapshot =
        |texts: &mut Texts| Body::Snapshot(Box::new(SnapshotRow::of(&answer, 10, texts)));
    assert_ne!(writer.write(1_000, snapshot), Written::No);
    let events = |texts: &mut Texts| {
        let (trap, place) = (texts.number("sleep"), texts.number("src/main.rs:20:3"));
        let exit = texts.number("returned");
        let row = |after, task, what| EventRow { after, task, what };
        let rows = vec![
            row(900, 1, WhatRow::Ended(exit, None, place)),
            row(300, 1, WhatRow::Waits(trap, place)),
            row(100, 7, WhatRow::Spawned(place)),
            row(100, 7, WhatRow::Stepped),
            row(100, 2, WhatRow::Ended(exit, None, place)),
        ];
        Body::Events(EventsRow { kernel: 2, lost: 4, rows })
    };
    assert_ne!(writer.write(2_000, events), Written::No);
    let trigger = TriggerRow { kind: "slow job".into(), about: "mail".into(), more: 3 };
    assert_ne!(writer.write(2_500, |_| Body::Trigger(trigger.clone())), Written::No);
    assert_ne!(writer.write(3_000, |_| Body::End), Written::No);
    let mut files = fs::read_dir(folder).unwrap();
    files.next().unwrap().unwrap().path()
}

#[test]
fn summary_has_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path());
    for path in [path.as_path(), folder.path()] {
        let recording = Recording::open(path).unwrap();
        let summary = recording.summary();
        assert_eq!((summary.pid, summary.files), (std::process::id(), 1));
        assert_eq!((summary.snapshots, summary.events, summary.lost), (1, 5, 4));
        assert!(summary.last.as_nanos() >= 3_000 && summary.has_ended, "{summary:?}");
        let [trigger] = &summary.triggers[..] else { panic!("{summary:?}") };
        assert_eq!((trigger.at.as_nanos(), &*trigger.kind, trigger.more), (2_500, "slow job", 3));
        assert_eq!(summary.notes, Vec::<String>::new());
        let wall = recording.wall_time(summary.last);
        assert_eq!(recording.moment_of(wall), summary.last);
    }
}

#[test]
fn snapshot_is_read_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let recording = Recording::open(written(folder.path())).unwrap();
    let seen = recording.at(Duration::from_nanos(1_000)).unwrap();
    assert_eq!((seen.answer, seen.events), (answer("worker", 3), 0));
    let error = recording.at(Duration::from_nanos(999)).unwrap_err();
    assert!(matches!(error, ReadError::NoSnapshot(..)), "{error}");
}

#[test]
fn events_after_the_snapshot_are_applied() {
    let folder = tempfile::tempdir().unwrap();
    let recording = Recording::open(written(folder.path())).unwrap();
    let tasks = |at| {
        let seen = recording.at(Duration::from_nanos(at)).unwrap();
        let task = |task: &Task| {
            let wait = task.waits.first().map(|wait| wait.trap.clone()).unwrap_or_default();
            (task.id.task, task.state, wait, task.since.unwrap())
        };
        (seen.answer.tasks.iter().map(task).collect::<Vec<_>>(), seen.answer.graph.unwrap())
    };
    let waiting = |task, trap: &str, since| (task, State::Waiting, trap.to_owned(), since);
    let (seen, graph) = tasks(1_250);
    // The look has seen what was before it, and the others have waited on.
    assert_eq!(seen, [waiting(0, "park", 255), waiting(1, "sleep", 50), waiting(2, "park", 255)]);
    assert_eq!((graph.edges.len(), graph.deadlocks.len()), (2, 0));
    let (seen, _) = tasks(1_300);
    assert_eq!(seen[3], (7, State::New, String::new(), 0));
    let (seen, graph) = tasks(2_000);
    assert_eq!(seen, [waiting(0, "park", 1_005), waiting(1, "sleep", 800), waiting(7, "", 600)]);
    assert_eq!(graph.edges.len(), 1, "task 0 waits for task 1");
    let seen = recording.at(Duration::from_nanos(2_000)).unwrap();
    assert_eq!((seen.events, seen.lost), (4, 4));
    let left = seen.answer.tasks[0].waits[0].scopes[0].left;
    assert_eq!(left, Some(1_000_000_000 - 1_000));
}

#[test]
fn events_of_a_time_have_names_and_places() {
    let folder = tempfile::tempdir().unwrap();
    let recording = Recording::open(written(folder.path())).unwrap();
    let events =
        recording.events(Duration::from_nanos(1_200), Duration::from_nanos(1_400)).unwrap();
    let times: Vec<u64> = events.events.iter().map(|event| event.at).collect();
    assert_eq!(times, [1_200, 1_300, 1_400]);
    let names: Vec<(u64, &str, &str)> =
        events.names.iter().map(|it| (it.id.task, &*it.name, &*it.spawned_at)).collect();
    assert_eq!(names, [(1, "worker", "src/main.rs:1:5"), (7, "", "src/main.rs:20:3")]);
    assert_eq!(events.lost, [(2, 4)]);
}

/// Reads all of a file. Errors are fine, and panics are not.
fn read(path: &Path) -> Result<Summary, ReadError> {
    let recording = Recording::open(path)?;
    let summary = recording.summary().clone();
    let _ = recording.at(summary.last);
    let _ = recording.events(Duration::ZERO, Duration::MAX);
    Ok(summary)
}

#[test]
fn file_that_is_cut_gives_its_whole_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path());
    let bytes = fs::read(&path).unwrap();
    let cut = folder.path().join("cut");
    let (mut snapshots, mut torn) = (0, 0);
    for length in 0..bytes.len() {
        fs::write(&cut, &bytes[..length]).unwrap();
        let Ok(summary) = read(&cut) else { continue };
        assert!(summary.snapshots >= snapshots && !summary.has_ended, "{summary:?}");
        snapshots = summary.snapshots;
        torn += summary.notes.iter().filter(|note| note.contains("is not whole")).count();
    }
    assert_eq!(snapshots, 1);
    assert!(torn > bytes.len() / 2, "{torn} of {}", bytes.len());
}

#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other");
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Recording::open(&path).unwrap_err().to_string()
    };
    assert!(refused(b"").ends_with("other is no recording of pikake"));
    assert!(refused(b"#!/bin/sh\nexit 0\n").ends_with("other is no recording of pikake"));
    assert!(refused(b"PIKAKE\0R\x02\0\0\0").contains("version 2 of the format"));
    assert!(refused(b"PIKAKE\0R\x01\0\0\0{}").contains("is damaged"));
    let missing = Recording::open(folder.path().join("missing")).unwrap_err();
    assert!(matches!(missing, ReadError::Io(..)), "{missing}");
    let empty = Recording::open(folder.path()).unwrap_err();
    assert!(matches!(empty, ReadError::Empty(_)), "{empty}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A changed byte is found by the checksum, also if its record is the first one.
    #[test]
    fn changed_bytes_are_found(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path());
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        fs::write(&path, &bytes).unwrap();
        if let Ok(summary) = read(&path) {
            prop_assert_eq!(summary.notes.len(), 1, "{:?}", summary);
            prop_assert!(!summary.has_ended);
        }
    }

    /// A record may have a right checksum and a content that no writer writes.
    #[test]
    fn any_content_is_read_without_panic(content in prop::collection::vec(any::<u8>(), 0..200)) {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path());
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend(writer::framed(&content));
        fs::write(&path, &bytes).unwrap();
        let _ = read(&path);
    }
}

fn settings(of: &[(&str, &str)]) -> (Option<Settings>, Vec<String>) {
    Settings::of_variables(|name| {
        of.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
    })
}

#[test]
fn variables_give_folder_and_bounds() {
    assert_eq!(settings(&[]), (None, vec![]));
    assert_eq!(settings(&[(VARIABLE, "0")]), (None, vec![]));
    let all =
        [(VARIABLE, "there"), (MIB_VARIABLE, "8"), (HOURS_VARIABLE, "2"), (SLOW_VARIABLE, "0.25")];
    let expected = Settings::new("there").mib(8).hours(2).slow(SECOND / 4);
    assert_eq!(settings(&all), (Some(expected), vec![]));
}

#[test]
fn wrong_values_are_named_and_replaced() {
    let wrong = [
        (VARIABLE, "there"),
        (MIB_VARIABLE, "-1"),
        (HOURS_VARIABLE, "soon"),
        (SLOW_VARIABLE, "-1"),
    ];
    let (found, words) = settings(&wrong);
    assert_eq!(found, Some(Settings::new("there")));
    assert_eq!(words.len(), 3, "{words:?}");
    assert!(words[0].starts_with("PIKAKE_RECORD_MIB=-1 is no whole number"), "{words:?}");
}
