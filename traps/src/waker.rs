//! A task's waker, and the wake that travels through the wake queue.
//!
//! A waker may be cloned, called and dropped on any thread, long after its task and its kernel. It
//! owns an atomic reference to the cell and touches nothing but the shared part of the header,
//! unless it finds itself inside the task's own kernel: then this is the home thread, and the
//! task is made ready directly.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{RawWaker, RawWakerVTable};

use crate::cell::{Header, release};
use crate::flags::Flags;
use crate::home::{Home, Message};
use crate::local::Local;
use crate::task_ref::TaskRef;

/// A wake on its way through the wake queue. It owns a reference to the task's cell.
pub struct RemoteWake {
    header: NonNull<Header>,
}

// SAFETY: through a `RemoteWake` other threads reach only `Shared`, which is `Sync`; `Own` is
// reached by `arrive` alone, which checks that it is on the home thread.
unsafe impl Send for RemoteWake {}

impl RemoteWake {
    /// The task to make ready, if it has not ended. For its kernel, on its own thread.
    ///
    /// From here on further wakes of the task are delivered anew.
    ///
    /// # Panics
    ///
    /// On a thread that is not inside the task's kernel.
    pub fn arrive(&self) -> Option<TaskRef> {
        // SAFETY: the reference that `self` owns keeps the cell alive.
        let shared = unsafe { &(*self.header.as_ptr()).shared };
        assert!(
            Local::try_with(|local| local.is_home(shared.home)) == Some(true),
            "a wake was taken out of the wake queue by someone else than its kernel (I5)"
        );
        // Read as well as written: what was done before the wake happens before the step it causes.
        shared.in_mail.swap(false, Ordering::SeqCst);
        // SAFETY: this is the home thread, as was just checked.
        let own = unsafe { &(*self.header.as_ptr()).own };
        if own.flags.has(Flags::ENDED) {
            return None;
        }
        // SAFETY: this is the home thread, and the task has not ended.
        Some(unsafe { TaskRef::of(self.header) })
    }
}

impl Drop for RemoteWake {
    fn drop(&mut self) {
        // SAFETY: the reference is owned, and given up here.
        unsafe { release(self.header) };
    }
}

impl fmt::Debug for RemoteWake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteWake")
    }
}

/// The functions of a task's waker. Its data is the pointer to the header, with one reference.
pub(crate) static WAKER: RawWakerVTable =
    RawWakerVTable::new(waker_clone, waker_wake, waker_ref, waker_drop);

/// Far more wakers than a task can use; a count that gets here comes from leaking them in a loop.
const MAX_REFS: u32 = i32::MAX.cast_unsigned();

/// # Safety
///
/// `data` is that of a waker of a task whose cell is live.
unsafe fn waker_clone(data: *const ()) -> RawWaker {
    // SAFETY: the caller's promise; only `shared` is looked at, on whatever thread.
    let shared = unsafe { &(*data.cast::<Header>()).shared };
    if shared.refs.fetch_add(1, Ordering::Relaxed) > MAX_REFS {
        std::process::abort();
    }
    RawWaker::new(data, &WAKER)
}

/// # Safety
///
/// As for [`waker_clone`]; the waker's reference is given up.
unsafe fn waker_wake(data: *const ()) {
    // SAFETY: the caller's promise.
    unsafe { waker_ref(data) };
    // SAFETY: the caller's promise.
    unsafe { waker_drop(data) };
}

/// # Safety
///
/// As for [`waker_clone`].
#[inline]
unsafe fn waker_ref(data: *const ()) {
    let header = NonNull::new(data.cast_mut().cast::<Header>()).expect("a waker's data is a cell");
    // SAFETY: the caller's promise; only `shared` is looked at, on whatever thread.
    let home = unsafe { (*header.as_ptr()).shared.home };
    let is_done = Local::try_with(|local| {
        let is_home = local.is_home(home);
        if is_home {
            // SAFETY: this is the home thread, as was just checked, and the caller keeps the cell
            // alive; a local count of zero is of a task that has ended, which is left alone.
            unsafe { local.wake_by_header(header) };
        }
        is_home
    });
    if is_done != Some(true) {
        // SAFETY: the caller's promise.
        unsafe { wake_from_elsewhere(header) };
    }
}

/// # Safety
///
/// The cell is live.
#[inline(never)]
unsafe fn wake_from_elsewhere(header: NonNull<Header>) {
    // SAFETY: the caller's promise; only `shared` is looked at, on whatever thread.
    let shared = unsafe { &(*header.as_ptr()).shared };
    if shared.in_mail.swap(true, Ordering::SeqCst) {
        return;
    }
    // SAFETY: the caller's promise; the clone's reference goes to the `RemoteWake`.
    let _ = unsafe { waker_clone(header.as_ptr().cast_const().cast()) };
    let wake = RemoteWake { header };
    // SAFETY: the pointer is that of an `Arc`, which lives: of the cells with a local side all share
    // a reference, and a cell without one has its own.
    unsafe { Arc::increment_strong_count(shared.home.as_ptr()) };
    // SAFETY: the reference that was just made.
    let home: Arc<Home> = unsafe { Arc::from_raw(shared.home.as_ptr()) };
    // A kernel that has ended has no task left to wake.
    drop(home.send(Message::Wake(wake)));
}

/// # Safety
///
/// As for [`waker_clone`]; the waker's reference is given up.
unsafe fn waker_drop(data: *const ()) {
    let header = NonNull::new(data.cast_mut().cast::<Header>()).expect("a waker's data is a cell");
    // SAFETY: the caller's promise. The local side owns a reference until it has emptied the stage.
    unsafe { release(header) };
}
