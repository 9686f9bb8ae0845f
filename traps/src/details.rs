//! Details of tasks for listings: the peer of a connection, the method and path of a request. For
//! authors of servers.
//!
//! Alike tasks share a name, by which listings and profiles group them. A detail tells one from
//! another. It is kept beside the tasks of a program that measures (see
//! [`are_times_measured`]), so other programs pay one test of a
//! flag, and it becomes text when a listing asks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::rc::Rc;

use crate::cell::reference::TaskRef;
use crate::door;
use crate::figures::are_times_measured;
use crate::names::TaskId;

/// The details of the tasks of a kernel.
#[derive(Default)]
struct Details(RefCell<BTreeMap<TaskId, Box<dyn Display>>>);

/// A detail of a task, until the drop.
#[must_use = "the drop takes the detail away"]
pub struct Described {
    details: Rc<Details>,
    task: TaskId,
}

/// Adds a detail to a task of the current kernel, unless the program does not measure. A task has
/// one detail at a time.
///
/// # Examples
///
/// ```
/// use pikake::traps::details::{describe, detail_of};
/// use pikake::traps::figures::measure_times;
///
/// measure_times();
/// # pikake::run(async {
/// let task = pikake::task::Builder::new().name("connection").spawn(std::future::pending::<()>());
/// let peer = "127.0.0.1:7000".parse::<std::net::SocketAddr>().unwrap();
/// let described = describe(task.task_ref(), || Box::new(peer));
/// assert_eq!(detail_of(task.task_ref()).as_deref(), Some("127.0.0.1:7000"));
/// drop(described);
/// assert_eq!(detail_of(task.task_ref()), None);
/// # });
/// ```
///
/// # Panics
///
/// Outside a kernel.
#[inline]
pub fn describe(task: &TaskRef, detail: impl FnOnce() -> Box<dyn Display>) -> Option<Described> {
    are_times_measured().then(|| add(task.id(), detail()))
}

#[inline(never)]
fn add(task: TaskId, detail: Box<dyn Display>) -> Described {
    let details = door::with(|local| local.extension::<Details>());
    details.0.borrow_mut().insert(task, detail);
    Described { details, task }
}

/// The detail of a task of the current kernel, as text.
///
/// # Panics
///
/// Outside a kernel.
pub fn detail_of(task: &TaskRef) -> Option<String> {
    let details = door::with(|local| local.extension::<Details>());
    let details = details.0.borrow();
    details.get(&task.id()).map(ToString::to_string)
}

impl Drop for Described {
    fn drop(&mut self) {
        let removed = self.details.0.borrow_mut().remove(&self.task);
        drop(removed);
    }
}

impl fmt::Debug for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Described").field("task", &self.task).finish_non_exhaustive()
    }
}
