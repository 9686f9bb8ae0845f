//! The failure of a job, and its outcome in Celery's form.

use std::any::Any;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::{Outcome, OutcomeState};

/// The failure of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// The type of the error.
    pub kind: String,
    /// The module of that type.
    pub module: String,
    /// The error's message.
    pub message: String,
    /// The traceback, as text.
    pub traceback: Option<String>,
    /// `None`: the message alone.
    arguments: Option<Vec<Value>>,
}

impl Failure {
    /// A failure with an error of this type, module and message.
    pub fn new(
        kind: impl Into<String>,
        module: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let (kind, module, message) = (kind.into(), module.into(), message.into());
        Self { kind, module, message, traceback: None, arguments: None }
    }

    /// The failure with the arguments of a Python exception: a Celery caller's exception has them
    /// as its `args`, in place of the message.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::jobs::Failure;
    ///
    /// #[pikake::job]
    /// async fn look_up(key: String) -> Result<u64, Failure> {
    ///     let message = format!("no entry {key}");
    ///     Err(Failure::new("LookupError", "builtins", message).with_arguments([key.into()]))
    /// }
    /// ```
    pub fn with_arguments(mut self, arguments: impl IntoIterator<Item = Value>) -> Self {
        self.arguments = Some(arguments.into_iter().collect());
        self
    }

    /// The failure with a traceback.
    pub(crate) fn traced(mut self, traceback: impl Into<String>) -> Self {
        self.traceback = Some(traceback.into());
        self
    }

    /// The failure for a job's error.
    pub(crate) fn of<E: fmt::Display + 'static>(error: &E) -> Self {
        if let Some(failure) = (error as &dyn Any).downcast_ref::<Self>() {
            return failure.clone();
        }
        let path = std::any::type_name::<E>();
        // The type's own path, without its generics.
        let path = path.split('<').next().unwrap_or(path).trim_start_matches(['&', '(', '[']);
        let (module, kind) = path.rsplit_once("::").unwrap_or(("builtins", path));
        Self::new(kind, module, error.to_string())
    }

    /// The failure in an outcome that is no success, whose result is
    /// `{"exc_type", "exc_message": […] or text, "exc_module"}`.
    pub fn from_outcome(outcome: Outcome) -> Self {
        let text = |name: &str| match &outcome.result[name] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            Value::Array(parts) => match parts.as_slice() {
                [Value::String(text)] => text.clone(),
                parts => parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            },
            other => other.to_string(),
        };
        let mut failure = Self::new(text("exc_type"), text("exc_module"), text("exc_message"));
        failure.traceback = outcome.traceback;
        failure.arguments = match &outcome.result["exc_message"] {
            Value::Array(arguments) if *arguments != [failure.message.as_str()] => {
                Some(arguments.clone())
            }
            _ => None,
        };
        failure
    }

    /// The outcome of a job that has failed for good.
    pub(crate) fn into_outcome(self) -> Outcome {
        let mut outcome =
            Outcome::error(OutcomeState::Failure, &self.kind, &self.module, &self.message);
        if let Some(arguments) = self.arguments {
            outcome.result["exc_message"] = arguments.into();
        }
        outcome.with_traceback(self.traceback)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_written_and_read() {
        let failure = Failure::new("LookupError", "builtins", "no entry");
        let with = |arguments: &[Value]| failure.clone().with_arguments(arguments.to_vec());
        assert_eq!(
            failure.clone().into_outcome().result["exc_message"],
            serde_json::json!(["no entry"])
        );
        for arguments in [&["a".into(), 7.into()][..], &[Value::Null], &[]] {
            let outcome = with(arguments).into_outcome();
            assert_eq!(outcome.result["exc_message"], Value::from(arguments));
            assert_eq!(Failure::from_outcome(outcome.clone()).into_outcome(), outcome);
        }
    }
}
