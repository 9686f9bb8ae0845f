//! An object that lives in a thread of its own, where its methods may block.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pikake_traps::{
    Blocking, BlockingCall, CallQueue, CancelFlag, Interrupted, TaskError, blocking_on,
    catch_and_log, start_thread,
};

/// An object whose methods block, in a thread of its own: a connection to a database, a file, a
/// device.
///
/// The object is made in the thread, used there and dropped there, so it need not be `Send`. The
/// thread is not one of the kernel's helper threads, and counts for no limit. The proxy may be shared
/// by tasks, also of several kernels; calls are made one at a time, in the order of their first
/// polls.
///
/// When the proxy is dropped no further call is taken. The calls that are waited for are made, then
/// the object is dropped and the thread ends. Nobody waits for that, neither the drop nor a kernel
/// that ends; [`close`](Self::close) does.
///
/// # A call that panics
///
/// The panic is reported to the caller. The object stays as the call has left it, and further calls
/// are made on it; who cannot rely on it after that drops the proxy.
///
/// # Examples
///
/// ```no_run
/// # struct Database;
/// # impl Database {
/// #     fn open(path: &str) -> std::io::Result<Self> { Ok(Self) }
/// #     fn count(&mut self, table: &str) -> std::io::Result<u64> { Ok(1) }
/// # }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use pikake_task::ThreadProxy;
///
/// let database = ThreadProxy::open(|| Database::open("shop.db")).await??;
/// let orders = database.call(|database| database.count("orders")).await??;
/// println!("{orders} orders");
/// database.close().await?;
/// # Ok(()) }
/// ```
#[must_use = "a proxy that is dropped ends its thread"]
pub struct ThreadProxy<T: 'static> {
    queue: Arc<Queue<T>>,
}

struct Queue<T: 'static> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T: 'static> {
    calls: CallQueue<Option<T>>,
    is_busy: bool,
    is_closed: bool,
}

impl<T: 'static> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No call runs under the lock, so a poisoned one is whole all the same.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a call, perhaps as the last one; dropped, it tells its caller.
    fn push(&self, call: BlockingCall<Option<T>>, is_last: bool) {
        let mut state = self.lock();
        if state.is_closed {
            drop(state);
            drop(call);
            return;
        }
        let unwanted = state.calls.push(call);
        state.is_closed = is_last;
        drop(state);
        self.changed.notify_one();
        drop(unwanted);
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// The next call; `None` when there will be no more.
    fn next(&self) -> Option<BlockingCall<Option<T>>> {
        let mut state = self.lock();
        state.is_busy = false;
        loop {
            if let Some(call) = state.calls.pop() {
                state.is_busy = true;
                return Some(call);
            }
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The life of the thread.
    fn serve(&self, mut object: Option<T>) {
        while let Some(mut call) = self.next() {
            // The call reports a panic by itself; what is left is the drop of a result that nobody
            // wants any more, and the wakers of others.
            catch_and_log("a call of an object in a thread", || call.run_on(&mut object));
            catch_and_log("the reply to a call of an object in a thread", || drop(call));
        }
        catch_and_log("the drop of an object in a thread", || drop(object));
    }
}

impl<T: 'static> ThreadProxy<T> {
    /// Starts a thread for an object that is there already.
    ///
    /// # Errors
    ///
    /// The system's, when no thread can be started, or `Unsupported` in a simulation, which has none;
    /// the object is dropped.
    pub fn new(object: T) -> io::Result<Self>
    where
        T: Send,
    {
        Self::start(|| Some(object))
    }

    /// Starts a thread and makes the object there.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The closure, if it has started, runs to its end in its thread, and
    /// what it has made is dropped there. The same when this is dropped.
    ///
    /// # Errors
    ///
    /// Inside, what the closure returned. Outside, [`TaskError`]: the wait was interrupted, the
    /// closure panicked, or no thread could be started (`Cancelled`, with the system's reason).
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    #[track_caller]
    pub fn open<M, E>(make: M) -> impl Future<Output = Result<Result<Self, E>, TaskError>>
    where
        M: FnOnce() -> Result<T, E> + Send + 'static,
        E: Send + 'static,
    {
        let place = Location::caller();
        async move {
            let proxy = Self::start(|| None).map_err(|error| {
                let why = format!("no thread could be started: {error}");
                TaskError::Cancelled(Interrupted::cancelled(&why))
            })?;
            let made = proxy.submit(false, |object, _| make().map(|made| *object = Some(made)));
            match made.awaited_at(place).await? {
                Ok(()) => Ok(Ok(proxy)),
                Err(error) => Ok(Err(error)),
            }
        }
    }

    fn start(object: impl FnOnce() -> Option<T> + Send + 'static) -> io::Result<Self> {
        let state = State { calls: CallQueue::default(), is_busy: false, is_closed: false };
        let queue = Arc::new(Queue { state: Mutex::new(state), changed: Condvar::new() });
        let inside = queue.clone();
        start_thread("pikake-proxy", move || inside.serve(object()))?;
        Ok(Self { queue })
    }

    /// Calls a closure with the object, in its thread, after the calls that came before.
    ///
    /// # Cancellation
    ///
    /// As for [`blocking`](pikake_traps::blocking): an interruption point, always. A call whose turn
    /// has not come is not made; one that was begun runs to its end, and those behind it wait for
    /// that. [`Blocking::on_cancel`] can make it return early, as can the flag of
    /// [`call_with`](Self::call_with).
    ///
    /// # Errors
    ///
    /// [`TaskError::Interrupted`]; [`TaskError::Panicked`] with what the closure panicked with;
    /// [`TaskError::Cancelled`] when the proxy was gone at the first poll.
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    #[track_caller]
    pub fn call<F, R>(&self, work: F) -> Blocking<R>
    where
        F: FnOnce(&mut T) -> R + Send + 'static,
        R: Send + 'static,
    {
        self.call_with(|object, _| work(object))
    }

    /// As [`call`](Self::call), with a flag that tells the closure when nobody waits for it any more.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Panics
    ///
    /// As [`call`](Self::call).
    #[track_caller]
    pub fn call_with<F, R>(&self, work: F) -> Blocking<R>
    where
        F: FnOnce(&mut T, &CancelFlag) -> R + Send + 'static,
        R: Send + 'static,
    {
        self.submit(false, |object, cancel| {
            let object = object.as_mut().expect("nobody has the proxy before there is an object");
            work(object, cancel)
        })
    }

    /// Waits until the calls that came before have been made and the object has been dropped.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted or dropped, it is the drop of the proxy.
    ///
    /// # Errors
    ///
    /// [`TaskError::Interrupted`]; [`TaskError::Panicked`] if the drop of the object panicked.
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    #[track_caller]
    pub fn close(self) -> impl Future<Output = Result<(), TaskError>> {
        let closed = self.submit(true, |object, _| drop(object.take()));
        async move {
            let _until_then = self;
            closed.await
        }
    }

    #[track_caller]
    fn submit<F, R>(&self, is_last: bool, work: F) -> Blocking<R>
    where
        F: FnOnce(&mut Option<T>, &CancelFlag) -> R + Send + 'static,
        R: Send + 'static,
    {
        let queue = self.queue.clone();
        blocking_on(move |call| queue.push(call, is_last), work)
    }
}

impl<T: 'static> Drop for ThreadProxy<T> {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl<T: 'static> fmt::Debug for ThreadProxy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (is_busy, waiting) = {
            let state = self.queue.lock();
            (state.is_busy, state.calls.wanted())
        };
        f.debug_struct("ThreadProxy").field("is_busy", &is_busy).field("waiting", &waiting).finish()
    }
}
