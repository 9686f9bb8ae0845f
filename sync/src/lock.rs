//! What the two kinds of mutex have in common: who holds it, and who is next.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pikake_traps::Interrupted;

use crate::holder::Holder;
use crate::line::{Line, Serve};
use crate::line_turn::Turn;

/// A lock, without anything in it.
#[derive(Default)]
pub(crate) struct Lock {
    held: Cell<bool>,
    /// Who took it last.
    holder: Holder,
    line: Line<()>,
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self { held: Cell::new(false), holder: Holder::new(), line: Line::new() }
    }

    /// Takes the lock if nobody holds it or waits for it.
    #[inline]
    pub(crate) fn try_lock(&self, place: &'static Location<'static>) -> bool {
        if self.held.get() || !self.line.is_empty() {
            return false;
        }
        self.held.set(true);
        self.holder.set(place);
        true
    }

    /// Gives the lock to the next in line.
    #[inline]
    pub(crate) fn unlock(&self) {
        self.held.set(false);
        if !self.line.is_empty() {
            self.hand_over();
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.get()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.line.len()
    }

    /// Calls the first in line.
    #[inline(never)]
    fn hand_over(&self) {
        let give = || {
            self.held.set(true);
            self.holder.clear();
        };
        self.line.hand_to_first(give, || self.held.set(false));
    }

    pub(crate) fn show(&self, shown: &mut fmt::DebugStruct<'_, '_>) {
        let holder = self.held.get().then_some(&self.holder);
        shown.field("held_by", &holder).field("waiting", &self.line.len());
    }
}

impl Serve for &Lock {
    type Brings = ();

    #[inline]
    fn line(&self) -> &Line<()> {
        &self.line
    }

    #[inline]
    fn serve(&self) {
        if !self.held.get() && !self.line.is_empty() {
            self.hand_over();
        }
    }

    fn give_back(&self) {
        self.unlock();
    }
}

/// Taking a lock, if need be by waiting for it.
pub(crate) struct Locking<'a>(Turn<&'a Lock>);

impl<'a> Locking<'a> {
    #[inline]
    pub(crate) fn new(lock: &'a Lock, place: &'static Location<'static>) -> Self {
        Self(Turn::new(lock, (), place))
    }

    #[inline(never)]
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Interrupted>> {
        let turned = ready!(Pin::new(&mut self.0).poll(cx));
        if turned.is_ok() {
            self.0.source().holder.set(self.0.awaited_at());
        }
        Poll::Ready(turned.map(|_| ()))
    }
}

impl Future for Locking<'_> {
    type Output = Result<(), Interrupted>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let turn = &mut self.0;
        let place = turn.awaited_at();
        let locked = turn.at_once(|lock, ()| if lock.try_lock(place) { Ok(()) } else { Err(()) });
        match locked {
            Some(()) => Poll::Ready(Ok(())),
            None => self.wait(cx),
        }
    }
}
