//! The kernel's sockets: cached readiness, one waiter a direction, and the socket traps.
//!
//! A socket is registered with the driver once, at the first attempt that would block. From then
//! on its readiness is known without asking the system: an event sets it, an attempt that would
//! have blocked clears it, and so does a short transfer, which saves the attempt that would have
//! told the same. Before that it counts as ready, and the attempt tells.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::OwnedFd;

use pikake_traps::{
    Address, Closed, Direction, LocalHome, OpenSocket, SocketId, SocketOption, Sockets,
};
use slab::Slab;

use crate::book::{NONE, key};
use crate::driver::{Driver, Event, Token};

/// Buffers that one attempt fills or empties; systems refuse more (`IOV_MAX`). The rest are left
/// out here and not in the driver, so that a transfer which has done all it could is not taken for
/// a short one.
const BUFFERS_PER_ATTEMPT: usize = 1024;

/// One direction of a socket.
struct Side {
    ready: bool,
    /// Every further attempt ends at once; readiness stays.
    ended: bool,
    /// The record that parked here last. It may have gone since.
    waiter: u32,
}

impl Side {
    const NEW: Self = Self { ready: true, ended: false, waiter: NONE };
}

struct Entry<S> {
    socket: S,
    generation: u32,
    registered: bool,
    read: Side,
    write: Side,
}

impl<S> Entry<S> {
    fn side(&mut self, direction: Direction) -> &mut Side {
        match direction {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.write,
        }
    }
}

/// What the kernel knows of a direction of a socket.
pub(crate) enum Readiness {
    Closed,
    Ready,
    /// Not ready; this record parked here last.
    NotReady(u32),
}

/// A record that may be waiting at a socket that became ready or was closed.
pub(crate) struct Waiter {
    pub(crate) record: u32,
    pub(crate) token: Token,
    pub(crate) write: bool,
}

pub(crate) struct Net<D: Driver> {
    home: LocalHome,
    pub(crate) driver: RefCell<D>,
    entries: RefCell<Slab<Entry<D::Socket>>>,
    /// Socket generations, counted over all slots.
    last_generation: Cell<u32>,
    /// Attempts that are left for the current step.
    pub(crate) attempts_left: Cell<u32>,
    /// Whose wait is to be answered because a socket was closed.
    closed: RefCell<Vec<Waiter>>,
    /// There are some.
    has_closed: Cell<bool>,
}

impl<D: Driver> Net<D> {
    pub(crate) fn new(home: LocalHome, driver: D) -> Self {
        Self {
            home,
            driver: RefCell::new(driver),
            entries: RefCell::default(),
            last_generation: Cell::new(0),
            attempts_left: Cell::new(u32::MAX),
            closed: RefCell::default(),
            has_closed: Cell::new(false),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.borrow().len()
    }

    fn add(&self, socket: D::Socket) -> SocketId {
        let generation = self.last_generation.get().wrapping_add(1);
        self.last_generation.set(generation);
        let entry =
            Entry { socket, generation, registered: false, read: Side::NEW, write: Side::NEW };
        let index = key(self.entries.borrow_mut().insert(entry));
        SocketId { kernel: self.home.id(), index, generation }
    }

    #[inline]
    fn with<R>(
        &self,
        socket: SocketId,
        work: impl FnOnce(&mut Entry<D::Socket>, &mut D) -> io::Result<R>,
    ) -> io::Result<R> {
        let found = self.look(socket, |entry| work(entry, &mut self.driver.borrow_mut()));
        found.unwrap_or_else(|| Err(Closed.into()))
    }

    /// Looks at a socket; `None` if it is closed.
    #[inline]
    fn look<R>(
        &self,
        socket: SocketId,
        look: impl FnOnce(&mut Entry<D::Socket>) -> R,
    ) -> Option<R> {
        let mut entries = self.entries.borrow_mut();
        let entry = entries.get_mut(socket.index as usize).filter(|entry| {
            entry.generation == socket.generation && socket.kernel == self.home.id()
        })?;
        Some(look(entry))
    }

    /// Makes an attempt, if the socket may be ready and the step has one left, and notes what it
    /// says about readiness. `asked` is how many bytes a stream could have moved.
    #[inline]
    fn attempt<R>(
        &self,
        socket: SocketId,
        direction: Direction,
        moved: impl FnOnce(&R) -> Option<(usize, usize)>,
        make: impl FnOnce(&mut D, &D::Socket) -> io::Result<R>,
    ) -> io::Result<R> {
        self.with(socket, |entry, driver| {
            let side = entry.side(direction);
            if !side.ready {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let left = self.attempts_left.get();
            if left == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.attempts_left.set(left - 1);
            let result = make(driver, &entry.socket);
            let token = Token { index: socket.index, generation: socket.generation };
            match &result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if entry.registered {
                        driver.blocked(&entry.socket, token)?;
                    } else {
                        driver.register(&entry.socket, token)?;
                        entry.registered = true;
                    }
                    // Not before: a socket that nobody reports must not be waited for.
                    entry.side(direction).ready = false;
                }
                Ok(done) => {
                    if let Some((done, asked)) = moved(done) {
                        let short = done < asked && driver.short_means_blocked(&entry.socket);
                        let registered = entry.registered;
                        let side = entry.side(direction);
                        if short && registered && !side.ended {
                            side.ready = false;
                        }
                    }
                }
                Err(_) => {}
            }
            result
        })
    }

    #[inline]
    pub(crate) fn readiness(&self, socket: SocketId, direction: Direction) -> Readiness {
        let found = self.look(socket, |entry| {
            let side = entry.side(direction);
            if side.ready { Readiness::Ready } else { Readiness::NotReady(side.waiter) }
        });
        found.unwrap_or(Readiness::Closed)
    }

    /// Remembers the record that parks at a socket.
    #[inline]
    pub(crate) fn set_waiter(&self, socket: SocketId, direction: Direction, record: u32) {
        // The socket was found open in this very trap.
        self.look(socket, |entry| entry.side(direction).waiter = record);
    }

    /// Notes an event; tells who may be waiting for it.
    pub(crate) fn note(&self, event: Event, waiters: &mut Vec<Waiter>) {
        let mut entries = self.entries.borrow_mut();
        let token = event.token;
        let Some(entry) = entries
            .get_mut(token.index as usize)
            .filter(|entry| entry.generation == token.generation)
        else {
            return;
        };
        entry.read.ended |= event.read_ended;
        entry.write.ended |= event.write_ended;
        for (happened, direction) in
            [(event.readable, Direction::Read), (event.writable, Direction::Write)]
        {
            let side = entry.side(direction);
            if happened {
                side.ready = true;
                let record = std::mem::replace(&mut side.waiter, NONE);
                if record != NONE {
                    waiters.push(Waiter { record, token, write: direction == Direction::Write });
                }
            }
        }
    }

    pub(crate) fn has_closed(&self) -> bool {
        self.has_closed.get()
    }

    /// Those who may be waiting at sockets that were closed since this was last asked.
    pub(crate) fn take_closed(&self) -> Vec<Waiter> {
        self.has_closed.set(false);
        std::mem::take(&mut *self.closed.borrow_mut())
    }

    /// Closes all sockets, at the kernel's end.
    pub(crate) fn clear(&self) {
        let entries = std::mem::take(&mut *self.entries.borrow_mut());
        drop(entries);
    }
}

fn total(buffers: &[impl std::ops::Deref<Target = [u8]>]) -> usize {
    buffers.iter().map(|buffer| buffer.len()).sum()
}

impl<D: Driver> Sockets for Net<D> {
    fn open(&self, what: OpenSocket<'_>) -> io::Result<SocketId> {
        let socket = self.driver.borrow_mut().open(&what)?;
        Ok(self.add(socket))
    }

    fn pair(&self, datagram: bool) -> io::Result<(SocketId, SocketId)> {
        let (one, other) = self.driver.borrow_mut().pair(datagram)?;
        Ok((self.add(one), self.add(other)))
    }

    fn adopt(&self, descriptor: OwnedFd) -> io::Result<SocketId> {
        let socket = self.driver.borrow_mut().adopt(descriptor)?;
        Ok(self.add(socket))
    }

    fn close(&self, socket: SocketId) -> io::Result<()> {
        self.with(socket, |entry, driver| {
            if entry.registered {
                driver.deregister(&entry.socket);
            }
            Ok(())
        })?;
        let mut entry = self.entries.borrow_mut().remove(socket.index as usize);
        let token = Token { index: socket.index, generation: socket.generation };
        for direction in [Direction::Read, Direction::Write] {
            let record = entry.side(direction).waiter;
            if record != NONE {
                let write = direction == Direction::Write;
                self.has_closed.set(true);
                self.closed.borrow_mut().push(Waiter { record, token, write });
            }
        }
        self.home.nudge();
        Ok(())
    }

    fn is_open(&self, socket: SocketId) -> bool {
        self.look(socket, |_| ()).is_some()
    }

    fn accept(&self, socket: SocketId) -> io::Result<(SocketId, Address)> {
        let (accepted, address) = self.attempt(
            socket,
            Direction::Read,
            |_| None,
            |driver, socket| driver.accept(socket),
        )?;
        Ok((self.add(accepted), address))
    }

    fn connected(&self, socket: SocketId) -> io::Result<()> {
        self.attempt(socket, Direction::Write, |()| None, |driver, socket| driver.connected(socket))
    }

    fn read(&self, socket: SocketId, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let count = buffers.len().min(BUFFERS_PER_ATTEMPT);
        let buffers = &mut buffers[..count];
        let asked = total(buffers);
        self.attempt(
            socket,
            Direction::Read,
            // Nothing read is the end of the stream, after which every read ends at once.
            |done| (*done > 0).then_some((*done, asked)),
            |driver, socket| driver.read(socket, buffers),
        )
    }

    fn poll(&self, socket: SocketId, direction: Direction) -> io::Result<()> {
        self.attempt(socket, direction, |()| None, |driver, socket| driver.poll(socket, direction))
    }

    fn peek(&self, socket: SocketId, buffer: &mut [u8]) -> io::Result<usize> {
        self.attempt(
            socket,
            Direction::Read,
            |_| None,
            |driver, socket| driver.peek(socket, buffer),
        )
    }

    fn write(&self, socket: SocketId, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let buffers = &buffers[..buffers.len().min(BUFFERS_PER_ATTEMPT)];
        let asked = total(buffers);
        self.attempt(
            socket,
            Direction::Write,
            |done| Some((*done, asked)),
            |driver, socket| driver.write(socket, buffers),
        )
    }

    fn receive(&self, socket: SocketId, buffer: &mut [u8]) -> io::Result<(usize, Address)> {
        self.attempt(
            socket,
            Direction::Read,
            |_| None,
            |driver, socket| driver.receive(socket, buffer),
        )
    }

    fn send(&self, socket: SocketId, data: &[u8], to: Option<&Address>) -> io::Result<usize> {
        self.attempt(
            socket,
            Direction::Write,
            |_| None,
            |driver, socket| driver.send(socket, data, to),
        )
    }

    fn connect(&self, socket: SocketId, to: &Address) -> io::Result<()> {
        self.with(socket, |entry, driver| driver.connect(&entry.socket, to))
    }

    fn shutdown(&self, socket: SocketId, how: Shutdown) -> io::Result<()> {
        self.with(socket, |entry, driver| driver.shutdown(&entry.socket, how))
    }

    fn local_address(&self, socket: SocketId) -> io::Result<Address> {
        self.with(socket, |entry, driver| driver.local_address(&entry.socket))
    }

    fn peer_address(&self, socket: SocketId) -> io::Result<Address> {
        self.with(socket, |entry, driver| driver.peer_address(&entry.socket))
    }

    fn set_option(&self, socket: SocketId, option: SocketOption) -> io::Result<()> {
        self.with(socket, |entry, driver| driver.set_option(&entry.socket, option))
    }

    fn option(&self, socket: SocketId, which: SocketOption) -> io::Result<SocketOption> {
        self.with(socket, |entry, driver| driver.option(&entry.socket, which))
    }
}
