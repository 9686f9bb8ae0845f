//! tokio, with pikake's kernel as its runtime: every wait is a trap.
//!
//! For libraries that require tokio. A program names this package in `[patch.crates-io]`, and its
//! libraries then use the sockets, timers, tasks and helper threads of the kernel that polls them.
//! Listings show their waits, and the simulator runs them.
//!
//! The files are tokio's own, unpacked and unchanged, but for its module `runtime`, a few files
//! beside it that need a runtime, and the crate `mio`: those are in this folder. So the semantics
//! are tokio's: a dropped future is dropped, and a `JoinHandle` detaches. `spawn` demands `Send`.
//! It starts a task of the current kernel, which stays on its thread.
/// Modules that are tokio's files. (In a macro, so that formatters leave them alone.)
macro_rules! tokio_files {
    ($($path:tt $visible:vis mod $name:ident;)*) => {
        $(
            #[allow(
                clippy::all, dead_code, unused_imports, unused_macros, unreachable_pub, rustdoc::all,
                reason = "the file is tokio's"
            )]
            #[path = $path]
            $visible mod $name;
        )*
    };
}

#[rustfmt::skip]
#[allow(clippy::all, unused_macros, unused_imports, dead_code, reason = "the file is tokio's")]
#[macro_use]
#[doc(hidden)]
#[path = "../../../target/tokio-source/src/macros/mod.rs"]
pub mod macros;

tokio_files! {
    "../../../target/tokio-source/src/blocking.rs" mod blocking;
    "../../../target/tokio-source/src/fs/mod.rs" pub mod fs;
    "../../../target/tokio-source/src/future/mod.rs" mod future;
    "../../../target/tokio-source/src/io/mod.rs" pub mod io;
    "../../../target/tokio-source/src/loom/mod.rs" mod loom;
    "../../../target/tokio-source/src/process/mod.rs" pub mod process;
    "../../../target/tokio-source/src/signal/mod.rs" pub mod signal;
    "../../../target/tokio-source/src/sync/mod.rs" pub mod sync;
    "../../../target/tokio-source/src/util/mod.rs" mod util;
}

pub mod net;
pub mod runtime;
pub mod task;
pub mod time;

pub use task::spawn;

/// Tokio's hooks for dumps of tasks, which the kernel's listings replace.
mod trace {
    use std::task::{Context, Poll};

    #[inline(always)]
    pub(crate) fn trace_leaf(_: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    pub(crate) async fn async_trace_leaf() {}
}

#[cfg(feature = "macros")]
pub use tokio_macros::{main, test};
#[cfg(feature = "macros")]
#[doc(hidden)]
pub use tokio_macros::{select_priv_clean_pattern, select_priv_declare_output_enum};
