//! The shared part of a task cell under the model checker: wakers on other threads, while the home
//! thread drains its wake queue, ends the tasks and closes the home.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use shuttle::thread::{self, ThreadId};

use super::reference::{NewTask, TaskRef};
use super::{Header, TaskCell, VTable, receive_wake};
use crate::home::{Home, LocalHome, Message};
use crate::home_tests::{Driver, check};
use crate::threads::AtomicU32;

/// The future of a task, which counts its drops and asserts that they happen on the home thread.
struct Subject {
    drops: Arc<AtomicUsize>,
    home: ThreadId,
}

impl Future for Subject {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        assert_eq!(self.home, thread::current().id(), "a future is dropped at home");
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

thread_local! {
    /// The addresses of the cells that were freed. All threads of a model share one thread-local.
    static FREED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The operations of a task; `free` notes the address of the cell, and keeps the memory.
static WATCHED: VTable = VTable { free: note_freed, ..TaskCell::<Subject>::VTABLE };

unsafe fn note_freed(header: NonNull<Header>) {
    // No store, for that is a step of the model, and other threads could run before it.
    // SAFETY: nothing uses the cell any more, and its memory is kept.
    unsafe { (*header.as_ptr()).shared.refs = AtomicU32::new(0) };
    FREED.with_borrow_mut(|freed| freed.push(header.addr().get()));
}

/// A task whose cell is watched.
fn task(home: &LocalHome, drops: &Arc<AtomicUsize>) -> TaskRef {
    let subject = Subject { drops: drops.clone(), home: thread::current().id() };
    let task = NewTask::new(home, None, Location::caller(), None).fill(subject);
    let header = task.address().as_ptr();
    // SAFETY: the cell was just made, and nothing else looks at it now.
    unsafe { (*header).shared.vtable = &WATCHED };
    task
}

/// Fails if a cell or its home was freed. The caller has a reference of the cell.
fn assert_live(cell: *const (), home: &Weak<Home>) {
    let is_freed = FREED.with_borrow(|freed| freed.contains(&cell.addr()));
    assert!(!is_freed, "a cell was freed before its last reference was gone");
    assert!(home.strong_count() > 0, "a home was freed before the last reference of a cell");
}

/// Receives wakes as a kernel does.
fn receive(mail: Vec<Message>, home: &Weak<Home>) {
    let mut cells = BTreeSet::new();
    for message in &mail {
        let Message::Wake(wake) = message else { unreachable!("no other message is sent") };
        assert_live(wake.cell().as_ptr(), home);
        assert!(cells.insert(wake.cell()), "a task is in the wake queue twice");
    }
    for message in mail {
        let Message::Wake(wake) = message else { continue };
        // SAFETY: the message owns a reference of the cell.
        unsafe { receive_wake(wake.cell().cast()) };
        assert_live(wake.cell().as_ptr(), home);
    }
}

fn take_mail(home: &Home) -> Vec<Message> {
    let mut mail = Vec::new();
    home.take_mail(&mut mail);
    mail
}

/// Calls, clones and drops a waker.
fn use_up(waker: Waker, home: &Weak<Home>) {
    assert_live(waker.data(), home);
    waker.wake_by_ref();
    assert_live(waker.data(), home);
    let other = waker.clone();
    drop(waker);
    assert_live(other.data(), home);
    other.wake();
}

/// The moment at which the home thread drops its references to the tasks.
#[derive(Clone, Copy, PartialEq)]
enum End {
    First,
    BeforeClose,
    AfterClose,
    Last,
}

#[test]
fn the_last_reference_frees_cell_and_home() {
    for end in [End::First, End::BeforeClose, End::AfterClose, End::Last] {
        check(move || {
            let drops = Arc::new(AtomicUsize::new(0));
            let home = Home::open(|| {});
            let shared = Arc::downgrade(home.shared());
            let mut tasks = vec![task(&home, &drops), task(&home, &drops)];
            let cells = [0, 1].map(|index| tasks[index].address());
            let threads = [0, 1].map(|_| {
                let wakers = [tasks[0].waker(), tasks[1].waker()];
                let home = shared.clone();
                thread::spawn(move || wakers.into_iter().for_each(|waker| use_up(waker, &home)))
            });
            let mut end_if = |now| {
                if end == now {
                    tasks.clear()
                }
            };
            end_if(End::First);
            receive(take_mail(&home), &shared);
            end_if(End::BeforeClose);
            receive(home.close(), &shared);
            end_if(End::AfterClose);
            drop(home);
            end_if(End::Last);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(shared.upgrade().is_none(), "a reference of the home was leaked");
            assert_eq!(drops.load(Ordering::SeqCst), 2, "both futures were dropped once");
            let freed: BTreeSet<usize> = cells.iter().map(|cell| cell.addr().get()).collect();
            let noted = FREED.take();
            assert!(noted.len() == 2 && noted.into_iter().collect::<BTreeSet<_>>() == freed);
            for cell in cells {
                // SAFETY: the memory of a watched cell is kept.
                let refs = unsafe { &(*cell.as_ptr()).shared.refs };
                assert_eq!(refs.load(Ordering::SeqCst), 0, "used after it was freed");
                // SAFETY: nothing points to the cell any more, and its stage is empty.
                unsafe { TaskCell::<Subject>::free(cell) };
            }
        });
    }
}

/// The number of threads that wake a task.
const WAKERS: usize = 2;

/// The number of wakes by each thread.
const ROUNDS: usize = 3;

/// Each thread adds work before it wakes the task. If no later step sees the work, the kernel stays
/// asleep, and the checker reports a deadlock.
#[test]
fn each_wake_is_followed_by_a_step() {
    check(|| {
        let (driver, work) = (Arc::new(Driver::default()), Arc::new(AtomicUsize::new(0)));
        let home = Home::open(driver.waker());
        let shared = Arc::downgrade(home.shared());
        let task = task(&home, &Arc::default());
        let threads = [(); WAKERS].map(|()| {
            let (waker, work) = (task.waker(), work.clone());
            thread::spawn(move || {
                for _ in 0..ROUNDS {
                    work.fetch_add(1, Ordering::SeqCst);
                    waker.wake_by_ref();
                }
            })
        });
        let mut seen = 0;
        while seen < WAKERS * ROUNDS {
            let mail = take_mail(&home);
            if mail.is_empty() {
                driver.sleep(&home);
            } else {
                receive(mail, &shared);
                seen = work.load(Ordering::SeqCst);
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(home.close());
    });
}
