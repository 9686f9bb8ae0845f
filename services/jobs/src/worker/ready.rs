//! A job whose arguments have been read, and that has not begun.
//!
//! Reading them is a step of its own because of early acknowledgement (`settle.rs`): a job with
//! wrong arguments is buried, and an acknowledged message cannot be.

use std::any::Any;

use crate::completion::Returned;
use crate::current::{Current, CurrentJob};
use crate::job::Runner;
use crate::options::Acks;
use crate::wire::arguments::WrongArguments;
use crate::wire::request::Request;
use crate::worker::body::{Body, fence};
use crate::worker::ended::Ended;

pub(crate) enum Ready {
    Task(Body<Returned>),
    Thread(Box<dyn FnOnce() -> Returned + Send>),
    /// The process reads the arguments.
    Process,
    /// The element of a batch.
    Batch(Box<dyn Any>),
}

impl Ready {
    pub(crate) fn read(
        runner: Runner,
        acks: Acks,
        job: &CurrentJob,
        request: &Request<'_>,
    ) -> Result<Self, Ended> {
        match runner {
            Runner::Task(read) => read_arguments(job, request, read)
                .map(|future| Self::Task(Body::new(future, Current::Job(job.clone())))),
            Runner::Thread(read) => read_arguments(job, request, read).map(Self::Thread),
            Runner::Process(read) if acks == Acks::Early => {
                read_arguments(job, request, read).map(|_| Self::Process)
            }
            Runner::Process(_) => Ok(Self::Process),
            Runner::Batch(batch) => read_arguments(job, request, batch.read).map(Self::Batch),
        }
    }
}

/// Reads the arguments, by the job's own types, whose code may panic.
fn read_arguments<T>(
    job: &CurrentJob,
    request: &Request<'_>,
    read: fn(&str, &str) -> Result<T, WrongArguments>,
) -> Result<T, Ended> {
    match fence(Current::Job(job.clone()), || read(request.args, request.kwargs)) {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(wrong)) => Err(Ended::WrongArguments(wrong.to_string())),
        Err(panic) => Err(Ended::Panicked(panic)),
    }
}
