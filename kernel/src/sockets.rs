//! The kernel's sockets: readiness, one waiter a direction, attempts.
//!
//! A socket is registered with the driver once, at the first attempt that would block. From then
//! on its readiness is known without asking the system: an event sets it, an attempt that would
//! have blocked clears it, and so does a short transfer, which saves the attempt that would have
//! told the same. Before that it counts as ready, and the attempt tells.
//!
//! What waits for a direction of a socket is kept in that direction, so an attempt that cannot be done
//! now and the wait for it are one call.

use std::io;

use pikake_traps::{
    Attempt, Closed, Direction, Done, KernelId, Local, OpenSocket, Opened, ResourceBusy, SocketId,
    WaitKey, Waiter, first_buffers,
};
use slab::Slab;

use crate::driver::{Driver, Event, Token};

/// One direction of a socket.
#[derive(Default)]
struct Side {
    /// An attempt may do something.
    ready: bool,
    /// Every further attempt ends at once; readiness stays.
    ended: bool,
    waiter: Option<Waiter>,
    /// The number of the wait that was here last.
    wait: u32,
}

impl Side {
    fn new() -> Self {
        Self { ready: true, ..Self::default() }
    }

    fn key(&self) -> WaitKey {
        WaitKey(u64::from(self.wait))
    }
}

struct Entry<S> {
    socket: S,
    generation: u32,
    registered: bool,
    read: Side,
    write: Side,
}

impl<S> Entry<S> {
    #[inline]
    fn side(&mut self, direction: Direction) -> &mut Side {
        match direction {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.write,
        }
    }
}

/// Waiters to be dropped with nothing borrowed.
pub(crate) type Left = [Option<Waiter>; 2];

/// What became of an attempt.
pub(crate) enum Attempted {
    Done(io::Result<Done<SocketId>>),
    /// It cannot be done now; whoever asked waits, under that key.
    Waits(WaitKey),
    /// It cannot be done now.
    WouldBlock,
    /// It was not made: the task has had its share for this step.
    PutOff,
}

/// The sockets of a kernel.
pub(crate) struct Sockets<S> {
    entries: Slab<Entry<S>>,
    kernel: KernelId,
    /// Socket generations, counted over all slots.
    last_generation: u32,
}

impl<S> Sockets<S> {
    pub(crate) fn new(kernel: KernelId) -> Self {
        Self { entries: Slab::new(), kernel, last_generation: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many waits there are.
    pub(crate) fn wait_count(&self) -> usize {
        let sides = self.entries.iter().flat_map(|(_, entry)| [&entry.read, &entry.write]);
        sides.filter(|side| side.waiter.is_some()).count()
    }

    fn add(&mut self, socket: S) -> SocketId {
        self.last_generation = self.last_generation.wrapping_add(1);
        let generation = self.last_generation;
        let (read, write) = (Side::new(), Side::new());
        let key = self.entries.insert(Entry { socket, generation, registered: false, read, write });
        let index = u32::try_from(key).expect("fewer than 2^32 sockets");
        SocketId { kernel: self.kernel, index, generation }
    }

    pub(crate) fn open<D: Driver<Socket = S>>(
        &mut self,
        what: OpenSocket<'_>,
        driver: &mut D,
    ) -> io::Result<Opened<SocketId>> {
        Ok(driver.open(what)?.map(|socket| self.add(socket)))
    }

    #[inline]
    fn find(&mut self, socket: SocketId) -> Option<&mut Entry<S>> {
        let entry = self.entries.get_mut(socket.index as usize)?;
        (entry.generation == socket.generation && socket.kernel == self.kernel).then_some(entry)
    }

    /// Attempts something, if the socket may be ready and the step has an attempt left. With a waiter, what
    /// cannot be done now is waited for; `key` is that of the wait, if it waits already. Of a wait that is
    /// bound to another waiter now, the one before is left in `left`, to be dropped with nothing borrowed; of
    /// a socket that is closed, both are.
    #[inline]
    pub(crate) fn attempt<D: Driver<Socket = S>>(
        &mut self,
        socket: SocketId,
        attempt: Attempt<'_>,
        waiter: Option<(&Waiter, Option<WaitKey>)>,
        (driver, local): (&mut D, &Local),
        left: &mut Left,
    ) -> Attempted {
        if attempt.is_immediate() {
            return Attempted::Done(self.at_once(socket, attempt, (driver, local), left));
        }
        let Some(entry) = self.find(socket) else {
            return refuse(Closed, waiter.is_some(), local);
        };
        let direction = attempt.direction();
        if entry.side(direction).ready {
            let asks_only = matches!(attempt, Attempt::IsReady(_));
            if !if asks_only { local.take_answer() } else { local.take_attempt() } {
                if let Some((_, Some(key))) = waiter {
                    left[0] = withdraw(entry.side(direction), key);
                }
                return if waiter.is_some() { Attempted::PutOff } else { Attempted::WouldBlock };
            }
            let done = match asks_only {
                true => Some(Ok(Done::Nothing)),
                false => entry.make(socket, attempt, driver),
            };
            if let Some(done) = done {
                if let Some((_, Some(key))) = waiter {
                    left[0] = withdraw(entry.side(direction), key);
                }
                return Attempted::Done(done.map(|done| done.map(|socket| self.add(socket))));
            }
        }
        let Some((waiter, key)) = waiter else { return Attempted::WouldBlock };
        let side = entry.side(direction);
        if side.waiter.as_ref() == Some(waiter) && key == Some(side.key()) {
            return Attempted::Waits(side.key());
        }
        if side.waiter.is_some() && key != Some(side.key()) {
            return refuse(ResourceBusy(direction), true, local);
        }
        if key != Some(side.key()) {
            side.wait = side.wait.wrapping_add(1);
        }
        left[0] = side.waiter.replace(waiter.clone());
        Attempted::Waits(side.key())
    }

    /// What needs no readiness.
    #[inline(never)]
    fn at_once<D: Driver<Socket = S>>(
        &mut self,
        socket: SocketId,
        attempt: Attempt<'_>,
        (driver, local): (&mut D, &Local),
        left: &mut Left,
    ) -> io::Result<Done<SocketId>> {
        let Some(entry) = self.find(socket) else { return Err(Closed.into()) };
        if !matches!(attempt, Attempt::Close) {
            let done = driver.attempt(&entry.socket, attempt);
            let done = done.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()));
            return done.map(|done| done.map(|socket| self.add(socket)));
        }
        if entry.registered {
            driver.deregister(&entry.socket);
        }
        let Entry { read, write, .. } = self.entries.remove(socket.index as usize);
        // They find the socket closed when they are polled.
        *left = [read.waiter, write.waiter];
        for waiter in left.iter().flatten() {
            local.notify(waiter);
        }
        Ok(Done::Nothing)
    }

    /// Takes back a wait. Drop what comes back with the sockets not borrowed.
    pub(crate) fn withdraw(
        &mut self,
        socket: SocketId,
        direction: Direction,
        key: WaitKey,
    ) -> Option<Waiter> {
        withdraw(self.find(socket)?.side(direction), key)
    }

    /// Notes an event, and notifies those who wait for it. What is left of them is to be dropped with
    /// the sockets not borrowed.
    #[inline]
    pub(crate) fn note(&mut self, event: Event, local: &Local, left: &mut Vec<Waiter>) {
        let Token { index, generation } = event.token;
        let found = self.entries.get_mut(index as usize);
        let Some(entry) = found.filter(|entry| entry.generation == generation) else { return };
        entry.read.ended |= event.read_ended;
        entry.write.ended |= event.write_ended;
        for (is_ready, side) in
            [(event.readable, &mut entry.read), (event.writable, &mut entry.write)]
        {
            if is_ready {
                side.ready = true;
                if let Some(waiter) = side.waiter.take() {
                    local.notify(&waiter);
                    left.push(waiter);
                }
            }
        }
    }

    /// Takes all sockets out, at the kernel's end, to be closed with the table not borrowed.
    pub(crate) fn clear(&mut self) -> impl Sized + use<S> {
        std::mem::take(&mut self.entries)
    }
}

impl<S> Entry<S> {
    /// Makes an attempt, and notes what it says about readiness. `None`: it would block.
    #[inline]
    fn make<D: Driver<Socket = S>>(
        &mut self,
        socket: SocketId,
        attempt: Attempt<'_>,
        driver: &mut D,
    ) -> Option<io::Result<Done<S>>> {
        let direction = attempt.direction();
        let asked = asked_for(&attempt);
        let done = driver.attempt(&self.socket, attempt);
        match &done {
            None => {
                let token = Token { index: socket.index, generation: socket.generation };
                let noted = match self.registered {
                    true => driver.blocked(&self.socket, token),
                    false => driver.register(&self.socket, token),
                };
                if let Err(error) = noted {
                    return Some(Err(error));
                }
                self.registered = true;
                // Not before: a socket that nobody reports must not be waited for.
                self.side(direction).ready = false;
            }
            Some(Ok(Done::Bytes(moved))) => {
                // Nothing read is the end of the stream, after which every read ends at once.
                let is_end = direction == Direction::Read && *moved == 0;
                let is_short = asked.is_some_and(|asked| *moved < asked) && !is_end;
                if is_short && self.registered && driver.short_means_blocked(&self.socket) {
                    let side = self.side(direction);
                    side.ready = side.ended;
                }
            }
            Some(_) => {}
        }
        done
    }
}

/// Answers that it cannot be done at all. A wait that is answered so counts as one that was answered at
/// once, lest whoever insists keeps the others from running.
fn refuse(why: impl Into<io::Error>, is_wait: bool, local: &Local) -> Attempted {
    match is_wait && !local.take_answer() {
        true => Attempted::PutOff,
        false => Attempted::Done(Err(why.into())),
    }
}

/// How many bytes a transfer of a stream could move; `None`: it is none.
#[inline]
fn asked_for(attempt: &Attempt<'_>) -> Option<usize> {
    match attempt {
        Attempt::Read(buffer) => Some(buffer.len()),
        Attempt::Write(data) => Some(data.len()),
        Attempt::ReadVectored(buffers) => Some(buffers.room()),
        Attempt::WriteVectored(data) => {
            Some(first_buffers(data).iter().map(|data| data.len()).sum())
        }
        _ => None,
    }
}

#[inline]
fn withdraw(side: &mut Side, key: WaitKey) -> Option<Waiter> {
    if side.key() == key { side.waiter.take() } else { None }
}
