//! Who holds the leases of a pool: for errors, warnings and listings of waits.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use pikake_time::Ticks;
use pikake_traps::TaskMark;

/// The number of holders that a text names.
pub(crate) const NAMED: usize = 5;

/// The note of a lease, made when an object goes out.
#[derive(Clone, Copy)]
pub(crate) struct Note {
    pub(crate) task: TaskMark,
    pub(crate) place: &'static Location<'static>,
    pub(crate) since: Ticks,
}

impl Note {
    /// The holder, as others see it. `held_for` is the time since the note was made.
    pub(crate) fn holder(&self, held_for: Duration) -> Holder {
        let task = match self.task.is_none() {
            true => "a caller outside tasks".to_owned(),
            false => self.task.label(),
        };
        Holder { task, held_for, place: self.place }
    }
}

/// The holder of a lease: the task that got the lease, which may have passed it on.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The task, as `task 3`, with its name if it has one and has not ended.
    pub task: String,
    /// How long the task has had the lease.
    pub held_for: Duration,
    /// The place of the call that asked for the lease.
    pub place: &'static Location<'static>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {:?} (asked for at {})", self.task, self.held_for, self.place)
    }
}

/// The first holders of so many, in words.
pub(crate) fn holders_text(holders: &[Holder], count: usize) -> String {
    let mut text = String::from("held by ");
    for (number, holder) in holders.iter().take(NAMED).enumerate() {
        if number > 0 {
            text.push_str(", ");
        }
        text.push_str(&holder.to_string());
    }
    if count > NAMED {
        text.push_str(&format!(" and {} more", count - NAMED));
    }
    text
}
