//! The steady state allocates nothing: a longer run of the same program makes as many allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use pikake_benches::on_pikake::Pikake;
use pikake_benches::runtime::Runtime;
use pikake_benches::servers::echo_here;
use pikake_benches::workloads;

/// The system's allocator, which counts what the main thread asks for.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if IS_COUNTED.get() {
        ALLOCATIONS.fetch_add(1, Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: it does what the system's allocator does.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are the same.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are the same.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Long enough to suspend.
const SHORT: Duration = Duration::from_micros(100);

/// How many allocations a longer run makes beyond those of a shorter one.
fn extra_allocations(run: impl Fn(usize), shorter: usize, longer: usize) -> isize {
    let count = |rounds| {
        let before = ALLOCATIONS.load(Relaxed);
        run(rounds);
        (ALLOCATIONS.load(Relaxed) - before) as isize
    };
    // Allocations that a process makes once do not count.
    count(shorter);
    let short = count(shorter);
    count(longer) - short
}

fn main() {
    IS_COUNTED.set(true);
    let mut found = Vec::new();
    let mut check = |name: &str, size, run: &dyn Fn(usize)| {
        let extra = extra_allocations(run, 100, 300);
        println!("{name}: {extra} more allocations in {} operations", size * 200);
        if extra != 0 {
            found.push(format!("{name}: {extra}"));
        }
    };
    for (name, size) in [
        ("yield", 100),
        ("wake_oneself", 100),
        ("timeout", 100),
        // Not over the common channel, which allocates by itself.
        ("ping_pong_own", 10),
        ("messages_own", 10),
        ("hand_over_64", 64),
        ("at_once_8", 1),
        ("suspend_8", 100),
        ("join16", 10),
    ] {
        check(name, size, &|rounds| {
            workloads::run(name, "pikake", size, rounds).expect("it runs");
        });
    }
    check("sleep", 1, &|rounds| {
        Pikake::run(async move {
            for _ in 0..rounds {
                Pikake::sleep(SHORT).await;
            }
        });
    });
    check("echo", 1, &|rounds| {
        Pikake::run(echo_here::<Pikake>(rounds));
    });
    assert!(found.is_empty(), "allocations in the steady state: {found:?}");
}
