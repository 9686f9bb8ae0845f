//! Ids and errors of tasks: tokio's.

tokio_files! {
    "../../../../target/tokio-source/src/runtime/task/error.rs" mod error;
    "../../../../target/tokio-source/src/runtime/task/id.rs" mod id;
}

pub use error::JoinError;
pub use id::{id, try_id, Id};
