//! The resident task of a pool, from its first use to its end.
//!
//! The keeper destroys what is idle for too long, keeps the least number of idle objects, tries a
//! failed creation again, and takes what comes back outside of the kernel. When its kernel is shut
//! down, the keeper stays until everything has come back and is destroyed, within the kernel's
//! grace.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pikake_time::Deadline;
use pikake_traps::{
    About, Builder, Interrupted, catch_and_log, check_interrupt, park_at, timeout_at,
};

use crate::core::{Core, Phase};
use crate::manager::Manager;
use crate::work::{Kind, Work};

/// Ends the pool with its keeper.
struct Keeper<M: Manager>(Rc<Core<M>>);

impl<M: Manager> Drop for Keeper<M> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Starts the keeper of a pool.
pub(crate) fn start<M: Manager>(core: &Rc<Core<M>>) {
    let keeper = Keeper(core.clone());
    let name = format!("pool{}", core.label());
    let body = async move {
        let core = &keeper.0;
        // An interruption is held until the cleanup has ended.
        let kept = keep(core).await;
        if kept.is_err() || core.is_refused() {
            drain(core).await;
        }
    };
    Builder::new().name(name).spawned_at(core.built_at).spawn(body).detach();
}

/// Tends the pool until it is closed and nothing is left, or until the kernel shuts down.
async fn keep<M: Manager>(core: &Rc<Core<M>>) -> Result<(), Interrupted> {
    while !core.is_refused() {
        core.take_call();
        let Some(due) = core.tend() else { break };
        if !core.is_called() {
            wait(core, due).await?;
        }
    }
    Ok(())
}

/// Waits until the keeper is called, or the deadline.
async fn wait<M: Manager>(core: &Rc<Core<M>>, due: Deadline) -> Result<(), Interrupted> {
    let about = || About::new(format!("work of pool{}", core.label()));
    let mut called = pin!(park_at((&core.keeper, about), core.built_at));
    let called = poll_fn(|cx| {
        if let Poll::Ready(called) = called.as_mut().poll(cx) {
            return Poll::Ready(called);
        }
        match core.common.as_ref().is_some_and(|common| common.poll_called(cx.waker())) {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    });
    if due.is_never() {
        return called.await;
    }
    timeout_at(due, called).await.unwrap_or(Ok(()))
}

/// Destroys what is left and what comes back, in a kernel that takes no more tasks.
async fn drain<M: Manager>(core: &Rc<Core<M>>) {
    // The keeper's own cancel is not for what the manager awaits here.
    let _ = check_interrupt();
    core.begin_close();
    let mut ends = FuturesUnordered::new();
    loop {
        core.take_call();
        for kept in core.take_left() {
            ends.push(Work::begin(core, Kind::Destroy, Some(kept), None).destroy());
        }
        if core.total() == 0 || core.phase() == Phase::Ended {
            return;
        }
        let about = || About::new(format!("leases of pool{}, at the kernel's end", core.label()));
        let mut called = pin!(park_at((&core.keeper, about), core.built_at));
        poll_fn(|cx| {
            let mut is_any_ready = true;
            while is_any_ready {
                // The others go on if the manager panics.
                catch_and_log("the end of an object of a pool", || {
                    is_any_ready = matches!(ends.poll_next_unpin(cx), Poll::Ready(Some(())));
                });
            }
            match core.is_called() || called.as_mut().poll(cx).is_ready() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}
