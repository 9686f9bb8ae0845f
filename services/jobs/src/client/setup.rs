//! What an application is set up with, before it is connected.

use std::error::Error;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use crate::broker::QueueOptions;
use crate::brokers::checked;
use crate::client::app::{App, Registered, SetUp};
use crate::client::call::Call;
use crate::error::AppError;
use crate::job::Jobs;
use crate::report::Counters;

impl App {
    /// Adds jobs that its worker runs: one, or a tuple of them.
    ///
    /// # Panics
    ///
    /// If there is another job of one of these names.
    #[track_caller]
    pub fn jobs(self, jobs: impl Jobs) -> Self {
        for definition in jobs.definitions() {
            let name = definition.name;
            if let Some(queue) = definition.options.queue {
                let mut queues = self.0.queues.borrow_mut();
                queues.entry(queue.to_owned()).or_insert_with(QueueOptions::unsaid);
            }
            let job = Registered { definition, counters: Counters::default() };
            let before = self.0.jobs.borrow_mut().insert(name, Rc::new(job));
            assert!(before.is_none(), "two jobs have the name `{name}`: give one of them another");
        }
        self
    }

    /// Another broker instead, as one that was named on the command line. It counts from the next
    /// [`connect`](Self::connect) on.
    ///
    /// # Errors
    ///
    /// [`AppError::Url`], if it is not the URL of a broker.
    pub fn at(self, url: impl Into<String>) -> Result<Self, AppError> {
        *self.0.url.borrow_mut() = checked(url.into()).map_err(AppError::Url)?;
        self.0.given.take();
        Ok(self)
    }

    /// Adds a queue that it declares when it connects, and whose jobs its worker runs. Without it, the queue is used
    /// as it is found, or made by the default options.
    pub fn queue(self, name: impl Into<String>, options: QueueOptions) -> Self {
        self.0.queues.borrow_mut().insert(name.into(), options);
        self
    }

    /// The queue of jobs that name none; without, `pikake`. Its worker runs the jobs of this one, too.
    pub fn default_queue(self, name: impl Into<String>) -> Self {
        *self.0.default_queue.borrow_mut() = name.into();
        self
    }

    /// How many jobs of all queues run at a time, at most; without, 64.
    ///
    /// # Panics
    ///
    /// If it is zero.
    #[track_caller]
    pub fn concurrency(self, limit: usize) -> Self {
        assert!(limit > 0, "a worker that runs no jobs at a time runs none");
        self.0.concurrency.set(limit);
        self
    }

    /// How many unacknowledged messages of each queue the worker may have; without, twice the concurrency.
    pub fn prefetch(self, limit: u16) -> Self {
        self.0.prefetch.set(Some(limit));
        self
    }

    /// How many connections it has to RabbitMQ: 1, unless something is said, or 2. With two, jobs that are sent and their
    /// outcomes go over one, deliveries and acknowledgements over the other: a broker that is short of memory or disk
    /// stops reading from those who publish, and so its queues are worked off all the same. Other brokers have no
    /// connections, and take no notice.
    ///
    /// # Panics
    ///
    /// If it is neither.
    #[track_caller]
    pub fn connections(self, count: usize) -> Self {
        assert!(matches!(count, 1 | 2), "an application has one connection, or two");
        self.0.opening.borrow_mut().is_split = count == 2;
        self
    }

    /// How long a job that is sent is held back at most while RabbitMQ takes none, or cannot be reached; without, 30 s.
    pub fn blocked_timeout(self, length: Duration) -> Self {
        self.0.opening.borrow_mut().blocked_timeout = Some(length);
        self
    }

    /// How many worker processes run jobs marked `process`; without, as many as there are processors.
    ///
    /// # Panics
    ///
    /// If it is zero.
    #[track_caller]
    pub fn processes(self, count: usize) -> Self {
        assert!(count > 0, "no process runs no jobs");
        self.0.processes.set(Some(count));
        self
    }

    /// Buries a message that ended so many worker processes; without, 3.
    pub fn max_kills(self, kills: u32) -> Self {
        self.0.max_kills.set(kills);
        self
    }

    /// Buries a message that was delivered so often without an end; without, 20.
    ///
    /// A delivery counts when its worker was lost or gave it back, whether or not the job had been begun.
    pub fn max_deliveries(self, deliveries: u32) -> Self {
        self.0.max_deliveries.set(deliveries);
        self
    }

    /// Moves jobs that have failed for good to the dead of their queue, from where they can be sent again.
    pub fn bury_failed(self) -> Self {
        self.0.buries_failed.set(true);
        self
    }

    /// What is done once it is connected, before anything is consumed. A later call replaces an earlier one.
    ///
    /// Queues are declared, tasks beside the jobs spawned ([`App::spawn`]), jobs sent. The hook is called again only if
    /// the application is connected again after [`close`](Self::close), or after the hook failed.
    pub fn setup<F, R, E>(self, hook: F) -> Self
    where
        F: Fn(Self) -> R + 'static,
        R: Future<Output = Result<(), E>> + 'static,
        E: Into<Box<dyn Error>>,
    {
        let hook: SetUp = Rc::new(move |app| {
            let done = hook(app);
            Box::pin(async { done.await.map_err(Into::into) })
        });
        *self.0.set_up.borrow_mut() = Some(hook);
        self
    }

    /// Sends a job again and again while its worker runs: first after one interval, then every interval.
    ///
    /// An interval that passed while the broker could not be reached is left out, not made up for.
    ///
    /// # Panics
    ///
    /// If the interval is zero.
    #[track_caller]
    pub fn every<T>(self, interval: Duration, call: Call<T>) -> Self {
        assert!(!interval.is_zero(), "a job cannot be sent at intervals of nothing");
        self.0.schedules.borrow_mut().push((interval, call.into_signature()));
        self
    }
}
