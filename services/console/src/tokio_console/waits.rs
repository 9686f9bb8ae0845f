//! What tasks wait for: *resources*, such as locks, queues, sockets and timers, and *async ops*,
//! which are the waits.
//!
//! A kernel does not keep what its tasks wait for. So a sampler looks at the tasks once a second
//! while a client watches, and has each of them polled once more for it
//! ([`TaskRef::inspect`](pikake_traps::TaskRef::inspect)). A resource is known while a look finds a
//! task that waits for it. All clients share one sampler. Each look makes a [`Snapshot`], and a
//! client gets what distinguishes it from the client's last one. Both are limited, and so is what a
//! look costs.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::mem::replace;
use std::panic::Location;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pikake_kernel::inspect::{KernelView, kernels};
use pikake_traps::{About, SeenThing, SeenWait, TaskId, sleep, spawn};

use super::records::{Key, Records, limited, lock};
use crate::observed::{ANSWER_WITHIN, Pings, Silent, answer, list_with_waits};

/// The time between two looks, as with tokio's own programs.
pub(super) const PUBLISH_EVERY: Duration = Duration::from_secs(1);

/// The number of tasks of a kernel that a look visits: the kernel polls each of them once more.
pub(super) const TASKS_OF_LOOK: usize = 2_000;

/// The greatest number of resources that are known at a time.
pub(super) const RESOURCES: usize = 1_000;

/// The greatest number of async ops that are known at a time.
pub(super) const OPS: usize = 4_000;

/// What tells a resource from others.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ResourceKey {
    kernel: u32,
    kind: ResourceKind,
    name: Box<str>,
    of: ResourceOf,
}

/// A thing that tasks share, or a wait of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ResourceOf {
    Thing(SeenThing),
    Wait(OpKey),
}

/// What tells a wait from others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct OpKey {
    task: Key,
    trap: &'static str,
    place: &'static Location<'static>,
    /// The number of such waits of the task before this one.
    index: usize,
}

/// The kind of a resource, as tokio-console knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum ResourceKind {
    Timer,
    Other(Box<str>),
}

/// A thing that tasks wait for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Resource {
    pub(super) kernel: u32,
    pub(super) kind: ResourceKind,
    /// The words for the thing that do not change: "mutex `accounts`".
    pub(super) name: Box<str>,
    /// The rest of the description: "held by task 3".
    pub(super) state: Box<str>,
    /// The number of waits for the thing.
    pub(super) waits: usize,
    /// The place of the await that was found first.
    pub(super) place: &'static Location<'static>,
    /// The time since the records began, at the first look that found the thing.
    pub(super) since: Duration,
}

/// A wait of a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Op {
    pub(super) task: Key,
    pub(super) resource: u64,
    pub(super) trap: &'static str,
    pub(super) place: &'static Location<'static>,
    /// The time since the records began, at the first look that found the wait.
    pub(super) since: Duration,
}

/// What a look has found, by number. Entries that did not change are those of the snapshot before.
#[derive(Default)]
struct Snapshot {
    resources: BTreeMap<u64, Arc<Resource>>,
    ops: BTreeMap<u64, Arc<Op>>,
}

/// The last snapshot, for all clients.
#[derive(Default)]
pub(super) struct Waits {
    snapshot: Mutex<Arc<Snapshot>>,
    /// The number of clients.
    watching: AtomicUsize,
}

/// Looks once a second while a client watches, for ever.
pub(super) async fn sample(records: Arc<Records>, waits: Arc<Waits>) {
    let mut sampler = Sampler::default();
    loop {
        if waits.watching.load(Ordering::Relaxed) > 0 {
            sampler.look(&records).await;
            *lock(&waits.snapshot) = Arc::new(sampler.snapshot());
        } else if !sampler.resources.is_empty() {
            sampler = Sampler { number: sampler.number, ..Sampler::default() };
            *lock(&waits.snapshot) = Arc::default();
        }
        if sleep(PUBLISH_EVERY).await.is_err() {
            return;
        }
    }
}

/// Entries by what tells them from others, with their numbers.
type Entries<K, V> = HashMap<K, (u64, V)>;

#[derive(Default)]
struct Sampler {
    pings: Rc<Pings>,
    resources: Entries<ResourceKey, Arc<Resource>>,
    ops: Entries<OpKey, Arc<Op>>,
    /// The last number that was given.
    number: u64,
}

/// What a look finds.
#[derive(Default)]
struct Found {
    now: Duration,
    resources: Entries<ResourceKey, Resource>,
    ops: Entries<OpKey, Op>,
}

/// The waits of tasks.
type TaskWaits = Vec<(TaskId, Vec<SeenWait>)>;

async fn look_at(pings: Rc<Pings>, kernel: KernelView) -> Result<TaskWaits, Silent> {
    answer(pings.ping(&kernel), ANSWER_WITHIN).await?;
    let (mut tasks, mut next) = (Vec::new(), Some(0));
    while let Some(index) = next.filter(|_| tasks.len() < TASKS_OF_LOOK) {
        let page = list_with_waits(&kernel, index).await?;
        tasks.extend(page.tasks.into_iter().map(|task| (task.id, task.into_waits())));
        next = page.next;
    }
    Ok(tasks)
}

impl Sampler {
    /// Looks at all observed kernels. What tasks wait for in a kernel that does not answer stays as
    /// it was.
    async fn look(&mut self, records: &Records) {
        let mut kernels = kernels();
        kernels.retain(|kernel| records.has_kernel(kernel.id().number()));
        self.pings.retain(|number| kernels.iter().any(|kernel| kernel.id().number() == number));
        // A kernel that does not answer does not delay the look at the others.
        let look = |kernel: KernelView| {
            let number = kernel.id().number();
            (number, spawn(look_at(self.pings.clone(), kernel)).cancel_on_drop())
        };
        let looks: Vec<_> = kernels.into_iter().map(look).collect();
        let mut found = Found { now: records.now(), ..Found::default() };
        for (kernel, look) in looks {
            match look.await {
                Ok(Ok(tasks)) => {
                    for (task, waits) in tasks {
                        self.add_waits(&mut found, (kernel, task.0), waits);
                    }
                }
                _ => self.keep(&mut found, kernel),
            }
        }
        self.resources = renewed(&self.resources, found.resources);
        self.ops = renewed(&self.ops, found.ops);
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            resources: self.resources.values().cloned().collect(),
            ops: self.ops.values().cloned().collect(),
        }
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Keeps what was found of a kernel.
    fn keep(&self, found: &mut Found, kernel: u32) {
        for (key, (number, resource)) in &self.resources {
            if key.kernel == kernel && found.resources.len() < RESOURCES {
                found.resources.insert(key.clone(), (*number, Resource::clone(resource)));
            }
        }
        for (key, (number, op)) in &self.ops {
            if key.task.0 == kernel && found.ops.len() < OPS {
                found.ops.insert(*key, (*number, Op::clone(op)));
            }
        }
    }

    /// Adds the waits of a task, and what they are for.
    fn add_waits(&mut self, found: &mut Found, task: Key, waits: Vec<SeenWait>) {
        let mut counts = HashMap::new();
        for SeenWait { trap, place, about, thing, .. } in waits {
            let trap = trap.name();
            let Some(words) = Words::of(trap, about.as_ref()) else { continue };
            let count: &mut usize = counts.entry((trap, place)).or_default();
            let op = OpKey { task, trap, place, index: *count };
            *count += 1;
            if found.ops.len() == OPS {
                return;
            }
            let of = thing.map_or(ResourceOf::Wait(op), ResourceOf::Thing);
            let Some(resource) = self.add_resource(found, words, task.0, of, place) else {
                continue;
            };
            let before =
                self.ops.get(&op).filter(|(_, before)| before.resource == resource).cloned();
            let (number, since) = match before {
                Some((number, before)) => (number, before.since),
                None => (self.next_number(), found.now),
            };
            found.ops.insert(op, (number, Op { task, resource, trap, place, since }));
        }
    }

    /// Adds one more wait for a resource. Returns the number of the resource; `None` if there are
    /// too many.
    fn add_resource(
        &mut self,
        found: &mut Found,
        Words { kind, name, state }: Words,
        kernel: u32,
        of: ResourceOf,
        place: &'static Location<'static>,
    ) -> Option<u64> {
        let key = ResourceKey { kernel, kind: kind.clone(), name: name.clone(), of };
        if let Some((number, resource)) = found.resources.get_mut(&key) {
            resource.waits += 1;
            return Some(*number);
        }
        if found.resources.len() == RESOURCES {
            return None;
        }
        let (number, place, since) = match self.resources.get(&key) {
            Some((number, before)) => (*number, before.place, before.since),
            None => (self.next_number(), place, found.now),
        };
        let resource = Resource { kernel, kind, name, state, waits: 1, place, since };
        found.resources.insert(key, (number, resource));
        Some(number)
    }
}

/// The entries of a look, with those of the look before that did not change.
fn renewed<K: Eq + Hash, V: PartialEq>(
    before: &Entries<K, Arc<V>>,
    found: Entries<K, V>,
) -> Entries<K, Arc<V>> {
    let renew = |(key, (number, value)): (K, (u64, V))| {
        let same = before.get(&key).filter(|(_, before)| **before == value);
        let value = same.map_or_else(|| Arc::new(value), |(_, before)| before.clone());
        (key, (number, value))
    };
    found.into_iter().map(renew).collect()
}

/// What the description of a wait tells of the resource.
#[derive(PartialEq, Eq, Debug)]
struct Words {
    kind: ResourceKind,
    name: Box<str>,
    state: Box<str>,
}

impl Words {
    /// The words for a wait; `None` if the wait is for the task's next step.
    fn of(trap: &str, about: Option<&About>) -> Option<Self> {
        let text = about.map_or(trap, About::text);
        let (name, state) = split_outside_names(text, ", ").unwrap_or((text, ""));
        // "wait group `a` at 3" is a wait for "wait group `a`", whose count changes.
        let is_count = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let counted = split_outside_names(name, " at ").filter(|(_, count)| is_count(count));
        let (name, state) = counted.unwrap_or((name, state));
        let other = |kind: &str| ResourceKind::Other(limited(kind));
        let (kind, name) = match trap {
            "yield" => return None,
            "sleep" | "elapse" => (ResourceKind::Timer, name),
            "read_wait" | "write_wait" => (other("socket"), name),
            "join" => (other("task"), name),
            "blocking" => (other("closure"), name),
            "lookup" => (other("host"), name),
            _ => {
                // "2 of semaphore `a`" is a wait for "semaphore `a`".
                let name = split_outside_names(name, " of ").map_or(name, |(_, name)| name);
                let name = name.strip_prefix("a ").unwrap_or(name);
                let kind = name.split('`').next().unwrap_or_default().trim_end();
                let kind = kind.split(" made at ").next().unwrap_or_default();
                (other(if kind.is_empty() { trap } else { kind }), name)
            }
        };
        Some(Self { kind, name: limited(name), state: limited(state) })
    }
}

/// Splits a description at the first separator that is not inside of a name. Names are between
/// backticks.
fn split_outside_names<'a>(text: &'a str, separator: &str) -> Option<(&'a str, &'a str)> {
    let is_outside = |index: &usize| text[..*index].matches('`').count() % 2 == 0;
    let index = text.match_indices(separator).map(|(index, _)| index).find(is_outside)?;
    Some((&text[..index], &text[index + separator.len()..]))
}

/// What a client knows of the waits.
pub(super) struct WaitsLook {
    waits: Arc<Waits>,
    known: Arc<Snapshot>,
}

/// What is new to a client.
#[derive(Default)]
pub(super) struct Change {
    pub(super) resources: Changed<Resource>,
    pub(super) ops: Changed<Op>,
}

/// Entries that are new, entries that have changed, the new ones included, and entries that are
/// gone.
pub(super) struct Changed<T> {
    pub(super) new: Vec<(u64, Arc<T>)>,
    pub(super) changed: Vec<(u64, Arc<T>)>,
    pub(super) gone: Vec<(u64, Arc<T>)>,
}

impl<T> Default for Changed<T> {
    fn default() -> Self {
        Self { new: Vec::new(), changed: Vec::new(), gone: Vec::new() }
    }
}

impl<T> Changed<T> {
    fn between(before: &BTreeMap<u64, Arc<T>>, now: &BTreeMap<u64, Arc<T>>) -> Self {
        let mut changed = Self::default();
        for (number, value) in now {
            let known = before.get(number);
            if known.is_none() {
                changed.new.push((*number, value.clone()));
            }
            if !known.is_some_and(|known| Arc::ptr_eq(known, value)) {
                changed.changed.push((*number, value.clone()));
            }
        }
        let gone = before.iter().filter(|(number, _)| !now.contains_key(number));
        changed.gone = gone.map(|(number, value)| (*number, value.clone())).collect();
        changed
    }
}

impl WaitsLook {
    pub(super) fn new(waits: Arc<Waits>) -> Self {
        waits.watching.fetch_add(1, Ordering::Relaxed);
        Self { waits, known: Arc::default() }
    }

    /// What has changed since the last call; `None` if there was no look since.
    pub(super) fn next_change(&mut self) -> Option<Change> {
        let now = lock(&self.waits.snapshot).clone();
        if Arc::ptr_eq(&now, &self.known) {
            return None;
        }
        let before = replace(&mut self.known, now.clone());
        let resources = Changed::between(&before.resources, &now.resources);
        let ops = Changed::between(&before.ops, &now.ops);
        Some(Change { resources, ops })
    }
}

impl Drop for WaitsLook {
    fn drop(&mut self) {
        self.waits.watching.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use pikake_traps::About;

    use super::{ResourceKind, Words};

    fn words(trap: &str, text: &str) -> Option<(ResourceKind, String, String)> {
        let words = Words::of(trap, Some(&About::new(text)))?;
        Some((words.kind, words.name.into(), words.state.into()))
    }

    #[test]
    fn descriptions_give_kind_name_and_state() {
        let cases = [
            ("mutex `a, b`, held by task 3", "mutex", "mutex `a, b`", "held by task 3"),
            ("2 of semaphore `s`, 0 of 2 free", "semaphore", "semaphore `s`", "0 of 2 free"),
            ("barrier, 1 of 3 wait", "barrier", "barrier", "1 of 3 wait"),
            ("wait group `g` at 3", "wait group", "wait group `g`", "3"),
            (
                "task group made at src/main.rs:2:5, 2 running",
                "task group",
                "task group made at src/main.rs:2:5",
                "2 running",
            ),
            ("queue `at home`, length 0", "queue", "queue `at home`", "length 0"),
            (
                "signal of a wait queue, in which 1 wait",
                "wait queue",
                "wait queue",
                "in which 1 wait",
            ),
            ("future `Pair<A, B>`", "future", "future `Pair<A, B>`", ""),
        ];
        for (text, kind, name, state) in cases {
            let kind = ResourceKind::Other(kind.into());
            let expected = Some((kind, name.to_owned(), state.to_owned()));
            assert_eq!(words("park", text), expected, "{text}");
        }
        let timer = Some((ResourceKind::Timer, "timer".to_owned(), "5ms left".to_owned()));
        assert_eq!(words("sleep", "timer, 5ms left"), timer);
        assert_eq!(words("yield", "the task's next step"), None);
    }
}
