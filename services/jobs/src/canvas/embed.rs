//! The `embed` of a message: what follows from the end of its job.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::canvas::apply::{Applying, CHORD_LIST, CHORD_SIZE, Given, MAX_NESTING, size_of};
use crate::canvas::{Action, COLLECT, Joining};
use crate::message::{AllMembers, ChordMember, Message, Outcome, OutcomeState};
use crate::wire::failure::Failure;
use crate::wire::ids;
use crate::wire::request::{IGNORE_RESULT, REPLACEMENTS, RESENT, traces};
use crate::wire::signature::{CanvasSignature, Kind, Raw, Refused, raw};

/// What follows from the end of a job.
#[derive(Debug, Deserialize, Default)]
pub(crate) struct Embed {
    /// The jobs that follow a success, each with its value.
    #[serde(default)]
    callbacks: Option<Vec<Raw>>,
    /// The jobs that follow a failure.
    #[serde(default)]
    errbacks: Option<Vec<Raw>>,
    /// The jobs that follow a success one after the other, the next one last.
    #[serde(default)]
    chain: Option<Vec<Raw>>,
    /// The job that follows the last member of this one's group.
    #[serde(default)]
    chord: Option<Raw>,
}

/// The facts of a job that its followers get.
pub(crate) struct Ended<'a> {
    pub(crate) message: &'a Message,
    /// How often the message was delivered before.
    pub(crate) attempt: u32,
    /// Whether another job joins the chord in the place of this one.
    pub(crate) joins_later: bool,
    pub(crate) origin: &'a str,
    pub(crate) arity: Arity<'a>,
}

/// How many arguments a job of a name takes, if it is registered here.
pub(crate) type Arity<'a> = &'a dyn Fn(&str) -> Option<usize>;

impl Embed {
    /// Reads the `embed` of a message. `None`: nothing follows, or nobody can read what.
    pub(crate) fn of(message: &Message) -> Option<Box<Self>> {
        let [_, _, embed]: [&RawValue; 3] = serde_json::from_slice(&message.body).ok()?;
        Self::read(embed.get()).ok()?
    }

    /// Reads the `embed` of a request. `None`: nothing follows.
    pub(crate) fn read(text: &str) -> Result<Option<Box<Self>>, Refused> {
        // Nearly all messages have none, and a list or an object is in each that has one.
        if !text[1..].contains(['[', '{']) {
            return Ok(None);
        }
        let embed: Self = serde_json::from_str(text)
            .map_err(|error| Refused::new(format!("its `embed` is malformed: {error}")))?;
        Ok((!embed.is_empty()).then(|| Box::new(embed)))
    }

    /// The same, with no jobs one after the other.
    pub(crate) fn without_chain(self) -> Self {
        Self { chain: None, ..self }
    }

    /// Whether the job is a member of a chord.
    pub(crate) fn is_in_chord(&self) -> bool {
        self.chord.is_some()
    }

    fn is_empty(&self) -> bool {
        let is_empty = |list: &Option<Vec<Raw>>| list.as_ref().is_none_or(Vec::is_empty);
        is_empty(&self.callbacks)
            && is_empty(&self.errbacks)
            && is_empty(&self.chain)
            && self.chord.is_none()
    }

    /// Whether everything that follows can be followed, as far as this job's worker has to.
    ///
    /// `shares_chords`: whether Celery's chords can be counted.
    pub(crate) fn check(&self, shares_chords: bool) -> Result<(), Refused> {
        if let (Some(body), false) = (&self.chord, shares_chords) {
            if CanvasSignature::read(body)?.option::<u32>(CHORD_SIZE)?.is_none() {
                return Err(Refused::new(
                    "it is a member of a chord that Celery counts in its result backend (see `App::results`)",
                ));
            }
        }
        let mut applying = Applying::checking();
        self.add_followers(&mut applying, &Given::default())?;
        for errback in self.errbacks.iter().flatten() {
            applying.apply(CanvasSignature::read(errback)?, Given::default())?;
        }
        Ok(())
    }

    /// What follows from a success, before its outcome is stored.
    pub(crate) fn success(&self, ended: &Ended<'_>, value: &Value) -> Result<Vec<Action>, Refused> {
        let mut applying = Applying::new(ended.id().to_owned(), ended.origin);
        let given = Given { args: vec![raw(value)], ..ended.given() };
        self.add_followers(&mut applying, &given)?;
        Ok(applying.actions)
    }

    fn add_followers(&self, applying: &mut Applying<'_>, given: &Given) -> Result<(), Refused> {
        for callback in self.callbacks.iter().flatten() {
            applying.apply(CanvasSignature::read(callback)?, given.clone())?;
        }
        if let Some((next, rest)) = self.chain.as_deref().and_then(<[Raw]>::split_last) {
            let given = Given { chain: rest.to_vec(), ..given.clone() };
            applying.apply(CanvasSignature::read(next)?, given)?;
        }
        Ok(())
    }

    /// A workflow in the place of the job: its last job has the id of this one, and all that
    /// follows it.
    pub(crate) fn replace(
        self,
        ended: &Ended<'_>,
        mut workflow: CanvasSignature,
    ) -> Result<Vec<Action>, Refused> {
        let headers = &ended.message.headers;
        let replacements = ended.count(REPLACEMENTS).saturating_add(1);
        // Another workflow of a second run has other ids, or the chords of both would be one.
        let seed = format!("{replacements} of {}: {}", ended.id(), raw(&workflow).get());
        let seed = ids::derived(&seed, 0);
        let callbacks = self.callbacks.unwrap_or_default();
        change_last(&mut workflow, &|last| {
            last.set("task_id", &ended.id());
            if let Some(address) = &ended.message.reply_to {
                last.set("reply_to", address);
            }
            let is_ignored = headers.get(IGNORE_RESULT).and_then(Value::as_bool);
            last.set(IGNORE_RESULT, &is_ignored.unwrap_or_default());
            let mut own = last.option::<Map<String, Value>>("headers")?.unwrap_or_default();
            own.insert(REPLACEMENTS.to_owned(), replacements.into());
            last.set("headers", &own);
            last.link("link", callbacks.clone())
        })?;
        workflow.link("link_error", self.errbacks.unwrap_or_default())?;
        let given = Given {
            chain: self.chain.unwrap_or_default(),
            chord: self.chord,
            group: ended.group(),
            ..ended.given()
        };
        let mut applying = Applying::new(seed, ended.origin);
        applying.apply(workflow, given)?;
        Ok(applying.actions)
    }

    /// Workflows that become members of the job's chord: a chord of their own, whose body joins in
    /// the place of the job, with its value and theirs.
    pub(crate) fn add_members(
        &self,
        ended: &Ended<'_>,
        value: &Value,
        members: &[CanvasSignature],
        queue: &str,
    ) -> Result<Vec<Action>, Refused> {
        let (Some(outer), Some((chord, index))) = (&self.chord, ended.group()) else {
            return Err(Refused::new("the job is in no chord"));
        };
        let mut outer = CanvasSignature::read(outer)?;
        outer.set(CHORD_LIST, &ended.id());
        let mut body = CanvasSignature::new(COLLECT);
        body.args = vec![raw(value)];
        body.set("task_id", &ids::derived(&format!("values of {}", ended.id()), 0));
        body.set("queue", &queue);
        body.set("ignore_result", &true);
        let parts = [("header", raw(&members)), ("body", raw(&body))];
        let members = CanvasSignature::of_kind(Kind::Chord, parts);
        let seed = ids::derived(&format!("members of {}: {}", ended.id(), raw(&members).get()), 0);
        let mut applying = Applying::new(seed, ended.origin);
        let (chord, group) = (Some(raw(&outer)), Some((chord, index)));
        applying.apply(members, Given { chord, group, ..ended.given() })?;
        Ok(applying.actions)
    }

    /// The member that joins its chord after its outcome is stored.
    fn join(&self, ended: &Ended<'_>, outcome: &Outcome) -> Option<Action> {
        let body = self.chord.clone().filter(|_| !ended.joins_later)?;
        let (chord, index) = ended.group()?;
        let member = member_of(&body, chord, index, ended.id().to_owned(), outcome)?;
        let headers = ended.headers();
        let member = ChordMember { resent: ended.resent(), ..member };
        Some(Action::Join(Box::new(Joining { member, body, headers })))
    }

    /// What follows from any end, after its outcome is stored: the chord gets the outcome. After
    /// another end than a success, the jobs after it have that outcome, too, and the errbacks are
    /// called after a failure. What is malformed is left out.
    pub(crate) fn stored(&self, ended: &Ended<'_>, outcome: &Outcome) -> Vec<Action> {
        let mut actions = Vec::from_iter(self.join(ended, outcome));
        if outcome.state == OutcomeState::Success {
            return actions;
        }
        let headers = ended.headers();
        fail_all(ended.id(), self.chain.iter().flatten(), outcome, &headers, &mut actions);
        if outcome.state == OutcomeState::Failure {
            let mut applying = Applying::new(ended.id().to_owned(), ended.origin);
            for errback in self.errbacks.iter().flatten() {
                let Ok(signature) = CanvasSignature::read(errback) else { continue };
                let args = ended.errback_args(&signature, outcome);
                let given = Given { args, ..ended.given() };
                if let Err(why) = applying.apply(signature, given) {
                    tracing::warn!(id = ended.id(), %why, "an errback is not called");
                }
            }
            actions.append(&mut applying.actions);
        }
        actions
    }
}

impl Ended<'_> {
    fn id(&self) -> &str {
        self.message.job().unwrap_or_default()
    }

    fn text(&self, header: &str) -> Option<&str> {
        self.message.headers.get(header).and_then(Value::as_str)
    }

    fn given(&self) -> Given {
        let id = self.id().to_owned();
        let root_id = self.text("root_id").unwrap_or(&id).to_owned();
        let headers = self.headers();
        Given { root_id: Some(root_id), parent_id: Some(id), headers, ..Given::default() }
    }

    /// The headers of the job that its followers get.
    fn headers(&self) -> Map<String, Value> {
        let own = &self.message.headers;
        let mut headers = traces(own);
        if self.resent() > 0 {
            headers.insert(RESENT.to_owned(), self.resent().into());
        }
        headers
    }

    fn count(&self, header: &str) -> u32 {
        let count = self.message.headers.get(header).and_then(Value::as_u64).unwrap_or_default();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// How often the job may have run, and sent its followers, before.
    fn resent(&self) -> u32 {
        self.count(RESENT).saturating_add(self.attempt)
    }

    /// The job's group, and its place in it.
    fn group(&self) -> Option<(String, u64)> {
        let index = self.message.headers.get("group_index").and_then(Value::as_u64);
        Some((self.text("group")?.to_owned(), index.unwrap_or_default()))
    }

    fn errback_args(&self, signature: &CanvasSignature, outcome: &Outcome) -> Vec<Raw> {
        let names = ["id", "task", "root_id", "parent_id", "retries", "argsrepr", "kwargsrepr"];
        let value = |name: &str| self.message.headers.get(name).cloned().unwrap_or_default();
        let request = names.into_iter().map(|name| (name.to_owned(), value(name)));
        errback_args(self.id(), request, signature, outcome, self.arity)
    }
}

/// As in Celery: the failed job's id; for a job here that takes more, the request, the error and
/// the traceback.
fn errback_args(
    id: &str,
    request: impl Iterator<Item = (String, Value)>,
    signature: &CanvasSignature,
    outcome: &Outcome,
    arity: Arity<'_>,
) -> Vec<Raw> {
    let own = match signature.immutable {
        true => 0,
        false => signature.args.len() + signature.kwargs.len(),
    };
    match arity(&signature.task).unwrap_or_default().saturating_sub(own) {
        0 | 1 => vec![raw(&id)],
        _ => {
            let request: Map<String, Value> = request.collect();
            vec![raw(&request), raw(&outcome.result), raw(&outcome.traceback)]
        }
    }
}

/// A member of a chord with this body.
fn member_of(
    body: &Raw,
    chord: String,
    index: u64,
    id: String,
    outcome: &Outcome,
) -> Option<ChordMember> {
    let body = CanvasSignature::read(body).ok()?;
    let size = body.option(CHORD_SIZE).ok()?.unwrap_or_default();
    let mut member = ChordMember::new(chord, size, index, id, outcome.clone());
    // The body of the chord of added members: their values, and that of the job that has added
    // them.
    if let Some(id) = body.option(CHORD_LIST).ok()? {
        member.id = id;
        if let (OutcomeState::Success, Value::Array(parts)) = (outcome.state, &outcome.result) {
            if let [Value::Array(values), own] = parts.as_slice() {
                member.is_list = true;
                member.outcome.result = std::iter::once(own).chain(values).cloned().collect();
            }
        }
    }
    Some(member)
}

/// Changes the last job of a signature, whose end is that of the whole.
fn change_last(
    signature: &mut CanvasSignature,
    change: &dyn Fn(&mut CanvasSignature) -> Result<(), Refused>,
) -> Result<(), Refused> {
    let name = match signature.kind()? {
        Kind::Job => return change(signature),
        Kind::Chain => "tasks",
        Kind::Chord => "body",
        Kind::Group => return Err(Refused::new("a group has no last job")),
    };
    let mut parts = signature.members(name)?;
    let last = parts.last_mut().ok_or_else(|| Refused::new("it has no jobs"))?;
    change_last(last, change)?;
    // A body is one signature, and no list.
    let changed = if name == "body" { raw(&parts[0]) } else { raw(&parts) };
    signature.kwargs.insert(name.to_owned(), changed);
    Ok(())
}

/// Stores the outcome for signatures that are not applied any more, and for their parts, so that
/// all waiters get it. The chords around them count their jobs. Jobs without an id get one that
/// follows from the seed.
fn fail_all<'a>(
    seed: &str,
    signatures: impl Iterator<Item = &'a Raw>,
    outcome: &Outcome,
    headers: &Map<String, Value>,
    actions: &mut Vec<Action>,
) {
    let mut left: VecDeque<_> =
        signatures.filter_map(|text| CanvasSignature::read(text).ok()).collect();
    let mut nameless = 0;
    let shared = Rc::new(outcome.clone());
    while let Some(signature) = left.pop_front() {
        left.extend(of(&signature, "chain"));
        left.extend(parts_of(&signature));
        if signature.kind() != Ok(Kind::Job) {
            continue;
        }
        let id = signature.task_id().ok().flatten();
        let is_ignored = matches!(signature.option("ignore_result"), Ok(Some(true)));
        if let (Some(id), false) = (id.clone(), is_ignored) {
            let message = Message {
                reply_to: signature.option("reply_to").unwrap_or_default(),
                correlation_id: Some(id),
                ..Message::default()
            };
            actions.push(Action::Store(Box::new(message), shared.clone()));
        }
        let id = id.unwrap_or_else(|| {
            nameless += 1;
            ids::derived(&format!("skipped {seed}"), nameless)
        });
        actions.extend(join_of(&signature, id, outcome, headers));
    }
}

/// The parts of a signature that is not applied any more. Those whose ends would have counted for
/// its chord have that chord, as when it is applied.
fn parts_of(signature: &CanvasSignature) -> Vec<CanvasSignature> {
    let members = |name| signature.members(name).unwrap_or_default();
    let inherit = |part: &mut CanvasSignature| {
        for name in ["chord", "group_id", "group_index"] {
            part.options.extend(signature.raw_option(name).map(|value| (name.to_owned(), value)));
        }
    };
    match signature.kind() {
        Ok(Kind::Chain) => {
            let mut parts = members("tasks");
            let is_empty = |part: &CanvasSignature| size_of(0, part).is_ok_and(|size| size == 0);
            parts.iter_mut().rev().find(|part| !is_empty(part)).map(inherit);
            parts
        }
        Ok(Kind::Group) => {
            let mut parts = members("tasks");
            for (part, index) in parts.iter_mut().zip(0_u64..) {
                inherit(part);
                part.set("group_index", &index);
            }
            parts
        }
        Ok(Kind::Chord) => {
            let (mut parts, mut body) = (members("header"), members("body"));
            body.first_mut().map(inherit);
            parts.extend(body);
            parts
        }
        Ok(Kind::Job) | Err(_) => Vec::new(),
    }
}

/// A job with the outcome of a chord's body that does not run, and what follows its failure.
struct Unreached {
    id: String,
    job: String,
    errbacks: Vec<CanvasSignature>,
}

impl Unreached {
    /// Those of a chord's body: of a group, each member, which has the errbacks of the group, too.
    fn of_body(body: &CanvasSignature) -> Vec<Self> {
        if body.kind() != Ok(Kind::Group) {
            return vec![Self::of(body)];
        }
        let members = body.members("tasks").unwrap_or_default();
        let with_groups = |member: &CanvasSignature| {
            let mut unreached = Self::of(member);
            unreached.errbacks.extend(of(body, "link_error"));
            let mut seen = BTreeSet::new();
            // An errback that was linked to the group may be at its members, too.
            unreached.errbacks.retain(|errback| seen.insert(raw(errback).get().to_owned()));
            unreached
        };
        members.iter().map(with_groups).collect()
    }

    fn of(signature: &CanvasSignature) -> Self {
        let (mut signature, mut errbacks) = (signature.clone(), of(signature, "link_error"));
        // The outcome of a chord is that of its body.
        for _ in 0..MAX_NESTING {
            let body = match signature.kind() {
                Ok(Kind::Chord) => signature.members("body").unwrap_or_default().into_iter().next(),
                _ => None,
            };
            let Some(body) = body else { break };
            errbacks.extend(of(&body, "link_error"));
            signature = body;
        }
        let id = signature.task_id().ok().flatten().unwrap_or_default();
        Self { id, job: signature.task, errbacks }
    }
}

/// The readable signatures in an option.
fn of(signature: &CanvasSignature, option: &str) -> Vec<CanvasSignature> {
    let texts = signature.signatures(option).unwrap_or_default();
    texts.iter().filter_map(|text| CanvasSignature::read(text).ok()).collect()
}

/// How a job that does not run any more joins the chord whose member it is.
fn join_of(
    signature: &CanvasSignature,
    id: String,
    outcome: &Outcome,
    headers: &Map<String, Value>,
) -> Option<Action> {
    let body = signature.raw_option("chord")?;
    let chord = signature.option("group_id").ok()??;
    let index = signature.option("group_index").ok()?.unwrap_or_default();
    let member = member_of(&body, chord, index, id, outcome)?;
    let resent = headers.get(RESENT).and_then(Value::as_u64).unwrap_or_default();
    let resent = u32::try_from(resent).unwrap_or(u32::MAX);
    let (member, headers) = (ChordMember { resent, ..member }, headers.clone());
    Some(Action::Join(Box::new(Joining { member, body, headers })))
}

/// What follows from the end of all members of a chord: its body with their values, or the failure
/// of one of them.
pub(crate) fn complete(
    joining: &Joining,
    all: AllMembers,
    origin: &str,
    arity: Arity<'_>,
) -> Vec<Action> {
    let AllMembers { members, hold } = all;
    let member = &joining.member;
    let mut applying = Applying::new(format!("chord {}", member.chord), origin);
    let failed = members.iter().find(|member| member.outcome.state != OutcomeState::Success);
    let mut headers = joining.headers.clone();
    let resent = members.iter().map(|member| member.resent).max();
    if let Some(resent) = resent.filter(|resent| *resent > 0) {
        headers.insert(RESENT.to_owned(), resent.into());
    }
    let applied = match (CanvasSignature::read(&joining.body), failed) {
        (Ok(mut body), None) => {
            body.options.remove(CHORD_SIZE);
            body.options.remove(CHORD_LIST);
            let values: Vec<_> = members.iter().flat_map(ChordMember::values).collect();
            let (args, parent_id) = (vec![raw(&values)], Some(member.id.clone()));
            let headers = headers.clone();
            applying.apply(body, Given { args, parent_id, headers, ..Given::default() })
        }
        (Ok(_), Some(failed)) => {
            let error = Failure::from_outcome(failed.outcome.clone());
            Err(Refused::new(format!("Dependency {} raised {error}", failed.id)))
        }
        (Err(refused), _) => Err(refused),
    };
    if let Err(why) = applied {
        let body = CanvasSignature::read(&joining.body).ok();
        let is_group = body.as_ref().is_some_and(|body| body.kind() == Ok(Kind::Group));
        // As in Celery: the jobs of a group fail with the error of the member.
        let outcome = match failed.filter(|_| is_group) {
            Some(failed) => Outcome { state: OutcomeState::Failure, ..failed.outcome.clone() },
            None => Failure::new("ChordError", "celery.exceptions", why.to_string()).into_outcome(),
        };
        applying.actions.clear();
        for Unreached { id, job, errbacks } in body.iter().flat_map(Unreached::of_body) {
            let request = [("id", &id), ("task", &job)];
            for errback in errbacks {
                let request = request.map(|(name, text)| (name.to_owned(), text.as_str().into()));
                let args = errback_args(&id, request.into_iter(), &errback, &outcome, arity);
                let headers = headers.clone();
                let given = Given { args, headers, ..Given::default() };
                if let Err(why) = applying.apply(errback, given) {
                    tracing::warn!(chord = member.chord, %why, "an errback is not called");
                }
            }
        }
        let body = [&joining.body].into_iter();
        fail_all(&member.chord, body, &outcome, &headers, &mut applying.actions);
    }
    applying.actions.push(Action::EndChord(member.chord.clone(), hold));
    applying.actions
}
