//! Looking into a kernel: the list of kernels, the flight recorder, pages of tasks, figures, and
//! the times of steps.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::future::{pending, poll_fn};
use std::panic::Location;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use pikake::kernel::inspect::{
    Event, KernelView, What, kernel_figures, kernels, record_steps, task_figures, tasks_from,
    time_steps,
};
use pikake::kernel::{Builder, Pick};
use pikake::sync::Semaphore;
use pikake::time::ManualClock;
use pikake::traps::inspect::{record_current_kernel, record_waits_of_current_kernel};
use pikake::traps::{Exit, KernelId, SeenThing, TaskId, TaskMark, TaskRef, try_current};
use pikake::{
    Kernel, KernelHandle, Task, current, shield, sleep, spawn, task, timeout_after, yield_now,
};

use crate::support::{child, ms, within};

/// The longest wait of a test for another thread.
const TEST_LIMIT: Duration = Duration::from_secs(30);

/// A kernel that records its steps, and what other threads see of it.
fn recorded<P: Pick + 'static>(
    builder: Builder<ManualClock, P>,
) -> (Kernel<ManualClock, P>, KernelView) {
    let kernel = builder.build().unwrap();
    kernel.enter(record_current_kernel).unwrap();
    let view = view(kernel.handle().id());
    (kernel, view)
}

fn find(id: KernelId) -> Option<KernelView> {
    kernels().into_iter().find(|view| view.id() == id)
}

fn view(id: KernelId) -> KernelView {
    find(id).expect("the kernel is listed")
}

/// Waits until another thread has come to something.
#[track_caller]
fn wait_until<T>(mut is_so: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = is_so() {
            return value;
        }
        assert!(begin.elapsed() < TEST_LIMIT, "waited in vain");
        thread::yield_now();
    }
}

/// The events as text, places without file and column.
fn texts(events: &[Event]) -> Vec<String> {
    let text = |event: &Event| {
        let mut text = format!("{:?} {} ", event.at, event.task);
        let at = |place: &Location<'_>| {
            assert!(place.file().ends_with("inspect.rs"), "{place}");
            place.line()
        };
        let written = match event.what {
            What::Spawned { place } => write!(text, "spawned at {}", at(place)),
            What::Stepped { took, wait: Some((trap, place)) } => {
                write!(text, "stepped {took:?} {trap} at {}", at(place))
            }
            What::Stepped { took, wait: None } => write!(text, "stepped {took:?}"),
            What::Ended { took, exit, place } => {
                write!(text, "{exit:?} {took:?} from {}", at(place))
            }
            _ => unreachable!(),
        };
        written.unwrap();
        text
    };
    events.iter().map(text).collect()
}

#[test]
fn events_are_recorded_in_order() {
    const LINE: u32 = line!() + 7;

    let clock = ManualClock::new();
    let (kernel, view) = recorded(Kernel::builder().clock(clock.clone()));
    clock.advance(ms(1));
    kernel.run(async {
        let moves = clock.clone();
        let yields = spawn(async move {
            yield_now().await.unwrap(); // `LINE` + 1
            moves.advance(ms(2));
        });
        let aborted = spawn(pending::<()>()); // `LINE` + 4
        yields.await.unwrap(); // `LINE` + 5
        aborted.abort();
        aborted.await.unwrap_err(); // `LINE` + 7
        spawn(async { panic!("as it must be") }).await.unwrap_err(); // `LINE` + 8
    });
    let run = LINE - 2;
    let expected = [
        format!("0ns 1 spawned at {run}"),
        format!("1ms 2 spawned at {LINE}"),
        format!("1ms 3 spawned at {}", LINE + 4),
        format!("1ms 1 stepped Some(0ns) join at {}", LINE + 5),
        format!("1ms 2 stepped Some(0ns) yield at {}", LINE + 1),
        "1ms 3 stepped Some(0ns)".to_owned(),
        format!("3ms 2 Returned Some(2ms) from {LINE}"),
        format!("3ms 1 stepped Some(0ns) join at {}", LINE + 7),
        format!("3ms 3 Dropped None from {}", LINE + 4),
        format!("3ms 4 spawned at {}", LINE + 8),
        format!("3ms 1 stepped Some(0ns) join at {}", LINE + 8),
        format!("3ms 4 Panicked Some(0ns) from {}", LINE + 8),
        format!("3ms 1 Returned Some(0ns) from {run}"),
    ];
    assert_eq!(texts(&view.events(usize::MAX)), expected);
    assert_eq!(texts(&view.events(2)), expected[11..]);
    assert!(view.events(0).is_empty());
}

/// The clock of this kernel is real, as steps are timed on others.
#[test]
fn recorder_of_waits_leaves_yields_and_looks_out() {
    let kernel = Kernel::new().unwrap();
    kernel.enter(record_waits_of_current_kernel).unwrap();
    let view = view(kernel.handle().id());
    let yields = async {
        for _ in 0..3 {
            yield_now().await.unwrap();
        }
    };
    let work = async {
        yields.await;
        let waits = spawn(pending::<()>());
        sleep(ms(1)).await.unwrap();
        let figures = task_figures(&current_task()).unwrap();
        tasks_from(0, usize::MAX).tasks.iter().for_each(TaskRef::inspect);
        yield_now().await.unwrap();
        waits.abort();
        waits.await.unwrap_err();
        figures.steps
    };
    assert_eq!(kernel.run(work), 1, "the sleep");
    let text = |event: &Event| {
        let what = match event.what {
            What::Spawned { .. } => "spawned",
            What::Stepped { wait, .. } => wait.map_or("no trap", |(trap, _)| trap.name()),
            What::Ended { exit: Exit::Returned, .. } => "returned",
            What::Ended { .. } => "dropped",
            _ => unreachable!(),
        };
        format!("{} {what}", event.task)
    };
    let texts: Vec<String> = view.events(usize::MAX).iter().map(text).collect();
    let expected =
        ["1 spawned", "2 spawned", "1 sleep", "2 no trap", "1 join", "2 dropped", "1 returned"];
    assert_eq!(texts, expected);
    kernel.enter(record_current_kernel).unwrap();
    kernel.enter(record_waits_of_current_kernel).unwrap();
    kernel.run(async { yield_now().await.unwrap() });
    let events = view.events(3).iter().map(text).collect::<Vec<_>>();
    assert_eq!(events, ["3 spawned", "3 yield", "3 returned"], "all steps");
}

/// A cause keeps the kernel busy after each step of its task.
#[test]
fn recorder_of_waits_has_those_of_a_cancelled_task() {
    let kernel = Kernel::builder().clock(ManualClock::auto()).build().unwrap();
    kernel.enter(record_waits_of_current_kernel).unwrap();
    let view = view(kernel.handle().id());
    kernel.run(async {
        let shielded = spawn(shield(async { sleep(ms(2)).await.unwrap() }));
        sleep(ms(1)).await.unwrap();
        shielded.request_cancel("too long");
        // The cancel wakes the task, which goes on to wait.
        sleep(ms(20)).await.unwrap();
        shielded.await.unwrap();
    });
    let waits = view.events(usize::MAX).into_iter().filter(|event| event.task == TaskId(2));
    let traps = waits.filter_map(|event| match event.what {
        What::Stepped { wait, .. } => Some(wait.map(|(trap, _)| trap.name())),
        _ => None,
    });
    assert_eq!(traps.collect::<Vec<_>>(), [Some("sleep"); 2]);
}

#[test]
fn full_recorder_forgets_the_oldest_events() {
    let (kernel, view) = recorded(Kernel::builder().clock(ManualClock::auto()));
    kernel.run(async {
        for _ in 0..10_000 {
            yield_now().await.unwrap();
        }
    });
    let events = view.events(usize::MAX);
    assert_eq!(events.len(), 4_095);
    assert!(events[..4_094].iter().all(|event| matches!(event.what, What::Stepped { .. })));
    assert!(matches!(events[4_094].what, What::Ended { exit: Exit::Returned, .. }));
}

#[test]
fn kernels_without_recorder_have_no_events() {
    let kernel = Kernel::builder().clock(ManualClock::auto()).build().unwrap();
    let view = view(kernel.handle().id());
    // In the child of another test, and nowhere else, all kernels record steps.
    kernel.run(async {
        assert!(task_figures(&current_task()).is_none());
        assert!(kernel_figures().lateness.is_empty());
    });
    assert!(view.events(usize::MAX).is_empty());
    assert!(view.recorded_since().is_none());
}

fn current_task() -> pikake::traps::TaskRef {
    let id = try_current().map(|current| current.id()).unwrap();
    let all = tasks_from(0, usize::MAX).tasks;
    all.into_iter().find(|task| task.id() == id).unwrap()
}

/// A kernel that blocks in a step, of a task with or without a name.
#[test]
fn other_threads_see_a_step_that_lasts() {
    let (sender, kernel) = mpsc::channel();
    let (release, blocked) = mpsc::channel::<()>();
    let running = thread::Builder::new().name("inspected".into()).spawn(move || {
        pikake::run(async {
            record_current_kernel();
            spawn(async {
                yield_now().await.unwrap();
            })
            .await
            .unwrap();
            let stuck = pikake::task::Builder::new().name("stuck").spawn(async move {
                sender.send((KernelHandle::current().id(), current().id())).unwrap();
                blocked.recv().unwrap_err();
            });
            stuck.await.unwrap();
            // The kernel sleeps until another thread calls.
            pikake::future_wait(pending::<()>()).await.unwrap_err();
        });
    });
    let (id, task) = kernel.recv_timeout(TEST_LIMIT).unwrap();
    let view = view(id);
    let step = view.current_step().expect("the kernel is in a step");
    assert_eq!((step.task, &*step.name), (task, "stuck"));
    assert!(step.spawned_at.file().ends_with("inspect.rs"));
    assert!(!view.is_asleep());
    let events = view.events(usize::MAX);
    assert!(matches!(events.last(), Some(Event { task: TaskId(1), .. })), "the joining main task");
    assert_eq!(view.thread_name(), "inspected");
    assert_eq!(view.tid().is_some(), cfg!(target_os = "linux"));
    // The watchdog looks four times in the limit of a long step.
    let lasts = wait_until(|| {
        let step = view.current_step().expect("the step lasts");
        (step.lasts > Duration::ZERO).then_some(step.lasts)
    });
    assert!(view.current_step().unwrap().lasts >= lasts);
    drop(release);
    wait_until(|| view.is_asleep().then_some(()));
    assert_eq!(view.current_step(), None);
    view.handle().interrupt("the test is over").unwrap();
    running.unwrap().join().unwrap();
    assert!(find(id).is_none());
}

#[test]
fn kernels_are_listed_until_they_end() {
    let builder = || Kernel::builder().clock(ManualClock::auto());
    let [first, second, third] = [(); 3].map(|()| builder().build().unwrap());
    let ids = [&first, &second, &third].map(|kernel| kernel.handle().id());
    let listed = || -> Vec<KernelId> {
        kernels().iter().map(KernelView::id).filter(|id| ids.contains(id)).collect()
    };
    assert_eq!(listed(), ids);
    let view = view(ids[1]);
    drop(second);
    assert_eq!(listed(), [ids[0], ids[2]]);
    first.shutdown();
    assert_eq!(listed(), [ids[2]]);
    // A view outlives its kernel, and keeps nothing of it alive.
    assert!(view.handle().is_closed() && view.is_asleep() && view.current_step().is_none());
    pikake::sim::example(async {
        assert!(find(KernelHandle::current().id()).is_none(), "a simulated kernel");
        assert!(!tasks_from(0, 10).tasks.is_empty());
    });
}

const ALL_RECORD: &str = "inspect::all_kernels_record_steps_child";

#[test]
fn all_kernels_record_steps() {
    let (is_good, printed) = child::run(&mut child::child(ALL_RECORD));
    assert!(is_good && printed.contains("all record"), "{printed}");
}

#[test]
fn all_kernels_record_steps_child() {
    if !child::is_child(ALL_RECORD) {
        return;
    }
    let records = |kernel: &KernelHandle| view(kernel.id()).recorded_since().is_some();
    let before = Kernel::new().unwrap();
    pikake::run(async {
        let others = pikake::Kernels::start(1).unwrap();
        let [other] = &others.handles()[..] else { panic!("one kernel was started") };
        record_steps();
        record_steps();
        let here = KernelHandle::current();
        while !records(&here) {
            yield_now().await.unwrap();
        }
        other.call(|| async {}).await.unwrap();
        assert!(records(other));
        assert!(task_figures(&current_task()).is_some());
    });
    assert!(!records(&before.handle()), "the kernel has not turned yet");
    before.run(async { yield_now().await.unwrap() });
    assert!(records(&before.handle()));
    let after = Kernel::new().unwrap();
    assert!(records(&after.handle()));
    println!("all record");
}

#[test]
fn task_figures_add_up_steps() {
    let clock = ManualClock::new();
    let (kernel, _) = recorded(Kernel::builder().clock(clock.clone()));
    kernel.run(async {
        let moves = clock.clone();
        let task: Task<()> = spawn(async move {
            moves.advance(ms(2));
            yield_now().await.unwrap();
            moves.advance(ms(5));
            yield_now().await.unwrap();
            moves.advance(ms(1));
            pending().await
        });
        let seen = tasks_from(0, 10).tasks.into_iter().find(|seen| seen.id() == task.id()).unwrap();
        let figures = || task_figures(&seen).unwrap();
        clock.advance(ms(3));
        assert_eq!((figures().steps, figures().since), (0, ms(3)));
        for _ in 0..3 {
            yield_now().await.unwrap();
        }
        clock.advance(ms(4));
        assert_eq!((figures().steps, figures().since), (3, ms(4)));
        assert_eq!((figures().busy, figures().longest), (ms(8), ms(5)));
        task.abort();
        task.await.unwrap_err();
        assert!(task_figures(&seen).is_none());
        // The next task has the index of the one before.
        let next = spawn(pending::<()>());
        let seen = tasks_from(0, 10).tasks.into_iter().find(|seen| seen.id() == next.id()).unwrap();
        assert_eq!(task_figures(&seen).unwrap().steps, 0);
        assert_eq!(task_figures(&seen).unwrap().busy, Duration::ZERO);
        assert_eq!(kernel_figures().longest_step, ms(5));
    });
}

/// A task that hangs seems to hang as long after a look as before.
#[test]
fn waits_for_one_queue_have_the_same_thing() {
    Kernel::new().unwrap().run(async {
        let waiter = |lock: &Rc<Semaphore>| {
            let lock = lock.clone();
            spawn(async move { drop(lock.acquire().await) })
        };
        let (one, other) = (Rc::new(Semaphore::new(0)), Rc::new(Semaphore::new(0)));
        let waiters = [waiter(&one), waiter(&one), waiter(&other)];
        let joined = waiters[0].id();
        let [first, ..] = &waiters;
        let first = first.task_ref().clone();
        let sleeper = spawn(async { drop(sleep(ms(60_000)).await) });
        yield_now().await.unwrap();
        let thing = |task: &Task<()>| {
            let [wait] = &task.task_ref().waits()[..] else { panic!("one wait") };
            wait.thing
        };
        assert_eq!(waiters.each_ref().map(thing), [None; 3], "only a look knows the thing");
        assert!(!first.is_looked_at());
        waiters.iter().chain([&sleeper]).for_each(|task| task.task_ref().inspect());
        assert!(first.is_looked_at());
        yield_now().await.unwrap();
        assert!(!first.is_looked_at() && first.was_looked_at());
        let [a, b, c] = waiters.each_ref().map(thing);
        assert!(matches!(a, Some(SeenThing::Queue(_))), "{a:?}");
        assert_eq!(a, b);
        assert_ne!(a, c);
        assert_eq!(thing(&sleeper), None);

        let [waiter, ..] = waiters;
        let joiner = spawn(async move { drop(waiter.await) });
        yield_now().await.unwrap();
        joiner.task_ref().inspect();
        yield_now().await.unwrap();
        assert_eq!(thing(&joiner), Some(SeenThing::Task(joined)));
    });
}

#[test]
fn a_look_does_not_count_as_a_step() {
    let clock = ManualClock::new();
    let (kernel, _) = recorded(Kernel::builder().clock(clock.clone()));
    kernel.run(async {
        let lock = Rc::new(Semaphore::new(1));
        let held = lock.acquire().await.unwrap();
        let waited = lock.clone();
        let locks: Task<()> = spawn(async move {
            let _permit = waited.acquire().await.unwrap();
            pending().await
        });
        let waker = Rc::new(RefCell::new(None));
        let kept = waker.clone();
        let foreign: Task<()> = spawn(poll_fn(move |cx| {
            *kept.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        }));
        let wake_foreign = || waker.borrow().as_ref().map(Waker::wake_by_ref).unwrap();
        let figures = |task: &Task<()>| {
            let figures = task_figures(task.task_ref()).unwrap();
            (figures.steps, figures.since)
        };
        yield_now().await.unwrap();
        for look in 1..10 {
            clock.advance(ms(4));
            for task in [&locks, &foreign] {
                task.task_ref().inspect();
                // Another client looks at the same time.
                task.task_ref().inspect();
            }
            yield_now().await.unwrap();
            assert_eq!(figures(&locks), (1, ms(4 * look)));
            assert_eq!(figures(&foreign), (1, ms(4 * look)));
        }
        // The task goes on in the step of a look.
        locks.task_ref().inspect();
        drop(held);
        yield_now().await.unwrap();
        assert_eq!(figures(&locks), (2, ms(0)));
        // The task was ready before the look.
        clock.advance(ms(4));
        wake_foreign();
        foreign.task_ref().inspect();
        yield_now().await.unwrap();
        assert_eq!(figures(&foreign), (2, ms(0)));
        // The steps after a look count.
        foreign.task_ref().inspect();
        yield_now().await.unwrap();
        clock.advance(ms(4));
        wake_foreign();
        yield_now().await.unwrap();
        assert_eq!(figures(&foreign), (3, ms(0)));
    });
}

/// A recorder that is turned on late counts from then on.
#[test]
fn late_recorder_has_figures_of_older_tasks() {
    let clock = ManualClock::new();
    let kernel = Kernel::builder().clock(clock.clone()).build().unwrap();
    kernel.run(async {
        for _ in 0..20 {
            spawn(async { yield_now().await.unwrap() }).detach();
        }
        clock.advance(ms(1));
        record_current_kernel();
        clock.advance(ms(2));
        for task in tasks_from(0, 100).tasks {
            let figures = task_figures(&task).unwrap();
            assert_eq!((figures.steps, figures.since), (0, ms(2)));
        }
        yield_now().await.unwrap();
        let all = tasks_from(0, 100).tasks;
        assert_eq!(all.len(), 21);
        assert!(all.iter().all(|task| task_figures(task).unwrap().steps == 1));
    });
}

#[test]
fn steps_are_timed_while_it_is_wanted() {
    // The watchdog looks at a kernel on the system's clock, so that the kernel need not time steps.
    let kernel = Kernel::new().unwrap();
    kernel.enter(record_current_kernel).unwrap();
    let view = view(kernel.handle().id());
    let timed = || -> Vec<bool> {
        let steps = view.events(3).into_iter().map(|event| match event.what {
            What::Stepped { took, .. } => took.is_some(),
            _ => panic!("{event:?}"),
        });
        steps.collect()
    };
    let yield_three = async || {
        for _ in 0..3 {
            yield_now().await.unwrap();
        }
    };
    kernel.run(async {
        let main = current_task();
        yield_three().await;
        assert_eq!(timed(), [false; 3]);
        assert_eq!(kernel_figures().longest_step, Duration::ZERO);
        time_steps(true);
        time_steps(true);
        yield_now().await.unwrap();
        yield_three().await;
        assert_eq!(timed(), [true; 3]);
        time_steps(false);
        yield_three().await;
        assert_eq!(timed(), [true; 3], "one request is left");
        let figures = task_figures(&main).unwrap();
        assert!(figures.busy >= figures.longest && figures.longest > Duration::ZERO);
        assert!(kernel_figures().longest_step >= figures.longest);
        time_steps(false);
        yield_now().await.unwrap();
        let busy = task_figures(&main).unwrap().busy;
        yield_three().await;
        assert_eq!(timed(), [false; 3]);
        assert_eq!(task_figures(&main).unwrap().busy, busy);
        // One too many is no debt.
        time_steps(false);
        time_steps(true);
        yield_now().await.unwrap();
        yield_three().await;
        assert_eq!(timed(), [true; 3]);
    });
}

/// While it is timed, a step of a kernel that the watchdog looks at shows as well.
#[test]
fn timed_steps_are_seen_while_they_last() {
    let kernel = Kernel::new().unwrap();
    let view = view(kernel.handle().id());
    kernel.run(async {
        time_steps(true);
        yield_now().await.unwrap();
        assert_eq!(view.current_step().map(|step| step.task), Some(current().id()));
    });
    assert_eq!(view.current_step(), None);
}

#[test]
fn pages_have_every_task_that_stays_once() {
    const TASKS: usize = 10_000;

    let kernel = Kernel::builder().clock(ManualClock::auto()).build().unwrap();
    kernel.run(async {
        let mut tasks: Vec<Task<()>> = (0..TASKS).map(|_| spawn(pending())).collect();
        // A part of the tasks ends before, and leaves holes.
        tasks.drain(2_000..7_000).for_each(|task| task.abort());
        yield_now().await.unwrap();
        let stay: BTreeSet<TaskId> = tasks.iter().step_by(2).map(Task::id).collect();
        let mut ends = tasks.iter().skip(1).step_by(2);
        let (mut seen, mut pages, mut next) = (Vec::new(), 0, Some(0));
        while let Some(index) = next {
            let page = tasks_from(index, 100);
            assert!(page.tasks.len() <= 100);
            assert!(page.tasks.iter().all(|task| !task.is_ended()));
            seen.extend(page.tasks.iter().map(|task| task.id()));
            ends.by_ref().take(40).for_each(Task::abort);
            for _ in 0..10 {
                spawn(pending::<()>()).detach();
            }
            yield_now().await.unwrap();
            (pages, next) = (pages + 1, page.next);
        }
        assert!((50..300).contains(&pages), "{pages}");
        let once: BTreeSet<TaskId> = seen.iter().copied().collect();
        assert_eq!(once.len(), seen.len(), "no task is listed twice");
        assert!(once.is_superset(&stay));
        let rest = tasks_from(u32::MAX, 100);
        assert!(rest.tasks.is_empty() && rest.next.is_none());
    });
}

/// The name of a lock's holder is known at once among few tasks. Among many, a page must have shown
/// the task.
#[test]
fn marks_find_the_names_of_tasks_that_pages_have_shown() {
    let kernel = Kernel::builder().clock(ManualClock::auto()).build().unwrap();
    kernel.run(async {
        let mark_of = |name: &str| {
            let (sender, mark) = mpsc::channel();
            let task = task::Builder::new().name(name).spawn(async move {
                sender.send(TaskMark::current()).unwrap();
                pending::<()>().await;
            });
            (task, mark)
        };
        let (few, mark) = mark_of("one of few");
        yield_now().await.unwrap();
        assert_eq!(mark.recv().unwrap().label(), format!("task {} `one of few`", few.id()));

        (0..10_000).for_each(|_| spawn(pending::<()>()).detach());
        let (many, mark) = mark_of("one of many");
        yield_now().await.unwrap();
        let mark = mark.recv().unwrap();
        assert_eq!(mark.label(), format!("task {}", many.id()));
        let mut next = Some(0);
        while let Some(index) = next {
            next = tasks_from(index, 1_000).next;
        }
        assert_eq!(mark.label(), format!("task {} `one of many`", many.id()));
        many.abort();
        yield_now().await.unwrap();
        assert_eq!(mark.label(), format!("task {}", mark.id()));
    });
}

#[test]
fn kernel_figures_count_tasks_waits_and_messages() {
    let clock = ManualClock::new();
    let (kernel, _) = recorded(Kernel::builder().clock(clock.clone()));
    kernel.run(async {
        let begin = kernel_figures();
        assert_eq!((begin.tasks, begin.ready, begin.spawned, begin.steps), (1, 0, 1, 1));
        let none = Rc::new(Semaphore::new(0));
        for _ in 0..3 {
            let none = none.clone();
            spawn(async move { drop(none.acquire().await) }).detach();
        }
        spawn(async { timeout_after(ms(9), sleep(ms(8))).await.unwrap().unwrap() }).detach();
        let _listener = pikake::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        assert_eq!(kernel_figures().ready, 4);
        yield_now().await.unwrap();
        let figures = kernel_figures();
        assert_eq!((figures.tasks, figures.ready, figures.spawned), (5, 0, 5));
        assert_eq!((figures.timers, figures.waiters, figures.sockets), (2, 3, 1));
        assert_eq!(figures.steps, begin.steps + 5);
        // Late by 3 µs: in the class of two to four.
        clock.advance(ms(8) + Duration::from_micros(3));
        for _ in 0..4 {
            yield_now().await.unwrap();
        }
        let figures = kernel_figures();
        assert_eq!((figures.tasks, figures.timers), (4, 0));
        assert_eq!(figures.lateness, [0, 0, 1]);
        let handle = KernelHandle::current();
        thread::spawn(move || handle.call_there(Box::new(|| {}))).join().unwrap().unwrap();
        for _ in 0..200 {
            yield_now().await.unwrap();
        }
        assert_eq!(kernel_figures().messages, figures.messages + 1);
        assert!(kernel_figures().polls > figures.polls);
    });
}

#[test]
fn helper_threads_are_counted() {
    within(|| {
        let builder = Kernel::builder().helper_threads(1);
        let kernel = builder.build().unwrap();
        kernel.run(async {
            let (release, blocked) = mpsc::channel::<()>();
            let (runs, started) = mpsc::channel();
            let first = spawn(pikake::thread::run_in_thread(move || {
                runs.send(()).unwrap();
                blocked.recv().unwrap_err();
            }));
            let second = spawn(pikake::thread::run_in_thread(|| {}));
            yield_now().await.unwrap();
            started.recv_timeout(TEST_LIMIT).unwrap();
            let figures = kernel_figures();
            assert_eq!((figures.busy_threads, figures.queued_closures), (1, 1));
            drop(release);
            first.await.unwrap().unwrap();
            second.await.unwrap().unwrap();
            assert_eq!(kernel_figures().queued_closures, 0);
        });
    });
}

const CRASH: &str = "inspect::crash_report_child";

#[test]
fn crash_report_has_the_last_events_of_the_task() {
    let (is_good, printed) = child::run(&mut child::child(CRASH));
    let report = printed.lines().find(|line| line.contains("task crashed"));
    assert!(is_good && report.is_some(), "{printed}");
    let (_, events) = report.unwrap().split_once("last_events=").expect("the events are reported");
    assert!(!events.contains("; 1.00"), "events of other tasks: {events}");
    for part in ["1ms spawned at ", "3ms yield at ", "inspect.rs:", "; 3ms panicked"] {
        assert!(events.contains(part), "{part}: {events}");
    }
}

#[test]
fn crash_report_child() {
    if !child::is_child(CRASH) {
        return;
    }
    pikake::log_to_stderr();
    let clock = ManualClock::new();
    let (kernel, _) = recorded(Kernel::builder().clock(clock.clone()));
    clock.advance(ms(1));
    let clock = clock.clone();
    kernel.run(async {
        spawn(async move {
            clock.advance(ms(2));
            yield_now().await.unwrap();
            panic!("as it must be");
        })
        .detach();
        for _ in 0..3 {
            yield_now().await.unwrap();
        }
    });
}
