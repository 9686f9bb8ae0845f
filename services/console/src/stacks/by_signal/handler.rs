//! The handler of SIGPROF, in which a thread notes its own stack.
//!
//! The handler walks the stack with the unwinder that the standard library links already. The
//! handler allocates nothing and takes no lock: it writes addresses into memory of fixed size,
//! which the console's threads read. It writes into two places:
//!
//! * [`ASKED`], if somebody wants the stack of this very thread ([`stack_of`]);
//! * a free slot of [`SLOTS`], while samples of processor time are taken ([`Sampling`]). If no slot
//!   is free, the sample is lost.
//!
//! A thread that is in the unwinder itself, or in the code that the system maps into each process
//! (vdso), notes the one address there: the unwinder is not made to be interrupted, and the
//! description of that code is wrong on some systems.
//!
//! The handler has `SA_RESTART`, and keeps `errno`. It stays until nobody needs it. The program's
//! own handler comes back then. If the program had none, ours stays, and does nothing: a signal
//! that comes late does not end the process. Programs that the process starts have no handler.

#![expect(unsafe_code, reason = "the system and the unwinder have no other interface")]

use std::ffi::{c_int, c_long, c_void};
use std::ptr::{from_mut, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{self, itimerval, siginfo_t, timeval, ucontext_t};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::process::getpid;
use rustix::thread::gettid;

use super::modules::Modules;
use crate::stacks::NoStack;

/// The most addresses of a stack that are noted, the innermost ones.
const DEPTH: usize = 128;

/// The samples that are kept until they are read: those of more than a tenth of a second.
const SLOT_COUNT: usize = 128;

/// The time in which a thread that takes signals notes its stack, also on a loaded machine.
const NOTED_WITHIN: Duration = Duration::from_millis(200);

/// The pause between two looks whether it has.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// A stack, the innermost address first. Empty: not noted yet.
struct Noted {
    length: AtomicUsize,
    addresses: [AtomicUsize; DEPTH],
}

impl Noted {
    const fn new() -> Self {
        Self { length: AtomicUsize::new(0), addresses: [const { AtomicUsize::new(0) }; DEPTH] }
    }

    fn write(&self, walk: &Walk) {
        let addresses = &walk.addresses[..walk.length];
        for (to, address) in self.addresses.iter().zip(addresses) {
            to.store(*address, Relaxed);
        }
        self.length.store(walk.length, Release);
    }

    /// The addresses, the outermost first. Empty if none are noted.
    fn read(&self) -> Vec<u64> {
        let noted = &self.addresses[..self.length.load(Acquire)];
        noted.iter().rev().map(|address| address.load(Relaxed) as u64).collect()
    }
}

/// The stack of one thread, for [`stack_of`].
static ASKED: Noted = Noted::new();

/// The thread that is to note its stack in [`ASKED`], [`NOBODY`] or [`NOTES`].
static ASKED_OF: AtomicU32 = AtomicU32::new(NOBODY);

/// No thread is asked for its stack.
const NOBODY: u32 = 0;

/// The thread that was asked writes, or has written.
const NOTES: u32 = u32::MAX;

/// A sample of processor time.
struct Slot {
    /// [`FREE`], [`WRITTEN`] by a handler, or [`FULL`].
    state: AtomicU32,
    tid: AtomicU32,
    stack: Noted,
}

const FREE: u32 = 0;
const WRITTEN: u32 = 1;
const FULL: u32 = 2;

static SLOTS: [Slot; SLOT_COUNT] =
    [const { Slot { state: AtomicU32::new(FREE), tid: AtomicU32::new(0), stack: Noted::new() } };
        SLOT_COUNT];

/// Whether samples of processor time are taken.
static IS_SAMPLING: AtomicBool = AtomicBool::new(false);

/// The code where a stack is not walked: begin and end of each. Zeros where there is none.
static NEVER_IN: [(AtomicUsize, AtomicUsize); 4] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 4];

/// The unwinder's state at one frame.
#[repr(C)]
struct Frame([u8; 0]);

// The interface of <https://itanium-cxx-abi.github.io/cxx-abi/abi-eh.html>. The standard library
// links it.
unsafe extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut Frame, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(frame: *mut Frame) -> usize;
}

/// The values by which the unwinder's callback goes on, and stops.
const GO_ON: c_int = 0;
const STOP: c_int = 5;

/// A walk along the stack of this thread, from an instruction on: the frames before are those of
/// the handler.
struct Walk {
    from: usize,
    length: usize,
    addresses: [usize; DEPTH],
}

impl Walk {
    fn new(from: usize) -> Self {
        Self { from, length: 0, addresses: [0; DEPTH] }
    }

    fn run(&mut self) {
        let this = from_mut(self).cast::<c_void>();
        // SAFETY: `add` has the type that the unwinder calls, and does not unwind. `this` is valid
        // during the call, and `add` alone uses it.
        unsafe { _Unwind_Backtrace(add, this) };
    }

    fn push(&mut self, address: usize) {
        self.addresses[self.length] = address;
        self.length += 1;
    }
}

/// Adds a frame to a [`Walk`].
extern "C" fn add(frame: *mut Frame, walk: *mut c_void) -> c_int {
    // SAFETY: `frame` is the unwinder's own, which it lends for this call.
    let at = unsafe { _Unwind_GetIP(frame) };
    // SAFETY: `walk` is the argument of the call in `Walk::run`, a `Walk` that nobody else uses
    // during that call.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    match walk.length {
        _ if at == 0 => return STOP,
        DEPTH => return STOP,
        0 if at != walk.from => {}
        0 => walk.push(at),
        // The instruction behind the call, which may belong to another line or function.
        _ => walk.push(at - 1),
    }
    GO_ON
}

/// The instruction that the signal has interrupted.
fn interrupted_at(context: *mut c_void) -> usize {
    let context = context.cast::<ucontext_t>();
    // SAFETY: the system calls a handler with `SA_SIGINFO` with a pointer to a `ucontext_t`, which
    // is valid until the handler returns.
    let registers = unsafe { &(*context).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    return registers.gregs[libc::REG_RIP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    return registers.pc as usize;
}

/// The handler.
extern "C" fn on_signal(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    let errno = Errno::last_raw();
    note(interrupted_at(context));
    Errno::set_raw(errno);
}

/// Notes the stack of this thread, for those who want it.
fn note(from: usize) {
    let tid = gettid().as_raw_nonzero().get().unsigned_abs();
    let is_asked = ASKED_OF.compare_exchange(tid, NOTES, Acquire, Relaxed).is_ok();
    let is_sampling = IS_SAMPLING.load(Relaxed);
    if !is_asked && !is_sampling {
        return;
    }
    let mut walk = Walk::new(from);
    let is_in = |(begin, end): &(AtomicUsize, AtomicUsize)| {
        (begin.load(Relaxed)..end.load(Relaxed)).contains(&from)
    };
    if !NEVER_IN.iter().any(is_in) {
        walk.run();
    }
    if walk.length == 0 {
        walk.push(from);
    }
    if is_asked {
        ASKED.write(&walk);
    }
    if is_sampling {
        let take =
            |slot: &&Slot| slot.state.compare_exchange(FREE, WRITTEN, Acquire, Relaxed).is_ok();
        if let Some(slot) = SLOTS.iter().find(take) {
            slot.tid.store(tid, Relaxed);
            slot.stack.write(&walk);
            slot.state.store(FULL, Release);
        }
    }
}

/// Those who need the handler.
#[derive(Default)]
struct Users {
    count: usize,
    /// The action of SIGPROF before.
    before: Option<SigAction>,
}

static USERS: Mutex<Users> = Mutex::new(Users { count: 0, before: None });

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No statement leaves a value that is half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handler is there, until the drop.
struct Handler(());

impl Handler {
    fn set() -> Result<Self, NoStack> {
        let mut users = lock(&USERS);
        if users.count == 0 {
            let modules = Modules::read()?;
            for (to, range) in NEVER_IN.iter().zip(modules.never_in()) {
                to.0.store(range.start as usize, Relaxed);
                to.1.store(range.end as usize, Relaxed);
            }
            // The unwinder prepares itself at its first use.
            Walk::new(0).run();
            let flags = SaFlags::SA_RESTART | SaFlags::SA_SIGINFO;
            let ours = SigAction::new(SigHandler::SigAction(on_signal), flags, SigSet::empty());
            // SAFETY: a handler may do what signal-safety(7) allows. `on_signal` uses atomic
            // integers, `gettid`, `errno`, and the unwinder, which only reads the stack and the
            // tables of the program, and is not entered again where it is interrupted.
            let before = unsafe { sigaction(Signal::SIGPROF, &ours) };
            users.before = Some(before.map_err(|error| format!("no handler: {error}"))?);
        }
        users.count += 1;
        Ok(Self(()))
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        let mut users = lock(&USERS);
        users.count -= 1;
        if users.count > 0 {
            return;
        }
        // The default of SIGPROF ends the process. Ours does nothing now.
        let before = users.before.take();
        if let Some(before) = before.filter(|it| !matches!(it.handler(), SigHandler::SigDfl)) {
            // SAFETY: it was the handler before, by the program's own decision.
            let _ = unsafe { sigaction(Signal::SIGPROF, &before) };
        }
    }
}

/// The stack of a thread of this process: the addresses, the outermost first. Takes as long as the
/// thread needs to take a signal, some hundredths of a millisecond as a rule.
pub(super) fn stack_of(tid: u32) -> Result<Vec<u64>, NoStack> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = lock(&ONE_AT_A_TIME);
    let _handler = Handler::set()?;
    if ASKED_OF.load(Relaxed) == NOTES && ASKED.length.load(Acquire) == 0 {
        return Err("a thread that was asked before still notes its stack".into());
    }
    ASKED.length.store(0, Relaxed);
    ASKED_OF.store(tid, Release);
    let signalled = signal(tid);
    let until = Instant::now() + NOTED_WITHIN;
    while signalled.is_ok() && ASKED.length.load(Acquire) == 0 && Instant::now() < until {
        thread::sleep(LOOK_AGAIN);
    }
    let _ = ASKED_OF.compare_exchange(tid, NOBODY, Relaxed, Relaxed);
    let addresses = ASKED.read();
    match signalled {
        Err(error) => Err(format!("the thread gets no signal: {error}")),
        Ok(()) if addresses.is_empty() => Err("the thread took no signal".into()),
        Ok(()) => Ok(addresses),
    }
}

/// Sends SIGPROF to a thread of this process.
fn signal(tid: u32) -> nix::Result<()> {
    let pid = c_long::from(getpid().as_raw_nonzero().get());
    // SAFETY: `tgkill` takes these three integers, and touches no memory of the process. The
    // handler is set (`stack_of`).
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, c_long::from(tid), libc::SIGPROF) };
    Errno::result(sent).map(drop)
}

/// Samples of processor time are taken, of all threads, until the drop.
pub(super) struct Sampling {
    _handler: Handler,
}

impl Sampling {
    /// Begins to take samples: so many a second of processor time.
    pub(super) fn begin(frequency: u32) -> Result<Self, NoStack> {
        let handler = Handler::set()?;
        if IS_SAMPLING.swap(true, Acquire) {
            return Err("another profile is being made".into());
        }
        let sampling = Self { _handler: handler };
        // Those of handlers that were late.
        sampling.read(|_, _| {});
        set_timer(Duration::from_secs(1) / frequency)
            .map_err(|error| format!("no timer: {error}"))?;
        Ok(sampling)
    }

    /// Reads the samples since the last call: the thread, and the addresses, the outermost first.
    pub(super) fn read(&self, mut each: impl FnMut(u32, Vec<u64>)) {
        for slot in SLOTS.iter().filter(|slot| slot.state.load(Acquire) == FULL) {
            let (tid, stack) = (slot.tid.load(Relaxed), slot.stack.read());
            slot.state.store(FREE, Release);
            each(tid, stack);
        }
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        let _ = set_timer(Duration::ZERO);
        IS_SAMPLING.store(false, Release);
    }
}

/// Has the system send SIGPROF to a thread that uses the processor, after each such length of
/// processor time. Zero ends that.
fn set_timer(period: Duration) -> nix::Result<()> {
    let period = timeval { tv_sec: 0, tv_usec: period.subsec_micros().into() };
    let timer = itimerval { it_interval: period, it_value: period };
    // SAFETY: `timer` is valid during the call, and the second pointer may be null. The handler is
    // set (`Sampling`), and stays where the program has none.
    let set = unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, null_mut()) };
    Errno::result(set).map(drop)
}
