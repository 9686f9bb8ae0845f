//! The items that the code of `#[pikake::service]` uses.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::codec::{ArgumentReader, Codec};
use crate::error::{CallError, CallFailure, Error, Executed};
use crate::protocol::{BEGUN, ERROR, FAILURE, Failure, method_number};

/// A method of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Method {
    /// The service and the method, as `Accounts.transfer`.
    pub name: &'static str,
    /// The number that travels.
    pub number: u32,
    /// Whether another attempt does no harm.
    pub is_idempotent: bool,
    /// Whether nobody waits for an answer.
    pub is_notice: bool,
}

impl Method {
    /// The method `method` of `service`; `name` is both, with a dot between.
    pub const fn new(name: &'static str, service: &str, method: &str) -> Self {
        let number = method_number(service, method);
        Self { name, number, is_idempotent: false, is_notice: false }
    }

    /// A method that may be tried again though the first attempt may have been executed.
    pub const fn idempotent(mut self) -> Self {
        self.is_idempotent = true;
        self
    }

    /// A method without an answer.
    pub const fn notice(mut self) -> Self {
        self.is_notice = true;
        self
    }
}

/// A service that a server offers: what `#[pikake::service]` makes of an implementation of the
/// trait.
pub trait Service: 'static {
    /// The methods.
    #[doc(hidden)]
    fn methods(&self) -> &'static [Method];

    /// Begins a call of the method at `index` of [`methods`](Self::methods).
    ///
    /// # Errors
    ///
    /// Why the arguments cannot be read.
    #[doc(hidden)]
    fn call(self: Rc<Self>, index: usize, arguments: ArgumentReader<'_>)
    -> Result<Handler, String>;
}

/// A handler that has not begun.
pub type Handler = Pin<Box<dyn Future<Output = Answer>>>;

/// The value or error that a handler returned, not yet bytes.
pub struct Answer(pub(crate) Given);

pub(crate) enum Given {
    Value(Box<dyn Encode>),
    Failure(Failure, String),
}

pub(crate) trait Encode {
    /// Appends the value.
    fn encode(&self, codec: Codec, into: &mut Vec<u8>) -> Result<(), String>;

    /// Whether the value is the service's error.
    fn is_error(&self) -> bool {
        false
    }
}

struct Value<T>(T);
struct Outcome<T, E>(Result<T, E>);

impl<T: Serialize> Encode for Value<T> {
    fn encode(&self, codec: Codec, into: &mut Vec<u8>) -> Result<(), String> {
        codec.write(&self.0, into)
    }
}

impl<T: Serialize, E: Serialize> Encode for Outcome<T, E> {
    fn encode(&self, codec: Codec, into: &mut Vec<u8>) -> Result<(), String> {
        match &self.0 {
            Ok(value) => codec.write(value, into),
            Err(error) => codec.write(error, into),
        }
    }

    fn is_error(&self) -> bool {
        self.0.is_err()
    }
}

impl Answer {
    /// The answer of a method that returns a value.
    pub fn value<T: Serialize + 'static>(value: T) -> Self {
        Self(Given::Value(Box::new(Value(value))))
    }

    /// The answer of a method that returns a `Result`.
    pub fn result<T: Serialize + 'static, E: Serialize + 'static>(result: Result<T, E>) -> Self {
        Self(Given::Value(Box::new(Outcome(result))))
    }

    /// Refuses the call, as for want of a permission: the caller gets [`CallFailure::Refused`] with
    /// this text.
    pub fn refused(why: impl Into<String>) -> Self {
        Self(Given::Failure(Failure::Refused, why.into()))
    }

    /// Whether the caller gets an error: the service's own, or a refusal. For interceptors that
    /// count or log.
    pub fn is_error(&self) -> bool {
        match &self.0 {
            Given::Value(value) => value.is_error(),
            Given::Failure(..) => true,
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

/// A `Result`, in parts. For the code that `#[pikake::service]` writes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is written as a `Result`, and is none",
    note = "the attribute `service` takes a type of this name for `Result`, so that an error reaches callers as `Error::Service`"
)]
pub trait Returned {
    /// The type of the value.
    type Value;
    /// The type of the error.
    type Error;
}

impl<T, E> Returned for Result<T, E> {
    type Value = T;
    type Error = E;
}

/// The answer of a call, at the client.
#[derive(Debug)]
pub struct Answered {
    pub(crate) method: &'static str,
    pub(crate) peer: Rc<str>,
    pub(crate) codec: Codec,
    pub(crate) flags: u8,
    pub(crate) body: Vec<u8>,
}

impl Answered {
    /// The value of a method that returns a value.
    ///
    /// # Errors
    ///
    /// Why the answer is no such value.
    pub fn value<T: for<'de> Deserialize<'de>>(self) -> Result<T, CallError> {
        match self.flags & ERROR {
            0 => self.read(),
            _ => Err(self.misread("an error, of a method that has none".to_owned())),
        }
    }

    /// The result of a method that returns a `Result`.
    ///
    /// # Errors
    ///
    /// The service's error; why the answer is no such result.
    pub fn result<T, E>(self) -> Result<T, Error<E>>
    where
        // Not `DeserializeOwned`: so the compiler says what to derive.
        T: for<'de> Deserialize<'de>,
        E: for<'de> Deserialize<'de>,
    {
        match self.flags & ERROR {
            0 => self.read().map_err(Error::Call),
            _ => Err(match self.read() {
                Ok(error) => Error::Service(error),
                Err(error) => Error::Call(error),
            }),
        }
    }

    fn read<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        self.codec.read(&self.body).map_err(|text| self.misread(text))
    }

    fn misread(&self, text: String) -> CallError {
        self.error(CallFailure::Answer(text), Executed::Yes)
    }

    fn error(&self, failure: CallFailure, executed: Executed) -> CallError {
        CallError { method: self.method, peer: self.peer.to_string(), failure, executed }
    }

    /// The answer, unless it is a failure.
    pub(crate) fn check(self) -> Result<Self, CallError> {
        if self.flags & FAILURE == 0 {
            return Ok(self);
        }
        let code = self.body.first().and_then(|&number| Failure::from_number(number));
        let text = String::from_utf8_lossy(self.body.get(1..).unwrap_or_default()).into_owned();
        let failure = match code {
            Some(Failure::UnknownMethod) => CallFailure::UnknownMethod,
            Some(Failure::Arguments) => CallFailure::Arguments(text),
            Some(Failure::Overloaded) => CallFailure::Overloaded,
            Some(Failure::ShuttingDown) => CallFailure::ShuttingDown,
            Some(Failure::Refused) => CallFailure::Refused(text),
            Some(Failure::Panicked) => CallFailure::Panicked,
            Some(Failure::Answer) => CallFailure::Answer(text),
            // A server that is newer knows other failures.
            Some(Failure::Ended) | None => CallFailure::Ended(text),
        };
        let executed = if self.flags & BEGUN == 0 { Executed::No } else { Executed::Yes };
        Err(self.error(failure, executed))
    }
}
