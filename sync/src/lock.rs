//! What the two kinds of mutex have in common: who holds it, and who is next.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;

use pikake_traps::Interrupted;

use crate::holder::Holder;
use crate::line::{Line, Serve, Turn};

/// A lock, without anything in it.
#[derive(Default)]
pub(crate) struct Lock {
    held: Cell<bool>,
    holder: Holder,
    line: Line<()>,
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self { held: Cell::new(false), holder: Holder::new(), line: Line::new() }
    }

    #[inline]
    pub(crate) fn try_lock(&self, place: &'static Location<'static>) -> bool {
        if self.held.get() || !self.line.is_empty() {
            return false;
        }
        self.held.set(true);
        self.holder.set(place);
        true
    }

    /// Waits for the lock, which could not be had at once.
    pub(crate) async fn wait(&self, place: &'static Location<'static>) -> Result<(), Interrupted> {
        Turn::new(self, (), place).await?;
        self.holder.set(place);
        Ok(())
    }

    /// Gives the lock to the next in line.
    #[inline]
    pub(crate) fn unlock(&self) {
        self.holder.clear();
        self.held.set(false);
        if !self.line.is_empty() {
            self.serve();
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.get()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.line.len()
    }

    fn serve(&self) {
        if !self.held.get()
            && let Some(next) = self.line.call()
        {
            self.held.set(true);
            next.wake();
        }
    }

    pub(crate) fn show(&self, shown: &mut fmt::DebugStruct<'_, '_>) {
        let holder = self.held.get().then_some(&self.holder);
        shown.field("held_by", &holder).field("waiting", &self.line.len());
    }
}

impl Serve for &Lock {
    type Brings = ();

    fn line(&self) -> &Line<()> {
        &self.line
    }

    fn serve(&self) {
        Lock::serve(self);
    }

    fn give_back(&self) {
        self.unlock();
    }
}
