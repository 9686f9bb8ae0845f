//! A wait that was parked, polled again.
//!
//! Apart from the traps (`execute.rs`), since here is all that a record can have met since: an answer, a
//! cause, another waker, another task or scope. The same rule: the book's borrow is given back before
//! anything is dropped and before a waker is called (I10).

use std::task::{Context, Poll};

use pikake_time::Clock;
use pikake_traps::{Interrupted, TaskRef, TrapHandler, TrapKind, outside_a_task};

use crate::driver::Driver;
use crate::machine::Machine;
use crate::pick::Pick;
use crate::record::{Place, State};

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// Polls the wait that a record was made for.
    #[inline(never)]
    pub(crate) fn poll_record(
        &self,
        record: u32,
        cx: &Context<'_>,
    ) -> Poll<Result<(), Interrupted>> {
        let mut book = self.book.borrow_mut();
        let entry = book.record(record);
        let (kind, place) = (entry.kind, entry.place);
        let is_deaf = kind == TrapKind::Elapse;
        if book.stepping.is_none() {
            drop(book);
            outside_a_task(kind, place)
        }
        let is_answered = match entry.state {
            State::Done(_) => true,
            State::Parked(Place::NextStep(_)) => book.has_passed(record),
            State::Parked(_) | State::Interrupted(..) => false,
        };
        let mut result = Ok(());
        if !is_answered || !entry.told.is_empty() || !(is_deaf || book.branch.is_empty()) {
            drop(book);
            let Some(task) = self.current() else { outside_a_task(kind, place) };
            match self.poll_with_care(record, &task, cx) {
                Poll::Ready(told) => result = told,
                Poll::Pending => return Poll::Pending,
            }
            book = self.book.borrow_mut();
        }
        let left = book.remove_record(record);
        drop(book);
        drop(left);
        if !self.observers.is_empty() {
            self.observe_answered(kind, result.is_err());
        }
        Poll::Ready(result)
    }

    #[inline(never)]
    fn observe_answered(&self, kind: TrapKind, interrupted: bool) {
        if let Some(task) = self.current() {
            self.observe(|observer| observer.answered(&task, kind, interrupted));
        }
    }

    /// Polls a record that waits, or was told of a cause. What is ready is to be removed.
    fn poll_with_care(
        &self,
        record: u32,
        task: &TaskRef,
        cx: &Context<'_>,
    ) -> Poll<Result<(), Interrupted>> {
        let mut waker = None;
        let mut tasks_before = Vec::new();
        let result = loop {
            let mut book = self.book.borrow_mut();
            tasks_before.extend(book.bring_home(record, task));
            let is_deaf = book.record(record).kind == TrapKind::Elapse;
            if !is_deaf && !book.branch.is_empty() {
                book.release_branch();
            }
            let at = match &book.record(record).state {
                State::Done(_) => break Ok(()),
                State::Interrupted(interrupted, _) => break Err(Interrupted::clone(interrupted)),
                State::Parked(_) if !book.is_parked(record) => break Ok(()),
                State::Parked(at) => *at,
            };
            if waker.is_none() && !task.owns(cx.waker()) {
                // Cloned with the book closed. Whatever that does, it may do to this record, too.
                drop(book);
                waker = Some(cx.waker().clone());
                continue;
            }
            let before = std::mem::replace(&mut book.record_mut(record).waker, waker.take());
            let interrupted = match book.record(record).told.is_empty() {
                true if !is_deaf => book.would_suspend(task),
                _ => None,
            };
            if let Some(interrupted) = interrupted {
                book.take_out(record);
                drop(book);
                drop(before);
                break Err(interrupted);
            }
            if matches!(at, Place::NextStep(_)) {
                book.put_next_step(record);
            }
            drop(book);
            drop(before);
            self.flush();
            return Poll::Pending;
        };
        self.book.borrow_mut().collect(record, result.as_ref().err());
        drop((waker, tasks_before));
        self.flush();
        Poll::Ready(result)
    }
}
