//! Offers of work while kernels end, are left by their owners, or are busy.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use pikake::task::spawn_anywhere;
use pikake::traps::Peers;
use pikake::{Kernel, Kernels, shield, sleep, spawn, yield_now};

const LONG: Duration = Duration::from_secs(3600);

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
    fn poll(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        std::task::Poll::Ready(())
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
        begins.recv_timeout(Duration::from_secs(10)).unwrap();
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
    let (started, starts) = channel();
    let of_thread = peers.clone();
    let thread = thread::spawn(move || {
        let kernel = Kernel::builder().peers(&of_thread).build().unwrap();
        started.send(kernel.handle()).unwrap();
        drop(kernel.try_run(async { sleep(LONG).await }));
    });
    let idle = starts.recv().unwrap();
    thread::sleep(Duration::from_millis(200));
    let giver = Kernel::builder().peers(&peers).build().unwrap();
    let is_taken = giver.run(async {
        spawn(async {}).detach();
        let (begun, begins) = channel();
        let task = spawn_anywhere(move || async move { begun.send(()).unwrap() });
        let is_taken = begins.recv_timeout(Duration::from_secs(2)).is_ok();
        task.await.unwrap();
        is_taken
    });
    idle.interrupt("enough").unwrap();
    thread.join().unwrap();
    assert!(is_taken, "an idle kernel sleeps while work is offered");
    drop(left);
}

/// So does a kernel that is being shut down, and cleans up.
#[test]
fn kernel_that_shuts_down_does_not_take_the_wake() {
    let peers = Peers::new();
    let start = || {
        let (started, starts) = channel();
        let peers = peers.clone();
        let thread = thread::spawn(move || {
            let kernel = Kernel::builder().peers(&peers).build().unwrap();
            started.send(kernel.handle()).unwrap();
            drop(kernel.try_run(async {
                drop(sleep(LONG).await);
                shield(async { drop(sleep(Duration::from_secs(4)).await) }).await
            }));
        });
        (starts.recv().unwrap(), thread)
    };
    let (ending, ends) = start();
    let (idle, ends_too) = start();
    thread::sleep(Duration::from_millis(200));
    ending.shutdown().unwrap();
    thread::sleep(Duration::from_millis(200));
    let giver = Kernel::builder().peers(&peers).build().unwrap();
    let is_taken = giver.run(async {
        spawn(async {}).detach();
        let (begun, begins) = channel();
        let task = spawn_anywhere(move || async move { begun.send(()).unwrap() });
        let is_taken = begins.recv_timeout(Duration::from_secs(2)).is_ok();
        task.await.unwrap();
        is_taken
    });
    idle.shutdown().unwrap();
    ends.join().unwrap();
    ends_too.join().unwrap();
    assert!(is_taken, "an idle kernel sleeps while work is offered");
}

/// An embedded kernel whose main task has ended must not take work: its owner leaves it.
#[test]
fn kernel_whose_main_task_has_ended_takes_no_work() {
    let peers = Peers::new();
    let giver = Kernel::builder().peers(&peers).build().unwrap();
    let (offered, offers) = channel();
    let (go, goes) = channel::<()>();
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
        goes.recv().unwrap();
        is_over
    });
    giver.run(async {
        spawn(async {}).detach();
        let task = spawn_anywhere(move || async move { thread::current().id() });
        offered.send(()).unwrap();
        thread::sleep(Duration::from_millis(300));
        let ended = pikake::timeout_after(Duration::from_secs(2), task).await;
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
    let of_thread = peers.clone();
    let (started, starts) = channel();
    let thread = thread::spawn(move || {
        let kernel = Kernel::builder().peers(&of_thread).build().unwrap();
        started.send(kernel.handle()).unwrap();
        drop(kernel.try_run(async { sleep(LONG).await }));
    });
    let idle = starts.recv().unwrap();
    let giver = Kernel::builder().peers(&peers).build().unwrap();
    giver
        .enter(|| {
            spawn(async move {
                drop(sleep(LONG).await);
                for _ in 0..200 {
                    let begun = begun.clone();
                    let task = spawn_anywhere(move || async move { begun.send(()).unwrap() });
                    assert!(task.is_finished(), "refused");
                    thread::sleep(Duration::from_millis(1));
                }
            })
            .detach();
        })
        .unwrap();
    giver.run(yield_now()).unwrap();
    giver.shutdown();
    let begun = begins.try_iter().count();
    idle.interrupt("enough").unwrap();
    thread.join().unwrap();
    assert_eq!(begun, 0, "works of refused tasks have begun");
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
        begins.recv_timeout(Duration::from_secs(10)).unwrap();
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
    let (started, starts) = channel();
    let of_thread = peers.clone();
    let thread = thread::spawn(move || {
        let kernel = Kernel::builder().peers(&of_thread).build().unwrap();
        started.send(kernel.handle()).unwrap();
        drop(kernel.try_run(async { sleep(LONG).await }));
    });
    let idle = starts.recv().unwrap();
    thread::sleep(Duration::from_millis(100));
    let kernel = Kernel::builder().peers(&peers).build().unwrap();
    let late = kernel.try_run_by(
        async {
            let mut late = 0;
            for _ in 0..1000 {
                yield_now().await.unwrap();
                late += u32::from(pikake::traps::should_offer());
            }
            late
        },
        |main| {
            while !main.is_ended() {
                kernel.turn(Some(Duration::ZERO)).unwrap();
            }
        },
    );
    idle.interrupt("enough").unwrap();
    thread.join().unwrap();
    assert!(late.unwrap() < 500, "a kernel that waits for nothing is late in most steps");
}

/// A woken kernel that gets work of its own before it looks for offers wakes another one.
#[test]
fn kernel_that_got_work_of_its_own_passes_the_wake_on() {
    let mut missed = 0;
    for _ in 0..30 {
        missed += pikake::run(async {
            let kernels = Kernels::start(2).unwrap();
            sleep(Duration::from_millis(10)).await.unwrap();
            let first = kernels.handles().remove(0);
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
fn deadline_around_taken_work() {
    pikake::run(async {
        let _kernels = Kernels::start(1).unwrap();
        spawn(async {}).detach();
        let (begun, begins) = channel();
        let work = move |(): ()| async move {
            begun.send(()).unwrap();
            let why = sleep(LONG).await.unwrap_err();
            sleep(Duration::from_millis(300)).await.unwrap();
            why.to_string()
        };
        let here = |claim| async move {
            let pikake::traps::Claim::There(taken) = claim else { panic!("not taken") };
            let wait = pikake::timeout_after(Duration::from_millis(50), taken.outcome());
            wait.await.map(|outcome| outcome.unwrap()).map_err(|why| why.to_string())
        };
        let task = pikake::task::Builder::new().offer((), work, here);
        begins.recv_timeout(Duration::from_secs(10)).unwrap();
        println!("{:?}", task.await.unwrap());
    });
}

/// A panic of taken work is that of the member.
#[test]
fn panic_of_taken_member_reaches_its_group() {
    pikake::run(async {
        let _kernels = Kernels::start(1).unwrap();
        let outcome = pikake::try_task_group(async |group| {
            group.spawn(async { Ok::<_, std::io::Error>(()) });
            let (begun, begins) = channel();
            group.spawn_anywhere(move || async move {
                begun.send(()).unwrap();
                panic!("as it must be")
            });
            begins.recv_timeout(Duration::from_secs(10)).unwrap();
            Ok::<(), std::io::Error>(())
        });
        println!("{:?}", outcome.await);
    });
}

/// A member's place is that of the call of `spawn`.
#[test]
fn place_of_a_member_is_its_spawn() {
    pikake::run(async {
        let outcome = pikake::try_task_group(async |group| {
            group.spawn(async { Err::<(), _>(std::io::Error::other("failed")) });
            pikake::yield_now().await.unwrap();
            Ok::<(), std::io::Error>(())
        });
        let text = format!("{:?}", outcome.await);
        assert!(text.contains("late_offers.rs"), "{text}");
    });
}
