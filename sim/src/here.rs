//! A simulation around a given future, which may borrow and return a value.

use std::future::Future;
use std::panic::{Location, resume_unwind};

use pikake_traps::TaskError;

use crate::fault::Fault;
use crate::log::Log;
use crate::plan::FaultPlan;
use crate::report::{Failure, Report};
use crate::sim::Sim;
use crate::trace;

/// The result of [`Sim::run_here`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Ran<T> {
    /// The output of the future, or why there is none: it panicked, was cancelled, or the run ended
    /// first.
    pub outcome: Result<T, TaskError>,
    /// The report of the run.
    pub report: Report,
}

impl Sim {
    /// Runs the simulation with one more client, whose main task is this future.
    ///
    /// The future may borrow from the caller, and its output is returned. There is only one such
    /// future, so this host cannot restart. A panic of the future is its outcome, and not a failure
    /// of the run.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::sim::Sim;
    /// use pikake::sleep;
    /// use std::time::Duration;
    ///
    /// let name = String::from("world");
    /// let ran = Sim::new(7).run_here("greeter", async {
    ///     sleep(Duration::from_secs(3_600)).await?;
    ///     Ok::<_, pikake::Interrupted>(format!("hello {name}"))
    /// });
    /// assert_eq!(ran.unwrap().outcome.unwrap().unwrap(), "hello world");
    /// ```
    ///
    /// # Errors
    ///
    /// The failure of the run.
    ///
    /// # Panics
    ///
    /// Inside a running kernel on the same thread; if there is already a host of that name; if a
    /// plan crashes the host, or names an unknown host.
    #[track_caller]
    pub fn run_here<F: Future>(
        &mut self,
        name: &str,
        future: F,
    ) -> Result<Ran<F::Output>, Box<Failure>> {
        self.add_plan(name, None, true, Location::caller());
        let log = Log::new(trace::is_wanted());
        let mut world = std::mem::replace(self, Self::new(self.seed())).into_world(log.clone());
        assert_no_crash(&world.plan, name);
        let host = world.hosts.len() - 1;
        let kernel = world.hosts[host].open(world.seed, world.schedule, &log);
        let mut result = None;
        let outcome = kernel.try_run_by(future, |main| {
            world.hosts[host].begin(main);
            result = Some(world.run_and_report());
        });
        drop(kernel);
        world.end();
        match result {
            Some(Ok(report)) => Ok(Ran { outcome, report }),
            Some(Err(failure)) => Err(failure),
            None => unreachable!("a fresh kernel takes its main task, and the world is run"),
        }
    }
}

#[track_caller]
fn assert_no_crash(plan: &FaultPlan, name: &str) {
    let crashes = |fault: &Fault| match fault {
        Fault::Kill(host) | Fault::PowerOff(host) | Fault::Restart(host) => host == name,
        _ => false,
    };
    let crash = plan.entries().iter().find(|entry| crashes(&entry.fault));
    assert!(
        crash.is_none(),
        "host `{name}` cannot be crashed, as planned ({}): its program is a single future, which \
         cannot start again; add it with `Sim::client`",
        crash.map(ToString::to_string).unwrap_or_default(),
    );
}

/// Runs the code of a documentation example on one host, with one seed, in virtual time.
///
/// # Panics
///
/// If the code panics, or the run fails.
#[doc(hidden)]
#[track_caller]
pub fn example<F: Future>(future: F) -> F::Output {
    match Sim::new(0).run_here("example", future) {
        Ok(Ran { outcome: Ok(output), .. }) => output,
        Ok(Ran { outcome: Err(TaskError::Panicked(panic)), .. }) => {
            resume_unwind(panic.into_payload())
        }
        Ok(Ran { outcome: Err(error), .. }) => panic!("the example returned no value: {error}"),
        Err(failure) => panic!("{failure}"),
    }
}
