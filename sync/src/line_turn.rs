//! A wait in a line: the future of somebody who stands in it. See `line.rs`.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pikake_traps::{Interrupted, KernelTrap, kernel_trap_at};

use crate::line::{Place, Serve, State};
use crate::stand::Stand;

/// How a wait in a line ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turned {
    /// What was waited for is the waiter's.
    Called,
    /// There is no use in waiting.
    Dismissed,
}

/// A wait in a line, from its end to its head.
pub(crate) struct Turn<S: Serve> {
    source: S,
    stage: Stage,
    /// What is brought to the line, before and after.
    brings: Option<S::Brings>,
    /// The wait in the place that it has, while it has one. Taken out before it is dropped; so that
    /// the many who never stand have nothing more to drop than one look at it.
    trap: ManuallyDrop<Option<InPlace<S::Brings>>>,
    awaited_at: &'static Location<'static>,
}

/// The wait in a place.
type InPlace<W> = KernelTrap<Stand<Place<W>>>;

/// How far a wait is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    Standing,
    Ended,
}

impl<S: Serve> Turn<S> {
    #[inline]
    pub(crate) fn new(
        source: S,
        brings: S::Brings,
        awaited_at: &'static Location<'static>,
    ) -> Self {
        let trap = ManuallyDrop::new(None);
        Self { source, stage: Stage::New, brings: Some(brings), trap, awaited_at }
    }

    /// Tries whether it can be done without standing in line: `now` gets what is brought, and gives
    /// it back if not. Does not try any more once it stands.
    #[inline]
    pub(crate) fn at_once<R>(
        &mut self,
        now: impl FnOnce(&S, S::Brings) -> Result<R, S::Brings>,
    ) -> Option<R> {
        if self.stage != Stage::New {
            return None;
        }
        match now(&self.source, self.brings.take()?) {
            Ok(done) => {
                self.stage = Stage::Ended;
                Some(done)
            }
            Err(brings) => {
                self.brings = Some(brings);
                None
            }
        }
    }

    pub(crate) fn source(&self) -> &S {
        &self.source
    }

    /// Where it is awaited.
    #[inline]
    pub(crate) fn awaited_at(&self) -> &'static Location<'static> {
        self.awaited_at
    }

    /// What was brought and was not taken.
    pub(crate) fn take_back(&mut self) -> Option<S::Brings> {
        self.brings.take()
    }

    /// Takes the last place in the line, as the first poll does.
    #[inline]
    pub(crate) fn stand(&mut self) {
        assert!(
            self.stage == Stage::New,
            "a wait in a line (at {}) was polled after it had ended",
            self.awaited_at
        );
        self.stage = Stage::Standing;
        let brings = self.brings.take().expect("who has not stood in line has what they bring");
        let place = self.source.line().join(brings);
        *self.trap = Some(kernel_trap_at(Stand(place), self.awaited_at));
        self.source.serve();
    }

    /// Gives the place up, and tells what had come of it.
    fn end(&mut self) -> Option<State> {
        let place = &self.trap.as_ref()?.trap().0;
        let state = place.state.get();
        self.stage = Stage::Ended;
        if place.parked.get() {
            self.withdraw();
        } else {
            self.brings = self.source.line().leave(place);
            *self.trap = None;
        }
        Some(state)
    }

    /// Gives the place up while the kernel has the trap.
    #[cold]
    fn withdraw(&mut self) {
        let Some(trap) = self.trap.take() else { return };
        let place = trap.trap().0.clone();
        drop(trap);
        place.parked.set(false);
        self.brings = self.source.line().leave(&place);
    }
}

// It is used by reference and by value, and never pinned.
impl<S: Serve> Unpin for Turn<S> {}

impl<S: Serve> Future for Turn<S> {
    type Output = Result<Turned, Interrupted>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.trap.is_none() {
            this.stand();
        }
        loop {
            let trap = this.trap.as_mut().expect("it stands until it was called or has left");
            let mut place = &trap.trap().0;
            // A call while it is parked comes with a wake, and is collected by way of the kernel.
            if place.parked.get() || place.state.get() == State::Waiting {
                place.parked.set(true);
                let answer = ready!(Pin::new(&mut *trap).poll(cx));
                place = &trap.trap().0;
                place.parked.set(false);
                // Who is called is woken in the same moment, and the kernel does not interrupt a wait
                // that is satisfied.
                if place.state.get() == State::Waiting {
                    this.answered(answer)?;
                    continue;
                }
            }
            let turned = match place.state.get() {
                State::Called => Turned::Called,
                _ => Turned::Dismissed,
            };
            this.stage = Stage::Ended;
            this.brings = this.source.line().put_back(place);
            *this.trap = None;
            return Poll::Ready(Ok(turned));
        }
    }
}

impl<S: Serve> Turn<S> {
    /// The kernel has answered without a call: an interruption, or it is to look again.
    #[cold]
    fn answered(&mut self, answer: Result<(), Interrupted>) -> Result<(), Interrupted> {
        if answer.is_err() {
            self.end();
        } else if let Some(trap) = &mut *self.trap {
            // Whoever served meanwhile has passed over this place.
            let place = trap.trap().0.clone();
            *trap = kernel_trap_at(Stand(place), self.awaited_at);
        }
        self.source.serve();
        answer
    }

    /// What the drop of one who stands does.
    #[inline(never)]
    fn abandon(&mut self) {
        match self.end() {
            Some(State::Called) => self.source.give_back(),
            Some(State::Waiting) => self.source.serve(),
            Some(State::Away | State::Dismissed) | None => {}
        }
    }
}

impl<S: Serve> Drop for Turn<S> {
    #[inline]
    fn drop(&mut self) {
        if self.trap.is_some() {
            self.abandon();
        }
    }
}
