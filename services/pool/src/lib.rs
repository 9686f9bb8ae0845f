//! Pools of objects that cost something to make, and are never leaked, shared, dirty or dead.
//!
//! | for | use |
//! | --- | --- |
//! | connections or other objects of one kind | [`Pool`], with a [`Manager`] that makes and cleans them |
//! | other options than the default | [`Pool::builder`] |
//! | a pool for each host, or another key | [`Keyed`], with a [`KeyedManager`] |
//! | one limit for several pools, also of several kernels | [`Limit`] |
//! | who has the objects, and how many | [`Pool::holders`], [`Pool::stats`] |
//! | a warning of leases that are held for long | [`Builder::warn_if_held_for`] |
//! | to be rid of idle objects that went bad | [`Pool::retain`], [`Keyed::retain`] |
//!
//! # Examples
//!
//! ```
//! use pikake::net::TcpStream;
//! use pikake::pool::{Manager, Pool};
//! use std::io;
//!
//! /// Makes connections to a server of lines.
//! struct Lines(&'static str);
//!
//! impl Manager for Lines {
//!     type Object = TcpStream;
//!     type Error = io::Error;
//!
//!     async fn create(&self) -> io::Result<TcpStream> {
//!         TcpStream::connect(self.0).await
//!     }
//!
//!     /// Whatever the last user has sent or left unread: the server forgets it.
//!     async fn clean(&self, connection: &mut TcpStream) -> io::Result<()> {
//!         connection.write_all(b"reset\n").await?;
//!         let mut answer = [0; 3];
//!         connection.read_exact(&mut answer).await?;
//!         if &answer == b"ok\n" { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
//!     }
//! }
//!
//! # use pikake::net::TcpListener;
//! # async fn answer(stream: TcpStream) -> io::Result<()> {
//! #     let mut byte = [0];
//! #     loop {
//! #         stream.read_exact(&mut byte).await?;
//! #         if byte == *b"\n" { stream.write_all(b"ok\n").await?; }
//! #     }
//! # }
//! # async fn serve(listener: TcpListener) -> io::Result<()> {
//! #     loop { pikake::spawn(answer(listener.accept().await?.0)).detach(); }
//! # }
//! # pikake::sim::example(async {
//! # pikake::spawn(serve(TcpListener::bind("127.0.0.1:7000").await?)).detach();
//! let pool = Pool::new(Lines("127.0.0.1:7000"), 10);
//! for name in ["ann", "bob"] {
//!     let connection = pool.get().await?; // a new one, or one that came back and is clean
//!     connection.write_all(format!("hello {name}\n").as_bytes()).await?;
//!     let mut answer = [0; 3];
//!     connection.read_exact(&mut answer).await?;
//! }
//! assert_eq!(pool.stats().lent, 2);
//! # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! # Rules
//!
//! * **Callers are served in the order of asking.** An object that comes back goes to the first
//!   caller who waits, and so does a new one. No later caller overtakes.
//! * **A caller who goes away takes nothing along.** The pool makes, verifies, cleans and destroys
//!   objects in tasks of its own. So an interruption, a deadline or a drop of the caller reaches
//!   none of that. An object that was on its way to the caller goes to the next one.
//! * **What comes back is cleaned before anyone else gets it**, also if its holder was interrupted
//!   or panicked. An object that cannot be cleaned in [time](Builder::clean_within) is destroyed,
//!   so a connection whose peer is silent holds no place for ever.
//! * **Callers learn quickly that no object can be made.** If nothing is in use that could come
//!   back, a failed creation is the error of all callers who wait, and of those who ask before the
//!   next attempt. Otherwise they wait on, and the pool tries again at the pace of its
//!   [backoff](Builder::backoff).
//! * **Objects count until they are destroyed.** There are never more than the limit, not even for
//!   the moment in which one replaces another.
//! * **Nothing waits for ever unless told so.** A caller waits at most [`WAIT`]; the error names
//!   the holders. Listings of waits, as in the console, name them before.
//! * **At its kernel's end** a pool closes. What comes back within the kernel's grace is destroyed
//!   in order; what does not is dropped with its holder, and a warning names the holder.
//!
//! # Figures
//!
//! The [figures](pikake_traps::figures) of a kernel, which the console's metrics show, have those
//! of its pools. The label `pool` is the pool's name. Pools of one name are shown together, and so
//! are the pools of all keys of a [`Keyed`], under the name of the type of its manager.
//!
//! | figure | kind | labels | holds |
//! | --- | --- | --- | --- |
//! | `pikake_pool_objects` | gauge | `pool`, `state`: `idle`, `leased`, `creating`, `verifying`, `cleaning`, `destroying` | the objects |
//! | `pikake_pool_waiting_callers` | gauge | `pool` | the callers who wait for an object |
//! | `pikake_pool_leases` | counter | `pool` | the objects that were lent |
//! | `pikake_pool_gave_up` | counter | `pool` | the callers who gave up before they got an object |
//! | `pikake_pool_created`, `pikake_pool_added`, `pikake_pool_destroyed`, `pikake_pool_detached`, `pikake_pool_dead` | counter | `pool` | the objects that were made, added, destroyed, detached, or found dead without a verification |
//! | `pikake_pool_create_failures`, `pikake_pool_verify_failures`, `pikake_pool_clean_failures` | counter | `pool` | what failed |
//! | `pikake_pool_wait_time` | times | `pool` | the time that callers waited who got an object after a wait |
//!
//! A pool is for the tasks of one kernel. The chapter on pools in the book says which of the types
//! is right for several kernels, and how a manager is written.
#![forbid(unsafe_code)]

mod core;
mod error;
mod figures;
mod holder;
mod idle;
mod keeper;
mod keyed;
mod lease;
mod leases;
mod limit;
mod manager;
mod options;
mod pool;
mod stats;
mod ticket;
mod work;

pub use error::{AddError, CreateError, Exhausted, GetError, NotAdded};
pub use holder::Holder;
pub use keyed::{ForKey, Keyed, KeyedLease, KeyedManager};
pub use lease::Lease;
pub use limit::Limit;
pub use manager::Manager;
pub use options::{
    Builder, CLEAN_WITHIN, CREATE_WITHIN, CREATIONS, FIRST_BACKOFF, GREATEST_BACKOFF,
    MAX_IDLE_TIME, Reuse, Verify, WAIT,
};
pub use pool::{CloseReport, Pool};
pub use stats::Stats;
