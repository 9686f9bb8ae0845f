//! The kernel's sockets: readiness, one waiter a direction, attempts.
//!
//! A socket is registered with the driver once, at the first attempt that would block. Until then
//! the socket counts as ready. From then on an event sets its readiness, and an attempt that would
//! block clears it. A short transfer clears it, too, which saves the attempt after it.
//!
//! A direction of a socket holds its waiter. So an attempt, and the wait if the attempt would
//! block, are one call.

use std::io;

use pikake_traps::{
    Address, Attempt, Closed, Direction, KernelId, Local, OpenSocket, Opened, Outcome, Parked,
    ResourceBusy, SocketId, WaitKey, Waiter, first_buffers,
};
use slab::Slab;

use crate::driver::{Driver, Event, Token};

/// One direction of a socket.
#[derive(Default)]
struct Side {
    /// An attempt may succeed.
    ready: bool,
    /// Every further attempt ends at once, so `ready` stays set.
    ended: bool,
    waiter: Option<Waiter>,
    /// The number of the last wait in this direction.
    wait: u32,
}

impl Side {
    fn new() -> Self {
        Self { ready: true, ..Self::default() }
    }

    fn key(&self) -> WaitKey {
        WaitKey(u64::from(self.wait))
    }

    #[inline]
    fn leave(&mut self, key: WaitKey) -> Option<Waiter> {
        if self.key() == key { self.waiter.take() } else { None }
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

/// The result of an attempt.
pub(crate) enum Attempted {
    Done(io::Result<usize>),
    /// The attempt would block. Its waiter has an entry with this key.
    Waits(WaitKey),
    /// The attempt would block, or is deferred to the task's next step. There is no entry.
    NotNow,
}

impl Attempted {
    /// The result of a wait, with the outcome of its attempt in the slot.
    #[inline]
    pub(crate) fn parked(self, outcome: &mut Outcome) -> Parked {
        match self {
            Self::Done(done) => {
                outcome.set(done);
                Parked::Satisfied
            }
            Self::Waits(key) => Parked::Waits(key),
            Self::NotNow => Parked::Deferred,
        }
    }
}

/// The sockets of a kernel.
pub(crate) struct Sockets<S> {
    entries: Slab<Entry<S>>,
    kernel: KernelId,
    /// The generation of the newest socket. One counter serves all slots.
    last_generation: u32,
}

impl<S> Sockets<S> {
    pub(crate) fn new(kernel: KernelId) -> Self {
        Self { entries: Slab::new(), kernel, last_generation: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of waits.
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

    /// Makes an attempt, if the socket may be ready and the task has an attempt left in this step.
    ///
    /// With a waiter, an attempt that would block becomes a wait. The key is that of the wait's
    /// entry, if the wait has one. The entry releases the waiter that it was bound to before; the
    /// caller drops it when the table is not borrowed.
    #[inline(always)]
    pub(crate) fn attempt<D: Driver<Socket = S>>(
        &mut self,
        socket: SocketId,
        attempt: &mut Attempt<'_>,
        waiter: Option<(&Waiter, Option<WaitKey>)>,
        driver: &mut D,
        local: &Local,
        released: &mut Option<Waiter>,
    ) -> Attempted {
        let Some(direction) = attempt.direction() else {
            return Attempted::Done(self.attempt_at_once(socket, attempt, driver));
        };
        let Some(entry) = self.find(socket) else {
            return refuse(Closed, waiter.is_some(), local);
        };
        if entry.side(direction).ready {
            let is_question = matches!(attempt, Attempt::IsReady(_));
            let has_budget = if is_question { local.take_answer() } else { local.take_attempt() };
            let done = if !has_budget {
                None
            } else if is_question {
                Some(Ok(0))
            } else if let Attempt::Accept(to) = attempt {
                self.accept(socket, to, driver)
            } else {
                entry.make_attempt(socket, attempt, direction, driver)
            };
            if done.is_some() || !has_budget {
                if let Some((_, Some(key))) = waiter {
                    let side = self.entries[socket.index as usize].side(direction);
                    *released = side.leave(key);
                }
                return done.map_or(Attempted::NotNow, Attempted::Done);
            }
        }
        let Some((waiter, key)) = waiter else { return Attempted::NotNow };
        let side = self.entries[socket.index as usize].side(direction);
        let has_entry = key == Some(side.key());
        match &side.waiter {
            Some(bound) if has_entry && bound == waiter => {}
            Some(_) if !has_entry => return refuse(ResourceBusy(direction), true, local),
            _ => {
                if !has_entry {
                    side.wait = side.wait.wrapping_add(1);
                }
                *released = side.waiter.replace(waiter.clone());
            }
        }
        Attempted::Waits(side.key())
    }

    /// Makes an attempt that needs no readiness.
    #[inline(never)]
    fn attempt_at_once<D: Driver<Socket = S>>(
        &mut self,
        socket: SocketId,
        attempt: &mut Attempt<'_>,
        driver: &mut D,
    ) -> io::Result<usize> {
        let Some(entry) = self.find(socket) else { return Err(Closed.into()) };
        let done = driver.attempt(&entry.socket, attempt);
        done.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }

    /// Takes a connection from a listener. `None`: there is none.
    fn accept<D: Driver<Socket = S>>(
        &mut self,
        listener: SocketId,
        to: &mut Option<(SocketId, Address)>,
        driver: &mut D,
    ) -> Option<io::Result<usize>> {
        let entry = self.find(listener)?;
        match driver.accept(&entry.socket) {
            Some(Ok((socket, address))) => {
                *to = Some((self.add(socket), address));
                Some(Ok(0))
            }
            Some(Err(error)) => Some(Err(error)),
            None => entry.would_block(listener, Direction::Read, driver),
        }
    }

    /// Closes a socket, and notifies its waiters, which find the socket closed at their next poll.
    /// The caller drops the waiters when the table is not borrowed. `None`: the socket was closed
    /// before.
    pub(crate) fn close<D: Driver<Socket = S>>(
        &mut self,
        socket: SocketId,
        driver: &mut D,
        local: &Local,
    ) -> Option<[Option<Waiter>; 2]> {
        let entry = self.find(socket)?;
        if entry.registered {
            driver.deregister(&entry.socket);
        }
        let Entry { read, write, .. } = self.entries.remove(socket.index as usize);
        let waiters = [read.waiter, write.waiter];
        for waiter in waiters.iter().flatten() {
            local.notify(waiter);
        }
        Some(waiters)
    }

    /// Leaves a wait.
    pub(crate) fn leave(
        &mut self,
        socket: SocketId,
        direction: Direction,
        key: WaitKey,
    ) -> Option<Waiter> {
        self.find(socket)?.side(direction).leave(key)
    }

    /// Notes an event, and notifies the waiters of the directions that became ready.
    #[inline]
    pub(crate) fn note_event(&mut self, event: Event, local: &Local, released: &mut Vec<Waiter>) {
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
                    if let Some(waiter) = local.notify_owned(waiter) {
                        released.push(waiter);
                    }
                }
            }
        }
    }

    /// Removes all sockets at the kernel's end.
    pub(crate) fn clear(&mut self) -> impl Sized + use<S> {
        std::mem::take(&mut self.entries)
    }
}

impl<S> Entry<S> {
    /// Makes an attempt, and notes the readiness that its result shows. `None`: the attempt would
    /// block.
    #[inline]
    fn make_attempt<D: Driver<Socket = S>>(
        &mut self,
        socket: SocketId,
        attempt: &mut Attempt<'_>,
        direction: Direction,
        driver: &mut D,
    ) -> Option<io::Result<usize>> {
        let asked = requested_bytes(attempt);
        let done = driver.attempt(&self.socket, attempt);
        match &done {
            None => return self.would_block(socket, direction, driver),
            Some(Ok(moved)) => {
                // A read of zero bytes is the end of the stream: every further read ends at once.
                let is_end = direction == Direction::Read && *moved == 0;
                let is_short = asked.is_some_and(|asked| *moved < asked) && !is_end;
                if is_short && self.registered && driver.short_means_blocked(&self.socket) {
                    let side = self.side(direction);
                    side.ready = side.ended;
                }
            }
            Some(Err(_)) => {}
        }
        done
    }

    /// Notes that an attempt would block. Returns an error if the driver cannot report events of
    /// the socket.
    #[inline(never)]
    fn would_block<D: Driver<Socket = S>>(
        &mut self,
        socket: SocketId,
        direction: Direction,
        driver: &mut D,
    ) -> Option<io::Result<usize>> {
        let token = Token { index: socket.index, generation: socket.generation };
        let noted = match self.registered {
            true => driver.blocked(&self.socket, token),
            false => driver.register(&self.socket, token),
        };
        if let Err(error) = noted {
            return Some(Err(error));
        }
        self.registered = true;
        // Without a registration no event would end the wait, so the readiness is cleared only
        // here.
        self.side(direction).ready = false;
        None
    }
}

/// Answers with an error. For a wait the error counts as an answer at once: a task that repeats the
/// wait must not keep the other tasks from running.
fn refuse(why: impl Into<io::Error>, is_wait: bool, local: &Local) -> Attempted {
    match is_wait && !local.take_answer() {
        true => Attempted::NotNow,
        false => Attempted::Done(Err(why.into())),
    }
}

/// The number of bytes that an attempt asks to move; `None` if the attempt is no transfer of a
/// stream.
#[inline]
fn requested_bytes(attempt: &Attempt<'_>) -> Option<usize> {
    match attempt {
        Attempt::Read(buffer) => Some(buffer.len()),
        Attempt::ReadBuf(buffer) => Some(buffer.capacity() - buffer.len()),
        Attempt::ReadSpare(spare) => Some(spare.room()),
        Attempt::Write(data) => Some(data.len()),
        Attempt::ReadVectored(buffers) => Some(buffers.room()),
        Attempt::WriteVectored(data) => {
            Some(first_buffers(data).iter().map(|data| data.len()).sum())
        }
        // No transfer of a stream, as `direction` says, or one whose length says nothing.
        Attempt::IsReady(_)
        | Attempt::Poll(_)
        | Attempt::Accept(_)
        | Attempt::Connected
        | Attempt::Peek(_)
        | Attempt::Receive(..)
        | Attempt::Send(..)
        | Attempt::Connect(_)
        | Attempt::Shutdown(_)
        | Attempt::LocalAddress(_)
        | Attempt::PeerAddress(_)
        | Attempt::PeerCredentials(_)
        | Attempt::Descriptor(_)
        | Attempt::SetOption(_)
        | Attempt::GetOption(_)
        | Attempt::Close => None,
    }
}
