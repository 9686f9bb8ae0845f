//! A timer of tokio: the trap `elapse`.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{ready, Context, Poll, Waker};

use pikake_traps::{
    kernel_trap_at, Bound, ElapseTrap, KernelHandle, KernelId, KernelTrap, TaskId, Until,
};

use super::{safe_delay, Duration, Instant};
use crate::runtime::{task, Handle};
use crate::task::{coop, JoinHandle};

/// Waits until a moment.
#[track_caller]
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep::new(deadline, Location::caller())
}

/// Waits for a time.
#[track_caller]
pub fn sleep(length: Duration) -> Sleep {
    Sleep::new(Instant::now() + safe_delay(length), Location::caller())
}

pin_project_lite::pin_project! {
    /// The future of [`sleep`] and [`sleep_until`].
    #[project(!Unpin)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    #[derive(Debug)]
    pub struct Sleep {
        deadline: Instant,
        place: &'static Location<'static>,
        // For a poll outside of a kernel.
        kernel: KernelHandle,
        // `None` before the first poll, and after the end.
        wait: Option<Wait>,
        has_elapsed: bool,
        // Who waits, and in which task of a kernel: for `reset`, after which nobody need poll.
        waiter: Option<(Waker, Option<(KernelId, TaskId)>)>,
    }
}

/// The task that is being stepped.
fn current_task() -> Option<(KernelId, TaskId)> {
    pikake_traps::try_current().map(|task| (task.kernel(), task.id()))
}

/// Where a timer waits.
#[derive(Debug)]
enum Wait {
    /// In the kernel that polls it.
    Here(Bound<KernelTrap<ElapseTrap>>),
    /// In a task of the handle's kernel, since the poll is outside of one.
    There(EndedWithIt),
}

/// A task that ends when it is dropped.
#[derive(Debug)]
struct EndedWithIt(JoinHandle<()>);

impl Drop for EndedWithIt {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Wait {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Here(wait) => Pin::new(wait).poll(cx),
            Self::There(task) => Pin::new(&mut task.0).poll(cx).map(|ended| {
                // As tokio: a timer must not seem to be due because its kernel has ended.
                ended.expect(crate::util::error::RUNTIME_SHUTTING_DOWN_ERROR);
            }),
        }
    }

    fn new(deadline: Instant, place: &'static Location<'static>, kernel: &KernelHandle) -> Self {
        if pikake_traps::door::current_kernel().is_some() {
            let until = Until::At(super::clock::deadline_of(deadline));
            return Self::Here(Bound::new(kernel_trap_at(ElapseTrap::new(until), place)));
        }
        let handle = Handle { kernel: kernel.clone(), name: None };
        Self::There(EndedWithIt(task::spawn(&handle, sleep_until_there(deadline), place)))
    }
}

async fn sleep_until_there(deadline: Instant) {
    sleep_until(deadline).await;
}

impl Sleep {
    #[track_caller]
    fn new(deadline: Instant, place: &'static Location<'static>) -> Self {
        let kernel = match pikake_traps::door::current_kernel() {
            Some(_) => KernelHandle::current(),
            // As tokio, which needs its runtime here.
            None => Handle::current().kernel,
        };
        Self { deadline, place, kernel, wait: None, has_elapsed: false, waiter: None }
    }

    #[track_caller]
    pub(crate) fn new_timeout(
        deadline: Instant,
        place: Option<&'static Location<'static>>,
    ) -> Self {
        Self::new(deadline, place.unwrap_or(Location::caller()))
    }

    /// The moment at which the wait ends.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the wait has ended.
    pub fn is_elapsed(&self) -> bool {
        self.has_elapsed || (self.wait.is_some() && self.deadline <= Instant::now())
    }

    /// Sets another moment.
    pub fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.as_mut().reset_without_timer(deadline);
        let this = self.project();
        let Some((waker, task)) = this.waiter.take() else { return };
        if task != current_task() {
            // A wait belongs to the task that polls it.
            return waker.wake();
        }
        let wait = this.wait.insert(Wait::new(deadline, this.place, this.kernel));
        match wait.poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => *this.waiter = Some((waker, task)),
            Poll::Ready(()) => {
                (*this.wait, *this.has_elapsed) = (None, true);
                waker.wake();
            }
        }
    }

    pub(super) fn reset_without_timer(self: Pin<&mut Self>, deadline: Instant) {
        let this = self.project();
        (*this.deadline, *this.wait, *this.has_elapsed) = (deadline, None, false);
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let coop = ready!(coop::poll_proceed(cx));
        let this = self.project();
        if !*this.has_elapsed {
            let (deadline, place) = (*this.deadline, *this.place);
            let kernel = &*this.kernel;
            if matches!(this.wait, Some(Wait::Here(wait)) if !wait.is_home()) {
                // It was moved to another thread or kernel, and waits there from now on.
                *this.wait = None;
            }
            let wait = this.wait.get_or_insert_with(|| Wait::new(deadline, place, kernel));
            if wait.poll(cx).is_pending() {
                let task = current_task();
                match this.waiter {
                    Some((waker, of)) if *of == task => waker.clone_from(cx.waker()),
                    _ => *this.waiter = Some((cx.waker().clone(), task)),
                }
                return Poll::Pending;
            }
            *this.waiter = None;
            (*this.wait, *this.has_elapsed) = (None, true);
        }
        coop.made_progress();
        Poll::Ready(())
    }
}
