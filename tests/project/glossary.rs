//! Names that were replaced by the words of the field do not return.

use std::fs;
use std::path::{Path, PathBuf};

/// A word that was replaced, and the one that the field uses.
const REPLACED: &[(&str, &str)] = &[
    ("Anybody", "AnyCertificate"),
    ("Asker", "Requester"),
    ("Asking", "Progress"),
    ("Chores", "Maintenance"),
    ("Desk", "Database"),
    ("Due", "Undelivered"),
    ("ENDED_WITH_DEATH", "DROPPED_ON_REPLAY"),
    ("Embryo", "HalfOpen"),
    ("Flight", "SharedLookup"),
    ("GivenUp", "Abandoned"),
    ("Greeter", "HandshakeConfig"),
    ("Hall", "WorkerState"),
    ("Happened", "LogEvent"),
    ("Heard", "Delivered"),
    ("Hindered", "Blocked"),
    ("InLine", "Waiting"),
    ("JobLine", "CallQueue"),
    ("Judge", "FailureRule"),
    ("LAST_WORDS", "CLOSE_REASON_WAIT"),
    ("Landing", "LookupEnd"),
    ("Ledger", "UnsettledDeliveries"),
    ("MOST_BEYOND", "MAX_BEYOND_PREFETCH"),
    ("NumberFree", "NumberFreed"),
    ("OutsideOptions", "ExecOptions"),
    ("PutterGranted", "GrantPutterOnDrop"),
    ("STEPS_ASIDE", "MAY_PAUSE"),
    ("Seat", "Slot"),
    ("Sitter", "MemberState"),
    ("TakenBack", "Recovered"),
    ("Uncalled", "Dismissed"),
    ("Ways", "Routes"),
    ("ask_again", "make_ready_after_step"),
    ("assert_alike", "assert_same_kind"),
    ("attempt_otherwise", "attempt_rare"),
    ("attention_was_paid", "clear_attention"),
    ("bring_before", "make_acceptable"),
    ("by_another", "as_cancel"),
    ("call_waiting", "notify_waiting"),
    ("callable_from", "first_waiting"),
    ("came_to", "outcome"),
    ("come_in", "finish_message"),
    ("dismantle", "take_unanswered"),
    ("doomed", "to_abort"),
    ("end_belongings", "end_alarm_and_locals"),
    ("end_unheard", "end_and_log"),
    ("ends_pass", "handle_attention"),
    ("forget_deliveries", "drop_unsettled"),
    ("forget_waiting", "drop_buffered"),
    ("goes_now", "is_next"),
    ("hand_out", "deliver_ready"),
    ("hang_up", "close_connection"),
    ("has_asked", "awaits_reply"),
    ("has_callable", "can_grant"),
    ("has_lost_kernel", "forget_ended_kernel"),
    ("hatch", "established"),
    ("hear_by_signal", "detect_exit_by_signal"),
    ("in_mail", "is_wake_queued"),
    ("is_brokers", "is_from_broker"),
    ("is_careful", "declares_one_by_one"),
    ("is_concerned", "is_included"),
    ("is_curious", "must_poll_others"),
    ("is_farewell", "is_close"),
    ("is_hungry", "has_free_consumer"),
    ("is_like_it", "is_candidate"),
    ("is_lost_after_step", "apply_rules_after_step"),
    ("is_misread", "breaks_direct_reply"),
    ("is_owed", "can_settle"),
    ("is_owed_at_all", "is_unsettled"),
    ("is_passing", "is_transient"),
    ("is_told_from_here", "was_cancelled_here"),
    ("job_to_tell_of", "job_with_outcome"),
    ("jobs_running", "calls_running"),
    ("keep_for_a_while", "keep_unexpected"),
    ("keep_up", "connect_until_closed"),
    ("leave_line", "stop_waiting"),
    ("leave_unread", "close_reader"),
    ("let_happen", "perform_due"),
    ("limit_all", "set_global_limit"),
    ("looked_at", "checked"),
    ("make_deaf", "make_uninterruptible"),
    ("misanswered", "wrong_answer"),
    ("misunderstood", "print_usage"),
    ("no_connection", "connect_error"),
    ("nudge", "wake_if_asleep"),
    ("of_live", "live_from_header"),
    ("on_the_way", "granted"),
    ("open_up", "enter_open"),
    ("out_of_place", "panic_misplaced"),
    ("outside_a_task", "panic_outside_task"),
    ("owes_report", "has_unreported_end"),
    ("puts_right", "repairs"),
    ("quietly", "catch_and_log"),
    ("recover_one", "redeclare"),
    ("recover_some", "redeclare_from"),
    ("rings_after", "sleep_for"),
    ("room_for_channel", "until_channel_free"),
    ("rouse", "notify"),
    ("roused", "notified"),
    ("seated", "placed"),
    ("see_to_it", "assign_thread"),
    ("sever", "close_all"),
    ("sitter", "state"),
    ("stand_up", "free_slot"),
    ("tell_of", "settle_dropped"),
    ("tend_orphans", "requeue_unfinished"),
    ("undisturbed_steps", "steps_without_turn"),
    ("unhang", "unlink"),
    ("unsaid", "unspecified"),
    ("untell", "redeliver"),
    ("waiters_came", "waiters_added"),
    ("waiters_left", "waiters_removed"),
    ("wanted_retry", "requested_delay"),
    ("wants_answer", "has_direct_reply_to"),
    ("was_closed_for", "closed_connection_for_good"),
];

/// The folders whose sources are read, with the folders below them.
const FOLDERS: &[&str] = &[
    "kernel/src",
    "macros/src",
    "net/src",
    "os/src",
    "services",
    "sim/src",
    "src",
    "sync/src",
    "task/src",
    "time/src",
    "traps/src",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The words of a line: letters and digits, joined by underscores.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

#[test]
fn replaced_words_do_not_come_back() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in FOLDERS {
        sources(&root.join(folder), &mut files);
    }
    assert!(files.len() > 150, "only {} files were found", files.len());
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            for (replaced, better) in REPLACED {
                if words(line).any(|word| word == *replaced) {
                    let place = file.strip_prefix(root).unwrap().display();
                    found.push(format!("{place}:{}: `{replaced}`; say {better}", number + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn words_are_found_whole() {
    let line = "self.stand_up(slot); // quietly";
    assert_eq!(
        words(line).filter(|word| ["stand", "stand_up", "quietly"].contains(word)).count(),
        2
    );
}
