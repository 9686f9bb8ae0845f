//! A task's waker, and wakes that arrive through the wake queue.
//!
//! A waker may be cloned, called and dropped on any thread, long after the end of its task and its
//! kernel. A waker owns an atomic reference to the cell, and uses only the shared part of the
//! header. A call inside the task's own kernel, and so on the home thread, makes the task ready
//! directly.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::task::{RawWaker, RawWakerVTable, Waker};

use crate::cell::reference::TaskRef;
use crate::cell::{self, Header};
use crate::door;
use crate::home::RemoteWake;

impl RemoteWake {
    /// The task to make ready, if it has not ended. For the task's kernel, on its own thread.
    ///
    /// After this call, further wakes of the task are delivered anew.
    ///
    /// # Panics
    ///
    /// On a thread that is not inside the task's kernel.
    pub fn arrive(&self) -> Option<TaskRef> {
        let header: NonNull<Header> = self.cell().cast();
        // SAFETY: the reference that `self` owns keeps the cell alive.
        let home = unsafe { cell::home_of(header) };
        assert!(
            door::try_with(|local| local.is_home(home)) == Some(true),
            "a wake was taken out of the wake queue outside of its kernel (I5)"
        );
        // SAFETY: as above.
        unsafe { cell::receive_wake(header) };
        // SAFETY: this is the home thread, as the assertion checks, and the cell lives.
        let task = unsafe { TaskRef::live_from_header(header) }?;
        Some(TaskRef::clone(&task))
    }
}

impl TaskRef {
    /// A waker of the task, for any thread.
    pub fn waker(&self) -> Waker {
        (*self.borrowed_waker()).clone()
    }

    /// A waker without a reference of its own, which must not outlive `self`.
    #[inline(always)]
    pub(crate) fn borrowed_waker(&self) -> ManuallyDrop<Waker> {
        let raw = RawWaker::new(self.address().as_ptr().cast_const().cast(), &WAKER);
        // SAFETY: the functions of `WAKER` are written for such a pointer, and the cell outlives
        // the waker, which is not dropped and so releases no reference.
        ManuallyDrop::new(unsafe { Waker::from_raw(raw) })
    }

    /// Whether the waker is this task's own, and not a combinator's.
    #[inline(always)]
    pub fn owns(&self, waker: &Waker) -> bool {
        waker.data() == self.address().as_ptr().cast_const().cast()
            && std::ptr::eq(waker.vtable(), &WAKER)
    }
}

/// The functions of a task's waker. Its data is the pointer to the header, with one reference.
static WAKER: RawWakerVTable = RawWakerVTable::new(waker_clone, waker_wake, waker_ref, waker_drop);

/// # Safety
///
/// `data` belongs to a waker of a task whose cell is live.
unsafe fn waker_clone(data: *const ()) -> RawWaker {
    // SAFETY: the caller's promise; the reference goes to the new waker.
    unsafe { cell::retain(header_of(data)) };
    RawWaker::new(data, &WAKER)
}

/// The header behind a waker's data.
#[inline(always)]
fn header_of(data: *const ()) -> NonNull<Header> {
    NonNull::new(data.cast_mut().cast()).expect("a waker's data is a cell")
}

/// # Safety
///
/// As for [`waker_clone`]; the call releases the waker's reference.
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
    let header = header_of(data);
    // SAFETY: the caller's promise.
    let home = unsafe { cell::home_of(header) };
    let is_done = door::try_with(|local| {
        let is_home = local.is_home(home);
        if is_home {
            // SAFETY: this is the home thread, as was just checked, and the caller keeps the cell
            // alive.
            if let Some(task) = unsafe { TaskRef::live_from_header(header) } {
                local.make_ready(&task);
            }
        }
        is_home
    });
    if is_done != Some(true) {
        // SAFETY: the caller's promise.
        unsafe { cell::send_wake(header) };
    }
}

/// # Safety
///
/// As for [`waker_clone`]; the call releases the waker's reference.
unsafe fn waker_drop(data: *const ()) {
    // SAFETY: the caller's promise. The local side owns a reference until it has emptied the stage.
    unsafe { cell::release(header_of(data)) };
}
