//! Task locals: one value a task, dropped with it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pikake::task::{LocalError, TaskLocal};
use pikake::{current, sleep, spawn, yield_now};

use crate::support::{Log, OnDrop, kernel, ms, named, run};

static NAME: TaskLocal<String> = TaskLocal::new();
static COUNT: TaskLocal<Cell<u32>> = TaskLocal::starting_with(|| Cell::new(40));

pikake::task::local! {
    /// Without a value to start with.
    static WORD: &'static str;
    static LIST: RefCell<Vec<u32>> = RefCell::default();
}

#[test]
fn every_task_has_a_value_of_its_own() {
    run(async {
        let mut tasks = Vec::new();
        for number in 0..3_u32 {
            tasks.push(spawn(async move {
                NAME.set(format!("task {number}"));
                COUNT.with(|count| count.set(count.get() + number));
                yield_now().await.unwrap();
                (NAME.get().unwrap(), COUNT.with(Cell::get))
            }));
        }
        for (number, task) in (0_u32..).zip(tasks) {
            assert_eq!(task.await.unwrap(), (format!("task {number}"), 40 + number));
        }
        assert_eq!(NAME.get(), Err(LocalError::Unset));
        assert_eq!(COUNT.with(Cell::get), 40);
    });
}

#[test]
fn a_spawned_task_inherits_nothing() {
    run(async {
        NAME.set("parent".into());
        COUNT.with(|count| count.set(1));
        let child = spawn(async { (NAME.get(), COUNT.with(Cell::get)) });
        assert_eq!(child.await.unwrap(), (Err(LocalError::Unset), 40));
        assert_eq!(NAME.get().as_deref(), Ok("parent"));
    });
}

#[test]
fn macro_declares_task_locals() {
    run(async {
        assert_eq!(WORD.try_with(|word| word.len()), Err(LocalError::Unset));
        WORD.set("abc");
        assert_eq!(WORD.with(|word| word.len()), 3);
        LIST.with(|list| list.borrow_mut().push(1));
        assert_eq!(LIST.with(|list| list.borrow().clone()), [1]);
        assert!(format!("{WORD:?}").contains("str"));
    });
}

#[test]
fn local_can_be_replaced_while_borrowed() {
    run(async {
        NAME.set("before".into());
        NAME.with(|name| {
            NAME.set("after".into());
            assert_eq!((name.as_str(), NAME.get().as_deref()), ("before", Ok("after")));
        });
        // The value to start with may need itself to be set by others.
        static FIRST: TaskLocal<u32> = TaskLocal::starting_with(|| COUNT.with(Cell::get) + 1);
        assert_eq!(FIRST.get(), Ok(41));
    });
}

/// Says when it is dropped, in which task, and what it sees of the other locals.
struct Witness(&'static str, Log);

impl Drop for Witness {
    fn drop(&mut self) {
        let others = (ONE.try_with(|_| ()).err(), NAME.try_set(String::new()).err());
        self.1.add(format_args!("{} dropped in `{}`, {others:?}", self.0, current().name()));
    }
}

static ONE: TaskLocal<Witness> = TaskLocal::new();
static TWO: TaskLocal<Witness> = TaskLocal::new();

async fn keeps_two(log: Log) {
    let _in_the_future = OnDrop(|| {
        log.add(format_args!("future dropped, has {}", ONE.with(|witness| witness.0)));
    });
    ONE.set(Witness("one", log.clone()));
    TWO.set(Witness("two", log.clone()));
    sleep(ms(10)).await.unwrap();
}

/// The notes of [`keeps_two`] at its end, in a task of that name.
fn end_of(name: &str) -> [String; 3] {
    let seen = "(Some(Unset), Some(TaskEnded))";
    [
        "future dropped, has one".into(),
        format!("two dropped in `{name}`, {seen}"),
        format!("one dropped in `{name}`, {seen}"),
    ]
}

/// The task is still the current one.
#[test]
fn locals_are_dropped_after_the_future() {
    let log = Log::default();
    run(async {
        named("returns", keeps_two(log.clone())).await.unwrap();
        assert_eq!(log.take(), end_of("returns"));

        let task = named("panics", {
            let log = log.clone();
            async move {
                keeps_two(log).await;
                panic!("after its end")
            }
        });
        let error: pikake::TaskError = task.await.unwrap_err();
        assert!(error.panic_message().is_some());
        assert_eq!(log.take(), end_of("panics"));

        let task = named("aborted", keeps_two(log.clone()));
        yield_now().await.unwrap();
        task.abort();
        assert!(task.await.is_err());
        assert_eq!(log.take(), end_of("aborted"));
        drop(named("left", keeps_two(log.clone())));
        yield_now().await.unwrap();
    });
    assert_eq!(log.take()[1..], end_of("left")[1..], "dropped at the kernel's end");
}

#[test]
fn main_task_locals_end_with_its_run() {
    let log = Log::default();
    let kernel = kernel();
    kernel.run(async {
        ONE.set(Witness("one", log.clone()));
    });
    assert_eq!(log.take(), ["one dropped in `main`, (Some(Unset), Some(TaskEnded))"]);
    kernel.run(async { assert_eq!(ONE.try_with(|_| ()), Err(LocalError::Unset)) });
}

#[test]
fn destructor_panic_spares_the_other_locals() {
    static BOMB: TaskLocal<OnDrop<fn()>> = TaskLocal::new();
    static AFTER: TaskLocal<Rc<()>> = TaskLocal::new();
    run(async {
        let shared = Rc::new(());
        let task = spawn({
            let shared = shared.clone();
            async move {
                AFTER.set(shared);
                BOMB.set(OnDrop(|| panic!("in a destructor")));
                7
            }
        });
        assert_eq!(task.await.unwrap(), 7);
        assert_eq!(Rc::strong_count(&shared), 1);
    });
}

#[test]
fn local_outside_a_task_panics_with_advice() {
    assert_eq!(COUNT.try_with(Cell::get), Err(LocalError::OutsideTask));
    assert_eq!(NAME.try_set("nobody".into()), Err(LocalError::OutsideTask));
    let panic = std::panic::catch_unwind(|| COUNT.with(Cell::get)).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("not inside a task"), "{text}");
    let outcome = pikake::try_run(async { NAME.with(String::len) });
    let error = outcome.unwrap_err();
    assert!(error.panic_message().unwrap().contains("a spawned task inherits no value"), "{error}");
}
