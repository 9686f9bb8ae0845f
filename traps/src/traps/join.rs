//! The trap `join`: waits for the end of a task.

use crate::cell::reference::TaskRef;
use crate::interrupt::Interrupted;
use crate::kind::{TrapKind, TrapName};
use crate::local::TrapHandler;
use crate::seen::{About, SeenThing};
use crate::trap::{OneEntry, Progress, Trap, TrapContext};
use crate::wait::WaitPlace;

static NAME: TrapName = TrapName::new("join");

/// The trap that waits for a task's end.
#[derive(Debug)]
pub(crate) struct JoinTrap {
    pub(crate) task: TaskRef,
}

impl Trap for JoinTrap {
    type Answer = Result<(), Interrupted>;
    type Entries = OneEntry;

    #[inline(always)]
    fn kind(&mut self) -> TrapKind {
        TrapKind::of(&NAME)
    }

    #[inline]
    fn begin(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<Self::Answer> {
        if self.task.has_outcome() {
            return cx.answer(Ok(()));
        }
        assert!(
            self.task.kernel() == cx.kernel(),
            "a task was joined in another kernel than its own"
        );
        cx.park(entry, WaitPlace::End(&self.task)).map(Ok)
    }

    #[inline]
    fn collect(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<Self::Answer> {
        cx.collect(entry, WaitPlace::End(&self.task)).map(Ok)
    }

    fn leave(&mut self, [entry]: &mut OneEntry, kernel: &dyn TrapHandler) {
        entry.leave(kernel, WaitPlace::End(&self.task));
    }

    fn about(&self) -> Option<About> {
        Some(
            About::new(self.task.label())
                .owned_by([self.task.id()])
                .of(SeenThing::Task(self.task.id())),
        )
    }
}
