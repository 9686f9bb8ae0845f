//! Operations of a program on a TCP connection: read, write, shutdown, close.
//!
//! An attempt checks data, ends and errors in the order of Linux, since programs see it: data that
//! arrived before a reset can be read; then one attempt returns the error; after that a read
//! returns the end of the stream, and a write a broken pipe.

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};

use rustix::io::Errno;

use crate::bytes::{self, Room};
use crate::net::Net;
use crate::socket::{Key, Kind, Socket};
use crate::stream::{Fin, State, gone, would_block};
use crate::wire::Segment;

/// A receiver announces room when one part in this number of its buffer has become free.
const ANNOUNCED_FRACTION: usize = 4;

impl Net {
    pub(crate) fn stream_read(
        &mut self,
        key: Key,
        to: Room<'_, '_>,
        takes: bool,
    ) -> io::Result<usize> {
        let most = to.len();
        let Some(Socket { host, kind: Kind::Stream(stream), .. }) = self.sockets.get(key) else {
            return gone();
        };
        let (hosts, available) = ((*host, stream.remote_host), stream.inbox.len());
        if most == 0 {
            return Ok(0);
        }
        if available == 0 {
            return self.read_empty(key);
        }
        let length = self.shortened(hosts, available.min(most));
        let room = self.settings.stream_buffer / ANNOUNCED_FRACTION;
        let Some(stream) = self.stream_mut(key) else { return gone() };
        to.copy(stream.inbox.as_slices(), length);
        if takes {
            stream.inbox.drain(..length);
            stream.owed += length;
            if stream.owed >= room && stream.state == State::Open && !stream.fin_in {
                let owed = std::mem::take(&mut stream.owed);
                self.transmit(key, Segment::Room(owed));
            }
        }
        Ok(length)
    }

    fn read_empty(&mut self, key: Key) -> io::Result<usize> {
        let Some(stream) = self.stream_mut(key) else { return gone() };
        if stream.fin_in {
            return Ok(0);
        }
        if let Some(error) = stream.error.take() {
            return Err(error.into());
        }
        match stream.shut_read || stream.state == State::Dead {
            true => Ok(0),
            false => would_block(),
        }
    }

    pub(crate) fn stream_write(&mut self, key: Key, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let buffer = self.settings.stream_buffer;
        let Some(Socket { host, kind, options, .. }) = self.sockets.get_mut(key) else {
            return gone();
        };
        let Kind::Stream(stream) = kind else { return gone() };
        if let Some(error) = stream.error.take() {
            return Err(error.into());
        }
        match stream.state {
            State::Connecting => return would_block(),
            State::Dead => return Err(Errno::PIPE.into()),
            State::HalfOpen(_) | State::Open if stream.fin != Fin::Open => {
                return Err(Errno::PIPE.into());
            }
            State::HalfOpen(_) | State::Open => {}
        }
        let most: usize = from.iter().map(|buffer| buffer.len()).sum();
        let room = buffer.min(options.send_buffer).saturating_sub(stream.outbox.len());
        if most == 0 {
            return Ok(0);
        }
        if room == 0 {
            return would_block();
        }
        let hosts = (*host, stream.remote_host);
        let length = self.shortened(hosts, most.min(room));
        let Some(stream) = self.stream_mut(key) else { return gone() };
        bytes::put(&mut stream.outbox, from, length);
        self.pump(key);
        Ok(length)
    }

    pub(crate) fn stream_shutdown(&mut self, key: Key, how: Shutdown) -> io::Result<()> {
        let Some(stream) = self.stream_mut(key) else { return gone() };
        stream.connected_state()?;
        if how != Shutdown::Write {
            stream.shut_read = true;
        }
        if how != Shutdown::Read && stream.fin == Fin::Open {
            stream.fin = Fin::Requested;
        }
        self.pump(key);
        self.notify(key);
        Ok(())
    }

    pub(crate) fn stream_peer(&self, key: Key) -> io::Result<SocketAddr> {
        let Some(stream) = self.stream(key) else { return gone() };
        stream.connected_state()?;
        Ok(stream.remote)
    }

    /// The program has closed the socket. With `resets`, it asked for a reset.
    pub(crate) fn stream_close(&mut self, key: Key, resets: bool) {
        let Some(stream) = self.stream_mut(key) else { return };
        stream.orphan = true;
        let is_unread = !stream.inbox.is_empty();
        match stream.state {
            State::Dead => {}
            State::Connecting => return self.remove_stream(key),
            State::Open | State::HalfOpen(_) if resets || is_unread => {
                self.transmit(key, Segment::Reset);
                return self.remove_stream(key);
            }
            State::Open | State::HalfOpen(_) => {
                if stream.fin == Fin::Open {
                    stream.fin = Fin::Requested;
                }
                self.pump(key);
            }
        }
        self.remove_if_over(key);
    }
}
