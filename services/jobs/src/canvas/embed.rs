//! The `embed` of a message: what follows from the end of its job.

use std::collections::VecDeque;
use std::rc::Rc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::canvas::apply::{Applying, CHORD_SIZE, Given, size_of};
use crate::canvas::{Action, Joining};
use crate::message::{AllMembers, ChordMember, Message, Outcome, OutcomeState};
use crate::wire::failure::Failure;
use crate::wire::ids;
use crate::wire::request::traces;
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
    pub(crate) origin: &'a str,
    /// How many arguments a job of this name takes, if it is registered here.
    pub(crate) arity: &'a dyn Fn(&str) -> Option<usize>,
}

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

    /// The member that joins its chord after its outcome is stored.
    fn join(&self, ended: &Ended<'_>, outcome: &Outcome) -> Option<Action> {
        let body = self.chord.clone()?;
        let size = CanvasSignature::read(&body).ok()?.option(CHORD_SIZE).ok()?.unwrap_or_default();
        let chord = ended.text("group")?.to_owned();
        let index = ended.message.headers.get("group_index").and_then(Value::as_u64);
        let (index, id) = (index.unwrap_or_default(), ended.id().to_owned());
        let member = ChordMember::new(chord, size, index, id, outcome.clone());
        let headers = traces(&ended.message.headers);
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
        fail_all(ended.id(), self.chain.iter().flatten(), outcome, &mut actions);
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
        let headers = traces(&self.message.headers);
        Given { root_id: Some(root_id), parent_id: Some(id), headers, ..Given::default() }
    }

    /// As in Celery: the failed job's id; for a job here that takes more, the request, the error
    /// and the traceback.
    fn errback_args(&self, signature: &CanvasSignature, outcome: &Outcome) -> Vec<Raw> {
        let own = match signature.immutable {
            true => 0,
            false => signature.args.len() + signature.kwargs.len(),
        };
        let arity = (self.arity)(&signature.task).unwrap_or_default();
        if arity.saturating_sub(own) <= 1 {
            return vec![raw(&self.id())];
        }
        let mut request = Map::new();
        for name in ["id", "task", "root_id", "parent_id", "retries", "argsrepr", "kwargsrepr"] {
            let value = self.message.headers.get(name).cloned();
            request.insert(name.to_owned(), value.unwrap_or_default());
        }
        vec![raw(&request), raw(&outcome.result), raw(&outcome.traceback)]
    }
}

/// Stores the outcome for signatures that are not applied any more, and for their parts, so that
/// all waiters get it. The chords around them count their jobs. Jobs without an id get one that
/// follows from the seed.
fn fail_all<'a>(
    seed: &str,
    signatures: impl Iterator<Item = &'a Raw>,
    outcome: &Outcome,
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
        actions.extend(join_of(&signature, id, outcome));
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

/// The readable signatures in an option.
fn of(signature: &CanvasSignature, option: &str) -> Vec<CanvasSignature> {
    let texts = signature.signatures(option).unwrap_or_default();
    texts.iter().filter_map(|text| CanvasSignature::read(text).ok()).collect()
}

/// How a job that does not run any more joins the chord whose member it is.
fn join_of(signature: &CanvasSignature, id: String, outcome: &Outcome) -> Option<Action> {
    let body = signature.raw_option("chord")?;
    let size = CanvasSignature::read(&body).ok()?.option(CHORD_SIZE).ok()?.unwrap_or_default();
    let chord = signature.option("group_id").ok()??;
    let index = signature.option("group_index").ok()?.unwrap_or_default();
    let member = ChordMember::new(chord, size, index, id, outcome.clone());
    // A failure: the body does not run.
    let headers = Map::new();
    Some(Action::Join(Box::new(Joining { member, body, headers })))
}

/// What follows from the end of all members of a chord: its body with their values, or the failure
/// of one of them.
pub(crate) fn complete(joining: &Joining, all: AllMembers, origin: &str) -> Vec<Action> {
    let AllMembers { members, hold } = all;
    let member = &joining.member;
    let mut applying = Applying::new(format!("chord {}", member.chord), origin);
    let failed = members.iter().find(|member| member.outcome.state != OutcomeState::Success);
    let applied = match (CanvasSignature::read(&joining.body), failed) {
        (Ok(mut body), None) => {
            body.options.remove(CHORD_SIZE);
            let values: Vec<_> = members.iter().map(|member| &member.outcome.result).collect();
            let (args, parent_id) = (vec![raw(&values)], Some(member.id.clone()));
            let headers = joining.headers.clone();
            applying.apply(body, Given { args, parent_id, headers, ..Given::default() })
        }
        (Ok(_), Some(failed)) => {
            let error = Failure::from_outcome(failed.outcome.clone());
            Err(Refused::new(format!("Dependency {} raised {error}", failed.id)))
        }
        (Err(refused), _) => Err(refused),
    };
    if let Err(why) = applied {
        let failure = Failure::new("ChordError", "celery.exceptions", why.to_string());
        let outcome = failure.into_outcome();
        applying.actions.clear();
        if let Ok(body) = CanvasSignature::read(&joining.body) {
            let given =
                Given { args: vec![raw(&body.task_id().unwrap_or_default())], ..Given::default() };
            for errback in of(&body, "link_error") {
                if let Err(why) = applying.apply(errback, given.clone()) {
                    tracing::warn!(chord = member.chord, %why, "an errback is not called");
                }
            }
        }
        fail_all(&member.chord, [&joining.body].into_iter(), &outcome, &mut applying.actions);
    }
    applying.actions.push(Action::EndChord(member.chord.clone(), hold));
    applying.actions
}
