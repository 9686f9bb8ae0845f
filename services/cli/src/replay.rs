//! `replay`: reads a recording, and shows a moment of it as the commands for live processes do.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use jiff::{RoundMode, SignedDuration, Timestamp, TimestampRound, Unit};
use pikake::console::model::{Process, TaskKey};
use pikake::console::protocol::VERSION;
use pikake::console::record::{Moment, ReadError, Recording, Summary, Trigger};
use pikake::console::text::{self, counted, duration, escaped};
use serde_json::{Value, json};

use crate::arguments::{ReplayOptions, ReplayView};
use crate::console::{create, unwritten, write_trace};
use crate::output::{Output, note};
use crate::stop::Stop;

/// The time before a moment with which `top` compares it.
const TOP_TIME: Duration = Duration::from_secs(5);

/// The precision of times in answers.
const PRINTED: Duration = Duration::from_millis(1);

/// Runs the command.
pub(crate) fn run(options: &ReplayOptions, output: Output) -> Result<(), Stop> {
    let recording = Recording::open(&options.path).map_err(failed)?;
    let summary = recording.summary();
    let Some(view) = options.view else {
        return output.answer(|| summary_json(&recording), || summary_text(&recording));
    };
    summary.notes.iter().for_each(|text| note(&escaped(text)));
    let at = match &options.at {
        None => summary.last,
        Some(when) => moment(&recording, when)?,
    };
    if view == ReplayView::Trace {
        return trace(&recording, at, options, output);
    }
    let mut seen = recording.at(at).map_err(failed)?;
    if view == ReplayView::Top {
        sort_by_steps(&recording, &mut seen);
    }
    let Moment { answer, .. } = &seen;
    let json = || {
        let mut json = match view {
            ReplayView::Stats => {
                json!({ "process": answer.process, "kernels": answer.kernels, "stats": answer.stats })
            }
            ReplayView::Waits => {
                json!({ "kernels": answer.kernels, "tasks": answer.tasks, "graph": answer.graph })
            }
            _ => json!({ "kernels": answer.kernels, "tasks": answer.tasks }),
        };
        json["moment"] = json!({
            "at": wall(&recording, seen.at),
            "snapshot": wall(&recording, seen.snapshot),
            "events": seen.events,
            "lost": seen.lost,
        });
        json
    };
    let text = || {
        let shown = match view {
            ReplayView::Ps | ReplayView::Top => text::ps(answer, false, None),
            ReplayView::Tree => text::tree(answer),
            ReplayView::Waits if options.dot => return text::dot(answer),
            ReplayView::Waits => text::waits(answer),
            ReplayView::Stats | ReplayView::Trace => text::stats(answer),
        };
        head(&recording, &seen) + &shown
    };
    output.answer(json, text)
}

fn failed(error: ReadError) -> Stop {
    let message = escaped(&error.to_string());
    match error {
        ReadError::NoSnapshot(..) | ReadError::Empty(_) => Stop::absent(message),
        _ => Stop::other(message),
    }
}

/// The moment that the command line names, not after the end of the recording.
fn moment(recording: &Recording, when: &str) -> Result<Duration, Stop> {
    let last = recording.summary().last;
    let at = if let Ok(length) = when.parse::<SignedDuration>() {
        match when.starts_with('-') {
            true => last.saturating_sub(length.unsigned_abs()),
            false => length.unsigned_abs(),
        }
    } else if let Ok(time) = when.parse::<Timestamp>() {
        // The times that are printed are cut after milliseconds.
        recording.moment_of(SystemTime::from(time)) + (PRINTED - Duration::from_nanos(1))
    } else {
        return Err(Stop::usage(format!(
            "`{when}` is no moment: write `-30s` for 30 seconds before the end of the recording, `90s` \
             for that time after its begin, or a time as `2027-01-31T07:00:00Z`"
        )));
    };
    Ok(at.min(last))
}

/// A moment by the clock of the system.
fn wall(recording: &Recording, at: Duration) -> String {
    let time = Timestamp::try_from(recording.wall_time(at)).unwrap_or_default();
    let cut = TimestampRound::new().smallest(Unit::Millisecond).mode(RoundMode::Trunc);
    time.round(cut).unwrap_or(time).to_string()
}

fn nanoseconds(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// The moment that is shown, and the age of the snapshot.
fn head(recording: &Recording, seen: &Moment) -> String {
    let age = duration(nanoseconds(seen.at.saturating_sub(seen.snapshot)));
    let lost = match seen.lost {
        0 => String::new(),
        lost => format!(", without {} that are lost", counted(lost, "event")),
    };
    let (at, events) = (wall(recording, seen.at), counted(seen.events, "event"));
    format!("at {at}, by a snapshot that is {age} old, and {events} since{lost}\n")
}

/// Sorts the tasks by their steps in the last seconds.
fn sort_by_steps(recording: &Recording, seen: &mut Moment) {
    let before = recording.at(seen.at.saturating_sub(TOP_TIME));
    let before = before.map(|before| before.answer.tasks).unwrap_or_default();
    let steps: HashMap<TaskKey, u64> = before.iter().map(|task| (task.id, task.steps)).collect();
    seen.answer.tasks.sort_by_key(|task| {
        Reverse(task.steps.saturating_sub(steps.get(&task.id).copied().unwrap_or(0)))
    });
}

/// The events up to a moment.
fn trace(
    recording: &Recording,
    at: Duration,
    options: &ReplayOptions,
    output: Output,
) -> Result<(), Stop> {
    let from = options.seconds.map_or(Duration::ZERO, |length| at.saturating_sub(length));
    let answer = recording.events(from, at).map_err(failed)?;
    let Some(path) = &options.perfetto else {
        let json = || json!({ "kernels": answer.kernels, "events": answer.events });
        return output.answer(json, || text::events(&answer));
    };
    let file = create(path)?;
    write_trace(&process(recording.summary()), &answer, file)
        .map_err(|error| unwritten(path, &error))?;
    let count = answer.events.len();
    output.answer(
        || json!({ "file": path, "events": count }),
        || format!("{count} events in {}: open it at https://ui.perfetto.dev", path.display()),
    )
}

fn process(summary: &Summary) -> Process {
    Process {
        pid: summary.pid,
        program: summary.program.clone(),
        pikake: summary.pikake.clone(),
        protocol: VERSION,
        age: nanoseconds(summary.last),
    }
}

fn summary_json(recording: &Recording) -> Value {
    let summary = recording.summary();
    let trigger = |trigger: &Trigger| {
        let at = wall(recording, trigger.at);
        json!({ "at": at, "kind": trigger.kind, "about": trigger.about, "more": trigger.more })
    };
    json!({
        "program": summary.program,
        "pid": summary.pid,
        "host": summary.host,
        "pikake": summary.pikake,
        "build_id": summary.build_id,
        "files": summary.files,
        "from": wall(recording, summary.first),
        "to": wall(recording, summary.last),
        "snapshots": summary.snapshots,
        "events": summary.events,
        "lost": summary.lost,
        "triggers": summary.triggers.iter().map(trigger).collect::<Vec<Value>>(),
        "has_ended": summary.has_ended,
        "notes": summary.notes,
    })
}

fn summary_text(recording: &Recording) -> String {
    let summary = recording.summary();
    let Summary { program, pid, host, pikake, first, last, .. } = summary;
    let span = duration(nanoseconds(last.saturating_sub(*first)));
    let (from, to) = (wall(recording, *first), wall(recording, *last));
    let files = counted(summary.files as u64, "file");
    let end = match summary.has_ended {
        true => "the program ended the recording",
        false => "none: the process was killed, or it runs",
    };
    let lines = [
        ("program", format!("{program}, process {pid} on {host}, pikake {pikake}")),
        ("build id", summary.build_id.clone().unwrap_or_else(|| "none".to_owned())),
        ("span", format!("{span}, from {from} to {to}, in {files}")),
        ("end", end.to_owned()),
        ("snapshots", summary.snapshots.to_string()),
        ("events", format!("{}, and {} lost", summary.events, summary.lost)),
        ("triggers", summary.triggers.len().to_string()),
    ];
    let mut text = String::new();
    for (what, line) in lines {
        let _ = writeln!(text, "{what:<9}  {}", escaped(&line));
    }
    for Trigger { at, kind, about, more, .. } in &summary.triggers {
        let at = wall(recording, *at);
        let _ = writeln!(text, "  {at}  {}: {}", escaped(kind), escaped(about));
        if *more > 0 {
            let _ = writeln!(text, "    after {} that only count", counted(*more, "trigger"));
        }
    }
    for note in &summary.notes {
        let _ = writeln!(text, "! {}", escaped(note));
    }
    text
}
