//! The kinds of traps: names that traps bring, for observers and listings.
//!
//! A kernel stores a kind as a number in the flags of a task, and in its records of steps. A kind
//! gets its number at the first use, so a crate of its own may bring one. Nothing matches on kinds:
//! what a trap does is in the trap.

use std::fmt;
use std::panic::Location;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The name of a kind of trap. Each kind has one, as a `static`.
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
    /// A name, of one kind of trap.
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

/// A wait, as a place in the program.
pub(crate) type PlacedTrap = (TrapKind, &'static Location<'static>);

/// The names in use, in the order of their numbers, from one on.
static NAMES: [OnceLock<&TrapName>; 126] = [const { OnceLock::new() }; 126];

/// The name of all kinds after the first 126, where only the number is known.
static OTHER: TrapName = TrapName::new("(other)");

impl TrapKind {
    /// The kind with this name.
    #[inline(always)]
    pub const fn of(name: &'static TrapName) -> Self {
        Self(name)
    }

    /// The kind with this number, if a trap of it was used. Number 127 stands for all kinds after
    /// the first 126, and has the name `(other)`.
    pub fn from_number(number: u32) -> Option<Self> {
        let index = number.checked_sub(1)? as usize;
        match NAMES.get(index) {
            Some(name) => name.get().copied().map(Self),
            None => (index == NAMES.len()).then_some(Self(&OTHER)),
        }
    }

    /// The number of the kind in this process, from 1 to 127.
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
        let is_it = |name: &OnceLock<_>| ptr::eq(*name.get_or_init(|| self.0), self.0);
        let index = NAMES.iter().position(is_it).unwrap_or(NAMES.len());
        let number = index as u32 + 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_get_numbers_until_there_are_none_left() {
        let kinds: Vec<_> = (0..NAMES.len() + 2)
            .map(|index| {
                TrapKind::of(Box::leak(Box::new(TrapName::new(match index {
                    0 => "first",
                    _ => "later",
                }))))
            })
            .collect();
        let numbers: Vec<u32> = kinds.iter().map(|kind| kind.number()).collect();
        let expected: Vec<u32> = (1..=126).chain([127, 127]).collect();
        assert_eq!(numbers, expected);
        assert_eq!(kinds[0].number(), 1, "it keeps its number");
        let name = |number| TrapKind::from_number(number).map(TrapKind::name);
        assert_eq!(
            [0, 1, 126, 127, 128].map(name),
            [None, Some("first"), Some("later"), Some("(other)"), None]
        );
    }
}
