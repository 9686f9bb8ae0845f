//! Chords: the members that have ended are collected, and the last one gets them all. Outcomes of
//! jobs that others send.

use std::rc::Rc;

use pikake_jobs::{Broker, ChordMember, JobId, Outcome, OutcomeState};
use pikake_traps::{spawn, timeout_after};
use serde_json::Value;

use crate::help::*;
use crate::place::Place;

fn member(chord: &str, size: u32, index: u64) -> ChordMember {
    let outcome = Outcome::success(index.into());
    ChordMember::new(chord.to_owned(), size, index, format!("job {index}"), outcome)
}

async fn join(broker: &Rc<dyn Broker>, member: &ChordMember) -> Option<Vec<ChordMember>> {
    let joined = timeout_after(PATIENCE, broker.join_chord(member)).await.expect("it ends");
    joined.unwrap().map(|all| all.members)
}

pub(crate) async fn whole_with_its_last_member(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let failed = Outcome::error(OutcomeState::Failure, "ValueError", "builtins", "bad");
    let mut bad = member("a", 3, 1);
    bad.outcome = failed.with_traceback(Some("t".into()));
    assert_eq!(join(&one, &member("a", 3, 2)).await, None);
    assert_eq!(join(&one, &member("b", 1, 0)).await, Some(vec![member("b", 1, 0)]));
    assert_eq!(join(&other, &bad).await, None);
    let all = join(&other, &member("a", 3, 0)).await;
    assert_eq!(all, Some(vec![member("a", 3, 0), bad, member("a", 3, 2)]));
    other.end_chord("a").await.unwrap();
    one.end_chord("b").await.unwrap();
    // It is there no more.
    one.end_chord("a").await.unwrap();
    assert_eq!(join(&one, &member("a", 3, 0)).await, None);
}

/// The first outcome of a member counts. A caller that was lost before it has ended the chord gets
/// all members again.
pub(crate) async fn members_count_once(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    assert_eq!(join(&one, &member("a", 2, 0)).await, None);
    let mut again = member("a", 2, 0);
    again.outcome = Outcome::success(7.into());
    for _ in 0..3 {
        assert_eq!(join(&other, &again).await, None);
    }
    let all = Some(vec![member("a", 2, 0), member("a", 2, 1)]);
    assert_eq!(join(&other, &member("a", 2, 1)).await, all);
    place.lose(other, Vec::new());
    let third = place.open().await;
    assert_eq!(join(&third, &member("a", 2, 1)).await, all);
    third.end_chord("a").await.unwrap();
}

/// A member with a list of values has all of them in its place.
pub(crate) async fn lists_of_values(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let mut list = member("a", 3, 1);
    list.is_list = true;
    list.outcome = Outcome::success((0..12).collect::<Vec<u32>>().into());
    one.begin_chord("a", 3).await.unwrap();
    assert_eq!(join(&one, &list).await, None);
    // As a second run of the job does.
    assert_eq!(join(&other, &list).await, None);
    assert_eq!(join(&other, &member("a", 3, 2)).await, None);
    let all = join(&other, &member("a", 3, 0)).await.expect("all are there");
    let values: Vec<_> =
        all.iter().flat_map(ChordMember::values).filter_map(Value::as_u64).collect();
    assert_eq!(values, [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 2]);
    one.end_chord("a").await.unwrap();
}

/// One of them at least gets all.
pub(crate) async fn many_join_at_once(place: &dyn Place) {
    const SIZE: u32 = 20;
    for round in 0..3 {
        let chord = format!("round {round}");
        let mut joining = Vec::new();
        for index in 0..SIZE {
            let (broker, chord) = (place.open().await, chord.clone());
            joining.push(spawn(async move {
                let all = join(&broker, &member(&chord, SIZE, index.into())).await;
                if all.is_some() {
                    broker.end_chord(&chord).await.unwrap();
                }
                all
            }));
        }
        let mut whole = Vec::new();
        for one in joining {
            whole.extend(one.await.unwrap());
        }
        let all: Vec<_> = (0..SIZE).map(|index| member(&chord, SIZE, index.into())).collect();
        assert!(!whole.is_empty() && whole.iter().all(|members| *members == all), "{whole:?}");
    }
}

pub(crate) async fn outcome_of_a_job_that_another_sends(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&other).await;
    for name in ["a", "b"] {
        let job = JobId(name.to_owned());
        let address = one.expect_later(&job).await.unwrap();
        let mut sent = message(name);
        sent.reply_to = address;
        other.store(&sent, Outcome::success(name.into())).await.unwrap();
        let ended = timeout_after(PATIENCE, one.wait(&job)).await.expect("an outcome comes");
        assert_eq!(ended.unwrap(), Outcome::success(name.into()));
        one.forget(&job);
    }
}
