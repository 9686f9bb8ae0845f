//! What is a failure, what is a value, and what all members of a group came to.

use std::collections::VecDeque;
use std::marker::PhantomData;

use pikake_traps::{Interrupted, TaskError};

use crate::error::{BoxError, Failure, GroupError};
use crate::members::Finished;

/// What is a failure, and what a value.
pub(crate) trait Judge<T> {
    type Value;

    fn is_failure(output: &T) -> bool;
    fn value(output: T) -> Result<Self::Value, BoxError>;
}

/// Whatever was returned is a value.
pub(crate) struct AnyOutput;

impl<T> Judge<T> for AnyOutput {
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

impl<V, E: Into<BoxError>> Judge<Result<V, E>> for OnlyOk<E> {
    type Value = V;

    fn is_failure(output: &Result<V, E>) -> bool {
        output.is_err()
    }

    fn value(output: Result<V, E>) -> Result<V, BoxError> {
        output.map_err(Into::into)
    }
}

pub(crate) fn has_failed<T, J: Judge<T>>(finished: &mut Finished<T>) -> bool {
    match finished.outcome() {
        Ok(output) => J::is_failure(output),
        Err(_) => true,
    }
}

/// The value of one that has not failed.
pub(crate) fn value_of<T, J: Judge<T>>(finished: Finished<T>) -> Option<J::Value> {
    J::value(finished.into_outcome().1.ok()?).ok()
}

/// What members came to.
pub(crate) struct Summary<V> {
    /// With the number of each in the order of spawning.
    pub(crate) values: Vec<(u64, V)>,
    pub(crate) failures: Vec<Failure>,
    aftermath: Vec<Failure>,
}

impl<V> Summary<V> {
    pub(crate) fn of<T, J: Judge<T, Value = V>>(
        ended: VecDeque<Finished<T>>,
        why: Option<&Interrupted>,
    ) -> Self {
        let mut summary = Self { values: Vec::new(), failures: Vec::new(), aftermath: Vec::new() };
        for finished in ended {
            let (number, told) = (finished.number, finished.told);
            let (task, outcome) = finished.into_outcome();
            match outcome.map(J::value) {
                Ok(Ok(value)) => summary.values.push((number, value)),
                Ok(Err(error)) if told => summary.aftermath.push(Failure::new(&task, error)),
                Ok(Err(error)) => summary.failures.push(Failure::new(&task, error)),
                // It did as it was told, and nobody outside the group had told it before.
                Err(TaskError::Cancelled(reason)) if told && why == Some(&reason) => {}
                Err(error) => summary.failures.push(Failure::new(&task, error.into())),
            }
        }
        summary
    }

    pub(crate) fn into_error(self, interrupted: Option<Interrupted>) -> GroupError {
        GroupError::new(interrupted, self.failures, self.aftermath)
    }
}
