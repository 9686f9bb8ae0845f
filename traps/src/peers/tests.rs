//! The offers under the model checker: a kernel that offers work, and kernels that take it before
//! they sleep.

use std::any::Any;
use std::sync::Arc;
use std::task::Waker;

use shuttle::sync::{Condvar, Mutex};
use shuttle::thread::{self, JoinHandle};

use super::{Next, Offer, Offered, Peers};
use crate::handle::KernelHandle;
use crate::home::Home;
use crate::home_tests::{Driver, check};
use crate::names::KernelId;

/// The number of works that were begun.
#[derive(Default)]
struct Begun {
    count: Mutex<usize>,
    changed: Condvar,
}

struct Work(Arc<Begun>);

impl Offered for Work {
    fn begin(self: Box<Self>) {
        *self.0.count.lock().unwrap() += 1;
        self.0.changed.notify_all();
    }

    fn into_work(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A kernel without work of its own, until a message comes.
fn taker(peers: &Peers) -> (KernelHandle, JoinHandle<()>) {
    let driver = Arc::new(Driver::default());
    let (sender, peers) = (Arc::new(Mutex::new(None)), peers.clone());
    let (to, ready) = (sender.clone(), Arc::new(Condvar::new()));
    let is_ready = ready.clone();
    let thread = thread::spawn(move || {
        let home = Home::open(driver.waker());
        let handle = KernelHandle::new(home.shared().clone());
        peers.add(home.shared());
        *to.lock().unwrap() = Some(handle);
        is_ready.notify_one();
        let mut mail = Vec::new();
        while mail.is_empty() {
            if let Some(Next::Other(offer)) = peers.next_for(home.id(), |_| true) {
                offer.work.begin();
                continue;
            }
            let may_block = driver.falls_asleep(&home) && !peers.has_offers();
            driver.wait(may_block);
            home.wake_up();
            home.take_mail(&mut mail);
        }
    });
    let mut handle = sender.lock().unwrap();
    while handle.is_none() {
        handle = ready.wait(handle).unwrap();
    }
    (handle.take().unwrap(), thread)
}

const OFFERS: usize = 3;

/// Offers work as a kernel that is none of the takers.
fn offer(peers: &Peers, begun: &Arc<Begun>) -> u64 {
    let (from, work) = (KernelId::fresh(), Box::new(Work(begun.clone())));
    peers.offer(Offer { from, waker: Waker::noop().clone(), work }).0
}

fn with_takers(work: impl Fn(&Peers, &Arc<Begun>) + Send + Sync + 'static) {
    check(move || {
        let (peers, begun) = (Peers::new(), Arc::<Begun>::default());
        let takers = [taker(&peers), taker(&peers)];
        work(&peers, &begun);
        for (handle, thread) in takers {
            handle.stop().unwrap();
            thread.join().unwrap();
        }
        assert_eq!(*begun.count.lock().unwrap(), OFFERS);
        assert!(!peers.has_offers());
    });
}

#[test]
fn each_offer_is_begun_once() {
    with_takers(|peers, begun| {
        let keys = [(); OFFERS].map(|()| offer(peers, begun));
        for key in keys {
            if let Some(work) = peers.withdraw(key) {
                work.begin();
            }
        }
        let mut count = begun.count.lock().unwrap();
        while *count < OFFERS {
            count = begun.changed.wait(count).unwrap();
        }
    });
}

/// After a lost wake-up no thread of the model can go on, and that fails.
#[test]
fn no_kernel_sleeps_while_there_is_an_offer() {
    with_takers(|peers, begun| {
        for _ in 0..OFFERS {
            offer(peers, begun);
        }
        let mut count = begun.count.lock().unwrap();
        while *count < OFFERS {
            count = begun.changed.wait(count).unwrap();
        }
    });
}
