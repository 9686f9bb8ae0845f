//! The settings of a runtime. Those that a kernel does not have are taken, and have no effect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Makes a [`Runtime`](super::Runtime).
pub struct Builder {
    pub(super) starts_paused: bool,
    pub(super) helper_threads: Option<usize>,
    pub(super) keep_alive: Option<Duration>,
    pub(super) name: Option<Arc<str>>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").finish_non_exhaustive()
    }
}

/// Methods for settings that a kernel does not have.
macro_rules! ignored {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            /// Has no effect on a kernel.
            pub fn $name(&mut self, $($argument: $type),*) -> &mut Self {
                $(let _ = $argument;)*
                self
            }
        )*
    };
}

impl Builder {
    /// A runtime of one thread.
    pub fn new_current_thread() -> Self {
        Self { starts_paused: false, helper_threads: None, keep_alive: None, name: None }
    }

    /// A runtime of one thread, too: a kernel is one thread.
    pub fn new_multi_thread() -> Self {
        Self::new_current_thread()
    }

    ignored! {
        enable_all();
        enable_io();
        enable_time();
        global_queue_interval(steps: u32);
        event_interval(steps: u32);
        max_io_events_per_tick(events: usize);
        max_io_events_per_busy_tick(events: usize);
        thread_name(name: impl Into<String>);
        thread_name_fn(name: impl Fn() -> String + Send + Sync + 'static);
        thread_stack_size(bytes: usize);
        on_thread_start(call: impl Fn() + Send + Sync + 'static);
        on_thread_stop(call: impl Fn() + Send + Sync + 'static);
        on_thread_park(call: impl Fn() + Send + Sync + 'static);
        on_thread_unpark(call: impl Fn() + Send + Sync + 'static);
    }

    /// A name, for [`Handle::name`](super::Handle::name).
    pub fn name(&mut self, name: impl Into<String>) -> &mut Self {
        self.name = Some(name.into().into());
        self
    }

    /// Has no effect on a kernel, which is one thread.
    ///
    /// # Panics
    ///
    /// If the number is zero.
    #[track_caller]
    pub fn worker_threads(&mut self, threads: usize) -> &mut Self {
        assert!(threads > 0, "Worker threads cannot be set to 0");
        self
    }

    /// The greatest number of helper threads.
    ///
    /// # Panics
    ///
    /// If the number is zero.
    #[track_caller]
    pub fn max_blocking_threads(&mut self, threads: usize) -> &mut Self {
        assert!(threads > 0, "Max blocking threads cannot be set to 0");
        self.helper_threads = Some(threads);
        self
    }

    /// The time after which an idle helper thread ends.
    pub fn thread_keep_alive(&mut self, length: Duration) -> &mut Self {
        self.keep_alive = Some(length);
        self
    }

    /// Whether the clock is paused from the start. See [`pause`](crate::time::pause).
    pub fn start_paused(&mut self, is_paused: bool) -> &mut Self {
        self.starts_paused = is_paused;
        self
    }
}
