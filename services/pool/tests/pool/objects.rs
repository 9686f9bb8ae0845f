//! A manager whose objects are counted, and which fails as it is told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pikake::pool::{Builder, Manager, Pool};
use pikake::sleep;

/// An object.
#[derive(Debug)]
pub(crate) struct Thing {
    pub(crate) id: u32,
    pub(crate) is_dirty: bool,
    pub(crate) is_dead: bool,
    /// The verification finds the object bad.
    pub(crate) is_bad: bool,
    /// The drop takes the object out of those that exist.
    world: Rc<World>,
}

impl Drop for Thing {
    fn drop(&mut self) {
        assert!(self.world.alive.borrow_mut().remove(&self.id), "{} was dropped twice", self.id);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failed(pub(crate) &'static str);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Failed {}

impl From<pikake::Interrupted> for Failed {
    fn from(_: pikake::Interrupted) -> Self {
        Self("interrupted")
    }
}

/// The objects that exist, what happened, and what the manager is to do.
#[derive(Default, Debug)]
pub(crate) struct World {
    pub(crate) alive: RefCell<BTreeSet<u32>>,
    pub(crate) most: Cell<usize>,
    pub(crate) made: Cell<u32>,
    pub(crate) events: RefCell<Vec<String>>,
    /// How many of the next creations fail.
    pub(crate) failing: Cell<u32>,
    pub(crate) create_takes: Cell<Duration>,
    pub(crate) clean_takes: Cell<Duration>,
    pub(crate) verify_takes: Cell<Duration>,
    pub(crate) destroy_takes: Cell<Duration>,
    pub(crate) clean_fails: Cell<bool>,
    pub(crate) new_ones_are_bad: Cell<bool>,
    pub(crate) create_panics: Cell<bool>,
    pub(crate) clean_panics: Cell<bool>,
    /// The end of the object with this number panics.
    pub(crate) end_panics: Cell<u32>,
    /// A creation that is interrupted ends at once, and succeeds.
    pub(crate) ignores_interruptions: Cell<bool>,
    /// `is_dead` and `is_clean` panic.
    pub(crate) checks_panic: Cell<bool>,
    /// Every object has died.
    pub(crate) all_are_dead: Cell<bool>,
    /// Objects that are not dirty need no cleaning.
    pub(crate) knows_clean: Cell<bool>,
}

impl World {
    fn note(&self, what: &str, id: u32) {
        self.events.borrow_mut().push(format!("{what} {id}"));
    }

    /// What happened since the last call.
    pub(crate) fn take_events(&self) -> Vec<String> {
        self.events.take()
    }

    pub(crate) fn alive(&self) -> usize {
        self.alive.borrow().len()
    }
}

#[derive(Debug)]
pub(crate) struct Things(pub(crate) Rc<World>);

impl Manager for Things {
    type Object = Thing;
    type Error = Failed;

    async fn create(&self) -> Result<Thing, Failed> {
        let world = &self.0;
        let paused = pause(world.create_takes.get()).await;
        if !world.ignores_interruptions.get() {
            paused?;
        }
        assert!(!world.create_panics.get(), "the creation panics");
        if world.failing.get() > 0 {
            world.failing.set(world.failing.get() - 1);
            world.events.borrow_mut().push("fail".into());
            return Err(Failed("refused"));
        }
        let id = world.made.get() + 1;
        world.made.set(id);
        world.note("make", id);
        world.alive.borrow_mut().insert(id);
        world.most.set(world.most.get().max(world.alive()));
        let is_bad = world.new_ones_are_bad.get();
        Ok(Thing { id, is_dirty: false, is_dead: false, is_bad, world: world.clone() })
    }

    async fn verify(&self, thing: &mut Thing) -> Result<(), Failed> {
        self.0.note("verify", thing.id);
        pause(self.0.verify_takes.get()).await?;
        if thing.is_bad { Err(Failed("bad")) } else { Ok(()) }
    }

    async fn clean(&self, thing: &mut Thing) -> Result<(), Failed> {
        self.0.note("clean", thing.id);
        pause(self.0.clean_takes.get()).await?;
        assert!(!self.0.clean_panics.get(), "the cleaning panics");
        if self.0.clean_fails.get() {
            return Err(Failed("dirty"));
        }
        thing.is_dirty = false;
        Ok(())
    }

    fn is_dead(&self, thing: &Thing) -> bool {
        assert!(!self.0.checks_panic.get(), "`is_dead` panics");
        thing.is_dead || self.0.all_are_dead.get()
    }

    fn is_clean(&self, thing: &Thing) -> bool {
        assert!(!self.0.checks_panic.get(), "`is_clean` panics");
        self.0.knows_clean.get() && !thing.is_dirty
    }

    async fn destroy(&self, thing: Thing) {
        self.0.note("destroy", thing.id);
        if pause(self.0.destroy_takes.get()).await.is_err() {
            self.0.note("interrupt", thing.id);
        }
        assert_ne!(thing.id, self.0.end_panics.get(), "the end panics");
    }
}

async fn pause(length: Duration) -> Result<(), Failed> {
    if length > Duration::ZERO {
        sleep(length).await?;
    }
    Ok(())
}

pub(crate) fn world() -> Rc<World> {
    Rc::default()
}

pub(crate) fn builder(world: &Rc<World>) -> Builder<Things> {
    Pool::builder(Things(world.clone())).name("things")
}

pub(crate) fn pool(world: &Rc<World>, limit: usize) -> Pool<Things> {
    builder(world).limit(limit).build()
}

pub(crate) const MS: Duration = Duration::from_millis(1);
