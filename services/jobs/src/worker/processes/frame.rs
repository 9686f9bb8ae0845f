//! What a worker and its processes say to each other: a length of four bytes, little-endian, then
//! that much JSON.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::completion::Completion;
use crate::current::{NextRetry, Sent};
use crate::wire::failure::Failure;

/// A job for a process. No frame of ours is longer; a longer one means that somebody else writes
/// there.
const LONGEST: usize = 1 << 30;
pub(crate) const HEAD: usize = 4;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) job: String,
    pub(crate) id: String,
    pub(crate) queue: String,
    pub(crate) root_id: String,
    pub(crate) retries: u32,
    pub(crate) max_retries: u32,
    pub(crate) attempt: u32,
    pub(crate) replacements: u32,
    pub(crate) headers: Map<String, Value>,
    pub(crate) sent: Sent,
    pub(crate) args: String,
    pub(crate) kwargs: String,
}

/// What a process says of its job.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    Progress(Value),
    Done(Done),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) what: What,
    pub(crate) next_retry: NextRetry,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum What {
    Returned(Completion),
    Failed(Failure),
    Panicked(String),
    WrongArguments(String),
}

pub(crate) fn write<T: Serialize>(what: &T) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; HEAD];
    serde_json::to_writer(&mut frame, what)?;
    let length =
        u32::try_from(frame.len() - HEAD).ok().filter(|length| *length as usize <= LONGEST);
    let length =
        length.ok_or_else(|| io::Error::other("arguments or a value of more than 1 GiB"))?;
    frame[..HEAD].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// How long the body behind a head is.
pub(crate) fn length(head: [u8; HEAD]) -> io::Result<usize> {
    let length = u32::from_le_bytes(head) as usize;
    match length <= LONGEST {
        true => Ok(length),
        false => Err(io::Error::other("no frame of a worker process")),
    }
}
