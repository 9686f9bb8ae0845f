//! Several kernels, each on a thread of its own, for programs that use more than one core.
//!
//! A kernel never leaves its thread, and neither do its tasks. Another thread sends a closure,
//! which makes a future on the kernel's thread ([`KernelHandle::spawn`], [`KernelHandle::call`]).
//! The system distributes connections if each kernel has a listener at the same address
//! (`serve_on_all`, `TcpListener::bind_shared`).

use std::cell::RefCell;
use std::fmt;
use std::future::pending;
use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use pikake_traps::{KernelHandle, Peers, door, future_wait};

use crate::Kernel;

/// Kernels on threads of their own, which wait for work until this value is dropped.
///
/// The drop waits for the ends of the kernels. In a task it blocks the current kernel, so their
/// tasks cannot end before the grace of the shutdown if they wait for this kernel.
///
/// `#[pikake::main(threads = N)]` starts N - 1 of them beside the main kernel, and
/// [`other_kernels`] returns their handles.
///
/// # Examples
///
/// ```
/// use pikake::Kernels;
///
/// let sum = pikake::run(async {
///     let kernels = Kernels::start(2)?;
///     let mut sum = 0;
///     for (kernel, number) in kernels.handles().iter().zip([40, 2]) {
///         // The closure and its result are `Send`. The future need not be.
///         sum += kernel.call(move || async move { number }).await.unwrap();
///     }
///     Ok::<_, std::io::Error>(sum)
/// })?;
/// assert_eq!(sum, 42);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Kernels {
    running: Vec<(KernelHandle, Option<JoinHandle<()>>)>,
    peers: Peers,
}

impl Kernels {
    /// Starts `count` kernels; none if that is zero. They are each other's peers, and those of the
    /// current kernel, if there is one.
    ///
    /// # Errors
    ///
    /// The process is out of threads or descriptors.
    #[doc(alias("new_multi_thread", "worker_threads"))]
    pub fn start(count: usize) -> io::Result<Self> {
        let peers = Peers::current_or_new().unwrap_or_default();
        let mut kernels = Self { running: Vec::new(), peers };
        for number in 0..count {
            let (sender, receiver) = mpsc::channel();
            let peers = kernels.peers.clone();
            let thread = thread::Builder::new().name(format!("pikake-{}", number + 1));
            let thread = thread.spawn(move || run_waiting(&peers, &sender))?;
            let handle =
                receiver.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
            kernels.running.push((handle, Some(thread)));
        }
        Ok(kernels)
    }

    /// The handles of all kernels.
    pub fn handles(&self) -> Vec<KernelHandle> {
        self.running.iter().map(|(handle, _)| handle.clone()).collect()
    }
}

/// Asks all kernels to shut down at the same time, and waits for their threads.
impl Drop for Kernels {
    fn drop(&mut self) {
        for (handle, _) in &self.running {
            // The call fails for a kernel that has ended.
            let _ = handle.shutdown();
        }
        for (_, thread) in &mut self.running {
            if let Some(Err(_)) = thread.take().map(JoinHandle::join) {
                tracing::error!("the thread of a kernel panicked");
            }
        }
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.running.iter().map(|(handle, _)| handle.id())).finish()
    }
}

/// The name of the main task of a kernel that waits for work.
#[doc(hidden)]
pub const WAITS_FOR_WORK: &str = "waits for work";

/// The main task of a kernel that waits for work.
#[doc(hidden)]
pub async fn wait_for_work() {
    future_wait(pending::<()>()).await.unwrap_or_default();
}

fn run_waiting(peers: &Peers, ready: &mpsc::Sender<io::Result<KernelHandle>>) {
    let kernel = match Kernel::builder().name(WAITS_FOR_WORK).peers(peers).build() {
        Ok(kernel) => kernel,
        Err(error) => return drop(ready.send(Err(error))),
    };
    if ready.send(Ok(kernel.handle())).is_ok() {
        // A shutdown cancels the main task after all other tasks.
        drop(kernel.try_run(wait_for_work()));
    }
    kernel.shutdown();
}

thread_local! {
    static OTHERS: RefCell<Option<Kernels>> = const { RefCell::new(None) };
}

/// The other kernels of this program: those that belong to the current kernel, without itself.
///
/// For a task of `#[pikake::main(threads = N)]` these are the N - 1 other kernels, for a task of
/// [`Kernels`] the others of these, and for a task of a simulated host the host's other kernels. In
/// any other kernel the list is empty. Outside a kernel the list has the N - 1 kernels that
/// `#[pikake::main(threads = N)]` has started, on the thread of `main`. A handle may be sent to
/// another thread.
pub fn other_kernels() -> Vec<KernelHandle> {
    match door::is_open() {
        true => Peers::current().map(|peers| peers.others()).unwrap_or_default(),
        false => {
            OTHERS.with_borrow(|others| others.as_ref().map(Kernels::handles).unwrap_or_default())
        }
    }
}

/// The peers of a main kernel of this thread.
pub(crate) fn peers_of_main() -> Option<Peers> {
    OTHERS.with_borrow(|others| others.as_ref().map(|others| others.peers.clone()))
}

/// Ends the kernels of [`with_threads`]. For a program that exits the process before `with_threads`
/// returns.
pub fn end_other_kernels() {
    drop(OTHERS.take());
}

/// Calls a closure on this thread, beside `threads - 1` kernels on other threads.
///
/// # Panics
///
/// If `threads` is zero; when `work` panics, or the process is out of threads or descriptors.
#[track_caller]
pub fn with_threads<R>(threads: usize, work: impl FnOnce() -> R) -> R {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            end_other_kernels();
        }
    }

    assert!(threads > 0, "`threads = 0`: a program runs on one kernel at least");
    let kernels = Kernels::start(threads - 1)
        .unwrap_or_else(|error| panic!("{threads} kernels cannot be started: {error}"));
    OTHERS.set(Some(kernels));
    let _end = End;
    work()
}
