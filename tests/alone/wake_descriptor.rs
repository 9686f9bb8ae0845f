//! A kernel that has ended holds no descriptors, although handles and wakers still refer to it.
//!
//! The test counts the descriptors of its process.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use pikake::traps::KernelHandle;
use pikake::{Kernel, spawn, yield_now};

use crate::alone;
use crate::support::within;

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs and drops a kernel; returns a handle, wakers, and how many descriptors were open in
/// between.
fn left_of_a_kernel(is_shut_down: bool) -> (KernelHandle, Vec<Waker>, usize) {
    let kernel = Kernel::new().unwrap();
    let wakers: Rc<RefCell<Vec<Waker>>> = Rc::default();
    let keep = wakers.clone();
    kernel.run(async {
        // The first task ends by itself; the kernel drops the second one.
        for is_done in [true, false] {
            let keep = keep.clone();
            let keep = poll_fn(move |cx| {
                keep.borrow_mut().push(cx.waker().clone());
                if is_done { Poll::Ready(()) } else { Poll::Pending }
            });
            spawn(keep).detach();
        }
        yield_now().await.unwrap();
    });
    let open = open_descriptors();
    let handle = kernel.handle();
    if is_shut_down {
        kernel.shutdown();
    }
    drop(kernel);
    (handle, wakers.take(), open)
}

#[test]
fn a_kernel_that_has_ended_holds_no_descriptor() {
    alone(
        "wake_descriptor::a_kernel_that_has_ended_holds_no_descriptor",
        count_descriptors_of_kernels,
    );
}

fn count_descriptors_of_kernels() {
    within(|| {
        let before = open_descriptors();
        for is_shut_down in [false, true] {
            let (handle, wakers, open) = left_of_a_kernel(is_shut_down);
            assert!(open > before, "a kernel has descriptors while it lives");
            assert!(wakers.len() >= 2, "they outlive tasks and kernel");
            assert_eq!(open_descriptors(), before);
            assert!(handle.is_closed() && handle.stop().is_err());
            wakers.iter().for_each(Waker::wake_by_ref);
            let there = std::thread::spawn(move || wakers.into_iter().for_each(Waker::wake));
            there.join().unwrap();
            assert_eq!(open_descriptors(), before);
        }
    });
}
