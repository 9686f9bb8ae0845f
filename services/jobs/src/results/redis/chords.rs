//! Chords, counted where Celery's workers count them, so that their members may run here and there.
//!
//! The keys of a chord are those of Celery's backend, all named after the id of the chord's group:
//!
//! | key | has |
//! | --- | --- |
//! | `.j` | the ends of the members, by their places: `[1, id, state, result]` each |
//! | `.d` | the members that have ended, so that none counts twice |
//! | `.s`, `.t` | how many members there are: a number, and one to add |
//! | `.c` | the claim of the worker that sends the job after the members; `done` once it is sent |
//! | none | the shape of the members' values, if there are groups among the members |
//!
//! A script adds a member and claims the chord in one step, so one worker gets all members. The
//! claim of a member has the same name in each of its runs: a run that follows a lost worker takes
//! the claim over. The run of another member tries again until the chord has ended or the claim has
//! lapsed.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::broker::BrokerError;
use crate::message::{ChordMember, Outcome, OutcomeState};
use crate::results::redis::RedisResults;
use crate::results::redis::protocol::Reply;
use crate::wire::failure::Failure;
use crate::wire::ids;

/// How long a claim lasts: long enough to send a job. Afterwards the second run of another member
/// takes it over.
const CLAIM_SECONDS: &str = "60";
/// How long it is known that a chord has ended. Celery keeps it for as long.
const DONE_SECONDS: &str = "300";
/// The most members of a chord: the script returns all in one reply.
const MOST_MEMBERS: &str = "500000";
/// How many bytes the ends of all members have at most. The job after them could not be sent with
/// more.
const MOST_BYTES: &str = "268435456";

/// Adds a member. Returns all members, with their places, once they are there and the claim is this
/// member's. In their place, [`CLAIMED`] or [`LARGE`].
const JOIN: &str = "
local ends, ended, size, more, claim = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local member, place, lifetime, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lease, known, most, bytes = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
if redis.call('GET', claim) == 'done' then return false end
if redis.call('SADD', ended, member) == 1 then
    for at = 9, #ARGV do redis.call('ZADD', ends, place, ARGV[at]) end
    if #ARGV > 9 then redis.call('INCRBY', more, #ARGV - 9) end
end
if known ~= '0' then redis.call('SET', size, known, 'NX') end
if lifetime ~= '0' then
    for at = 1, 4 do redis.call('EXPIRE', KEYS[at], lifetime) end
end
local wanted = redis.call('GET', size)
if not wanted then return false end
if redis.call('ZCARD', ends) < tonumber(wanted) + tonumber(redis.call('GET', more) or 0) then
    return false
end
if not redis.call('SET', claim, token, 'NX', 'EX', lease) then
    if redis.call('GET', claim) ~= token then return redis.status_reply('claimed') end
    redis.call('EXPIRE', claim, lease)
end
if redis.call('ZCARD', ends) > tonumber(most) then return redis.status_reply('large') end
local all, total = redis.call('ZRANGE', ends, 0, -1, 'WITHSCORES'), 0
for at = 1, #all, 2 do total = total + #all[at] end
if total > tonumber(bytes) then return redis.status_reply('large') end
return all
";
/// All members are there, and another member has the claim. Its worker may be lost, and then nobody
/// ends the chord.
const CLAIMED: &str = "claimed";
/// The members are too many or too large.
const LARGE: &str = "large";

/// In an error of [`Outcome`]: Celery's has no traceback in its place among the ends.
const TRACEBACK: &str = "traceback";

fn key_of(chord: &str, part: &str) -> Vec<u8> {
    format!("celery-taskset-meta-{chord}{part}").into_bytes()
}

impl RedisResults {
    /// Notes how many members a chord has, before the members are sent. A chord of this name may
    /// have ended: a workflow that is sent twice has the same ids.
    pub(crate) async fn begin_chord(&self, chord: &str, size: u32) -> Result<(), BrokerError> {
        let claim = key_of(chord, ".c");
        let (key, size, lifetime) = (key_of(chord, ".s"), size.to_string(), self.lifetime());
        let set: &[&[u8]] = match lifetime.as_str() {
            "0" => &[b"SET", &key, size.as_bytes()],
            seconds => &[b"SETEX", &key, seconds.as_bytes(), size.as_bytes()],
        };
        self.ask(&[&[b"DEL", &claim], set]).await.map(drop)
    }

    /// Adds a member, whose size is 0 if Celery has noted the chord's.
    pub(crate) async fn join_chord(
        &self,
        member: &ChordMember,
    ) -> Result<Option<Vec<ChordMember>>, BrokerError> {
        let keys = [".j", ".d", ".s", ".t", ".c"].map(|part| key_of(&member.chord, part));
        let (name, entries) = (format!("{}:{}", member.id, member.index), entries_of(member));
        let token = ids::derived(&format!("{} {name}", member.chord), member.index);
        let (place, size) = (member.index.to_string(), member.size.to_string());
        let lifetime = self.lifetime();
        let limits = [CLAIM_SECONDS, &*size, MOST_MEMBERS, MOST_BYTES];
        let arguments = [&*name, &*place, &*lifetime, &*token].into_iter().chain(limits);
        let arguments = arguments.chain(entries.iter().map(String::as_str));
        let mut command: Vec<&[u8]> = vec![b"EVAL", JOIN.as_bytes(), b"5"];
        command.extend(keys.iter().map(Vec::as_slice));
        command.extend(arguments.map(str::as_bytes));
        let shape_key = key_of(&member.chord, "");
        let replies = self.ask(&[&command, &[b"GET", &shape_key]]).await?;
        let (ends, shape) = match replies.as_slice() {
            [Reply::List(ends), shape] => (ends, shape),
            [Reply::Status(why), _] if why == CLAIMED => {
                let why = format!("another worker is ending chord `{}`", member.chord);
                return Err(BrokerError::ResultsLost(why));
            }
            [Reply::Status(why), _] if why == LARGE => return Ok(Some(vec![too_large(member)])),
            _ => return Ok(None),
        };
        let mut members = Vec::with_capacity(ends.len() / 2);
        for pair in ends.chunks(2) {
            let [Reply::Bytes(entry), Reply::Bytes(place)] = pair else {
                return Err(unreadable(&member.chord));
            };
            let read = read_entry(entry, place, member);
            members.push(read.ok_or_else(|| unreadable(&member.chord))?);
        }
        match shape {
            Reply::Bytes(shape) => Ok(Some(shaped(shape, members, member))),
            _ => Ok(Some(members)),
        }
    }

    /// Removes a chord, whose following job was sent.
    pub(crate) async fn end_chord(&self, chord: &str) -> Result<(), BrokerError> {
        let [ends, ended, size, more, claim] =
            [".j", ".d", ".s", ".t", ".c"].map(|part| key_of(chord, part));
        let remove: &[&[u8]] = &[b"DEL", &ends, &ended, &size, &more];
        let mark: &[&[u8]] = &[b"SETEX", &claim, DONE_SECONDS.as_bytes(), b"done"];
        self.ask(&[&[b"MULTI"], remove, mark, &[b"EXEC"]]).await.map(drop)
    }
}

/// In the place of all members, one that fails their chord.
fn too_large(member: &ChordMember) -> ChordMember {
    let why = format!(
        "a chord in Redis has at most {MOST_MEMBERS} members, with values of at most {MOST_BYTES} bytes"
    );
    let outcome = Failure::new("ChordError", "celery.exceptions", why).into_outcome();
    ChordMember::new(member.chord.clone(), member.size, member.index, member.id.clone(), outcome)
}

fn unreadable(chord: &str) -> BrokerError {
    BrokerError::ResultsRefused(format!("the members of chord `{chord}` in Redis cannot be read"))
}

/// The ends of a member, as Celery writes them: one, or one for each value of its list. Those of
/// one place are in the order of their texts, so those of a list have numbers of one length.
fn entries_of(member: &ChordMember) -> Vec<String> {
    let state = member.outcome.state.as_str();
    let values = member.values().iter().zip(0_u32..);
    let entry = |(value, number): (&Value, u32)| {
        let mut result = value.clone();
        if let (Value::Object(error), Some(text)) = (&mut result, &member.outcome.traceback) {
            error.insert(TRACEBACK.to_owned(), text.as_str().into());
        }
        let id = match number {
            0 => member.id.clone(),
            number => format!("{}:{number:010}", member.id),
        };
        json!([1, id, state, result]).to_string()
    };
    values.map(entry).collect()
}

fn read_entry(entry: &[u8], place: &[u8], member: &ChordMember) -> Option<ChordMember> {
    let (_, id, state, mut result): (Value, String, String, Value) =
        serde_json::from_slice(entry).ok()?;
    let state = OutcomeState::of(&state);
    let traceback = match &mut result {
        Value::Object(error) if state != OutcomeState::Success => error.remove(TRACEBACK),
        _ => None,
    };
    let traceback = traceback.and_then(|text| text.as_str().map(str::to_owned));
    // Without a place, a member of Celery's is behind all others: at infinity.
    let place: f64 = std::str::from_utf8(place).ok()?.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "places are small")]
    let index = place as u64;
    let outcome = Outcome::new(state, result).with_traceback(traceback);
    Some(ChordMember::new(member.chord.clone(), member.size, index, id, outcome))
}

/// The members in the shape that Celery has noted: each group among them is one member with the
/// list of its values.
fn shaped(shape: &[u8], members: Vec<ChordMember>, member: &ChordMember) -> Vec<ChordMember> {
    if members.iter().any(|member| member.outcome.state != OutcomeState::Success) {
        return members;
    }
    let values: BTreeMap<&str, &Value> =
        members.iter().map(|member| (&*member.id, &member.outcome.result)).collect();
    let shape: Value = serde_json::from_slice(shape).unwrap_or_default();
    // `{"result": [[id, parent], parts]}`, where a part is `[[id, parent], null]` or again a group.
    let outcome = match value_at(&shape["result"], &values) {
        Some(Value::Array(parts)) => {
            let part = |(index, value): (u64, Value)| {
                let (chord, id) = (member.chord.clone(), member.id.clone());
                ChordMember::new(chord, member.size, index, id, Outcome::success(value))
            };
            return (0..).zip(parts).map(part).collect();
        }
        _ => Failure::new(
            "ChordError",
            "celery.exceptions",
            "the shape of the chord's values in Redis does not fit its members",
        ),
    };
    let (chord, id) = (member.chord.clone(), member.id.clone());
    vec![ChordMember::new(chord, member.size, 0, id, outcome.into_outcome())]
}

fn value_at(shape: &Value, values: &BTreeMap<&str, &Value>) -> Option<Value> {
    match &shape[1] {
        Value::Array(parts) => parts.iter().map(|part| value_at(part, values)).collect(),
        _ => values.get(shape[0][0].as_str()?).map(|value| (*value).clone()),
    }
}
