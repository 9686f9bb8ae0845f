//! Jobs that follow one another: chains, groups and chords, on the wire as Celery's.
//!
//! The state of a workflow is in its messages. A sender that ends has sent all of it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde_json::Value;

use crate::broker::BrokerError;
use crate::canvas::apply::{Applying, Given};
use crate::client::app::App;
use crate::client::call::Call;
use crate::client::carry_out::carry_out;
use crate::client::handle::{Handle, Origin};
use crate::client::signature::Signature;
use crate::current::try_current_job;
use crate::error::SendError;
use crate::job::Definition;
use crate::message::JobId;
use crate::wire::ids;
use crate::wire::request::traces;
use crate::wire::signature::{CanvasSignature, Kind, raw};

/// Jobs that run one after the other, for the value of the last one. Made by [`Call::then`],
/// [`Group::then`](crate::Group::then) and [`chain!`](crate::chain).
///
/// Each job gets the value of the one before it as its first argument. If a job fails, or is
/// revoked, the jobs after it do not run, and the handle gets that failure.
///
/// # Examples
///
/// ```
/// use pikake::jobs::App;
///
/// #[pikake::job]
/// async fn fetch(page: u32) -> String {
///     format!("page {page}")
/// }
///
/// #[pikake::job]
/// async fn count(text: String, letter: char) -> usize {
///     text.chars().filter(|c| *c == letter).count()
/// }
///
/// # pikake::sim::example(async {
/// let app = App::new("memory://")?.jobs([fetch::JOB, count::JOB]);
/// let worker = pikake::spawn(app.run_worker());
/// # let app = app.connect().await?;
/// let counted = fetch::with(7).then(count::after('p')).send().await?;
/// assert_eq!(counted.wait().await?, 1);
/// # worker.request_cancel("over"); worker.await??;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// A job whose first argument is of another type does not compile:
///
/// ```compile_fail
/// #[pikake::job]
/// async fn fetch(page: u32) -> String { String::new() }
///
/// #[pikake::job]
/// async fn double(number: u64) -> u64 { 2 * number }
///
/// let workflow = fetch::with(7).then(double::after());
/// ```
#[must_use = "nothing is sent before `send`"]
pub struct Workflow<T> {
    app: Option<App>,
    /// The last one is a job.
    steps: Vec<Step>,
    value: PhantomData<fn() -> T>,
}

/// A part of a workflow.
#[derive(Clone)]
enum Step {
    Job {
        signature: Box<Signature>,
        on_success: Vec<Signature>,
        on_failure: Vec<Signature>,
    },
    /// The members of a group.
    Group(Vec<Workflow<Value>>),
}

impl Step {
    fn job(signature: Signature) -> Self {
        let signature = Box::new(signature);
        Self::Job { signature, on_success: Vec::new(), on_failure: Vec::new() }
    }

    fn to_canvas(&self, queue: &dyn Fn(&str) -> Option<String>) -> Result<CanvasSignature, String> {
        match self {
            Self::Job { signature, on_success, on_failure } => {
                let mut canvas = signature.to_canvas(queue)?;
                for (name, jobs) in [("link", on_success), ("link_error", on_failure)] {
                    let links = jobs.iter().map(|job| job.to_canvas(queue).map(|job| raw(&job)));
                    let links = links.collect::<Result<_, _>>()?;
                    canvas.link(name, links).map_err(|why| why.to_string())?;
                }
                Ok(canvas)
            }
            Self::Group(members) => {
                let members = members.iter().map(|member| member.to_canvas(queue));
                let members = members.collect::<Result<Vec<_>, _>>()?;
                Ok(CanvasSignature::of_kind(Kind::Group, [("tasks", raw(&members))]))
            }
        }
    }
}

/// A job with all arguments but the first, which is the value of the job before it. Made by the
/// `after` of a job.
#[derive(Debug, Clone)]
#[must_use = "nothing is sent before `send`"]
pub struct Next<In, T> {
    signature: Signature,
    types: PhantomData<fn(In) -> T>,
}

/// A job that may follow a value of type `In`: a [`Next`] whose first argument is of that type, or
/// a [`Call`], which gets no value.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot follow a value of type `{In}`",
    label = "no job, or a job whose first argument is of another type",
    note = "a job follows with `job::after(…)`, which takes all arguments but the first"
)]
pub trait Follower<In> {
    /// The value of the job.
    type Value;

    #[doc(hidden)]
    fn into_next(self) -> Next<In, Self::Value>;
}

impl<In, T> Follower<In> for Next<In, T> {
    type Value = T;

    fn into_next(self) -> Self {
        self
    }
}

impl<In, T> Follower<In> for Call<T> {
    type Value = T;

    fn into_next(self) -> Next<In, T> {
        let signature = Signature { is_immutable: true, ..self.into_signature() };
        Next { signature, types: PhantomData }
    }
}

impl<In, T> Next<In, T> {
    /// A job by its name, for example one of Celery's. `args` is a tuple or a list of the arguments
    /// after the first.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::jobs::{Call, Next};
    ///
    /// let sum = Call::<i64>::named("tasks.add", (2, 3)).then(Next::<i64, i64>::named("tasks.add", (4,)));
    /// ```
    pub fn named(name: impl Into<String>, args: impl Serialize) -> Self {
        Call::named(name, args).into_next_of()
    }

    /// A job by its definition. For the expansion of `#[pikake::job]`.
    #[doc(hidden)]
    pub fn of(job: &Definition, args: &impl Serialize) -> Self {
        Call::of(job, args).into_next_of()
    }

    /// Sets options, as those of the job's own call.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[pikake::job] async fn count(text: String, letter: char) -> usize { 0 }
    /// let later = count::after('p').set(|call| call.queue("slow").priority(3));
    /// ```
    pub fn set(self, options: impl FnOnce(Call<T>) -> Call<T>) -> Self {
        options(Call::from_signature(self.signature)).into_next_of()
    }
}

impl<In, T> Next<In, T> {
    pub(crate) fn into_signature(self) -> Signature {
        self.signature
    }
}

impl<T> Call<T> {
    fn into_next_of<In>(self) -> Next<In, T> {
        Next { signature: self.into_signature(), types: PhantomData }
    }

    /// Adds a job that follows this one.
    ///
    /// # Examples
    ///
    /// See [`Workflow`].
    pub fn then<F: Follower<T>>(self, next: F) -> Workflow<F::Value> {
        Workflow::from(self).then(next)
    }

    /// Adds a job that follows a success, beside those that are added by [`then`](Self::then). It
    /// gets the value.
    pub fn on_success(self, job: impl Follower<T>) -> Workflow<T> {
        Workflow::from(self).on_success(job)
    }

    /// Adds a job that follows a failure for good. It gets the failed job's id.
    pub fn on_failure(self, job: impl Follower<String>) -> Workflow<T> {
        Workflow::from(self).on_failure(job)
    }
}

impl<T> From<Call<T>> for Workflow<T> {
    fn from(call: Call<T>) -> Self {
        let app = call.app().cloned();
        Self { app, steps: vec![Step::job(call.into_signature())], value: PhantomData }
    }
}

/// A call or a workflow.
pub trait IntoWorkflow {
    /// The value of the last job.
    type Value;

    /// The workflow; that of a call has one job.
    fn into_workflow(self) -> Workflow<Self::Value>;
}

impl<T> IntoWorkflow for Call<T> {
    type Value = T;

    fn into_workflow(self) -> Workflow<T> {
        self.into()
    }
}

impl<T> IntoWorkflow for Workflow<T> {
    type Value = T;

    fn into_workflow(self) -> Self {
        self
    }
}

impl<T> Workflow<T> {
    /// A group, and the job that follows it.
    pub(crate) fn of_group(members: Vec<Workflow<Value>>, next: Signature) -> Self {
        let app = members.iter().find_map(|member| member.app.clone());
        Self { app, steps: vec![Step::Group(members), Step::job(next)], value: PhantomData }
    }

    /// Adds a job that follows.
    pub fn then<F: Follower<T>>(mut self, next: F) -> Workflow<F::Value> {
        self.steps.push(Step::job(next.into_next().signature));
        Workflow { app: self.app, steps: self.steps, value: PhantomData }
    }

    /// Adds a job that follows the success of the last one, beside those that are added by
    /// [`then`](Self::then). It gets the value.
    pub fn on_success(mut self, job: impl Follower<T>) -> Self {
        if let Some(Step::Job { on_success, .. }) = self.steps.last_mut() {
            on_success.push(job.into_next().signature);
        }
        self
    }

    /// Adds a job that follows the failure of any job so far. It gets the failed job's id. The
    /// failure of a member of a group is that of the job which follows the group.
    pub fn on_failure(mut self, job: impl Follower<String>) -> Self {
        let job = job.into_next().signature;
        for step in &mut self.steps {
            if let Step::Job { on_failure, .. } = step {
                on_failure.push(job.clone());
            }
        }
        self
    }

    /// The same workflow, with a value of any type.
    pub fn untyped(self) -> Workflow<Value> {
        Workflow { app: self.app, steps: self.steps, value: PhantomData }
    }

    /// Sets the application that sends the jobs, in place of the connected one of this kernel.
    pub fn on(mut self, app: &App) -> Self {
        self.app = Some(app.clone());
        self
    }

    /// The application that sends the jobs.
    fn sender(&self) -> Option<App> {
        self.app.clone().or_else(App::current)
    }

    /// The workflow as one signature. `queue`: that of a call which names none, if it is known.
    pub(crate) fn to_canvas(
        &self,
        queue: &dyn Fn(&str) -> Option<String>,
    ) -> Result<CanvasSignature, String> {
        let mut steps: Vec<CanvasSignature> = Vec::new();
        for step in &self.steps {
            let canvas = step.to_canvas(queue)?;
            let is_group = |before: &CanvasSignature| before.kind() == Ok(Kind::Group);
            let header = if steps.last().is_some_and(is_group) { steps.pop() } else { None };
            steps.push(match header {
                // Also of one member or none: its values are a list.
                Some(header) => {
                    let parts = [("header", raw(&header)), ("body", raw(&canvas))];
                    CanvasSignature::of_kind(Kind::Chord, parts)
                }
                None => canvas,
            });
        }
        match steps.len() {
            1 => Ok(steps.remove(0)),
            _ => Ok(CanvasSignature::of_kind(Kind::Chain, [("tasks", raw(&steps))])),
        }
    }

    /// Checks that the workflow may be sent: no job in it is unique.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.unique_job() {
            None => Ok(()),
            Some(job) => Err(format!(
                "job `{job}` is unique, and a job of a workflow cannot be: send it alone"
            )),
        }
    }

    /// The name of a job that is unique, if there is one.
    fn unique_job(&self) -> Option<&str> {
        self.steps.iter().find_map(|step| match step {
            Step::Group(members) => members.iter().find_map(|member| member.unique_job()),
            Step::Job { signature, on_success, on_failure } => {
                let all = [&**signature].into_iter().chain(on_success).chain(on_failure);
                all.filter(|job| job.unique.is_some()).map(|job| &*job.name).next()
            }
        })
    }

    /// Notes the highest priority of the jobs of each queue that have one.
    fn note_priorities(&self, app: &App, priorities: &mut BTreeMap<String, u8>) {
        for step in &self.steps {
            let (signature, on_success, on_failure) = match step {
                Step::Group(members) => {
                    members.iter().for_each(|member| member.note_priorities(app, priorities));
                    continue;
                }
                Step::Job { signature, on_success, on_failure } => {
                    (signature, on_success, on_failure)
                }
            };
            let all = [&**signature].into_iter().chain(on_success).chain(on_failure);
            for job in all.filter(|job| job.priority > 0) {
                let queue = job.queue.clone().unwrap_or_else(|| app.queue_of(&job.name));
                let highest = priorities.entry(queue).or_default();
                *highest = job.priority.max(*highest);
            }
        }
    }

    /// The workflow as one signature, and the handle of its last job, whose outcome is expected
    /// from here on.
    async fn prepare(mut self, app: &App) -> Result<(CanvasSignature, Handle<T>), SendError> {
        let broker = app.broker()?;
        let Some(Step::Job { signature, .. }) = self.steps.last_mut() else {
            unreachable!("the last part of a workflow is a job")
        };
        let id = JobId(signature.id.get_or_insert_with(ids::random).clone());
        let is_ignored = signature.ignore_result;
        let address = match is_ignored {
            true => None,
            false => broker.expect_later(&id).await?,
        };
        let origin = if is_ignored { Origin::Ignored } else { Origin::Sent };
        let handle = Handle::new(app.clone(), id, origin);
        if let Some(address) = address {
            signature.reply_to = Some(address);
        }
        self.check().map_err(|why| SendError::Broker(BrokerError::Refused(why)))?;
        let mut priorities = BTreeMap::new();
        self.note_priorities(app, &mut priorities);
        for (queue, priority) in priorities {
            app.ensure_queue(&queue).await?;
            app.check_priority(&queue, priority).await?;
        }
        let queue = |job: &str| Some(app.queue_of(job));
        let canvas = self.to_canvas(&queue).map_err(SendError::Arguments)?;
        Ok((canvas, handle))
    }

    /// Sends the first jobs; resolves once the broker has confirmed them.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted or dropped, some of the jobs may have been sent.
    ///
    /// # Errors
    ///
    /// [`SendError`]. Some of the jobs may have been sent.
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    pub async fn send(self) -> Result<Handle<T>, SendError> {
        let app = self.sender().ok_or(SendError::NoApp)?;
        let (canvas, handle) = self.prepare(&app).await?;
        send_all(&app, [canvas]).await?;
        Ok(handle)
    }
}

/// Sends the members of a group, and returns their handles.
pub(crate) async fn send_group(
    members: Vec<Workflow<Value>>,
) -> Result<Vec<Handle<Value>>, SendError> {
    let app = members.iter().find_map(|member| member.app.clone()).or_else(App::current);
    let app = app.ok_or(SendError::NoApp)?;
    let (mut canvases, mut handles) = (Vec::new(), Vec::new());
    for member in members {
        let (canvas, handle) = member.prepare(&app).await?;
        canvases.push(canvas);
        handles.push(handle);
    }
    let group = CanvasSignature::of_kind(Kind::Group, [("tasks", raw(&canvases))]);
    send_all(&app, [group]).await?;
    Ok(handles)
}

/// Sends signatures, as those of one workflow.
async fn send_all(
    app: &App,
    signatures: impl IntoIterator<Item = CanvasSignature>,
) -> Result<(), SendError> {
    let broker = app.broker()?;
    let given = match try_current_job() {
        None => Given::default(),
        Some(job) => Given {
            root_id: Some(job.facts.root_id.clone()),
            parent_id: Some(job.id().to_owned()),
            headers: traces(&job.facts.headers),
            ..Given::default()
        },
    };
    let mut applying = Applying::new(ids::random(), app.origin());
    for signature in signatures {
        let applied = applying.apply(signature, given.clone());
        applied.map_err(|why| SendError::Arguments(why.to_string()))?;
    }
    Ok(carry_out(app, &*broker, &mut VecDeque::from(applying.actions)).await?)
}

impl<T> Clone for Workflow<T> {
    fn clone(&self) -> Self {
        Self { app: self.app.clone(), steps: self.steps.clone(), value: PhantomData }
    }
}

impl<T> fmt::Debug for Workflow<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |step: &Step| match step {
            Step::Job { signature, .. } => signature.name.clone(),
            Step::Group(members) => format!("{members:?}"),
        };
        let names: Vec<_> = self.steps.iter().map(name).collect();
        f.debug_struct("Workflow").field("steps", &names).finish_non_exhaustive()
    }
}

/// A chain: a call, and the jobs that follow it.
///
/// `chain!(a::with(1), b::after(), c::after(2))` is
/// `a::with(1).then(b::after()).then(c::after(2))`: see [`Workflow`](crate::Workflow).
#[macro_export]
macro_rules! chain {
    ($first:expr $(, $next:expr)* $(,)?) => { $first$(.then($next))* };
}
