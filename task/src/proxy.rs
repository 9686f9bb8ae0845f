//! A proxy for an object in a thread of its own, where the object's methods may block.

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
/// thread is no helper thread of the kernel, and counts against no limit. Tasks may share the
/// proxy, also tasks of several kernels. The thread makes one call at a time, in the order of their
/// first polls.
///
/// The drop of the proxy refuses further calls. The thread makes the calls that tasks wait for,
/// drops the object and ends. [`close`](Self::close) waits for that; the drop and the end of a
/// kernel do not.
///
/// # A call that panics
///
/// The panic is reported to the caller. The object stays as the call has left it, and the thread
/// makes further calls. A program that cannot rely on the object then drops the proxy.
///
/// # Examples
///
/// ```
/// # struct Database;
/// # impl Database {
/// #     fn open(path: &str) -> std::io::Result<Self> { Ok(Self) }
/// #     fn count(&mut self, table: &str) -> std::io::Result<u64> { Ok(1) }
/// # }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use pikake::thread::ThreadProxy;
///
/// let database = ThreadProxy::open(|| Database::open("shop.db")).await??;
/// let orders = database.call(|database| database.count("orders")).await??;
/// println!("{orders} orders");
/// database.close().await?;
/// # Ok(()) }
/// # pikake::run(example()).unwrap();
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
        // No call runs under the lock, so the state behind a poisoned lock is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a call, perhaps as the last one. The drop of a refused call ends its caller's wait.
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

    /// The loop of the thread.
    fn serve(&self, mut object: Option<T>) {
        while let Some(mut call) = self.next() {
            // The call replies with a panic of its closure. The drop of an unwanted result may
            // panic, too, and so may the waker that the reply calls.
            catch_and_log("a call of an object in a thread", || call.run_on(&mut object));
            catch_and_log("the reply to a call of an object in a thread", || drop(call));
        }
        catch_and_log("the drop of an object in a thread", || drop(object));
    }
}

impl<T: 'static> ThreadProxy<T> {
    /// Starts a thread, and moves an object there.
    ///
    /// # Errors
    ///
    /// The system's, when no thread can be started, or `Unsupported` in a simulation, which has no
    /// threads; the object is dropped.
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
    /// An interruption point. If an interruption or a drop ends the wait, a closure that has
    /// started runs to its end in its thread, which drops the object.
    ///
    /// # Errors
    ///
    /// The inner error is the closure's. The outer one is [`TaskError`]: the wait was interrupted,
    /// the closure panicked, or no thread could be started (`Cancelled`, with the system's reason).
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
    /// As for [`blocking`](pikake_traps::blocking): always an interruption point. A queued call is
    /// then not made. A call that has started runs to its end before the next one starts.
    /// [`Blocking::on_cancel`] or the flag of [`call_with`](Self::call_with) can make such a call
    /// return early.
    ///
    /// # Errors
    ///
    /// [`TaskError::Interrupted`]; [`TaskError::Panicked`] with the closure's panic;
    /// [`TaskError::Cancelled`] when the proxy was dropped before the first poll.
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

    /// As [`call`](Self::call), with a flag that shows the closure when no task waits for its
    /// result any more.
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
            let object = object.as_mut().expect("a proxy is returned after its object is made");
            work(object, cancel)
        })
    }

    /// Waits until all earlier calls have been made and the object has been dropped.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interruption, or a drop of the call, drops the proxy.
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
            let _proxy = self;
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
