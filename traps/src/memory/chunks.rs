//! The chunks of a thread, and the life of a chunk.
//!
//! ```text
//!        (1)           (2)        (3)            (4)
//!   new ────▶ Current ────▶ Full ────▶ Partial ────▶ Spare
//!              ▲   ▲                    │   │          │
//!              │   └────────────────────┘   │ (6)      │
//!              │            (5)             ▼          │
//!              │                          freed        │
//!              └───────────────────────────────────────┘
//!                           (5)
//! ```
//!
//! (1) [`Arena::usable_chunk`], when no chunk of the class has a free cell; (2) the same, when the
//! current chunk has none; (3) [`Arena::attend`], when a quarter of the cells is free; (4) the
//! same, when all cells are free and the thread has few spare chunks of the class; (5)
//! [`Arena::usable_chunk`], when the current chunk becomes full; (6) [`Arena::attend`], when all
//! cells are free and the thread has enough spare chunks.
//!
//! The end of the home thread ends this life in every state. The drop of [`Arena`] closes the
//! returns. From then on [`Chunk::outstanding`] counts the cells in use. The ending thread frees
//! the chunks without any; another chunk is freed by the thread that gives back its last cell
//! ([`settle`]).

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::{Cell, OnceCell};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicPtr, Ordering, fence};

/// The size of a chunk's cells, in lines of 16 bytes.
#[derive(Clone, Copy)]
pub(crate) struct SizeClass(u8);

/// The unit of sizes and the alignment of every cell, in bytes: enough for all but a few types.
const LINE: usize = 16;

/// The largest size, in lines: a kibibyte. The work of a task that needs more outweighs one call of
/// the allocator.
const LARGEST: usize = 64;

/// The number of classes, with the unused one of no line.
const CLASSES: usize = LARGEST + 1;

/// The bytes that an allocator puts before an allocation (two words, in glibc).
///
/// A chunk is smaller than its alignment by this length, so that the next one can lie right behind
/// it.
const ALLOCATOR_HEADER: usize = 16;

/// The number of bytes of untouched cells that are linked at once: a page.
///
/// The system supplies only those pages of a chunk that a thread has needed.
const LINKED_AT_ONCE: usize = 4096;

/// The number of spare chunks that a thread keeps for each class.
///
/// The spare chunks of a class hold at least five hundred cells. So five hundred tasks of one size
/// may come and go at once, repeatedly, without a call of the allocator.
const SPARE_CHUNKS: u32 = 8;

/// The part of a full chunk that must be free before the chunk is used again: a quarter.
///
/// With a single cell, a thread whose tasks end in random order would change its current chunk at
/// almost every [`take`].
const FREE_PART: u32 = 4;

/// `None`: the type is too large (over 1 KiB) or over-aligned (over 16) and gets a box of its own.
///
/// `None` for every type under the model checker. The threads of a model run on one thread of the
/// system and share its arena, and the checker's atomics in a cell need dropping.
pub(crate) const fn class_of<T>() -> Option<SizeClass> {
    match size_of::<T>().div_ceil(LINE) {
        _ if cfg!(pikake_shuttle) => None,
        _ if align_of::<T>() > LINE => None,
        0 => Some(SizeClass(1)),
        lines @ 1..=LARGEST => Some(SizeClass(lines as u8)),
        _ => None,
    }
}

impl SizeClass {
    const fn cell_size(self) -> usize {
        self.0 as usize * LINE
    }

    /// The alignment of a chunk, in bytes: at least 64 cells, so that the rest behind the last cell
    /// is less than two per cent of a chunk.
    const fn chunk_align(self) -> usize {
        if self.0 as usize <= LARGEST / 2 { 32 * 1024 } else { 64 * 1024 }
    }

    const fn chunk_layout(self) -> Layout {
        match Layout::from_size_align(self.chunk_align() - ALLOCATOR_HEADER, self.chunk_align()) {
            Ok(layout) => layout,
            Err(_) => panic!("the alignment is a power of two, and small"),
        }
    }

    /// The number of cells of a chunk.
    const fn capacity(self) -> u32 {
        ((self.chunk_layout().size() - size_of::<Chunk>()) / self.cell_size()) as u32
    }
}

/// A free cell, linked to the next one.
struct Free {
    next: Option<NonNull<Free>>,
}

/// A cell on its way back to its home thread.
struct Returning {
    next: *mut Returning,
    chunk: *const Chunk,
}

const _: () = assert!(size_of::<Returning>() <= LINE, "the smallest cell cannot be returned");

/// The cells of one home thread that other threads gave back, as a stack; [`CLOSED`] after the end
/// of the home thread.
struct Returns(AtomicPtr<Returning>);

/// An address without a cell.
const CLOSED: *mut Returning = ptr::without_provenance_mut(1);

/// The header of a chunk.
///
/// `home` and `outstanding` belong to every thread that has a cell of the chunk, the other fields
/// to the home thread.
#[repr(C, align(16))]
struct Chunk {
    /// A reference that the chunk owns of its `Arc`. Nothing writes to this field.
    home: *const Returns,
    /// The number of cells in use, once the home thread has ended and added theirs. Before that,
    /// minus the number of cells given back since the [`Returns`] were closed.
    outstanding: AtomicIsize,
    free: Cell<Option<NonNull<Free>>>,
    /// The number of calls of [`push`] before the chunk needs attention; each [`pop`] adds one. The
    /// variants of [`Fill`] give the reasons.
    until_attention: Cell<u32>,
    /// The number of cells that have ever been linked. The others follow them and were never
    /// touched.
    linked: Cell<u32>,
    /// The neighbours in the ring.
    next: Cell<*const Chunk>,
    previous: Cell<*const Chunk>,
    class: SizeClass,
    fill: Cell<Fill>,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Chunk>() == 64, "the header of a chunk is not a cache line");

/// The fill state of a chunk. In its ring, partial and spare chunks follow the current one, then
/// full ones.
#[derive(Clone, Copy)]
enum Fill {
    /// [`take`] uses this chunk. `until_attention` is one more than the number of cells in use, as
    /// even an empty chunk needs no attention here.
    Current,
    /// A cell is free, and one is in use. `until_attention` is the number of cells in use.
    Partial,
    /// No cell was free when this state began. `until_attention` is [`FREE_PART`] of the capacity,
    /// less the cells given back since.
    Full,
    /// All cells are free. `until_attention` is zero.
    Spare,
}

/// The thread-local state of the fast paths. Nothing here needs dropping, so an access needs no
/// check.
struct Near {
    /// The `home` of this thread's chunks; null before the first and after the last of them.
    home: Cell<*const Returns>,
    /// The current chunk of each class, or [`NONE`].
    current: [Cell<*const Chunk>; CLASSES],
}

/// All chunks of a thread.
struct Arena {
    returns: OnceCell<Arc<Returns>>,
    rings: [Ring; CLASSES],
}

/// All chunks of a thread and class.
struct Ring {
    /// The current chunk; null before the first one.
    current: Cell<*const Chunk>,
    spare: Cell<u32>,
}

thread_local! {
    static NEAR: Near = const {
        Near {
            home: Cell::new(ptr::null()),
            current: [const { Cell::new(&raw const NONE.0) }; CLASSES],
        }
    };
    static ARENA: Arena = const {
        Arena {
            returns: OnceCell::new(),
            rings: [const { Ring { current: Cell::new(ptr::null()), spare: Cell::new(0) } }; CLASSES],
        }
    };
}

/// A chunk without free cells, for classes without a current chunk.
static NONE: NoChunk = NoChunk(Chunk::empty(ptr::null(), SizeClass(1)));

struct NoChunk(Chunk);

// SAFETY: threads only read this chunk: `pop` writes to no chunk without a free cell. All other
// code writes to chunks that are in a ring or have cells, and this chunk is not such a one.
unsafe impl Sync for NoChunk {}

/// Takes memory of a class, uninitialised, aligned to 16.
#[inline]
pub(crate) fn take(class: SizeClass) -> NonNull<u8> {
    let taken = NEAR.try_with(|near| {
        let chunk = near.current[usize::from(class.0)].get();
        // SAFETY: a current chunk is `NONE`, or in a ring of this thread and so alive.
        unsafe { pop(chunk) }
    });
    match taken {
        Ok(Some(cell)) => cell,
        _ => take_from_arena(class),
    }
}

/// Gives back memory of a class.
///
/// # Safety
///
/// `cell` came from `take(class)` on any thread, and nothing uses the cell any more. The pointer is
/// a copy of that one: a pointer from a reference into the cell is not valid for the chunk.
#[inline]
pub(crate) unsafe fn give_back(cell: NonNull<u8>, class: SizeClass) {
    // The pointer keeps its provenance, which is that of the whole chunk.
    let chunk = cell.as_ptr().map_addr(|address| address & !(class.chunk_align() - 1));
    let chunk = chunk.cast_const().cast::<Chunk>();
    // SAFETY: the chunk lives, because a cell of it is in use.
    let home = unsafe { (*chunk).home };
    if NEAR.try_with(|near| near.home.get()) != Ok(home) {
        // SAFETY: the cell is one of the chunk, and in use until now.
        return unsafe { give_back_elsewhere(cell, chunk) };
    }
    // SAFETY: as above, and this is the home thread.
    if unsafe { push(cell, chunk) } {
        // SAFETY: this is the home thread, and the chunk is in its ring.
        unsafe { attend(chunk) };
    }
}

/// # Safety
///
/// The chunk is `NONE` or lives, and this is its home thread.
#[inline]
unsafe fn pop(chunk: *const Chunk) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise.
    let chunk = unsafe { &*chunk };
    let cell = chunk.free.get()?;
    // SAFETY: a free cell has been linked, and nothing has written to it since.
    let Free { next } = unsafe { cell.read() };
    chunk.free.set(next);
    chunk.until_attention.set(chunk.until_attention.get() + 1);
    Some(cell.cast())
}

/// Links a cell into its chunk. Returns whether the chunk needs attention now.
///
/// # Safety
///
/// The cell is one of the chunk, and nothing uses it any more; this is the home thread.
#[inline]
unsafe fn push(cell: NonNull<u8>, chunk: *const Chunk) -> bool {
    // SAFETY: the chunk lives, because a cell of it was in use.
    let chunk = unsafe { &*chunk };
    let cell = cell.cast::<Free>();
    // SAFETY: the cell is large enough, aligned, and used by nothing else.
    unsafe { cell.write(Free { next: chunk.free.get() }) };
    chunk.free.set(Some(cell));
    let until_attention = chunk.until_attention.get() - 1;
    chunk.until_attention.set(until_attention);
    until_attention == 0
}

#[cold]
#[inline(never)]
fn take_from_arena(class: SizeClass) -> NonNull<u8> {
    let chunk = ARENA.try_with(|arena| {
        arena.empty_returns();
        let chunk = arena.usable_chunk(class);
        // An error means that the thread ends and every call comes here.
        let _ = NEAR.try_with(|near| {
            near.home.set(Arc::as_ptr(arena.returns()));
            near.current[usize::from(class.0)].set(chunk);
        });
        chunk
    });
    let Ok(chunk) = chunk else {
        return take_after_end(class);
    };
    // SAFETY: the chunk is in a ring of this thread.
    unsafe { pop(chunk) }.expect("a usable chunk has a free cell")
}

/// Takes the only cell of a chunk without a home thread. For destructors of thread-locals that run
/// when the arena of their thread is gone.
fn take_after_end(class: SizeClass) -> NonNull<u8> {
    let chunk = Chunk::new(Arc::new(Returns(AtomicPtr::new(CLOSED))), class);
    // SAFETY: the chunk is new and this thread's.
    unsafe { link_untouched(chunk) };
    // SAFETY: as above.
    let cell = unsafe { pop(chunk) }.expect("a new chunk has free cells");
    // SAFETY: the chunk lives; one cell is in use, and not given back yet.
    unsafe { settle(chunk, 1) };
    cell
}

/// # Safety
///
/// The chunk is in a ring of this thread, and its `until_attention` is zero.
#[cold]
#[inline(never)]
unsafe fn attend(chunk: *const Chunk) {
    let _ = ARENA.try_with(|arena| {
        // SAFETY: the caller's promise.
        unsafe { arena.attend(chunk) };
        arena.empty_returns();
    });
}

/// # Safety
///
/// The cell is one of the chunk, and nothing uses it any more.
#[cold]
#[inline(never)]
unsafe fn give_back_elsewhere(cell: NonNull<u8>, chunk: *const Chunk) {
    let cell = cell.cast::<Returning>().as_ptr();
    // SAFETY: the chunk lives, because this cell is in use until it is pushed or settled.
    let home = unsafe { (*chunk).home };
    // SAFETY: the chunk owns a reference.
    let first = unsafe { &(*home).0 };
    let mut next = first.load(Ordering::Relaxed);
    while next != CLOSED {
        // SAFETY: the cell is large enough, aligned, and used by nothing else before it is pushed.
        unsafe { cell.write(Returning { next, chunk }) };
        // After a success the home thread may free anything: cell, chunk and `Returns`.
        match first.compare_exchange_weak(next, cell, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => next = other,
        }
    }
    // SAFETY: the chunk lives, because this cell is outstanding. The home thread has ended.
    unsafe { settle(chunk, -1) };
}

/// Adds to the outstanding cells, and frees the chunk if there is none.
///
/// Each cell counts minus one as a thread gives it back, and the home thread adds the number of all
/// cells in use. So the sum is zero after the last of these calls and after no other one.
///
/// # Safety
///
/// The `Returns` of the chunk are closed. The caller gives back as many cells as it subtracts, or
/// it is the home thread, adds the number of all cells that are not free, and does so once.
unsafe fn settle(chunk: *const Chunk, change: isize) {
    // SAFETY: the chunk lives, because this call is still missing in the sum.
    let outstanding = unsafe { &(*chunk).outstanding };
    if outstanding.fetch_add(change, Ordering::Release) + change != 0 {
        return;
    }
    // All uses of the chunk and its cells by other threads happen before the chunk is freed.
    fence(Ordering::Acquire);
    // SAFETY: no cell is in use, and the home thread has forgotten the chunk.
    unsafe { Chunk::free(chunk) };
}

/// Links some of the untouched cells of a chunk without free cells; false if there are none.
///
/// # Safety
///
/// The chunk lives, and this is its home thread.
unsafe fn link_untouched(chunk: *const Chunk) -> bool {
    // SAFETY: the caller's promise.
    let header = unsafe { &*chunk };
    let size = header.class.cell_size();
    let start = header.linked.get();
    let end = header.class.capacity().min(start + (LINKED_AT_ONCE / size) as u32);
    let mut next = None;
    for index in (start..end).rev() {
        let offset = size_of::<Chunk>() + index as usize * size;
        // SAFETY: the cell lies in the allocation, as its index is below the capacity.
        let cell = unsafe { chunk.cast_mut().byte_add(offset) }.cast::<Free>();
        // SAFETY: the cell is large enough, aligned, and used by nothing else.
        unsafe { cell.write(Free { next }) };
        next = NonNull::new(cell);
    }
    header.free.set(next);
    header.linked.set(end);
    start < end
}

impl Chunk {
    const fn empty(home: *const Returns, class: SizeClass) -> Self {
        Self {
            home,
            outstanding: AtomicIsize::new(0),
            free: Cell::new(None),
            until_attention: Cell::new(1),
            linked: Cell::new(0),
            next: Cell::new(ptr::null()),
            previous: Cell::new(ptr::null()),
            class,
            fill: Cell::new(Fill::Current),
        }
    }

    /// Makes a chunk, which is its own neighbour.
    fn new(home: Arc<Returns>, class: SizeClass) -> *const Self {
        let layout = class.chunk_layout();
        // SAFETY: the size is not zero.
        let chunk = unsafe { alloc(layout) }.cast::<Self>();
        if chunk.is_null() {
            handle_alloc_error(layout);
        }
        let header = Self::empty(Arc::into_raw(home), class);
        header.next.set(chunk);
        header.previous.set(chunk);
        // SAFETY: the memory is large enough, aligned, and used by nothing else.
        unsafe { chunk.write(header) };
        #[cfg(test)]
        tests::MADE.set(tests::MADE.get() + 1);
        chunk
    }

    /// # Safety
    ///
    /// No cell of the chunk is in use, and nothing points to the chunk any more.
    unsafe fn free(chunk: *const Self) {
        // SAFETY: the chunk lives.
        let header = unsafe { chunk.read() };
        // SAFETY: `new` made the pointer of an `Arc`, and this is the reference of the chunk.
        drop(unsafe { Arc::from_raw(header.home) });
        // SAFETY: `new` allocated the chunk, with that layout, and this is the last use of it.
        unsafe { dealloc(chunk.cast_mut().cast(), header.class.chunk_layout()) };
        #[cfg(test)]
        tests::FREED.set(tests::FREED.get() + 1);
    }

    /// The number of free cells that ends the state `Full`; less than the capacity.
    fn reuse_threshold(&self) -> u32 {
        self.class.capacity() / FREE_PART
    }

    fn used(&self) -> u32 {
        match self.fill.get() {
            Fill::Current => self.until_attention.get() - 1,
            Fill::Partial | Fill::Spare => self.until_attention.get(),
            Fill::Full => {
                self.until_attention.get() + self.class.capacity() - self.reuse_threshold()
            }
        }
    }

    /// Removes the chunk from its ring.
    ///
    /// # Safety
    ///
    /// The neighbours live, and this is the home thread.
    unsafe fn unlink(&self) {
        // SAFETY: the caller's promise.
        unsafe { &*self.next.get() }.previous.set(self.previous.get());
        // SAFETY: the caller's promise.
        unsafe { &*self.previous.get() }.next.set(self.next.get());
    }

    /// Inserts the chunk into a ring, behind another one.
    ///
    /// # Safety
    ///
    /// Both chunks and the neighbours of the other one live, and this is their home thread.
    unsafe fn insert(chunk: *const Self, behind: *const Self) {
        // SAFETY: the caller's promise.
        let before = unsafe { &*behind };
        // SAFETY: the caller's promise.
        let header = unsafe { &*chunk };
        header.next.set(before.next.replace(chunk));
        header.previous.set(behind);
        // SAFETY: the caller's promise.
        unsafe { &*header.next.get() }.previous.set(chunk);
    }
}

impl Arena {
    fn returns(&self) -> &Arc<Returns> {
        self.returns.get_or_init(|| Arc::new(Returns(AtomicPtr::new(ptr::null_mut()))))
    }

    /// Makes a chunk of the class with a free cell the current one, and returns it. The chunk is
    /// the previous current one, another one of the ring, or a new one.
    fn usable_chunk(&self, class: SizeClass) -> *const Chunk {
        let ring = &self.rings[usize::from(class.0)];
        let current = ring.current.get();
        // SAFETY: chunks in a ring of this thread live.
        let Some(header) = (unsafe { current.as_ref() }) else {
            return self.add(class, ring);
        };
        // SAFETY: the chunk lives, and this is its home thread.
        if header.free.get().is_some() || unsafe { link_untouched(current) } {
            return current;
        }
        header.fill.set(Fill::Full);
        header.until_attention.set(header.reuse_threshold());
        let next = header.next.get();
        // SAFETY: chunks in a ring of this thread live.
        let header = unsafe { &*next };
        match header.fill.get() {
            Fill::Full | Fill::Current => return self.add(class, ring),
            Fill::Partial => {}
            Fill::Spare => ring.spare.set(ring.spare.get() - 1),
        }
        header.until_attention.set(header.until_attention.get() + 1);
        header.fill.set(Fill::Current);
        ring.current.set(next);
        next
    }

    /// Adds a new chunk to a ring of which no chunk has a free cell.
    fn add(&self, class: SizeClass, ring: &Ring) -> *const Chunk {
        let chunk = Chunk::new(self.returns().clone(), class);
        // SAFETY: the chunk is new and this thread's.
        unsafe { link_untouched(chunk) };
        let current = ring.current.replace(chunk);
        if !current.is_null() {
            // SAFETY: chunks in a ring of this thread live, and so does the new one.
            unsafe { Chunk::insert(chunk, current) };
        }
        chunk
    }

    /// # Safety
    ///
    /// The chunk is in a ring of this arena, and its `until_attention` is zero.
    unsafe fn attend(&self, chunk: *const Chunk) {
        // SAFETY: chunks in a ring of this thread live.
        let header = unsafe { &*chunk };
        let ring = &self.rings[usize::from(header.class.0)];
        if let Fill::Full = header.fill.get() {
            header.until_attention.set(header.used());
            header.fill.set(Fill::Partial);
            // SAFETY: chunks in a ring of this thread live.
            unsafe { header.unlink() };
            // SAFETY: as above; the current chunk is another one, and keeps the ring together.
            unsafe { Chunk::insert(chunk, ring.current.get()) };
        } else if ring.spare.get() < SPARE_CHUNKS {
            header.fill.set(Fill::Spare);
            ring.spare.set(ring.spare.get() + 1);
        } else {
            // SAFETY: chunks in a ring of this thread live.
            unsafe { header.unlink() };
            // SAFETY: all cells of a partial chunk are free when its `until_attention` is zero.
            unsafe { Chunk::free(chunk) };
        }
    }

    /// Makes the cells free that other threads gave back.
    fn empty_returns(&self) {
        let first = &self.returns().0;
        if !first.load(Ordering::Relaxed).is_null() {
            self.free_all(first.swap(ptr::null_mut(), Ordering::Acquire));
        }
    }

    /// Makes the cells of a stack free that came from the `Returns`.
    fn free_all(&self, mut first: *mut Returning) {
        while !first.is_null() {
            // SAFETY: the thread that pushed the cell wrote this before, and nothing has written
            // since.
            let Returning { next, chunk } = unsafe { first.read() };
            let cell = NonNull::new(first).expect("null has been ruled out");
            // SAFETY: the chunk is in a ring of this thread, and the cell is one of it.
            if unsafe { push(cell.cast(), chunk) } {
                // SAFETY: the chunk is in a ring of this thread.
                unsafe { self.attend(chunk) };
            }
            first = next;
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let Some(returns) = self.returns.get() else { return };
        // From here on, the thread treats its own cells like those of other threads.
        let _ = NEAR.try_with(|near| {
            near.home.set(ptr::null());
            near.current.iter().for_each(|current| current.set(&raw const NONE.0));
        });
        self.free_all(returns.0.swap(CLOSED, Ordering::Acquire));
        for ring in &self.rings {
            let first = ring.current.get();
            let mut chunk = first;
            // SAFETY: chunks in a ring of this thread live until they are settled, just below.
            while let Some(header) = unsafe { chunk.as_ref() } {
                let next = header.next.get();
                let used = header.used() as isize;
                // SAFETY: the `Returns` are closed, and each chunk is met once.
                unsafe { settle(chunk, used) };
                chunk = if next == first { ptr::null() } else { next };
            }
        }
    }
}

#[cfg(test)]
mod tests;
