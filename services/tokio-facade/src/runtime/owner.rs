//! A runtime that a program makes: a kernel on the thread that made it.

use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::panic::{Location, RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;

use pikake_kernel::Kernel;

use super::builder::Builder;
use super::clock::PausableClock;
use super::handle::{EnterGuard, Handle, RuntimeMetrics};
use super::kernels::{self, Owned};
use super::task::{self, JoinHandle};

/// A kernel, which runs while a call of [`block_on`](Self::block_on) does.
#[derive(Debug)]
pub struct Runtime {
    handle: Handle,
    is_dropped: Arc<AtomicBool>,
    /// How long the drop waits for writes to files; `None` is for as long as they take.
    patience: Option<Duration>,
}

impl UnwindSafe for Runtime {}
impl RefUnwindSafe for Runtime {}

impl Runtime {
    /// A runtime of one thread.
    ///
    /// # Errors
    ///
    /// The system's, as when the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Builder::new_multi_thread().enable_all().build()
    }

    pub(super) fn open(builder: &Builder) -> io::Result<Self> {
        let mut kernel = Kernel::builder().clock(PausableClock::new(builder.starts_paused));
        if let Some(threads) = builder.helper_threads {
            kernel = kernel.helper_threads(threads);
        }
        if let Some(length) = builder.keep_alive {
            kernel = kernel.helper_idle_exit(length);
        }
        let kernel = kernel.build()?;
        let name = builder.name.clone();
        let handle = Handle { kernel: kernel.handle(), name: name.clone() };
        let id = handle.kernel.id();
        let (awaited, awaits) = mpsc::channel();
        let is_dropped = Arc::<AtomicBool>::default();
        let owned = Owned { kernel, id, name, is_dropped: is_dropped.clone(), awaited, awaits };
        kernels::add(owned);
        Ok(Self { handle, is_dropped, patience: None })
    }

    /// Runs a future until it ends, and all tasks of the kernel beside it. On another thread than
    /// that which made the runtime, as [`Handle::block_on`], without its tasks.
    ///
    /// # Panics
    ///
    /// With the panic of the future; inside a kernel.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.handle.block_on(future)
    }

    /// The runtime's handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// See [`Handle::spawn`].
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle.spawn(future)
    }

    /// See [`Handle::spawn_blocking`].
    #[track_caller]
    pub fn spawn_blocking<F, R>(&self, work: F) -> JoinHandle<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.handle.spawn_blocking(work)
    }

    /// See [`Handle::enter`].
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// Ends the runtime. Of closures on helper threads, only writes to files are waited for, and
    /// not longer than this.
    pub fn shutdown_timeout(mut self, length: Duration) {
        self.patience = Some(length);
    }

    /// Ends the runtime, and waits for nothing.
    pub fn shutdown_background(self) {
        self.shutdown_timeout(Duration::ZERO);
    }

    /// See [`Handle::metrics`].
    pub fn metrics(&self) -> RuntimeMetrics {
        self.handle.metrics()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        match kernels::take(self.handle.kernel.id()) {
            // Drops its tasks, with nothing borrowed. A runtime that runs ends with the run.
            Some(owned) => {
                if let Some(owned) = Rc::into_inner(owned) {
                    owned.end(self.patience);
                }
            }
            // Of another thread: its kernel ends when that makes or runs a runtime, or ends.
            None => {
                self.is_dropped.store(true, Ordering::Release);
                let _ = self.handle.kernel.stop();
            }
        }
    }
}

impl Handle {
    /// Runs a future on this thread: in the kernel of the handle, if a runtime on this thread has
    /// it. Else in another kernel: what the future opens or sets waits there, and what it spawns is
    /// the handle's.
    ///
    /// # Panics
    ///
    /// With the panic of the future; inside a kernel; if the process is out of descriptors.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        kernels::assert_outside();
        drop(kernels::take_dropped());
        if let Some(owned) = kernels::find(self.kernel.id()) {
            return kernels::run(&owned.kernel, future);
        }
        let beside = kernels::beside();
        let _entered = self.enter();
        kernels::run(&beside, future)
    }
}

impl Builder {
    /// Makes the runtime, on this thread.
    ///
    /// # Errors
    ///
    /// The system's, as when the process is out of descriptors.
    pub fn build(&mut self) -> io::Result<Runtime> {
        Runtime::open(self)
    }

    /// Makes a runtime for futures that are not `Send`, on this thread.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    pub fn build_local(&mut self, _: LocalOptions) -> io::Result<LocalRuntime> {
        self.build().map(LocalRuntime::around)
    }
}

/// A runtime that starts futures that are not `Send`, as each kernel can.
#[derive(Debug)]
pub struct LocalRuntime {
    runtime: Runtime,
    thread: PhantomData<*const ()>,
}

/// The options of a [`LocalRuntime`]: none yet.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LocalOptions {}

impl LocalRuntime {
    /// A runtime of one thread.
    ///
    /// # Errors
    ///
    /// The system's, as when the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
    }

    pub(super) fn around(runtime: Runtime) -> Self {
        Self { runtime, thread: PhantomData }
    }

    /// See [`Runtime::handle`].
    pub fn handle(&self) -> &Handle {
        self.runtime.handle()
    }

    /// Starts a task whose future need not be `Send`.
    #[track_caller]
    pub fn spawn_local<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let owned =
            kernels::find(self.runtime.handle.kernel.id()).expect("the runtime is on its thread");
        let place = Location::caller();
        if self.runtime.handle.is_here() {
            return task::spawn_here(future, place);
        }
        owned
            .kernel
            .enter(|| task::spawn_here(future, place))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// See [`Runtime::spawn_blocking`].
    #[track_caller]
    pub fn spawn_blocking<F, R>(&self, work: F) -> JoinHandle<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.runtime.spawn_blocking(work)
    }

    /// See [`Runtime::block_on`].
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// See [`Runtime::enter`].
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// See [`Runtime::shutdown_timeout`].
    pub fn shutdown_timeout(self, length: Duration) {
        self.runtime.shutdown_timeout(length);
    }

    /// See [`Runtime::shutdown_background`].
    pub fn shutdown_background(self) {
        self.runtime.shutdown_background();
    }

    /// See [`Handle::metrics`].
    pub fn metrics(&self) -> RuntimeMetrics {
        self.runtime.metrics()
    }
}
