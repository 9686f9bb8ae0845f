//! `select!`: which branch wins, and what becomes of the others.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use pikake::sim::{Sim, example};
use pikake::sync::{Mutex, Notify, Queue, mpsc};
use pikake::task::Panic;
use pikake::testing::Injector;
use pikake::time::Instant;
use pikake::traps::note_panic_places;
use pikake::{
    Interrupted, TimedOut, check_interrupt, future_wait, interval, select, sleep, spawn,
    timeout_after, yield_now,
};

use crate::support::{Log, ms, run};

/// Adds its name to a log when it is dropped.
struct Dropped(Log, &'static str);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.add(format_args!("{} dropped", self.1));
    }
}

#[test]
fn the_first_branch_that_is_ready_wins() {
    run(async {
        let begin = Instant::now();
        let winner = select! {
            slept = sleep(ms(20)) => slept.map(|()| "long"),
            slept = sleep(ms(10)) => slept.map(|()| "short"),
            never = future_wait(pending::<&str>()) => never,
        };
        assert_eq!((winner, begin.elapsed()), (Ok("short"), ms(10)));
    });
}

/// How often each of four branches wins, of which the last is never ready.
async fn wins(rounds: usize) -> [usize; 4] {
    let mut wins = [0; 4];
    for _ in 0..rounds {
        let winner = select! {
            _ = ready(()) => 0,
            _ = ready(()) => 1,
            _ = ready(()) => 2,
            _ = pending::<()>() => 3,
        };
        wins[winner] += 1;
    }
    wins
}

#[test]
fn ready_branches_win_equally_often() {
    // Deviations of more than a tenth are less likely than one in a thousand; the seed is fixed.
    let wins = example(wins(3_000));
    assert!(wins[..3].iter().all(|wins| (900..1_100).contains(wins)) && wins[3] == 0, "{wins:?}");
}

/// The winners of some rounds, by the seed of the simulation.
fn winners(seed: u64) -> Vec<usize> {
    let winners = Rc::new(RefCell::new(Vec::new()));
    let mut sim = Sim::new(seed);
    sim.client("main", {
        let winners = winners.clone();
        move || {
            let winners = winners.clone();
            async move {
                for _ in 0..20 {
                    let winner =
                        select! { _ = ready(()) => 0, _ = ready(()) => 1, _ = ready(()) => 2 };
                    winners.borrow_mut().push(winner);
                }
            }
        }
    });
    sim.run().unwrap();
    drop(sim);
    winners.take()
}

#[test]
fn a_seed_repeats_the_winners() {
    let all: Vec<_> = (0..20).map(winners).collect();
    assert_eq!(all, (0..20).map(winners).collect::<Vec<_>>());
    for branch in 0..3 {
        assert!(all.iter().any(|winners| winners[0] == branch), "branch {branch} never won");
    }
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn a_branch_that_is_always_ready_starves_none() {
    example(async {
        let queue = Queue::unbounded();
        for number in 0..50 {
            queue.try_put(number).unwrap();
        }
        let (mut got, mut others) = (Vec::new(), 0);
        while got.len() < 50 {
            select! {
                _ = ready(()) => others += 1,
                number = queue.get() => got.extend(number.unwrap()),
            }
        }
        assert_eq!(got, (0..50).collect::<Vec<_>>());
        assert!(others < 150, "{others}");
    });
}

#[test]
fn a_tick_that_is_due_is_not_starved() {
    example(async {
        let queue = Queue::unbounded();
        for number in 0..1_000 {
            queue.try_put(number).unwrap();
        }
        let (mut got, mut ticks, mut interval) = (0, 0, interval(ms(10)));
        while got < 1_000 {
            select! {
                number = queue.get() => {
                    assert_eq!(number, Ok(Some(got)));
                    got += 1;
                    sleep(ms(1)).await.unwrap();
                }
                tick = interval.tick() => {
                    tick.unwrap();
                    ticks += 1;
                }
            }
        }
        assert!((90..=101).contains(&ticks), "{ticks}");
    });
}

#[test]
fn biased_branches_are_polled_from_the_top() {
    let polled = Log::default();
    let branch = |name: &'static str, is_ready: bool| {
        let polled = polled.clone();
        poll_fn(move |_| {
            polled.add(name);
            if is_ready { Poll::Ready(name) } else { Poll::Pending }
        })
    };
    run(async {
        for _ in 0..5 {
            let winner = select! {
                biased;
                name = branch("a", false) => name,
                name = branch("b", true) => name,
                name = branch("c", true) => name,
            };
            assert_eq!((winner, polled.take()), ("b", vec!["a".into(), "b".into()]));
        }
    });
}

#[test]
fn one_branch_and_biased_branches_need_no_kernel() {
    futures::executor::block_on(async {
        assert_eq!(select! { one = ready(1) => one }, 1);
        assert_eq!(select! { biased; one = ready(1) => one, two = ready(2) => two }, 1);
    });
}

#[test]
fn other_branches_panic_outside_a_kernel_at_the_line_of_the_select() {
    note_panic_places();
    let line = line!() + 2;
    let wait = async {
        select! { _ = pending::<()>() => {}, _ = pending::<()>() => {} }
    };
    let waiting = catch_unwind(AssertUnwindSafe(|| futures::executor::block_on(wait)));
    let panic = Panic::new(waiting.unwrap_err());
    let place = format!("{}:{line}:", file!());
    assert!(panic.place().is_some_and(|at| at.starts_with(&place)), "{:?}", panic.place());
}

#[test]
fn a_false_precondition_disables_its_branch() {
    let events = Log::default();
    let note = |event: &'static str| {
        events.add(event);
        event.len() > 3
    };
    run(async {
        let value = select! {
            _ = { note("future 1"); poll_fn(|_| -> Poll<()> { panic!("polled") }) }, if note("if") => 1,
            _ = { note("future 2"); ready(()) }, if note("if so") => 2,
        };
        assert_eq!(value, 2);
    });
    assert_eq!(events.take(), ["if", "if so", "future 1", "future 2"]);
}

#[test]
fn else_runs_if_all_branches_are_disabled() {
    run(async {
        let value = select! {
            _ = pending::<()>(), if false => "pending",
            Some(text) = ready(None) => text,
            else => "else",
        };
        assert_eq!(value, "else");
    });
}

#[test]
#[should_panic(expected = "all branches of `select!` are disabled, and it has no `else`")]
fn without_else_a_branch_must_be_enabled() {
    run(async {
        select! {
            Some(()) = ready(None) => {}
            Some(()) = ready(None), if true => {}
        }
    });
}

#[test]
fn a_branch_whose_pattern_fails_is_left_out() {
    run(async {
        for _ in 0..20 {
            let number = select! {
                Some(number) = ready(None::<u8>) => number,
                Ok(3..5 | 7) = ready(Ok::<_, ()>(6)) => 0,
                slept = sleep(ms(10)) => slept.map_or(1, |()| 2),
            };
            assert_eq!(number, 2);
        }
    });
}

#[test]
fn patterns_move_and_change_their_value() {
    struct Parcel {
        content: String,
        weight: u8,
    }
    run(async {
        let parcel = || ready(Some(Parcel { content: "tea".to_owned(), weight: 2 }));
        let content = select! {
            Some(Parcel { mut content, weight: weight @ 1..9 }) = parcel() => {
                content += &weight.to_string();
                content
            }
            else => unreachable!(),
        };
        assert_eq!(content, "tea2");
        let length =
            select! { Some(Parcel { ref content, .. }) = parcel() => content.len(), else => 0 };
        assert_eq!(length, 3);
        let text =
            select! { | Ok(text) | Err(text) = ready(Err::<String, _>("no".to_owned())) => text };
        assert_eq!(text, "no");
    });
}

#[test]
fn expressions_leave_loops_and_functions() {
    async fn read(queue: &Queue<Result<u32, String>>) -> Result<u32, String> {
        let mut sum = 0;
        let last = 'numbers: loop {
            select! {
                number = queue.get() => match number.unwrap().unwrap()? {
                    0 => break 'numbers sum,
                    1 => continue,
                    100 => return Ok(100),
                    number => {
                        yield_now().await.unwrap();
                        sum += number
                    }
                },
                _ = sleep(ms(10)) => panic!("there are numbers"),
            }
            sum += 10;
        };
        Ok(last)
    }
    run(async {
        let queue = Queue::unbounded();
        for number in [Ok(5), Ok(1), Ok(6), Ok(0), Ok(2), Ok(100), Err("no number".to_owned())] {
            queue.try_put(number).unwrap();
        }
        assert_eq!(read(&queue).await, Ok(31));
        assert_eq!(read(&queue).await, Ok(100));
        assert_eq!(read(&queue).await, Err("no number".to_owned()));
    });
}

#[test]
fn futures_are_dropped_from_the_top_before_the_expression() {
    let log = Log::default();
    let branch = |name: &'static str, is_ready: bool| {
        let dropped = Dropped(log.clone(), name);
        async move {
            let _dropped = dropped;
            if !is_ready {
                pending::<()>().await;
            }
        }
    };
    run(async {
        for _ in 0..10 {
            select! {
                // The first poll drops the variables of a future that is ready.
                _ = branch("a", false) => {}
                _ = branch("b", true) => log.add("expression"),
                _ = branch("c", false) => {}
                _ = branch("d", false), if false => {}
            }
            assert_eq!(
                log.take(),
                ["b dropped", "a dropped", "c dropped", "d dropped", "expression"]
            );
        }
    });
}

#[test]
fn futures_by_reference_are_kept() {
    run(async {
        let mut long = pin!(sleep(ms(25)));
        let mut short = 0;
        loop {
            select! {
                slept = &mut long => break slept.unwrap(),
                slept = sleep(ms(10)) => {
                    slept.unwrap();
                    short += 1;
                }
            }
        }
        assert_eq!(short, 2);

        let mut task = spawn(async { sleep(ms(10)).await.map(|()| 7) });
        select! {
            _ = &mut task => panic!("too early"),
            slept = sleep(ms(5)) => slept.unwrap(),
        }
        assert_eq!(task.await.unwrap(), Ok(7));
    });
}

#[test]
fn any_number_of_branches() {
    run(async {
        let number = select! {
            _ = pending::<()>() => 1, _ = pending::<()>() => 2, _ = pending::<()>() => 3,
            _ = pending::<()>() => 4, _ = pending::<()>() => 5, _ = pending::<()>() => 6,
            _ = pending::<()>() => 7, _ = pending::<()>() => 8, _ = pending::<()>() => 9,
            _ = pending::<()>() => 10, _ = pending::<()>() => 11, _ = pending::<()>() => 12,
            _ = pending::<()>() => 13, _ = pending::<()>() => 14, _ = pending::<()>() => 15,
            _ = pending::<()>() => 16, _ = pending::<()>() => 17, _ = pending::<()>() => 18,
            _ = pending::<()>() => 19, _ = sleep(ms(1)) => 20,
        };
        assert_eq!(number, 20);
    });
}

macro_rules! first_of {
    ($one:expr, $other:expr) => {
        select! { value = $one => value, value = $other => value }
    };
}

#[test]
fn names_of_the_program_are_its_own() {
    run(async {
        // Names that the expansion uses, too.
        let (order, branch, selected, is_enabled, is_pending, value, cx, future0) =
            (1, 2, 3, 4, 5, 6, 7, 8);
        let future1 = ready(order + branch + selected + is_enabled);
        let sum = select! {
            value = future1, if is_pending == 5 => value + is_match(value) + future0,
            _ = ready(cx), if value == 7 => 0,
        };
        assert_eq!(sum, 28);
        assert_eq!(first_of!(ready(1), pending()), 1);
    });

    fn is_match(value: i32) -> i32 {
        value
    }
}

#[test]
fn a_select_inside_another() {
    run(async {
        let value = select! {
            inner = async { select! { two = ready(2) => two, _ = pending::<()>() => 0 } } => {
                select! { _ = pending::<()>() => 0, three = ready(3) => inner * three }
            }
            _ = pending::<()>() => 0,
        };
        assert_eq!(value, 6);
    });
}

#[test]
fn temporaries_are_dropped_before_the_first_poll() {
    run(async {
        let settings = RefCell::new(ms(5));
        select! {
            slept = sleep(*settings.borrow()) => slept.unwrap(),
            _ = async {
                settings.replace(ms(7));
                pending::<()>().await
            } => {}
        }
        assert_eq!(settings.take(), ms(7));
    });
}

#[test]
fn futures_are_stored_once() {
    async fn large() -> u8 {
        let bytes = [1_u8; 1_000];
        pending::<()>().await;
        bytes[7]
    }
    let both = async {
        select! { byte = large() => byte, byte = large() => byte }
    };
    assert!(size_of_val(&both) < 2_200, "{} bytes", size_of_val(&both));
}

#[test]
fn a_cancel_is_the_output_of_one_branch() {
    run(async {
        let task = spawn(async {
            let mutex = Mutex::new(());
            let _held = mutex.lock().await.unwrap();
            let why = select! {
                locked = async { mutex.lock().await.map(drop) } => locked.unwrap_err(),
                slept = sleep(ms(1_000)) => slept.unwrap_err(),
            };
            assert_eq!(mutex.waiting(), 0);
            // The cause was returned once, so the cleanup may wait.
            sleep(ms(10)).await.unwrap();
            why.reason().map(str::to_owned)
        });
        sleep(ms(5)).await.unwrap();
        task.request_cancel("enough");
        assert_eq!(task.await.unwrap().as_deref(), Some("enough"));
    });
}

#[test]
fn an_interruption_that_no_branch_returned_is_due_at_the_next_wait() {
    run(async {
        let notify = Rc::new(Notify::new());
        let task = spawn({
            let notify = notify.clone();
            async move {
                select! {
                    biased;
                    notified = notify.notified() => notified.unwrap(),
                    slept = sleep(ms(1_000)) => panic!("{slept:?}"),
                }
                check_interrupt()
            }
        });
        sleep(ms(5)).await.unwrap();
        notify.notify_one();
        task.request_cancel("enough");
        assert!(task.await.unwrap().unwrap_err().is_cancel());
    });
}

#[test]
fn a_timeout_around_interrupts_a_branch() {
    run(async {
        let begin = Instant::now();
        let mut told = None;
        let body = async {
            select! {
                slept = sleep(ms(100)) => told = slept.err(),
                slept = sleep(ms(200)) => told = slept.err(),
            }
            sleep(ms(5)).await.unwrap();
        };
        assert_eq!(timeout_after(ms(10), body).await, Err(TimedOut));
        assert_eq!(begin.elapsed(), ms(15));
        assert!(told.is_some_and(|why| why.is_timeout()));
    });
}

#[test]
fn a_timeout_inside_is_its_own_branch() {
    run(async {
        let begin = Instant::now();
        let winner = select! {
            outcome = timeout_after(ms(10), sleep(ms(100))) => outcome.map(drop),
            slept = sleep(ms(50)) => panic!("{slept:?}"),
        };
        assert_eq!((winner, begin.elapsed()), (Err(TimedOut), ms(10)));
        // A dropped timeout leaves no timer that anyone notices.
        let winner = select! {
            outcome = timeout_after(ms(10), sleep(ms(100))) => panic!("{outcome:?}"),
            slept = sleep(ms(5)) => slept,
        };
        assert_eq!(winner, Ok(()));
        sleep(ms(100)).await.unwrap();
    });
}

/// A loop over messages and ticks: the numbers received, and the number of ticks.
async fn receive(mut receiver: mpsc::Receiver<u32>) -> Result<(Vec<u32>, u32), Interrupted> {
    let (mut numbers, mut ticks) = (Vec::new(), 0);
    let mut interval = interval(ms(3));
    loop {
        select! {
            number = receiver.recv() => match number? {
                Some(number) => numbers.push(number),
                None => return Ok((numbers, ticks)),
            },
            tick = interval.tick() => {
                tick?;
                ticks += 1;
            }
        }
    }
}

#[pikake::sim(seeds = 50)]
async fn no_message_and_no_tick_is_lost() {
    let (sender, receiver) = mpsc::channel(2);
    let sending = spawn(async move {
        for number in 0..30 {
            sleep(ms(2)).await.unwrap();
            sender.send(number).await.unwrap();
            sender.send(number).await.unwrap();
        }
    });
    let (numbers, ticks) = receive(receiver).await.unwrap();
    assert_eq!(numbers, (0..60).map(|number| number / 2).collect::<Vec<_>>());
    // Of 60 ms; the tick at 60 ms may be collected or not.
    assert!(ticks == 20 || ticks == 21, "{ticks}");
    sending.await.unwrap();
}

#[test]
fn an_interrupted_loop_loses_nothing() {
    const MESSAGES: u32 = 6;
    let report = Injector::new().cleanup_limit(None).run(
        || async {
            let queue = Rc::new(Queue::bounded(1));
            let sent = Rc::new(Cell::new(0));
            let sending = spawn({
                let (queue, sent) = (queue.clone(), sent.clone());
                async move {
                    for number in 0..MESSAGES {
                        sleep(ms(2)).await.unwrap();
                        queue.put(number).await.unwrap();
                        sent.set(number + 1);
                    }
                }
            });
            let (mut got, mut told, mut interval) = (Vec::new(), 0, interval(ms(3)));
            while got.len() < MESSAGES as usize {
                select! {
                    number = queue.get() => match number {
                        Ok(number) => got.extend(number),
                        Err(_) => told += 1,
                    },
                    tick = interval.tick() => told += u32::from(tick.is_err()),
                }
            }
            drop(sending);
            (got, told)
        },
        |run| {
            let (got, told) = run.output.as_ref().expect("the program waits on traps only");
            assert_eq!(*got, (0..MESSAGES).collect::<Vec<_>>());
            assert!(*told <= 1, "told {told} times");
        },
    );
    assert!(report.suspensions > 5, "{report:?}");
}
