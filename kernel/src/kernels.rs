//! More than one core: kernels on threads of their own, which wait for work.
//!
//! A kernel never leaves its thread, and neither do its tasks. What crosses is a closure that makes
//! a future where it is to run ([`KernelHandle::spawn`], [`KernelHandle::call`]). Connections are
//! spread by the system: each kernel has a listener of its own at the same address
//! (`TcpListener::bind_shared`).

use std::cell::RefCell;
use std::fmt;
use std::future::pending;
use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use pikake_traps::{KernelHandle, future_wait};

use crate::Kernel;

/// Kernels on threads of their own, which wait for work until this is dropped.
///
/// `#[pikake::main(threads = N)]` starts all but the first of N, and [`other_kernels`] has their
/// handles.
///
/// # Examples
///
/// ```
/// use pikake_kernel::Kernels;
///
/// let sum = pikake_kernel::run(async {
///     let kernels = Kernels::start(2)?;
///     let mut sum = 0;
///     for (kernel, number) in kernels.handles().iter().zip([40, 2]) {
///         // Made there, so it need not be `Send`; only what it is made of, and its result.
///         sum += kernel.call(move || async move { number }).await.unwrap();
///     }
///     Ok::<_, std::io::Error>(sum)
/// })?;
/// assert_eq!(sum, 42);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Kernels {
    running: Vec<(KernelHandle, Option<JoinHandle<()>>)>,
}

impl Kernels {
    /// Starts so many.
    ///
    /// # Errors
    ///
    /// The process is out of threads or descriptors.
    pub fn start(count: usize) -> io::Result<Self> {
        let mut kernels = Self { running: Vec::new() };
        for number in 0..count {
            let (sender, receiver) = mpsc::channel();
            let thread = thread::Builder::new().name(format!("pikake-{}", number + 1));
            let thread = thread.spawn(move || wait_for_work(&sender))?;
            let handle =
                receiver.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
            kernels.running.push((handle, Some(thread)));
        }
        Ok(kernels)
    }

    /// Where to send work.
    pub fn handles(&self) -> Vec<KernelHandle> {
        self.running.iter().map(|(handle, _)| handle.clone()).collect()
    }
}

/// Asks all of them to end at once, as a kernel's shutdown does, and waits for their threads.
impl Drop for Kernels {
    fn drop(&mut self) {
        for (handle, _) in &self.running {
            // One that has ended needs no asking.
            let _ = handle.shutdown();
        }
        for (_, thread) in &mut self.running {
            if let Some(Err(_)) = thread.take().map(JoinHandle::join) {
                tracing::error!("the thread of a kernel ended by a panic, which it has reported");
            }
        }
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.running.iter().map(|(handle, _)| handle.id())).finish()
    }
}

fn wait_for_work(ready: &mpsc::Sender<io::Result<KernelHandle>>) {
    let kernel = match Kernel::builder().name("waits for work").build() {
        Ok(kernel) => kernel,
        Err(error) => return drop(ready.send(Err(error))),
    };
    if ready.send(Ok(kernel.handle())).is_ok() {
        // It ends when it is told to, by a shutdown, after all the others.
        drop(kernel.try_run(async { future_wait(pending::<()>()).await.unwrap_or_default() }));
    }
    kernel.shutdown();
}

thread_local! {
    static OTHERS: RefCell<Option<Kernels>> = const { RefCell::new(None) };
}

/// The kernels that `#[pikake::main(threads = N)]` has started beside that of `main`, N - 1 of them.
///
/// Asked on the thread of `main`. Elsewhere, and without that option, there are none; a handle may
/// be sent wherever it is needed.
pub fn other_kernels() -> Vec<KernelHandle> {
    OTHERS.with_borrow(|others| others.as_ref().map(Kernels::handles).unwrap_or_default())
}

/// Ends those of [`with_threads`], once; to be called where the process will not get to the end of
/// that.
pub fn end_other_kernels() {
    drop(OTHERS.take());
}

/// Runs something on this thread, with so many threads in all.
///
/// # Panics
///
/// With that of `work`; when the process is out of threads or descriptors.
#[track_caller]
pub fn with_threads<R>(threads: usize, work: impl FnOnce() -> R) -> R {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            end_other_kernels();
        }
    }

    let kernels = Kernels::start(threads.saturating_sub(1))
        .unwrap_or_else(|error| panic!("{threads} kernels cannot be started: {error}"));
    OTHERS.set(Some(kernels));
    let _end = End;
    work()
}
