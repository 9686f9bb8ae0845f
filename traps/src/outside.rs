//! What a program wants of the world: what o'clock it is, a number nobody can foretell, a thread of
//! its own.
//!
//! All are asked of the kernel, so that one which simulates the world can answer them from there, or
//! refuse. The real kernel asks the system.

use std::io;
use std::thread;
use std::time::SystemTime;

use crate::door;

/// What the wall clock shows.
///
/// It may be set by hand, and may go back; for how long something takes, use [`now`](crate::now).
///
/// # Examples
///
/// ```
/// # async fn example() {
/// let shown = pikake_traps::wall_time();
/// println!("{:?} since 1970", shown.duration_since(std::time::UNIX_EPOCH));
/// # }
/// # pikake_sim::example(example());
/// ```
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn wall_time() -> SystemTime {
    door::with(|local| local.kernel().outside().wall_time())
}

/// Whether the current kernel's tasks may use the system itself: its files, processes and signals.
///
/// What is built on those asks this first, so that a simulation is not left without being noticed.
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

/// Fills a buffer with the system's random bytes, fit for keys. What a kernel answers
/// [`Outside::random`](crate::Outside::random) with unless it has something else.
///
/// # Panics
///
/// When the system has none, which leaves a program nothing safe to do.
pub fn system_random(to: &mut [u8]) {
    if let Err(error) = getrandom::fill(to) {
        panic!("the system gives no random bytes: {error}");
    }
}

/// Starts a thread: not a helper of the kernel, but one of the program's own, which lives as long as
/// its closure runs. For those who build on threads.
///
/// The kernel is asked, if there is one here. One that simulates the world refuses: what a thread
/// does would be neither in its order nor in its time. Outside a kernel this is the system's thread.
///
/// # Errors
///
/// The system's, when no thread can be started; `Unsupported` from a kernel that has none. The closure
/// has been dropped.
pub fn start_thread(name: &str, life: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let life = Box::new(life);
    match door::is_open() {
        true => door::with(|local| local.kernel().outside().start_thread(name, life)),
        false => system_thread(name, life),
    }
}

/// Starts a thread of the system. What a kernel answers
/// [`Outside::start_thread`](crate::Outside::start_thread) with unless it has no threads.
///
/// # Errors
///
/// The system's.
pub fn system_thread(name: &str, life: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(life).map(drop)
}

pub mod random {
    //! Random numbers, asked of the kernel.
    //!
    //! On the real kernel they are the system's and fit for keys. In a simulation they come from the
    //! host's own stream, which the seed fixes. So a program that takes all its chances here is
    //! repeated exactly by its seed.
    //!
    //! # Examples
    //!
    //! ```
    //! # async fn example() {
    //! use pikake_traps::random;
    //!
    //! let dice = random::range(1..7);
    //! let mut players = ["ann", "bob", "eve"];
    //! random::shuffle(&mut players);
    //! println!("{} throws {dice}", players[0]);
    //! # }
    //! # pikake_sim::example(example());
    //! ```

    use std::ops::Range;

    use crate::door;

    /// Bits of a number of type `f64` behind the point.
    const FRACTION_BITS: u32 = 53;

    /// Fills a buffer with random bytes.
    ///
    /// # Panics
    ///
    /// Outside a kernel, as all of this module.
    #[track_caller]
    pub fn fill(to: &mut [u8]) {
        door::with(|local| local.kernel().outside().random(to));
    }

    /// A number, each as likely as any other.
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

    /// A number from a range, each as likely as any other.
    ///
    /// # Panics
    ///
    /// If the range is empty. Outside a kernel.
    #[track_caller]
    pub fn range(range: Range<u64>) -> u64 {
        assert!(range.start < range.end, "there is no number in an empty range");
        let span = range.end - range.start;
        // What is left of all numbers when they are dealt out evenly is thrown away.
        let dealt = u64::MAX - u64::MAX % span;
        loop {
            let number = u64();
            if number < dealt {
                return range.start + number % span;
            }
        }
    }

    /// A number from zero on and below one.
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
