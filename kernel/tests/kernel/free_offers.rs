//! Work that a kernel has offered and that nobody takes, while this kernel is never idle.

use std::cell::{Cell, RefCell};
use std::os::unix::net::UnixStream as StdStream;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use pikake::net::UnixStream;
use pikake::task::{Builder, spawn_anywhere};
use pikake::time::ManualClock;
use pikake::traps::{Claim, Peers};
use pikake::{Kernel, KernelHandle, Task, sleep, spawn, timeout_after, yield_now};

const LONG: Duration = Duration::from_secs(3600);

fn run_beside_another<T>(body: impl AsyncFnOnce() -> T) -> T {
    let peers = Peers::new();
    let _other = Kernel::builder().peers(&peers).build().unwrap();
    let kernel = Kernel::builder().clock(ManualClock::new()).peers(&peers).build().unwrap();
    kernel.run(body())
}

fn offer_work(note: impl FnOnce() + 'static) -> Task<()> {
    let there = |()| async { unreachable!("no other kernel takes the work") };
    Builder::new().offer((), there, move |claim: Claim<(), ()>| async move {
        assert!(matches!(claim, Claim::Here(())));
        note();
    })
}

/// A kernel whose every poll is one before a deadline.
#[test]
fn kernel_with_deadlines_at_each_turn_begins_its_offers() {
    run_beside_another(async || {
        let offer = offer_work(|| ());
        for _ in 0..20_000 {
            let _ = timeout_after(Duration::ZERO, async {
                for _ in 0..2 {
                    yield_now().await?;
                }
                Ok::<_, pikake::Interrupted>(())
            })
            .await;
            let _ = yield_now().await;
            if offer.is_finished() {
                return;
            }
        }
        panic!("the offer has not begun");
    });
}

/// A kernel whose every poll finds an event.
#[test]
fn kernel_with_events_at_each_poll_begins_its_offers() {
    run_beside_another(async || {
        let (one, other) = UnixStream::pair().unwrap();
        let echo = spawn(async move {
            let mut byte = [0];
            while other.read(&mut byte).await.is_ok_and(|n| n > 0) {
                other.write_all(&byte).await.unwrap();
            }
        });
        let offer = offer_work(|| ());
        for _ in 0..20_000 {
            one.write_all(&[1]).await.unwrap();
            let mut byte = [0];
            one.read(&mut byte).await.unwrap();
            if offer.is_finished() {
                echo.abort();
                return;
            }
        }
        panic!("the offer has not begun");
    });
}

/// A kernel to which each message brings the next one.
#[test]
fn kernel_with_mail_at_each_turn_begins_its_offers() {
    let peers = Peers::new();
    let _other = Kernel::builder().peers(&peers).build().unwrap();
    let kernel = Kernel::builder().peers(&peers).build().unwrap();
    let handle = kernel.handle();
    fn again(handle: KernelHandle, until: Instant) {
        if Instant::now() < until {
            let next = handle.clone();
            handle.call_there(Box::new(move || again(next, until))).unwrap();
        }
    }
    let took = kernel.run(async {
        let begins = Instant::now();
        again(handle, begins + Duration::from_secs(2));
        offer_work(|| ()).await.unwrap();
        begins.elapsed()
    });
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn offer_between_two_turns_shows_on_the_descriptor() {
    use std::os::fd::AsRawFd;
    let peers = Peers::new();
    let _other = Kernel::builder().peers(&peers).build().unwrap();
    let kernel = Kernel::builder().clock(ManualClock::new()).peers(&peers).build().unwrap();
    let settle = || while kernel.turn(Some(Duration::ZERO)).unwrap().is_ready {};
    let mut poll = mio::Poll::new().unwrap();
    let descriptor = kernel.as_raw_fd();
    poll.registry()
        .register(&mut mio::unix::SourceFd(&descriptor), mio::Token(0), mio::Interest::READABLE)
        .unwrap();
    let mut is_readable = || {
        let mut events = mio::Events::with_capacity(4);
        poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        !events.is_empty()
    };
    settle();
    is_readable();
    settle();
    assert!(!is_readable());
    kernel.enter(|| spawn(async {}).detach()).unwrap();
    assert!(is_readable(), "task");
    settle();
    is_readable();
    settle();
    assert!(!is_readable());
    let offer = kernel.enter(|| offer_work(|| ())).unwrap();
    assert!(is_readable(), "offer");
    settle();
    assert!(offer.is_finished());
}

#[test]
fn inspection_does_not_begin_an_offer() {
    run_beside_another(async || {
        let has_begun = Rc::new(Cell::new(false));
        let begun = has_begun.clone();
        let offer = offer_work(move || begun.set(true));
        offer.task_ref().inspect();
        for _ in 0..10 {
            yield_now().await.unwrap();
        }
        assert!(!has_begun.get(), "begun before other work");
        let waits = offer.task_ref().waits();
        assert_eq!(waits.len(), 1);
        offer.await.unwrap();
    });
}

struct Panics;

impl pikake::kernel::Observer for Panics {
    fn created(&self, task: &pikake::traps::TaskRef) {
        if task.name().contains("of kernel") {
            panic!("an observer");
        }
    }
}

/// The taking kernel fails in the middle.
#[test]
fn offer_ends_if_the_kernel_that_takes_it_panics() {
    let peers = Peers::new();
    let of_thread = peers.clone();
    let thread = thread::spawn(move || {
        let kernel = Kernel::builder().peers(&of_thread).observer(Panics).build().unwrap();
        kernel.run(async { drop(sleep(LONG).await) });
    });
    while peers.idle().is_none() {
        thread::yield_now();
    }
    let kernel = Kernel::builder().peers(&peers).build().unwrap();
    kernel.run(async {
        spawn(async {}).detach();
        let task = spawn_anywhere(|| async {});
        thread.join().unwrap_err();
        let ended = timeout_after(Duration::from_secs(3), task).await;
        assert!(ended.is_ok(), "{ended:?}");
    });
}

/// As after a cancel.
#[test]
fn aborted_work_does_not_begin() {
    let peers = Peers::new();
    let (busy, is_busy) = channel();
    let (end, ended) = channel::<()>();
    let of_thread = peers.clone();
    let (started, starts) = channel();
    let thread = thread::spawn(move || {
        let kernel = Kernel::builder().peers(&of_thread).build().unwrap();
        started.send(kernel.handle()).unwrap();
        drop(kernel.try_run(async { drop(sleep(LONG).await) }));
    });
    let other = starts.recv().unwrap();
    other
        .call_there(Box::new(move || {
            busy.send(()).unwrap();
            let _ = ended.recv();
        }))
        .unwrap();
    is_busy.recv().unwrap();
    let kernel = Kernel::builder().peers(&peers).build().unwrap();
    kernel.run(async {
        spawn(async {}).detach();
        let (begun, begins) = channel();
        let task = spawn_anywhere(move || async move { begun.send(()).unwrap() });
        task.abort();
        drop(end);
        assert!(begins.recv_timeout(Duration::from_millis(500)).is_err(), "begun after the abort");
    });
    other.shutdown().unwrap();
    thread.join().unwrap();
}

/// A woken kernel that finds an event in its last poll before it would take an offer.
#[test]
fn kernel_that_finds_an_event_passes_the_wake_on() {
    use std::io::Write;
    let peers = Peers::new();
    struct Writes(RefCell<Option<StdStream>>, Rc<Cell<bool>>);
    impl pikake::kernel::Observer for Writes {
        fn polled(&self, _: usize) {
            if self.1.get()
                && let Some(mut stream) = self.0.borrow_mut().take()
            {
                stream.write_all(&[1]).unwrap();
                std::mem::forget(stream);
            }
        }
    }
    let start = |is_first: bool| {
        let peers = peers.clone();
        let (started, starts) = channel();
        let thread = thread::spawn(move || {
            let (std_one, std_other) = StdStream::pair().unwrap();
            let is_armed = Rc::new(Cell::new(false));
            let mut builder = Kernel::builder().peers(&peers);
            if is_first {
                builder = builder.observer(Writes(RefCell::new(Some(std_one)), is_armed.clone()));
            } else {
                std::mem::forget(std_one);
            }
            let kernel = builder.build().unwrap();
            started.send(kernel.handle()).unwrap();
            drop(kernel.try_run(async {
                std_other.set_nonblocking(true).unwrap();
                let other = UnixStream::from_std(std_other).unwrap();
                spawn(async move {
                    sleep(Duration::from_millis(100)).await.unwrap();
                    is_armed.set(true);
                })
                .detach();
                let mut byte = [0];
                let _ = other.read(&mut byte).await;
                thread::sleep(Duration::from_secs(2)); // a long step
                drop(sleep(LONG).await)
            }));
        });
        (starts.recv().unwrap(), thread)
    };
    let first = start(true);
    thread::sleep(Duration::from_millis(20));
    let second = start(false);
    thread::sleep(Duration::from_millis(50));
    let kernel = Kernel::builder().peers(&peers).build().unwrap();
    // Armed in a step, which polls before it sleeps. Wait until both sleep again.
    let took = kernel.run(async {
        thread::sleep(Duration::from_millis(500));
        spawn(async {}).detach();
        let (begun, begins) = channel();
        let offered = Instant::now();
        let task = spawn_anywhere(move || async move { begun.send(Instant::now()).unwrap() });
        let took = begins.recv_timeout(Duration::from_secs(5)).map(|at| at - offered);
        task.await.unwrap();
        took
    });
    for (handle, thread) in [first, second] {
        handle.shutdown().unwrap();
        thread.join().unwrap();
    }
    assert!(took.unwrap() < Duration::from_secs(1), "{took:?}");
}

fn stuck(peers: &Peers) -> pikake::traps::LocalHome {
    let home = pikake::traps::Home::open(|| {});
    home.set_late_from(pikake::time::Ticks::MAX);
    assert!(home.fall_asleep());
    peers.add(home.shared());
    home
}

#[test]
fn busy_kernel_leaves_its_offers_for_a_time() {
    let least = (0..200)
        .map(|steps| {
            let peers = Peers::new();
            let _stuck = stuck(&peers);
            let kernel = Kernel::builder().peers(&peers).build().unwrap();
            kernel.run(async {
                for _ in 0..steps {
                    yield_now().await.unwrap();
                }
                spawn(async {}).detach();
                let offered = Instant::now();
                let offer = spawn_anywhere(move || async move { offered.elapsed() });
                while !offer.is_finished() {
                    yield_now().await.unwrap();
                }
                offer.await.unwrap()
            })
        })
        .min();
    assert!(least.unwrap() >= Duration::from_micros(100), "{least:?}");
}
