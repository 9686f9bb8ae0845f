//! The rules that tell failures from values, and the summary of all members' outcomes.

use std::collections::VecDeque;
use std::marker::PhantomData;

use pikake_traps::{Interrupted, TaskError};

use crate::error::{BoxError, Failure, GroupError};
use crate::members::Finished;

/// Tells failures from values.
pub(crate) trait FailureRule<T> {
    type Value;

    fn is_failure(output: &T) -> bool;
    fn value(output: T) -> Result<Self::Value, BoxError>;
}

/// Every output is a value.
pub(crate) struct AnyOutput;

impl<T> FailureRule<T> for AnyOutput {
    type Value = T;

    fn is_failure(_: &T) -> bool {
        false
    }

    fn value(output: T) -> Result<T, BoxError> {
        Ok(output)
    }
}

/// An `Err` is a failure.
pub(crate) struct OnlyOk<E>(PhantomData<E>);

impl<V, E: Into<BoxError>> FailureRule<Result<V, E>> for OnlyOk<E> {
    type Value = V;

    fn is_failure(output: &Result<V, E>) -> bool {
        output.is_err()
    }

    fn value(output: Result<V, E>) -> Result<V, BoxError> {
        output.map_err(Into::into)
    }
}

pub(crate) fn has_failed<T, J: FailureRule<T>>(finished: &mut Finished<T>) -> bool {
    match finished.outcome() {
        Ok(output) => J::is_failure(output),
        Err(_) => true,
    }
}

/// The value of a member that has not failed.
pub(crate) fn value_of<T, J: FailureRule<T>>(finished: Finished<T>) -> Option<J::Value> {
    J::value(finished.into_outcome().1.ok()?).ok()
}

/// The summary of members' outcomes.
pub(crate) struct Summary<V> {
    /// The values, each with the number of its member.
    pub(crate) values: Vec<(u64, V)>,
    pub(crate) failures: Vec<Failure>,
    aftermath: Vec<Failure>,
}

impl<V> Summary<V> {
    pub(crate) fn of<T, J: FailureRule<T, Value = V>>(
        ended: VecDeque<Finished<T>>,
        why: Option<&Interrupted>,
    ) -> Self {
        let mut summary = Self { values: Vec::new(), failures: Vec::new(), aftermath: Vec::new() };
        for finished in ended {
            let (number, was_asked) = (finished.number, finished.was_asked);
            let (task, outcome) = finished.into_outcome();
            match outcome.map(J::value) {
                Ok(Ok(value)) => summary.values.push((number, value)),
                Ok(Err(error)) if was_asked => summary.aftermath.push(Failure::new(&task, error)),
                Ok(Err(error)) => summary.failures.push(Failure::new(&task, error)),
                // The group's own request ended the member, and no cancel from outside came before.
                Err(TaskError::Cancelled(reason)) if was_asked && why == Some(&reason) => {}
                Err(error) => summary.failures.push(Failure::new(&task, error.into())),
            }
        }
        summary
    }

    pub(crate) fn into_error(self, interrupted: Option<Interrupted>) -> GroupError {
        GroupError::new(interrupted, self.failures, self.aftermath)
    }
}
