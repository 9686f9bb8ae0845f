//! The trap that waits in a queue which it owns a share of: for futures and streams that can be
//! kept, where a borrow cannot.

use std::rc::Rc;

use pikake_traps::{Interrupted, Trap, Wait, WaitQueue};

/// Something with a wait queue.
pub(crate) trait Waiters {
    fn waiters(&self) -> &WaitQueue;
}

/// Waits in the queue of something that is shared.
pub(crate) struct Stand<P>(pub(crate) Rc<P>);

impl<P: Waiters> Trap for Stand<P> {
    type Answer = Result<(), Interrupted>;
    type Given = ();

    #[inline]
    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        Wait::Park(self.0.waiters())
    }

    #[inline]
    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }
}
