//! The last lists of the kernels' tasks, for the time when a kernel does not answer.
//!
//! Each answer to a client leaves its list. Beside that, the console lists the tasks of small
//! kernels itself now and then, without polling them, so that there is a list also if nobody has
//! asked before. A kernel that has made no step since the last list is not asked.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_kernel::inspect::KernelView;
use pikake_traps::sleep;

use super::Server;
use super::leaks::Counts;
use crate::groups_of_kernel::{Groups, count};
use crate::observed::{ANSWER_WITHIN, Look, Silent, answer, list};

/// The pause before the first look.
const FIRST: Duration = Duration::from_millis(20);

/// The shortest pause between two looks.
const LEAST: Duration = Duration::from_secs(1);

/// The pause between two looks at a process in which nothing happens.
const IDLE: Duration = Duration::from_secs(8);

/// The longest pause.
const MOST: Duration = Duration::from_secs(60);

/// The pause as a multiple of the time that a look takes: a thousandth of a processor.
const RARER: u32 = 1_000;

/// The tasks that the console lists by itself: their list takes a megabyte at most, as a rule.
const TASKS: usize = 5_000;

/// A list of a kernel's tasks.
#[derive(Clone)]
pub(super) struct Listed {
    pub(super) at: Instant,
    pub(super) tasks: Look,
}

/// The lists of the kernels, by number.
#[derive(Default)]
pub(super) struct Looks(RefCell<BTreeMap<u32, OfKernel>>);

#[derive(Default)]
struct OfKernel {
    last: Option<Listed>,
    /// The last list with all waits.
    waits: Option<Listed>,
    /// The number of tasks by place of spawn at the last looks.
    counts: Counts,
    /// The number of the kernel's events before the last look of the console's own that succeeded.
    events: Option<u64>,
}

impl Looks {
    /// Keeps a list of tasks, which has all waits or only the last one of each task.
    pub(super) fn keep(&self, kernel: u32, tasks: Look, has_waits: bool) {
        let mut looks = self.0.borrow_mut();
        let of_kernel = looks.entry(kernel).or_default();
        let listed = Listed { at: Instant::now(), tasks };
        if has_waits {
            of_kernel.waits = Some(listed.clone());
        }
        of_kernel.last = Some(listed);
    }

    /// The last list, or the last one with all waits if there is one.
    pub(super) fn last(&self, kernel: u32, with_waits: bool) -> Option<Listed> {
        let looks = self.0.borrow();
        let of_kernel = looks.get(&kernel)?;
        let waits = of_kernel.waits.clone().filter(|_| with_waits);
        waits.or_else(|| of_kernel.last.clone())
    }

    /// Notes the number of tasks by place of spawn.
    pub(super) fn note(&self, kernel: u32, groups: Groups) {
        self.0.borrow_mut().entry(kernel).or_default().counts.note(groups);
    }

    /// Calls a function with the counts of a kernel.
    pub(super) fn with_counts<R: Default>(&self, kernel: u32, f: impl FnOnce(&Counts) -> R) -> R {
        self.0.borrow().get(&kernel).map(|it| f(&it.counts)).unwrap_or_default()
    }

    /// Forgets the kernels with other numbers.
    pub(super) fn retain(&self, is_there: impl Fn(u32) -> bool) {
        self.0.borrow_mut().retain(|kernel, _| is_there(*kernel));
    }

    /// Whether nothing has happened since the last look. The last list is then as a new one would
    /// be, and gets the time of a new one.
    fn is_current(&self, kernel: u32, events: u64) -> bool {
        let mut looks = self.0.borrow_mut();
        let of_kernel = looks.entry(kernel).or_default();
        let is_current = of_kernel.events == Some(events);
        if let Some(last) = of_kernel.last.as_mut().filter(|_| is_current) {
            last.at = Instant::now();
        }
        is_current
    }

    /// Notes a look that has succeeded, and the number of events before it.
    fn looked(&self, kernel: u32, events: u64) {
        self.0.borrow_mut().entry(kernel).or_default().events = Some(events);
    }
}

/// Lists the tasks of all kernels now and then, to the end of the console.
pub(super) async fn look_now_and_then(server: Rc<Server>) {
    let mut pause = FIRST;
    while sleep(pause).await.is_ok() {
        // That of a kernel which does not answer costs no processor time.
        let mut took = Duration::ZERO;
        let mut is_idle = true;
        for kernel in server.kernels() {
            let (id, events) = (kernel.id().number(), kernel.event_count());
            if server.looks.is_current(id, events) {
                continue;
            }
            is_idle = false;
            // A kernel that does not answer keeps what was seen, with its time.
            let began = Instant::now();
            if look(&server, &kernel).await.is_ok() {
                took += began.elapsed();
                server.looks.looked(id, events);
            }
        }
        let least = if is_idle { (pause * 2).min(IDLE) } else { LEAST };
        pause = (took * RARER).clamp(least, MOST);
    }
}

/// Counts the tasks of a kernel, and lists them unless they are too many.
async fn look(server: &Server, kernel: &KernelView) -> Result<(), Silent> {
    answer(server.pings.ping(kernel), ANSWER_WITHIN).await?;
    let id = kernel.id().number();
    let (count, groups) = count(kernel).await?;
    server.looks.note(id, groups);
    if count > TASKS {
        return Ok(());
    }
    let mut tasks = Vec::new();
    let mut next = Some(0);
    while let Some(index) = next {
        let page = list(kernel, index).await?;
        tasks.extend(page.tasks);
        next = page.next;
    }
    server.looks.keep(id, Rc::new(tasks), false);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that has got stuck since its list was made does not get a newer one.
    #[test]
    fn list_stays_as_old_as_it_is_while_no_look_succeeds() {
        let looks = Looks::default();
        let age = || looks.last(1, false).unwrap().at;
        assert!(!looks.is_current(1, 10));
        looks.keep(1, Look::default(), false);
        looks.looked(1, 10);
        let made = age();
        // Something has happened, and the look at it fails, twice.
        assert!(!looks.is_current(1, 11));
        assert!(!looks.is_current(1, 11));
        assert_eq!(age(), made);
        // Nothing has happened since the last one that succeeded.
        looks.looked(1, 11);
        assert!(looks.is_current(1, 11));
        assert!(age() >= made);
    }
}
