//! Cells are whole, and chunks come and go.

use super::*;
use std::sync::mpsc::channel;
use std::sync::{Mutex, Weak};
use std::thread;

thread_local! {
    /// The number of chunks that this thread has made.
    pub(super) static MADE: Cell<usize> = const { Cell::new(0) };
    /// The number of chunks that this thread has freed.
    pub(super) static FREED: Cell<usize> = const { Cell::new(0) };
}

const SOME: SizeClass = SizeClass(16);

/// A cell in use, filled with a pattern that its neighbours do not have.
struct Filled {
    cell: NonNull<u8>,
    class: SizeClass,
    seed: u8,
}

// SAFETY: a cell may be given back on any thread.
unsafe impl Send for Filled {}

impl Filled {
    fn new(class: SizeClass, seed: u8) -> Self {
        let cell = take(class);
        assert_eq!(cell.addr().get() % LINE, 0);
        // SAFETY: the cell has this size, and is used by nothing else.
        unsafe { cell.write_bytes(seed, class.cell_size()) };
        Self { cell, class, seed }
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        let bytes = NonNull::slice_from_raw_parts(self.cell, self.class.cell_size());
        // SAFETY: the cell has this size, is initialised, and is used by nothing else.
        let bytes = unsafe { bytes.as_ref() };
        assert!(bytes.iter().all(|byte| *byte == self.seed), "a used cell was overwritten");
        // SAFETY: `new` took the cell, and this is the last use of it.
        unsafe { give_back(self.cell, self.class) };
    }
}

fn fill(class: SizeClass, cells: usize) -> Vec<Filled> {
    (0..cells).map(|seed| Filled::new(class, seed as u8)).collect()
}

fn capacity(class: SizeClass) -> usize {
    class.capacity() as usize
}

fn classes() -> impl Iterator<Item = SizeClass> {
    (1..=LARGEST as u8).map(SizeClass)
}

/// A reference whose strong count is the number of this thread's chunks, plus one while there
/// is an arena.
fn chunks() -> Weak<Returns> {
    ARENA.with(|arena| Arc::downgrade(arena.returns()))
}

/// Runs the function on a thread of its own, and waits for the thread's end with its
/// thread-locals.
fn on_a_thread<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(run).join()).expect("the thread does not panic")
}

struct Random(u64);

impl Random {
    /// A number below the limit (xorshift64).
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}

#[test]
#[cfg(not(pikake_shuttle))]
fn classes_cover_types_or_refuse_them() {
    #[repr(align(32))]
    struct Wide(#[expect(dead_code)] u8);
    let lines = |class: Option<SizeClass>| class.map(|class| class.0);
    assert_eq!(lines(class_of::<()>()), Some(1));
    assert_eq!(lines(class_of::<u128>()), Some(1));
    assert_eq!(lines(class_of::<[u8; 33]>()), Some(3));
    assert_eq!(lines(class_of::<[u8; 1024]>()), Some(64));
    assert_eq!(lines(class_of::<[u8; 1025]>()), None);
    assert_eq!(lines(class_of::<Wide>()), None);
}

/// Less than two per cent of a chunk are unused, and the spare chunks hold at least five
/// hundred cells.
#[test]
fn chunks_waste_little_in_every_class() {
    for class in classes() {
        let unused = class.chunk_align() - capacity(class) * class.cell_size();
        assert!(unused * 50 < class.chunk_align(), "{unused} bytes of {}", class.cell_size());
        assert!(class.capacity() * SPARE_CHUNKS >= 500);
    }
}

#[test]
fn take_gives_the_cell_given_back_last() {
    let first = Filled::new(SOME, 1);
    let cell = first.cell;
    drop(first);
    for _ in 0..1000 {
        assert_eq!(Filled::new(SOME, 2).cell, cell);
    }
    assert_eq!(MADE.get(), 1);
}

#[test]
fn cells_of_all_classes_do_not_overlap() {
    let cells: Vec<_> = classes().flat_map(|class| fill(class, 2 * capacity(class) + 1)).collect();
    assert_eq!(MADE.get(), 3 * LARGEST);
    drop(cells);
    assert_eq!(FREED.get(), 0);
}

#[test]
fn empty_chunks_are_freed_beyond_the_spare_ones() {
    drop(fill(SOME, 100 * capacity(SOME)));
    assert_eq!(MADE.get(), 100);
    assert_eq!(FREED.get(), 100 - 1 - SPARE_CHUNKS as usize);
}

/// Every fourth cell stays in use. Three quarters of each chunk are used again.
#[test]
fn partial_chunks_are_used_again() {
    let mut cells = fill(SOME, 40 * capacity(SOME));
    let mut index = 0;
    cells.retain(|_| {
        index += 1;
        index % 4 == 0
    });
    assert_eq!(MADE.get(), 40);
    assert_eq!(FREED.get(), 0);
    cells.extend(fill(SOME, 29 * capacity(SOME)));
    assert_eq!(MADE.get(), 40);
}

#[test]
fn hundreds_of_cells_come_and_go_without_allocation() {
    for class in [1, 16, 32, 33, 64].map(SizeClass) {
        let kept = fill(class, 10 * capacity(class) + 7);
        drop(fill(class, 500));
        let made = MADE.get();
        for round in 0..20 {
            drop(fill(class, 500));
            let mut cells = fill(class, 480 + round);
            cells.reverse();
        }
        assert_eq!((MADE.get(), FREED.get()), (made, 0));
        drop(kept);
        FREED.set(0);
    }
}

#[test]
fn cells_given_back_elsewhere_are_used_again() {
    for _ in 0..50 {
        let cells = fill(SOME, 3 * capacity(SOME));
        on_a_thread(move || drop(cells));
        assert_eq!(MADE.get(), 3);
    }
    assert_eq!(FREED.get(), 0);
}

#[test]
fn the_end_of_a_thread_frees_its_chunks() {
    let (cells, chunks) = on_a_thread(|| {
        let cells = fill(SOME, capacity(SOME) + 1);
        drop(fill(SOME, 8 * capacity(SOME)));
        let chunks = chunks();
        assert_eq!(chunks.strong_count(), 1 + MADE.get());
        (cells, chunks)
    });
    assert_eq!(chunks.strong_count(), 2);
    drop(cells);
    assert_eq!((chunks.strong_count(), FREED.get()), (0, 2));
}

#[test]
fn an_ended_threads_last_cell_frees_its_chunk() {
    let mut cells = on_a_thread(|| fill(SOME, 3 * capacity(SOME)));
    let rest = cells.split_off(capacity(SOME) - 1);
    drop(cells);
    assert_eq!(FREED.get(), 0);
    on_a_thread(move || {
        drop(rest);
        assert_eq!(FREED.get(), 3);
    });
}

#[test]
fn thread_locals_take_and_give_back_when_dropped() {
    struct AtEnd(Vec<Filled>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            let (made, freed) = (MADE.get(), FREED.get());
            self.0.extend((0..6).map(|seed| Filled::new(SOME, seed)));
            self.0.clear();
            let has_arena = ARENA.try_with(|_| ()).is_ok();
            assert_eq!(MADE.get() - made, if has_arena { 0 } else { 6 });
            assert!(FREED.get() - freed >= MADE.get() - made);
            drop(fill(SizeClass(64), 5));
            ENDED.fetch_add(1, Ordering::Relaxed);
        }
    }
    static ENDED: AtomicIsize = AtomicIsize::new(0);
    thread_local! {
        static EARLY: Cell<Option<AtEnd>> = const { Cell::new(None) };
        static LATE: Cell<Option<AtEnd>> = const { Cell::new(None) };
    }
    // One is used before the arena, one after it: so one is dropped when the arena is gone.
    let chunks = on_a_thread(|| {
        EARLY.set(None);
        let first = Filled::new(SOME, 1);
        LATE.set(Some(AtEnd(vec![Filled::new(SOME, 2)])));
        EARLY.set(Some(AtEnd(vec![first])));
        chunks()
    });
    assert_eq!((ENDED.load(Ordering::Relaxed), chunks.strong_count()), (2, 0));
}

/// The home thread ends while two others give back its cells.
#[test]
fn ends_and_returns_at_once_free_all_chunks() {
    for _ in 0..200 {
        let chunks = thread::scope(|scope| {
            let (sender, receiver) = channel();
            let home = scope.spawn(move || {
                let mut cells = fill(SOME, 2 * capacity(SOME));
                for index in [150, 100, 50, 0] {
                    sender.send(cells.split_off(index)).expect("the test receives");
                }
                chunks()
            });
            for cells in receiver {
                scope.spawn(move || drop(cells));
            }
            home.join().expect("the thread does not panic")
        });
        assert_eq!(chunks.strong_count(), 0);
    }
}

/// Threads take cells of random sizes, check their patterns, and give them back: some at home,
/// some elsewhere, some after the end of the home thread.
#[test]
fn random_cells_keep_their_patterns() {
    const STEPS: usize = if cfg!(debug_assertions) { 20_000 } else { 400_000 };
    const SIZES: [u8; 6] = [1, 2, 9, 16, 33, 64];
    let shared = Mutex::new(Vec::new());
    let run = &|seed: u64| {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (seed + 1));
        let mut own = Vec::new();
        let mut limit = 100;
        for step in 0..STEPS {
            if step % 1000 == 0 {
                limit = 1 + random.below(2000);
            }
            match random.below(8) {
                0 => shared.lock().expect("no panic").extend(own.pop()),
                1 => {
                    let mut others = shared.lock().expect("no panic");
                    let index = random.below(others.len() + 1);
                    let cell = (index < others.len()).then(|| others.swap_remove(index));
                    drop(others);
                    drop(cell);
                }
                _ if own.len() < limit => {
                    let class = SizeClass(SIZES[random.below(SIZES.len())]);
                    own.push(Filled::new(class, step as u8));
                }
                _ => drop(own.swap_remove(random.below(own.len()))),
            }
        }
        shared.lock().expect("no panic").append(&mut own);
    };
    thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || (0..3).for_each(|round| on_a_thread(|| run(3 * seed + round))));
        }
    });
}
