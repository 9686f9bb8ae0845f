//! Jobs that run at the same time, and jobs that follow all of them.

use serde_json::Value;

use crate::canvas::COLLECT;
use crate::client::handle::Handle;
use crate::client::workflow::{Follower, IntoWorkflow, Next, Workflow, send_group};
use crate::error::SendError;

/// Jobs and workflows that run at the same time. Made by [`group`] and [`map`].
#[derive(Debug, Clone)]
#[must_use = "nothing is sent before `send`"]
pub struct Group<M>(M);

/// A group of calls and workflows: a `Vec` of one type, or a tuple of two to eight.
///
/// # Examples
///
/// ```
/// use pikake::jobs::{App, group, map};
///
/// #[pikake::job]
/// async fn square(number: u64) -> u64 {
///     number * number
/// }
///
/// #[pikake::job]
/// async fn sum(numbers: Vec<u64>) -> u64 {
///     numbers.into_iter().sum()
/// }
///
/// #[pikake::job]
/// async fn describe(pair: (u64, String)) -> String {
///     format!("{} and {}", pair.0, pair.1)
/// }
///
/// #[pikake::job]
/// async fn name() -> String {
///     "Ann".into()
/// }
///
/// # pikake::sim::example(async {
/// let app = App::new("memory://")?.jobs([square::JOB, sum::JOB, describe::JOB, name::JOB]);
/// let worker = pikake::spawn(app.run_worker());
/// # let app = app.connect().await?;
/// let squares = map(square::with, 1..=4);
/// let total = squares.clone().then(sum::after()).send().await?;
/// assert_eq!(total.wait().await?, 30);
///
/// let handles = squares.send().await?;
/// assert_eq!(handles[3].wait().await?, 16);
///
/// let both = group((square::with(3), name::with())).then(describe::after()).send().await?;
/// assert_eq!(both.wait().await?, "9 and Ann");
/// # worker.request_cancel("over"); worker.await??;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub fn group<M: Members>(members: M) -> Group<M> {
    Group(members)
}

/// A group of one call or workflow for each item. `call` is the `with` of a job, or a closure.
///
/// # Examples
///
/// See [`group`].
pub fn map<W, I>(call: impl FnMut(I::Item) -> W, items: I) -> Group<Vec<W>>
where
    W: IntoWorkflow,
    I: IntoIterator,
{
    Group(items.into_iter().map(call).collect())
}

/// The members of a group.
pub trait Members {
    /// The values of all members: a `Vec` or a tuple.
    type Values;
    /// A handle for each member: a `Vec` or a tuple.
    type Handles;

    #[doc(hidden)]
    fn into_workflows(self) -> Vec<Workflow<Value>>;

    #[doc(hidden)]
    fn handles(handles: Vec<Handle<Value>>) -> Self::Handles;
}

impl<W: IntoWorkflow> Members for Vec<W> {
    type Values = Vec<W::Value>;
    type Handles = Vec<Handle<W::Value>>;

    fn into_workflows(self) -> Vec<Workflow<Value>> {
        self.into_iter().map(|member| member.into_workflow().untyped()).collect()
    }

    fn handles(handles: Vec<Handle<Value>>) -> Self::Handles {
        handles.into_iter().map(Handle::typed).collect()
    }
}

macro_rules! tuples {
    ($($name:ident)+) => {
        #[expect(non_snake_case, reason = "a variable for each type")]
        impl<$($name: IntoWorkflow),+> Members for ($($name,)+) {
            type Values = ($($name::Value,)+);
            type Handles = ($(Handle<$name::Value>,)+);

            fn into_workflows(self) -> Vec<Workflow<Value>> {
                let ($($name,)+) = self;
                vec![$($name.into_workflow().untyped()),+]
            }

            fn handles(handles: Vec<Handle<Value>>) -> Self::Handles {
                let mut handles = handles.into_iter();
                $(let $name = handles.next().expect("a handle for each member").typed();)+
                ($($name,)+)
            }
        }
    };
}

tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);

impl<M: Members> Group<M> {
    /// Adds a job that follows all members, and gets their values: Celery's chord.
    ///
    /// If a member fails, the job does not run, and its handle gets a `ChordError`. The job follows
    /// when all members have ended. Their values wait at the broker for seven days at most after
    /// the last one that was added.
    ///
    /// A broker counts the ends of jobs that pikake's workers run. With results in Redis
    /// ([`App::results`](crate::App::results)), the ends of members at Celery's workers count, too,
    /// and values are kept for as long as results.
    pub fn then<F: Follower<M::Values>>(self, next: F) -> Workflow<F::Value> {
        Workflow::of_group(self.0.into_workflows(), next.into_next().into_signature())
    }

    /// The values of all members, as the value of one workflow: for a job that
    /// [returns](crate::Returns) a group, and for a group in a group.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::jobs::{Workflow, map};
    ///
    /// #[pikake::job]
    /// async fn page(number: u32) -> String {
    ///     format!("page {number}")
    /// }
    ///
    /// /// As many pages as there are today.
    /// #[pikake::job]
    /// async fn pages(count: u32) -> Workflow<Vec<String>> {
    ///     map(page::with, 1..=count).collect()
    /// }
    /// ```
    pub fn collect(self) -> Workflow<M::Values> {
        let mut next = Next::<M::Values, M::Values>::named(COLLECT, [(); 0]).into_signature();
        next.kwargs = Ok(r#"{"index":0}"#.to_owned());
        Workflow::of_group(self.0.into_workflows(), next)
    }

    /// Sends the first jobs of all members; resolves once the broker has confirmed them.
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
    pub async fn send(self) -> Result<M::Handles, SendError> {
        send_group(self.0.into_workflows()).await.map(M::handles)
    }
}
