//! Offers of work while kernels end, are left by their owners, or are busy.

use std::io;
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pikake::task::{Builder, spawn_anywhere};
use pikake::time::ManualClock;
use pikake::traps::{Claim, Peers, should_offer};
use pikake::{
    Kernel, KernelHandle, Kernels, shield, sleep, spawn, timeout_after, try_task_group, yield_now,
};

const LONG: Duration = Duration::from_secs(3600);
/// A limit for anything that should happen.
const SOON: Duration = Duration::from_secs(10);

/// A kernel on a thread of its own, which has nothing to do until it is asked to end.
struct Idle {
    kernel: KernelHandle,
    thread: JoinHandle<()>,
}

impl Idle {
    /// A kernel whose main task cleans up for this long at its end.
    fn start(peers: &Peers, cleanup: Duration) -> Self {
        let (peers, (started, starts)) = (peers.clone(), channel());
        let thread = thread::spawn(move || {
            let kernel = Kernel::builder().peers(&peers).build().unwrap();
            started.send(kernel.handle()).unwrap();
            drop(kernel.try_run(async {
                drop(sleep(LONG).await);
                shield(async { drop(sleep(cleanup).await) }).await
            }));
        });
        Self { kernel: starts.recv().unwrap(), thread }
    }

    /// Waits until this is the kernel that the peers know as idle.
    fn sleeps_among(self, peers: &Peers) -> Self {
        while peers.idle() != Some(self.kernel.id()) {
            thread::yield_now();
        }
        self
    }

    /// Has the kernel pass through its loop.
    fn turn(&self) {
        let (turned, turns) = channel();
        self.kernel.call_there(Box::new(move || turned.send(()).unwrap())).unwrap();
        turns.recv_timeout(SOON).unwrap();
    }

    fn end(self) {
        self.kernel.shutdown().unwrap();
        self.thread.join().unwrap();
    }
}

/// Whether another kernel begins work that a new kernel with these peers offers.
fn is_taken(peers: &Peers) -> bool {
    let giver = Kernel::builder().peers(peers).build().unwrap();
    giver.run(async {
        spawn(async {}).detach();
        let (begun, begins) = channel();
        let task = spawn_anywhere(move || async move { begun.send(()).unwrap() });
        let is_taken = begins.recv_timeout(Duration::from_secs(2)).is_ok();
        task.await.unwrap();
        is_taken
    })
}

/// No kernel begins work whose task was cancelled, also while the step that did so goes on.
#[test]
fn cancelled_work_does_not_begin() {
    pikake::run(async {
        let kernels = Kernels::start(1).unwrap();
        let ((busy, is_busy), (end, ended)) = (channel(), channel::<()>());
        let hold: Box<dyn FnOnce() + Send> = Box::new(move || {
            busy.send(()).unwrap();
            let _ = ended.recv();
        });
        kernels.handles()[0].call_there(hold).unwrap();
        is_busy.recv().unwrap();
        spawn(async {}).detach();
        let (begun, begins) = channel();
        let task = spawn_anywhere(move || async move {
            begun.send(()).unwrap();
        });
        task.request_cancel("not wanted");
        drop(end);
        let has_begun = begins.recv_timeout(Duration::from_millis(500)).is_ok();
        let outcome = task.await;
        assert!(!has_begun, "work begins after its cancel; outcome {outcome:?}");
    });
}

struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic!("in the drop");
        }
    }
}

/// A future that panics in its drop after its end.
struct EndsAndPanics(PanicsInDrop);

impl Future for EndsAndPanics {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

#[test]
fn panic_in_the_drop_of_work_is_the_task_s() {
    pikake::run(async {
        let local = spawn(EndsAndPanics(PanicsInDrop)).await;
        let _kernels = Kernels::start(1).unwrap();
        spawn(async {}).detach();
        let (begun, begins) = channel();
        let task = spawn_anywhere(move || {
            begun.send(()).unwrap();
            EndsAndPanics(PanicsInDrop)
        });
        begins.recv_timeout(SOON).unwrap();
        let remote = task.await;
        assert_eq!(format!("{remote:?}"), format!("{local:?}"));
    });
}

/// An offer wakes a kernel that is idle, and not one that its owner has left.
#[test]
fn kernel_left_by_its_owner_does_not_take_the_wake() {
    let peers = Peers::new();
    let left = Kernel::builder().peers(&peers).build().unwrap();
    left.run(async {});
    let idle = Idle::start(&peers, Duration::ZERO).sleeps_among(&peers);
    assert!(is_taken(&peers), "an idle kernel sleeps while work is offered");
    idle.end();
    drop(left);
}

/// So does a kernel that is being shut down, and cleans up.
#[test]
fn kernel_that_shuts_down_does_not_take_the_wake() {
    let peers = Peers::new();
    let ending = Idle::start(&peers, Duration::from_secs(4)).sleeps_among(&peers);
    ending.kernel.shutdown().unwrap();
    let idle = Idle::start(&peers, Duration::ZERO).sleeps_among(&peers);
    assert!(is_taken(&peers), "an idle kernel sleeps while work is offered");
    idle.end();
    ending.end();
}

/// An embedded kernel whose main task has ended must not take work: its owner leaves it.
#[test]
fn kernel_whose_main_task_has_ended_takes_no_work() {
    let peers = Peers::new();
    let giver = Kernel::builder().peers(&peers).build().unwrap();
    let (offered, offers) = channel();
    let ((go, goes), (turned, turns)) = (channel::<()>(), channel());
    let of_thread = peers.clone();
    let thread = thread::spawn(move || {
        let kernel = Kernel::builder().peers(&of_thread).build().unwrap();
        offers.recv().unwrap();
        let ended = kernel.try_run_by(async {}, |main| {
            while !main.is_ended() {
                kernel.turn(Some(Duration::ZERO)).unwrap();
            }
        });
        let is_over = ended.is_ok();
        turned.send(()).unwrap();
        goes.recv().unwrap();
        is_over
    });
    giver.run(async {
        spawn(async {}).detach();
        let task = spawn_anywhere(move || async move { thread::current().id() });
        offered.send(()).unwrap();
        turns.recv_timeout(SOON).unwrap();
        let ended = timeout_after(Duration::from_secs(2), task).await;
        go.send(()).unwrap();
        let is_over = thread.join();
        assert!(ended.is_ok(), "the work is in a kernel that was left: {is_over:?} {ended:?}");
    });
}

/// The spawn on a kernel that shuts down is refused, so its work must not begin elsewhere.
#[test]
fn refused_task_offers_no_work() {
    let (begun, begins) = channel();
    let peers = Peers::new();
    let idle = Idle::start(&peers, Duration::ZERO).sleeps_among(&peers);
    let giver = Kernel::builder().peers(&peers).build().unwrap();
    let refused = async move {
        drop(sleep(LONG).await);
        for _ in 0..200 {
            let begun = begun.clone();
            let task = spawn_anywhere(move || async move { begun.send(()).unwrap() });
            assert!(task.is_finished(), "refused");
            // It looks for offers between these.
            idle.turn();
            idle.turn();
        }
        idle.end();
    };
    giver.enter(|| spawn(refused).detach()).unwrap();
    giver.run(yield_now()).unwrap();
    giver.shutdown();
    assert_eq!(begins.iter().count(), 0, "works of refused tasks have begun");
}

/// The task waits for the end of work that cleans up for longer than the foreign grace.
#[test]
fn cancelled_task_waits_for_long_cleanup() {
    pikake::run(async {
        let _kernels = Kernels::start(1).unwrap();
        spawn(async {}).detach();
        let (begun, begins) = channel();
        let task = spawn_anywhere(move || async move {
            begun.send(()).unwrap();
            drop(sleep(LONG).await);
            shield(async { drop(sleep(Duration::from_secs(3)).await) }).await;
            7
        });
        begins.recv_timeout(SOON).unwrap();
        yield_now().await.unwrap();
        task.request_cancel("a");
        yield_now().await.unwrap();
        task.request_cancel("b");
        assert_eq!(task.await.unwrap(), 7);
    });
}

/// A kernel that its owner turns all the time, with a task that is ready all the time, is not late.
#[test]
fn turned_kernel_is_not_late() {
    let peers = Peers::new();
    let idle = Idle::start(&peers, Duration::ZERO).sleeps_among(&peers);
    let clock = ManualClock::new();
    let kernel = Kernel::builder().clock(clock.clone()).peers(&peers).build().unwrap();
    let late = kernel.try_run_by(
        async {
            let mut late = 0;
            for _ in 0..1000 {
                clock.advance(Duration::from_micros(10));
                yield_now().await.unwrap();
                late += u32::from(should_offer());
            }
            late
        },
        |main| {
            while !main.is_ended() {
                kernel.turn(Some(Duration::ZERO)).unwrap();
            }
        },
    );
    idle.end();
    assert_eq!(late.unwrap(), 0, "steps in which a kernel that waits for nothing is late");
}

/// A woken kernel that gets work of its own before it looks for offers wakes another one.
#[test]
fn kernel_that_got_work_of_its_own_passes_the_wake_on() {
    let mut missed = 0;
    for _ in 0..30 {
        missed += pikake::run(async {
            let kernels = Kernels::start(2).unwrap();
            let first = kernels.handles().remove(0);
            while Peers::current().unwrap().idle() != Some(first.id()) {
                thread::yield_now();
            }
            spawn(async {}).detach();
            let (begun, begins) = channel();
            let task = spawn_anywhere(move || async move {
                let _ = begun.send(());
            });
            // It arrives with the wake.
            let (release, released) = channel::<()>();
            first
                .spawn(move || async move {
                    let _ = released.recv();
                })
                .unwrap();
            let missed = begins.recv_timeout(Duration::from_secs(5)).is_err();
            drop(release);
            task.await.unwrap();
            u32::from(missed)
        });
    }
    assert_eq!(missed, 0, "of 30 offers were left while a kernel slept");
}

/// A deadline around the wait for taken work is passed on once, and the wait goes on.
#[test]
fn deadline_around_taken_work_is_passed_on() {
    pikake::run(async {
        let _kernels = Kernels::start(1).unwrap();
        spawn(async {}).detach();
        let (begun, begins) = channel();
        let work = move |(): ()| async move {
            begun.send(()).unwrap();
            let why = sleep(LONG).await.unwrap_err();
            sleep(Duration::from_millis(20)).await.unwrap(); // a cleanup
            why.reason().map(str::to_owned)
        };
        let here = |claim| async move {
            let Claim::There(taken) = claim else { panic!("nobody has taken it") };
            let mut outcome = None;
            let wait = async { outcome = Some(taken.outcome().await) };
            let is_over = timeout_after(Duration::from_millis(20), wait).await.is_err();
            (is_over, outcome)
        };
        let task = Builder::new().offer((), work, here);
        begins.recv_timeout(SOON).unwrap();
        let (is_over, outcome) = task.await.unwrap();
        let why = outcome.unwrap().unwrap();
        assert_eq!(why.as_deref(), Some("a deadline of the caller passed"));
        assert!(is_over, "the owner of the deadline learns of it");
    });
}

/// A panic of taken work is that of the member.
#[test]
fn panic_of_taken_member_reaches_its_group() {
    pikake::run(async {
        let _kernels = Kernels::start(1).unwrap();
        let outcome = try_task_group(async |group| {
            group.spawn(async { Ok::<_, io::Error>(()) });
            let (begun, begins) = channel();
            group.spawn_anywhere(move || async move {
                begun.send(()).unwrap();
                panic!("as it must be")
            });
            begins.recv_timeout(SOON).unwrap();
            Ok::<(), io::Error>(())
        });
        let text = format!("{:?}", outcome.await.unwrap_err());
        assert!(text.contains("as it must be"), "{text}");
    });
}

/// A member's place is that of the call of `spawn`.
#[test]
fn place_of_a_member_is_its_spawn() {
    pikake::run(async {
        let outcome = try_task_group(async |group| {
            group.spawn(async { Err::<(), _>(io::Error::other("failed")) });
            yield_now().await.unwrap();
            Ok::<(), io::Error>(())
        });
        let text = format!("{:?}", outcome.await);
        assert!(text.contains("late_offers.rs"), "{text}");
    });
}
