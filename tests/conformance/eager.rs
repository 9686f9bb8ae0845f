//! Tasks that begin at once, inside the step that spawns them.

use std::cell::RefCell;
use std::future::{pending as foreign, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::pikake::traps::{WaitQueue, park};
use super::pikake::{Task, current, sleep, spawn, timed, timeout_after, yield_now};

use super::runner::{
    Runner, World, describe, ms, named, next_step, on_every_kernel, poll_once, spawn_eagerly,
};

fn a_task_that_ends_at_once_costs_no_step<R: Runner>() {
    let events = R::run(async |world| {
        let other = spawn({
            let world = world.clone();
            async move { world.note("another step") }
        });
        let sum = spawn_eagerly(async { 6 * 7 });
        assert!(sum.is_finished());
        let sums = [sum, spawn_eagerly(async { 43 })];
        for sum in sums {
            world.note(sum.await.unwrap());
        }
        other.await.unwrap();
    });
    assert_eq!(events, ["0 42", "0 43", "0 another step"]);
}

fn a_task_that_waits_goes_on_as_any_other<R: Runner>() {
    let events = R::run(async |world| {
        let child = spawn_eagerly({
            let world = world.clone();
            async move {
                world.note("begins");
                let slept = sleep(ms(5)).await;
                world.note(describe(slept.clone()));
                slept.is_err()
            }
        });
        world.note(format_args!("spawned, finished: {}", child.is_finished()));
        sleep(ms(1)).await.unwrap();
        child.request_cancel("enough");
        world.note(child.await.unwrap());
    });
    let expected = ["0 begins", "0 spawned, finished: false", "1 cancelled: enough", "1 true"];
    assert_eq!(events, expected);
}

fn a_task_that_waits_is_in_no_scope_of_its_parent<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(1), async {
            let child = spawn_eagerly({
                let world = world.clone();
                async move { world.note(describe(sleep(ms(2)).await)) }
            });
            let slept = sleep(ms(5)).await;
            child.detach();
            describe(slept)
        });
        world.note(describe(outcome.await.map_err(|_| "timed out")));
        sleep(ms(5)).await.unwrap();
    });
    assert_eq!(events, ["1 timed out", "2 ok"]);
}

/// Asks a task, whose body is polled with its own waker, to end.
async fn cancelled<F: Future<Output = ()> + 'static>(body: F) {
    let task = spawn(body);
    sleep(ms(1)).await.unwrap();
    task.request_cancel("by the case");
    sleep(ms(3_000)).await.unwrap();
    drop(task);
}

/// A parked cleanup of the parent counts although tasks have begun, waited and ended since.
fn a_parked_cleanup_around_is_left_alone<R: Runner>() {
    let events = R::run(async |world| {
        let end = world.on_drop("dropped");
        cancelled(async move {
            let _end = end;
            assert!(sleep(ms(1_000)).await.is_err());
            let mut cleanup = sleep(ms(10));
            assert!(poll_once(&mut cleanup).await.is_pending());
            spawn_eagerly(async { drop(sleep(ms(1)).await) }).detach();
            spawn_eagerly(async {}).detach();
            poll_fn(|cx| Pin::new(&mut cleanup).poll(cx)).await.unwrap();
            world.note("cleaned up");
        })
        .await;
    });
    assert_eq!(events, ["11 cleaned up", "11 dropped"]);
}

/// The wait that a branch of the parent has begun may be dropped inside the child's step: nothing
/// then holds the parent's body, which waits on a foreign future alone.
fn a_wait_around_may_be_dropped_inside<R: Runner>() {
    let events = R::run(async |world| {
        let end = world.on_drop("dropped");
        cancelled(async move {
            let _end = end;
            assert!(sleep(ms(1_000)).await.is_err());
            let mut cleanup = Box::pin(sleep(ms(10)));
            assert!(poll_once(&mut cleanup).await.is_pending());
            spawn_eagerly(async move { drop(cleanup) }).detach();
            foreign::<()>().await;
        })
        .await;
    });
    assert_eq!(events, ["1001 dropped"], "after the foreign grace");
}

/// A satisfied wait leaves its stamp to the branch: the cause is due to the next wait there, and
/// not to those of a task that begins in between.
fn a_branch_around_goes_on<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(WaitQueue::new());
        let task = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move {
                let other = async { world.note(describe(sleep(ms(50)).await)) };
                let signalled = async {
                    world.note(describe(park(&queue).await));
                    let child = spawn_eagerly({
                        let world = world.clone();
                        async move {
                            world.note(format_args!("child: {}", describe(sleep(ms(1)).await)))
                        }
                    });
                    child.detach();
                    world.note(describe(sleep(ms(50)).await));
                };
                let (mut other, mut signalled) = (pin!(other), pin!(signalled));
                let mut is_over = false;
                poll_fn(|cx| {
                    is_over = is_over || other.as_mut().poll(cx).is_ready();
                    signalled.as_mut().poll(cx)
                })
                .await;
            }
        });
        sleep(ms(1)).await.unwrap();
        queue.wake(1);
        task.request_cancel("by the case");
        task.await.unwrap();
        sleep(ms(5)).await.unwrap();
    });
    let why = "1 cancelled: by the case";
    assert_eq!(events, [why, "1 ok", why, "2 child: ok"]);
}

/// A wake of the parent inside the child's step counts for the parent, which is polled again and
/// not dropped.
fn a_wake_of_the_parent_inside_counts<R: Runner>() {
    let events = R::run(async |world| {
        let end = world.on_drop("dropped");
        cancelled(async move {
            let _end = end;
            let mut polls = 0;
            poll_fn(move |cx: &mut Context<'_>| {
                polls += 1;
                if polls == 2 {
                    let waker = cx.waker().clone();
                    spawn_eagerly(async move { waker.wake() }).detach();
                }
                if polls == 3 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            world.note("woken");
        })
        .await;
    });
    assert_eq!(events, ["1 woken", "1 dropped"]);
}

/// A request to end that a child makes is due to the parent's next wait.
fn a_child_asks_its_parent_to_end<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let parent = current();
                spawn_eagerly(async move { parent.request_cancel("by the child") }).detach();
                world.note(describe(sleep(ms(1)).await));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["0 cancelled: by the child", "1 ok"]);
}

/// A deadline of the parent that passes inside the child's step is the parent's.
fn a_child_that_takes_long_is_its_parents_time<R: Runner>() {
    let events = R::run(async |world| {
        let scope = timed(ms(5), async {
            spawn_eagerly({
                let world = world.clone();
                async move { world.stall(7) }
            })
            .detach();
            describe(sleep(ms(1)).await)
        });
        let ended = scope.await;
        world.note(format_args!("{:?} {}", ended.output, ended.expired));
    });
    // The sleep began after the stall, so the deadline came first.
    assert_eq!(events.len(), 1);
    assert!(events[0].ends_with("true"), "{events:?}");
}

/// The parent's wait for the next step is pending for the rest of its step, and satisfied in the
/// next one; the child's is its own.
fn a_yield_lasts_until_the_next_step_of_its_own_task<R: Runner>() {
    let events = R::run(async |world| {
        let mut own = Box::pin(yield_now());
        assert!(poll_once(&mut own).await.is_pending());
        let child = spawn_eagerly({
            let world = world.clone();
            async move {
                yield_now().await.unwrap();
                world.note("the child's");
            }
        });
        assert!(poll_once(&mut own).await.is_pending());
        own.await.unwrap();
        world.note("the parent's");
        child.await.unwrap();
    });
    assert_eq!(events, ["0 the child's", "0 the parent's"]);
}

/// The yield of another task, which is polled in a later step than it began in, is satisfied.
fn a_yield_that_began_around_is_over_inside<R: Runner>() {
    let events = R::run(async |world| {
        let mut own = Box::pin(yield_now());
        assert!(poll_once(&mut own).await.is_pending());
        let is_next = spawn_eagerly(async move { poll_once(&mut own).await.is_ready() });
        world.note(is_next.await.unwrap());
    });
    assert_eq!(events, ["0 true"]);
}

fn spawn_inside(world: World, depth: u32, most: u32) -> Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async move {
        world.note(format_args!("{depth} begins"));
        if depth < most {
            spawn_eagerly(spawn_inside(world.clone(), depth + 1, most)).detach();
        }
        world.note(format_args!("{depth} ends"));
    })
}

/// Eight steps go on inside each other at most; the next task begins later.
fn a_ninth_step_inside_begins_later<R: Runner>() {
    let events = R::run(async |world| {
        spawn_inside(world, 1, 9).await;
        yield_now().await.unwrap();
    });
    let begins = (1..9).map(|depth| format!("0 {depth} begins"));
    let ends = (1..9).rev().map(|depth| format!("0 {depth} ends"));
    let later = ["0 9 begins", "0 9 ends"].map(str::to_owned);
    assert_eq!(events, begins.chain(ends).chain(later).collect::<Vec<_>>());
}

/// An abort promises the drop before the next step of any task.
fn an_abort_is_not_overtaken<R: Runner>() {
    let events = R::run(async |world| {
        let end = world.on_drop("dropped");
        let aborted = spawn(async move {
            let _end = end;
            foreign::<()>().await;
        });
        yield_now().await.unwrap();
        aborted.abort();
        spawn_eagerly({
            let world = world.clone();
            async move { world.note("begins") }
        })
        .detach();
        sleep(ms(1)).await.unwrap();
    });
    assert_eq!(events, ["0 dropped", "0 begins"]);
}

/// A task on the stack that is aborted is dropped after the outermost step.
fn an_abort_of_the_parent_waits_for_its_step<R: Runner>() {
    let events = R::run(async |world| {
        let own: Rc<RefCell<Option<Task<()>>>> = Rc::default();
        let end = world.on_drop("dropped");
        let parent = spawn({
            let (own, world) = (own.clone(), world.clone());
            async move {
                let _end = end;
                spawn_eagerly({
                    let world = world.clone();
                    async move {
                        own.borrow().as_ref().expect("set below").abort();
                        world.note("aborted");
                    }
                })
                .detach();
                world.note("goes on");
                drop(sleep(ms(1)).await);
                world.note("is not reached");
            }
        });
        own.replace(Some(parent));
        sleep(ms(5)).await.unwrap();
    });
    assert_eq!(events, ["0 aborted", "0 goes on", "0 dropped"]);
}

/// A request to end wakes its task, also inside the task's first step: the task is polled again
/// before it is dropped.
fn a_task_that_asks_itself_to_end_is_polled_again<R: Runner>() {
    let events = R::run(async |world| {
        let end = world.on_drop("dropped");
        let child = spawn_eagerly(async move {
            let _end = end;
            current().request_cancel("by itself");
            foreign::<()>().await;
        });
        world.note(format_args!("finished: {}", child.is_finished()));
        world.note(format_args!("{:?}", child.await));
    });
    let outcome = "0 Err(Cancelled(cancelled: by itself))";
    assert_eq!(events, ["0 finished: false", "0 dropped", outcome]);
}

struct SpawnsWhenDropped(World, &'static str);

impl Drop for SpawnsWhenDropped {
    fn drop(&mut self) {
        let (world, name) = (self.0.clone(), self.1);
        spawn_eagerly(async move { world.note(format_args!("{name} begins")) }).detach();
        self.0.note(format_args!("{name} is dropped"));
    }
}

/// A destructor is no exception, unless the thread unwinds.
fn a_destructor_spawns_eagerly<R: Runner>() {
    let events = R::run(async |world| {
        drop(SpawnsWhenDropped(world.clone(), "one"));
        let panics = named("panics", {
            let world = world.clone();
            async move {
                let _drops = SpawnsWhenDropped(world, "other");
                next_step().await;
                std::panic::panic_any("on purpose");
            }
        });
        sleep(ms(1)).await.unwrap();
        panics.detach();
    });
    let expected = ["0 one begins", "0 one is dropped", "0 other is dropped", "0 other begins"];
    assert_eq!(events, expected);
}

/// Between an abort and the end of the drop there is no step, and who waits for the task in its own
/// destructor learns of the end when all destructors have run.
fn a_destructor_of_an_aborted_task_waits_for_its_end<R: Runner>() {
    struct Joins(World, Rc<RefCell<Option<Task<()>>>>);
    impl Drop for Joins {
        fn drop(&mut self) {
            let (world, own) = (self.0.clone(), self.1.take().expect("set before the abort"));
            let joins = async move { world.note(format_args!("joined: {:?}", own.await)) };
            spawn_eagerly(joins).detach();
            self.0.note("first");
        }
    }

    let events = R::run(async |world| {
        let own = Rc::new(RefCell::new(None));
        let (joins, second) = (Joins(world.clone(), own.clone()), world.on_drop("second"));
        let task = spawn(async move {
            let (_second, _first) = (second, joins);
            foreign::<()>().await;
        });
        sleep(ms(1)).await.unwrap();
        task.abort();
        own.replace(Some(task));
        sleep(ms(1)).await.unwrap();
    });
    assert_eq!(events, ["1 first", "1 second", "1 joined: Err(Cancelled(cancelled: aborted))"]);
}

fn the_end_of_a_kernel_refuses_it<R: Runner>() {
    let events = R::run(async |world| {
        spawn(async move {
            drop(sleep(ms(1_000)).await);
            let late = spawn_eagerly({
                let world = world.clone();
                async move { world.note("is not reached") }
            });
            world.note(format_args!("finished: {}", late.is_finished()));
        })
        .detach();
        sleep(ms(1)).await.unwrap();
    });
    assert_eq!(events, ["1 finished: true"]);
}

on_every_kernel! {
    in_order {
        a_task_that_ends_at_once_costs_no_step a_task_that_waits_goes_on_as_any_other
        a_yield_lasts_until_the_next_step_of_its_own_task a_yield_that_began_around_is_over_inside
        a_ninth_step_inside_begins_later a_destructor_spawns_eagerly
        an_abort_of_the_parent_waits_for_its_step a_task_that_asks_itself_to_end_is_polled_again
        a_wake_of_the_parent_inside_counts a_child_that_takes_long_is_its_parents_time
        a_wait_around_may_be_dropped_inside
    }
    in_any_order {
        a_task_that_waits_is_in_no_scope_of_its_parent a_parked_cleanup_around_is_left_alone
        a_branch_around_goes_on
        a_child_asks_its_parent_to_end
        a_destructor_of_an_aborted_task_waits_for_its_end an_abort_is_not_overtaken the_end_of_a_kernel_refuses_it
    }
}
