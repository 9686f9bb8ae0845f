//! A signature applied: the messages of the jobs that it begins with, with the rest of it in their
//! `embed`.
//!
//! The form is that of Celery 5.7. A chain is its first job, whose `embed.chain` has the others,
//! the next one last. A group is its jobs. A group that something follows is a chord: each of its
//! jobs has the follower in `embed.chord`.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use crate::canvas::{Action, Outgoing};
use crate::wire::signature::{CanvasSignature, Kind, Raw, Refused, raw};
use crate::wire::task::{EMBED, TaskParts};
use crate::wire::{ids, instant};

/// How deep signatures may be nested: each level takes a part of the stack.
pub(crate) const MAX_NESTING: u32 = 64;

/// How many bytes the parts of a workflow may get from what is around them: arguments, followers,
/// and the body of their chord. A small message may ask for very large ones, since each of many
/// members has its own copy.
const MOST_BYTES: usize = 256 << 20;

/// The option of a chord's body that says how many members the chord has. Our own: Celery has the
/// number in Redis alone.
pub(crate) const CHORD_SIZE: &str = "pikake_chord_size";

/// The option of a chord's body that says that this member has the values of those that another one
/// has added, and that one's. Our own.
pub(crate) const CHORD_LIST: &str = "pikake_chord_list";

/// An option that changes where a job goes, and that cannot be followed here.
const EXCHANGE: &str = "exchange";

/// What a signature gets from the job before it, or from the workflow around it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Given {
    /// Put before the signature's own arguments, unless it is immutable.
    pub(crate) args: Vec<Raw>,
    /// The signatures that follow it, the next one last.
    pub(crate) chain: Vec<Raw>,
    /// The body of the chord whose member it is.
    pub(crate) chord: Option<Raw>,
    /// Its group, and its place in it.
    pub(crate) group: Option<(String, u64)>,
    pub(crate) root_id: Option<String>,
    pub(crate) parent_id: Option<String>,
    /// Headers that travel on, such as those of a trace.
    pub(crate) headers: Map<String, Value>,
}

impl Given {
    /// The bytes of all that a signature gets.
    fn size(&self) -> usize {
        let texts = self.args.iter().chain(&self.chain).chain(&self.chord);
        let headers = self.headers.values().filter_map(Value::as_str);
        texts.map(|text| text.get().len()).sum::<usize>() + headers.map(str::len).sum::<usize>()
    }
}

/// Applies signatures.
#[derive(Debug)]
pub(crate) struct Applying<'a> {
    /// Jobs without an id of their own get ids that follow from this text and their order.
    seed: String,
    made: u64,
    origin: &'a str,
    /// Whether signatures are only checked, and no messages made.
    is_checking: bool,
    /// How many bytes were passed on so far; [`MOST_BYTES`] at most.
    bytes: usize,
    pub(crate) actions: Vec<Action>,
}

impl<'a> Applying<'a> {
    pub(crate) fn new(seed: String, origin: &'a str) -> Self {
        Self { seed, made: 0, origin, is_checking: false, bytes: 0, actions: Vec::new() }
    }

    /// Checks signatures, and adds no actions.
    pub(crate) fn checking() -> Self {
        Self { is_checking: true, ..Self::new(String::new(), "") }
    }

    /// Counts bytes that are about to be passed on.
    fn charge(&mut self, bytes: usize) -> Result<(), Refused> {
        self.bytes = self.bytes.saturating_add(bytes);
        match self.bytes > MOST_BYTES {
            false => Ok(()),
            true => {
                let most = MOST_BYTES >> 20;
                let why = format!("the messages of its jobs would have more than {most} MiB");
                Err(Refused::new(why))
            }
        }
    }

    fn next_id(&mut self) -> String {
        self.made += 1;
        ids::derived(&self.seed, self.made)
    }

    /// The signature's id. From now on the signature has one.
    fn id_of(&mut self, signature: &mut CanvasSignature) -> Result<String, Refused> {
        if let Some(id) = signature.task_id()? {
            return Ok(id);
        }
        let id = self.next_id();
        signature.set("task_id", &id);
        Ok(id)
    }

    /// Adds the actions for a signature.
    pub(crate) fn apply(
        &mut self,
        signature: CanvasSignature,
        given: Given,
    ) -> Result<(), Refused> {
        self.apply_at(0, signature, given)
    }

    fn apply_at(
        &mut self,
        depth: u32,
        signature: CanvasSignature,
        mut given: Given,
    ) -> Result<(), Refused> {
        if depth > MAX_NESTING {
            let why = format!("its signatures are nested more than {MAX_NESTING} deep");
            return Err(Refused::new(why));
        }
        if given.chain.is_empty() {
            given.chain = signature.signatures("chain")?;
        }
        given.chord = given.chord.or_else(|| signature.raw_option("chord"));
        if let Some(group) = signature.option::<String>("group_id")? {
            let index = given.group.map(|(_, index)| index);
            let own = signature.option("group_index")?;
            given.group = Some((group, own.or(index).unwrap_or_default()));
        }
        given.root_id = match given.root_id {
            Some(root) => Some(root),
            None => signature.option("root_id")?,
        };
        self.charge(given.size())?;
        match signature.kind()? {
            Kind::Job => self.job(signature, given),
            Kind::Chain => self.chain(depth, signature, given),
            Kind::Group => self.group(depth, signature, given),
            Kind::Chord => self.chord(depth, signature, given),
        }
    }

    fn job(&mut self, mut signature: CanvasSignature, given: Given) -> Result<(), Refused> {
        let id = self.id_of(&mut signature)?;
        let queue = queue_of(&signature)?;
        let (callbacks, errbacks) =
            (signature.signatures("link")?, signature.signatures("link_error")?);
        let mut headers = given.headers;
        headers.extend(signature.option::<Map<String, Value>>("headers")?.unwrap_or_default());
        if let Some((group, index)) = given.group {
            headers.insert("group".to_owned(), group.into());
            headers.insert("group_index".to_owned(), index.into());
        }
        if let Some(shadow) = signature.option::<String>("shadow")? {
            headers.insert("shadow".to_owned(), shadow.into());
        }
        add_stamps(&signature, &mut headers)?;
        let not_before = match signature.length("countdown")? {
            Some(length) => Some(instant::after(length)),
            None => signature.moment("eta")?,
        };
        let expires = signature.moment("expires")?;
        let limits = [signature.length("time_limit")?, signature.length("soft_time_limit")?];
        let priority = signature.option("priority")?.unwrap_or_default();
        let ignore_result = signature.option("ignore_result")?.unwrap_or_default();
        let reply_to = signature.option("reply_to")?;
        if self.is_checking {
            return Ok(());
        }
        let mut args = if signature.immutable { Vec::new() } else { given.args };
        args.append(&mut signature.args);
        let embed = embed_of(&callbacks, &errbacks, &given.chain, given.chord.as_ref());
        let parts = TaskParts {
            job: &signature.task,
            id,
            root_id: given.root_id,
            parent_id: given.parent_id,
            args: &serde_json::to_string(&args).unwrap_or_default(),
            kwargs: &serde_json::to_string(&signature.kwargs).unwrap_or_default(),
            embed: embed.as_deref().unwrap_or(EMBED),
            origin: self.origin,
            not_before,
            expires,
            limits,
            max_retries: None,
            priority,
            ignore_result,
            reply_to,
            headers,
        };
        let (message, not_before) = parts.into_message();
        self.actions.push(Action::Publish(Box::new(Outgoing { queue, message, not_before })));
        Ok(())
    }

    fn chain(
        &mut self,
        depth: u32,
        mut signature: CanvasSignature,
        mut given: Given,
    ) -> Result<(), Refused> {
        let mut left = VecDeque::from([(depth, signature.clone())]);
        let mut steps = Vec::new();
        while let Some((depth, next)) = left.pop_front() {
            if depth > MAX_NESTING {
                return Err(Refused::new("its chains are nested too deep"));
            }
            match next.kind()? {
                // A chain in a chain is a part of it.
                Kind::Chain => {
                    for step in next.members("tasks")?.into_iter().rev() {
                        left.push_front((depth + 1, step));
                    }
                }
                Kind::Group => {
                    let mut members = next.members("tasks")?;
                    match members.len() {
                        0 => {}
                        1 => left.push_front((depth + 1, members.remove(0))),
                        _ => steps.push(next),
                    }
                }
                Kind::Job | Kind::Chord => steps.push(next),
            }
        }
        // From the last to the first.
        let mut chain: Vec<CanvasSignature> = Vec::new();
        for step in steps.into_iter().rev() {
            let follower = match step.kind()? {
                Kind::Group => chain.pop(),
                _ => None,
            };
            chain.push(match follower {
                Some(body) => CanvasSignature::of_kind(
                    Kind::Chord,
                    [("header", raw(&step)), ("body", raw(&body))],
                ),
                None => step,
            });
        }
        let links = signature.signatures("link")?;
        let errbacks = signature.signatures("link_error")?;
        let errback_bytes: usize = errbacks.iter().map(|errback| errback.get().len()).sum();
        for step in &mut chain {
            self.charge(errback_bytes)?;
            step.link("link_error", errbacks.clone())?;
        }
        let Some(last) = chain.first_mut() else { return Ok(()) };
        last.link("link", links)?;
        // An id that was given to the chain is that of its last job.
        if let (Some(id), Kind::Job, None) = (signature.task_id()?, last.kind()?, last.task_id()?) {
            last.set("task_id", &id);
        }
        let is_one = chain.len() == 1;
        if let (Some(last), false) = (chain.first_mut(), is_one) {
            if let Some(chord) = given.chord.take() {
                last.options.insert("chord".to_owned(), chord);
            }
            if let Some((group, index)) = given.group.take() {
                last.set("group_id", &group);
                last.set("group_index", &index);
            }
        }
        let Some(mut first) = chain.pop() else { return Ok(()) };
        for step in &mut chain {
            if step.kind()? == Kind::Job {
                self.id_of(step)?;
            }
        }
        given.chain.extend(chain.iter().map(raw));
        let mut args = std::mem::take(&mut given.args);
        args.append(&mut signature.args);
        given.args = if signature.immutable { Vec::new() } else { args };
        if let Some(moment) = signature.options.remove("countdown") {
            first.options.entry("countdown".to_owned()).or_insert(moment);
        }
        self.apply_at(depth + 1, first, given)
    }

    fn group(
        &mut self,
        depth: u32,
        mut signature: CanvasSignature,
        mut given: Given,
    ) -> Result<(), Refused> {
        if !signature.signatures("link")?.is_empty() {
            return Err(Refused::new("a group in it has callbacks, which only its jobs may have"));
        }
        if let Some(next) = given.chain.pop() {
            // What follows a group follows all of it.
            let parts = [("header", raw(&signature)), ("body", next)];
            return self.chord(depth, CanvasSignature::of_kind(Kind::Chord, parts), given);
        }
        let id = self.id_of(&mut signature)?;
        // As in Celery: the group's own errbacks replace those of its members.
        let errbacks = signature.signatures("link_error")?;
        let errback_bytes: usize = errbacks.iter().map(|errback| errback.get().len()).sum();
        let members = signature.members("tasks")?;
        for (mut member, index) in members.into_iter().zip(0..) {
            if !errbacks.is_empty() {
                self.charge(errback_bytes)?;
                member.set("link_error", &errbacks);
            }
            let group = match (&given.chord, &given.group) {
                (Some(_), Some((outer, _))) => outer.clone(),
                _ => id.clone(),
            };
            let given = Given { group: Some((group, index)), ..given.clone() };
            self.apply_at(depth + 1, member, given)?;
        }
        Ok(())
    }
}

impl Applying<'_> {
    fn chord(
        &mut self,
        depth: u32,
        signature: CanvasSignature,
        given: Given,
    ) -> Result<(), Refused> {
        let mut id = signature.task_id()?;
        let mut left: VecDeque<_> = signature.members("header")?.into();
        let mut header = Vec::new();
        while let Some(member) = left.pop_front() {
            if member.kind()? != Kind::Group {
                header.push(member);
                continue;
            }
            id = id.or(member.task_id()?);
            for inner in member.members("tasks")?.into_iter().rev() {
                left.push_front(inner);
            }
        }
        let body = signature.members("body")?.into_iter().next();
        let mut body = body.ok_or_else(|| Refused::new("a chord in it has no body"))?;
        body.link("link", signature.signatures("link")?)?;
        body.link("link_error", signature.signatures("link_error")?)?;
        if let Some(chord) = given.chord {
            body.options.insert("chord".to_owned(), chord);
        }
        if let Some((group, index)) = given.group {
            body.set("group_id", &group);
            body.set("group_index", &index);
        }
        if !given.chain.is_empty() {
            body.set("chain", &given.chain);
        }
        if let (Some(root), None) = (&given.root_id, body.raw_option("root_id")) {
            body.set("root_id", root);
        }
        self.id_of(&mut body)?;
        if header.is_empty() {
            let given = Given {
                args: vec![raw(&[(); 0])],
                root_id: given.root_id,
                parent_id: given.parent_id,
                headers: given.headers,
                ..Given::default()
            };
            return self.apply_at(depth + 1, body, given);
        }
        let size =
            header.iter().map(|member| size_of(depth + 1, member)).sum::<Result<u64, _>>()?;
        let size = u32::try_from(size).map_err(|_| Refused::new("a chord in it is too large"))?;
        body.set(CHORD_SIZE, &size);
        let id = id.unwrap_or_else(|| self.next_id());
        if !self.is_checking {
            self.actions.push(Action::BeginChord(id.clone(), size));
        }
        let mut args = given.args;
        args.extend(signature.args.iter().cloned());
        let args = if signature.immutable { Vec::new() } else { args };
        let body = raw(&body);
        for (mut member, index) in header.into_iter().zip(0..) {
            let given = Given {
                args: args.clone(),
                chain: Vec::new(),
                chord: Some(body.clone()),
                group: Some((id.clone(), index)),
                root_id: given.root_id.clone(),
                parent_id: given.parent_id.clone(),
                headers: given.headers.clone(),
            };
            for delay in ["countdown", "eta"] {
                if let Some(moment) = signature.raw_option(delay) {
                    member.options.entry(delay.to_owned()).or_insert(moment);
                }
            }
            self.apply_at(depth + 1, member, given)?;
        }
        Ok(())
    }
}

/// How many jobs have to end until all of a chord's member has ended.
pub(crate) fn size_of(depth: u32, member: &CanvasSignature) -> Result<u64, Refused> {
    if depth > MAX_NESTING {
        return Err(Refused::new("a chord in it is nested too deep"));
    }
    match member.kind()? {
        Kind::Job => Ok(1),
        Kind::Group => {
            let members = member.members("tasks")?;
            members.iter().map(|member| size_of(depth + 1, member)).sum()
        }
        Kind::Chain => {
            for last in member.members("tasks")?.iter().rev() {
                match size_of(depth + 1, last)? {
                    0 => {}
                    size => return Ok(size),
                }
            }
            Ok(0)
        }
        Kind::Chord => match member.members("body")?.first() {
            Some(body) => size_of(depth + 1, body),
            None => Ok(0),
        },
    }
}

/// The queue that a signature names.
fn queue_of(signature: &CanvasSignature) -> Result<Option<String>, Refused> {
    if let Some(queue) = signature.option::<String>("queue")? {
        return Ok(Some(queue));
    }
    let exchange = signature.option::<String>(EXCHANGE)?.unwrap_or_default();
    if exchange.is_empty() {
        return signature.option("routing_key");
    }
    let job = &signature.task;
    let why = format!("`{job}` is to go to the exchange `{exchange}`: name a queue instead");
    Err(Refused::new(why))
}

/// The `embed` of a job that something follows.
fn embed_of(
    callbacks: &[Raw],
    errbacks: &[Raw],
    chain: &[Raw],
    chord: Option<&Raw>,
) -> Option<String> {
    if callbacks.is_empty() && errbacks.is_empty() && chain.is_empty() && chord.is_none() {
        return None;
    }
    let list = |signatures: &[Raw]| match signatures {
        [] => "null".to_owned(),
        signatures => raw(&signatures).get().to_owned(),
    };
    let (callbacks, errbacks, chain) = (list(callbacks), list(errbacks), list(chain));
    let chord = chord.map_or("null", |chord| chord.get());
    Some(format!(
        r#"{{"callbacks":{callbacks},"errbacks":{errbacks},"chain":{chain},"chord":{chord}}}"#
    ))
}

/// Celery's stamps: options that a list names, and that travel as headers.
fn add_stamps(
    signature: &CanvasSignature,
    headers: &mut Map<String, Value>,
) -> Result<(), Refused> {
    let Some(names) = signature.option::<Vec<String>>("stamped_headers")? else { return Ok(()) };
    let mut stamps = Map::new();
    for name in &names {
        stamps.insert(name.clone(), signature.option(name)?.unwrap_or_default());
    }
    headers.insert("stamped_headers".to_owned(), names.into());
    headers.insert("stamps".to_owned(), stamps.into());
    Ok(())
}
