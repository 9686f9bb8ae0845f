//! Wall time, random bytes, and threads of the program's own.
//!
//! These are requests to the kernel, so that a kernel which simulates the world can answer or
//! refuse them. The real kernel passes them on to the system.

use std::io;
use std::thread;
use std::time::SystemTime;

use crate::door;

/// The time of the wall clock.
///
/// The wall clock may be set by hand, and may go back. To measure a length, use
/// [`now`](crate::now).
///
/// # Examples
///
/// ```
/// # async fn example() {
/// let shown = pikake::time::wall_time();
/// println!("{:?} since 1970", shown.duration_since(std::time::UNIX_EPOCH));
/// # }
/// # pikake::sim::example(example());
/// ```
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn wall_time() -> SystemTime {
    door::with(|local| local.kernel().outside().wall_time())
}

/// `Ok` if the current kernel's tasks may use the system of the process: files, processes and
/// signals.
///
/// Libraries that use the system call this first, so that a simulated program does not use it
/// unnoticed.
///
/// # Errors
///
/// [`Unsupported`](io::ErrorKind::Unsupported), on a kernel that simulates the world.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn system() -> io::Result<()> {
    door::with(|local| local.kernel().outside().system())
}

/// Whether the current kernel is being shut down, and takes no new task.
///
/// For services that would start work whose tasks the kernel would refuse.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn is_closing() -> bool {
    door::with(|local| local.kernel().outside().is_closing())
}

/// Fills a buffer with the system's random bytes, fit for keys. The default of a kernel's
/// [`Outside::random`](crate::Outside::random).
///
/// # Panics
///
/// When the system has none, since a program cannot go on safely.
pub fn system_random(to: &mut [u8]) {
    if let Err(error) = getrandom::fill(to) {
        panic!("the system gives no random bytes: {error}");
    }
}

/// Starts a thread of the program's own, which is no helper thread of the kernel.
///
/// Inside a kernel this is a request to the kernel. A kernel that simulates the world refuses,
/// since it controls neither the order nor the time of a thread. Outside a kernel the system starts
/// the thread.
///
/// # Errors
///
/// The system's, when no thread can be started; `Unsupported` from a kernel without threads. The
/// closure has been dropped.
pub fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let body = Box::new(body);
    match door::is_open() {
        true => door::with(|local| local.kernel().outside().start_thread(name, body)),
        false => system_thread(name, body),
    }
}

/// Starts a thread of the system. The default of a kernel's
/// [`Outside::start_thread`](crate::Outside::start_thread).
///
/// # Errors
///
/// The system's.
pub fn system_thread(name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

pub mod random {
    //! Random numbers, from the kernel.
    //!
    //! On the real kernel they are the system's and fit for keys. In a simulation they come from
    //! the host's own stream, which the seed fixes. So the seed repeats exactly a program that uses
    //! no other random numbers.
    //!
    //! # Examples
    //!
    //! ```
    //! # async fn example() {
    //! use pikake::random;
    //!
    //! let dice = random::range(1..7);
    //! let mut players = ["ann", "bob", "eve"];
    //! random::shuffle(&mut players);
    //! println!("{} throws {dice}", players[0]);
    //! # }
    //! # pikake::sim::example(example());
    //! ```

    use std::ops::Range;

    use crate::door;

    /// The bits of the mantissa of an `f64`.
    const FRACTION_BITS: u32 = 53;

    /// The distance between two states of SplitMix64: 2⁶⁴ divided by the golden ratio, made odd.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Fills a buffer with random bytes.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn fill(to: &mut [u8]) {
        door::with(|local| local.kernel().outside().random(to));
    }

    /// A number; all are equally likely.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn u64() -> u64 {
        let mut bytes = [0; 8];
        fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A number for a choice that nobody may predict by chance, but that keeps no secret; all are
    /// equally likely. Without a call of the system.
    ///
    /// The kernel's random bytes seed the generator SplitMix64 (Steele, Lea and Flood 2014), once
    /// for each kernel.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn fast_u64() -> u64 {
        door::with(|local| {
            let state = local.generator.get().unwrap_or_else(|| {
                let mut bytes = [0; 8];
                local.kernel().outside().random(&mut bytes);
                u64::from_le_bytes(bytes)
            });
            let state = state.wrapping_add(STEP);
            local.generator.set(Some(state));
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        })
    }

    /// A number from a range; all are equally likely.
    ///
    /// # Panics
    ///
    /// If the range is empty. Outside a kernel.
    #[track_caller]
    pub fn range(range: Range<u64>) -> u64 {
        assert!(range.start < range.end, "there is no number in an empty range");
        let span = range.end - range.start;
        // Numbers from the greatest multiple of the span on would make some results more likely.
        let limit = u64::MAX - u64::MAX % span;
        loop {
            let number = u64();
            if number < limit {
                return range.start + number % span;
            }
        }
    }

    /// A number from zero up to, but not including, one.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn f64() -> f64 {
        (u64() >> (u64::BITS - FRACTION_BITS)) as f64 / (1_u64 << FRACTION_BITS) as f64
    }

    /// Brings items into a random order.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn shuffle<T>(items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, range(0..last as u64 + 1) as usize);
        }
    }

    /// One of the items; `None` if there is none.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn choose<T>(items: &[T]) -> Option<&T> {
        if items.is_empty() {
            return None;
        }
        items.get(range(0..items.len() as u64) as usize)
    }
}
