//! The cases of interruption with the calls of the model, which predicts the events of each case.

/// The model, under the names of pikake.
mod pikake {
    pub(crate) use crate::model::*;

    pub(crate) mod traps {
        pub(crate) use crate::model::{WaitQueue, elapse, park};
    }

    pub(crate) mod time {
        /// The time in ticks of the model.
        pub(crate) fn now() -> u64 {
            crate::model::now().expect("inside a run").as_nanos().try_into().expect("a short run")
        }
    }
}

mod runner {
    pub(crate) use crate::model::{named, spawn_eagerly};
    pub(crate) use crate::runner::{Runner, World, describe, ms, next_step, poll_once};

    /// Declares the tests of the cases of a file that need no sockets.
    macro_rules! on_every_kernel {
        (by_one_seed { $($case:ident)* }) => {
            // The case is too large for a model that scans its lists.
            const _: &[fn()] = &[$($case::<crate::runner::Modelled>),*];
        };
        ($($order:ident { $($case:ident)* })*) => {
            mod modelled {
                $($(#[test] fn $case() { super::$case::<crate::runner::Modelled>(); })*)*
            }
        };
    }
    pub(crate) use on_every_kernel;
}

macro_rules! cases {
    ($($file:literal $module:ident)*) => {
        $(
            #[expect(clippy::duplicate_mod, reason = "the same cases, with other calls")]
            #[path = $file]
            mod $module;
        )*
    };
}

cases! {
    "cleanup.rs" cleanup
    "uninterruptible.rs" uninterruptible
    "decided.rs" decided
    "first_drafts.rs" first_drafts
    "moves.rs" moves
    "causes.rs" causes
    "eager.rs" eager
}
