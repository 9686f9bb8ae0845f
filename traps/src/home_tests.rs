//! The wake queue under the model checker: senders on their threads, and a kernel that sleeps in a
//! driver and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use shuttle::sync::{Condvar, Mutex};
use shuttle::thread::{self, JoinHandle};

use crate::home::{Home, Message};

/// The number of schedules that each program runs under.
const SCHEDULES: usize = 3_000;

#[track_caller]
pub(crate) fn check(program: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(program, SCHEDULES);
}

/// A model of a kernel's driver: a wake ends the current sleep, or else the next one.
#[derive(Default)]
pub(crate) struct Driver {
    is_woken: Mutex<bool>,
    woken: Condvar,
    wakes: AtomicUsize,
    /// The number of the kernel's announcements of a sleep, or of its owner's leave. Counted just
    /// before each.
    sleeps: AtomicUsize,
    /// The home is closed.
    is_closed: AtomicBool,
}

impl Driver {
    /// The closure by which a home wakes this driver.
    pub(crate) fn waker(self: &Arc<Self>) -> impl Fn() + Send + Sync + 'static {
        let driver = self.clone();
        move || driver.wake()
    }

    fn wake(&self) {
        // The kernel may go on, and end, during a sender's call.
        thread::yield_now();
        assert!(!self.is_closed.load(Ordering::SeqCst), "woken after the home was closed");
        let wakes = self.wakes.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(wakes <= self.sleeps.load(Ordering::SeqCst), "woken twice for one sleep");
        *self.is_woken.lock().unwrap() = true;
        self.woken.notify_one();
    }

    pub(crate) fn falls_asleep(&self, home: &Home) -> bool {
        self.sleeps.fetch_add(1, Ordering::SeqCst);
        home.fall_asleep()
    }

    /// Sleeps as a kernel does. After a lost wake-up no thread of the model can go on, and that
    /// fails.
    pub(crate) fn sleep(&self, home: &Home) {
        let may_block = self.falls_asleep(home);
        self.wait(may_block);
        home.wake_up();
    }

    /// Leaves the kernel as its owner does, until the driver shows that there is a message.
    fn leave(&self, home: &Home) {
        self.sleeps.fetch_add(1, Ordering::SeqCst);
        home.owner_left();
        self.wait(true);
        home.wake_up();
    }

    pub(crate) fn wait(&self, may_block: bool) {
        let mut is_woken = self.is_woken.lock().unwrap();
        while may_block && !*is_woken {
            is_woken = self.woken.wait(is_woken).unwrap();
        }
        *is_woken = false;
    }
}

/// The numbers of the messages that were found, in order.
type Found = Arc<std::sync::Mutex<Vec<usize>>>;

/// Calls a message, which adds its number to the found ones. For the last owner of a message.
fn call(message: Message) {
    let Message::Call(call) = message else { unreachable!("no other message is sent") };
    call();
}

const SENDERS: usize = 3;

/// The number of messages of each sender.
const EACH: usize = 2;

/// Starts the senders. Each thread returns the number of its messages that were refused.
fn start_senders(home: &Arc<Home>, found: &Found) -> Vec<JoinHandle<usize>> {
    let start = |sender| {
        let (home, found) = (home.clone(), found.clone());
        thread::spawn(move || {
            let messages = (sender * EACH..(sender + 1) * EACH).map(|number| {
                let found = found.clone();
                Message::Call(Box::new(move || found.lock().unwrap().push(number)))
            });
            messages.filter_map(|message| home.send(message).err()).map(call).count()
        })
    };
    (0..SENDERS).map(start).collect()
}

#[test]
fn each_message_reaches_a_sleeping_kernel_once() {
    check_messages(Driver::sleep);
}

#[test]
fn each_message_reaches_a_left_kernel_once() {
    check_messages(Driver::leave);
}

/// Sends messages to a kernel that rests when there is none.
#[track_caller]
fn check_messages(rest: fn(&Driver, &Home)) {
    check(move || {
        let (driver, found) = (Arc::new(Driver::default()), Found::default());
        let home = Home::open(driver.waker());
        let senders = start_senders(home.shared(), &found);
        let mut mail = Vec::new();
        loop {
            home.take_mail(&mut mail);
            mail.drain(..).for_each(call);
            if found.lock().unwrap().len() == SENDERS * EACH {
                break;
            }
            rest(&driver, &home);
        }
        for sender in senders {
            assert_eq!(sender.join().unwrap(), 0, "nothing comes back from an open home");
        }
        assert!(!home.has_mail() && home.close().is_empty(), "no message is there twice");
        let found = found.lock().unwrap();
        for sender in 0..SENDERS {
            let of_sender: Vec<_> =
                found.iter().filter(|number| *number / EACH == sender).collect();
            assert!(of_sender.len() == EACH && of_sender.is_sorted(), "{found:?}");
        }
    });
}

/// The kernel looks at its messages once, and ends while others still wake it.
#[test]
fn a_closing_home_loses_no_message() {
    check(|| {
        let (driver, found) = (Arc::new(Driver::default()), Found::default());
        let home = Home::open(driver.waker());
        let senders = start_senders(home.shared(), &found);
        let mut mail = Vec::new();
        home.take_mail(&mut mail);
        mail.drain(..).for_each(call);
        driver.falls_asleep(&home);
        home.close().into_iter().for_each(call);
        driver.is_closed.store(true, Ordering::SeqCst);
        assert!(home.is_closed());
        for sender in senders {
            sender.join().unwrap();
        }
        home.take_mail(&mut mail);
        assert!(mail.is_empty() && home.close().is_empty(), "a message after the end");
        let mut found = std::mem::take(&mut *found.lock().unwrap());
        found.sort_unstable();
        assert!(found.iter().copied().eq(0..SENDERS * EACH), "{found:?}");
        assert_eq!(Arc::strong_count(&driver), 1, "the home has given the driver up");
    });
}
