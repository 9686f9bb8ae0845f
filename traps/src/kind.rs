//! The kinds of traps: names that traps bring, for observers and listings.
//!
//! A kernel stores a kind as a number in the flags of a task, and in its records of steps. A kind
//! gets its number at the first use, so a crate of its own may bring one. Nothing matches on kinds:
//! what a trap does is in the trap.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The name of a kind of trap: a static beside the trap.
///
/// # Examples
///
/// ```
/// use pikake::traps::{TrapKind, TrapName};
///
/// static NAME: TrapName = TrapName::new("read_at_least");
///
/// assert_eq!(TrapKind::of(&NAME).name(), "read_at_least");
/// ```
#[derive(Debug)]
pub struct TrapName {
    text: &'static str,
    is_timer: bool,
    is_interruptible: bool,
    /// Zero before the first use.
    number: AtomicU32,
}

impl TrapName {
    /// A name that no other trap has.
    pub const fn new(text: &'static str) -> Self {
        let number = AtomicU32::new(0);
        Self { text, is_timer: false, is_interruptible: true, number }
    }

    /// The text of the name.
    pub const fn text(&self) -> &'static str {
        self.text
    }

    /// The name of traps that a moment, or the task's next step, always ends.
    pub const fn ended_by_time(self) -> Self {
        Self { is_timer: true, ..self }
    }

    /// The name of traps whose answer cannot be an interruption.
    pub const fn uninterruptible(self) -> Self {
        Self { is_interruptible: false, ..self }
    }
}

/// The kind of a trap, as observers and listings show it.
#[derive(Clone, Copy)]
pub struct TrapKind(&'static TrapName);

/// The names in use, in the order of their numbers, from one on.
fn names() -> MutexGuard<'static, Vec<&'static TrapName>> {
    static NAMES: Mutex<Vec<&'static TrapName>> = Mutex::new(Vec::new());
    // No code that can panic half-way runs under the lock.
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TrapKind {
    /// The greatest number of a kind. All kinds after the first 126 have this number, and the name
    /// `(other)` where only the number is known.
    pub const MAX_NUMBER: u32 = 127;

    /// The kind with this name.
    #[inline(always)]
    pub const fn of(name: &'static TrapName) -> Self {
        Self(name)
    }

    /// The kind with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        static OTHER: TrapName = TrapName::new("(other)");
        let known = names().get(number.checked_sub(1)? as usize).copied();
        known.or((number == Self::MAX_NUMBER).then_some(&OTHER)).map(Self)
    }

    /// The number of the kind in this process, from one to [`MAX_NUMBER`](Self::MAX_NUMBER).
    pub fn number(self) -> u32 {
        match self.number_if_any() {
            0 => self.register(),
            number => number,
        }
    }

    /// The number of the kind; zero before its first use.
    #[inline(always)]
    pub(crate) fn number_if_any(self) -> u32 {
        self.0.number.load(Ordering::Relaxed)
    }

    #[cold]
    fn register(self) -> u32 {
        let mut names = names();
        let known = names.iter().position(|name| ptr::eq(*name, self.0));
        let number = match known {
            Some(index) => index as u32 + 1,
            None if names.len() as u32 + 1 < Self::MAX_NUMBER => {
                names.push(self.0);
                names.len() as u32
            }
            None => Self::MAX_NUMBER,
        };
        self.0.number.store(number, Ordering::Relaxed);
        number
    }

    /// The trap's name in listings.
    pub fn name(self) -> &'static str {
        self.0.text
    }

    /// Whether a moment, or the task's next step, always ends the trap.
    pub fn is_timer(self) -> bool {
        self.0.is_timer
    }

    /// Whether the trap's answer can be an interruption.
    pub fn is_interruptible(self) -> bool {
        self.0.is_interruptible
    }
}

impl PartialEq for TrapKind {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Eq for TrapKind {}

impl Hash for TrapKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ptr::from_ref(self.0).hash(state);
    }
}

impl fmt::Debug for TrapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TrapKind").field(&self.name()).finish()
    }
}

impl fmt::Display for TrapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
