//! The poll-based traits of streams: `tokio::io` and `futures_io`.
//!
//! A stream keeps one wait per direction between two polls, and polls it again with the next waker
//! ([`Waits`]). Otherwise these traits work as the methods of a stream: the attempt comes first,
//! and an interruption is an error of a kind that is not retried.
//!
//! A read goes into the memory of the caller, also where that is not initialized, and no byte of it
//! is touched before: the size of a buffer costs nothing.
//!
//! The latest waker of a direction is woken, as these traits require. An abandoned wait (a future
//! of another library was dropped) stays with its stream until the next read or write replaces it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll};

use pikake_traps::{
    Attempt, Direction, IsReady, KernelTrap, SocketTrap, Spare, read_wait, write_wait,
};
use tokio::io::ReadBuf;

use crate::socket::Socket;

type ReadyWait = KernelTrap<SocketTrap<IsReady>>;

/// The waits of a socket that is polled, one per direction.
#[derive(Default)]
pub(crate) struct Waits {
    read: RefCell<Option<ReadyWait>>,
    write: RefCell<Option<ReadyWait>>,
    /// The last read has left its buffer room, so the next one most likely has to wait.
    is_drained: Cell<bool>,
}

impl Waits {
    fn of(&self, direction: Direction) -> &RefCell<Option<ReadyWait>> {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }

    /// Drops an abandoned wait, since another wait of this direction begins.
    #[inline]
    pub(crate) fn abandon(&self, direction: Direction) {
        drop(self.of(direction).take());
    }
}

impl Socket {
    /// Attempts to move bytes in a direction: `attempt` returns the attempt on `with`.
    fn poll_attempt<T>(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        waits_first: bool,
        mut with: T,
        attempt: impl Fn(&mut T) -> Attempt<'_>,
    ) -> Poll<io::Result<usize>> {
        let wait = self.waits().of(direction);
        // The wait is taken out, so nothing is borrowed while the kernel calls a waker.
        let begin = || match direction {
            Direction::Read => read_wait(self.id()),
            Direction::Write => write_wait(self.id()),
        };
        let mut waiting = wait.take().or_else(|| waits_first.then(begin));
        loop {
            if let Some(trap) = &mut waiting {
                match Pin::new(trap).poll(cx) {
                    Poll::Pending => {
                        wait.replace(waiting);
                        return Poll::Pending;
                    }
                    Poll::Ready(waited) => waited?,
                }
            }
            match self.attempt(attempt(&mut with)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    waiting = Some(begin());
                }
                result => return Poll::Ready(result),
            }
        }
    }

    #[expect(unsafe_code, reason = "tokio lends uninitialized memory only so")]
    fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let is_drained = &self.waits().is_drained;
        let initialized = buffer.initialized().len() - buffer.filled().len();
        let polled = match initialized {
            0 => {
                let mut length = 0;
                // SAFETY: no byte behind the filled ones is initialized, so none can be made
                // uninitialized.
                let memory = unsafe { buffer.unfilled_mut() };
                let spare = Spare::new(memory, &mut length);
                let polled =
                    self.poll_attempt(cx, Direction::Read, is_drained.get(), spare, |spare| {
                        Attempt::ReadSpare(spare.reborrow())
                    });
                // SAFETY: by the contract of `Spare`, bytes of this number were initialized at the
                // begin of its memory, which is behind the filled bytes.
                unsafe { buffer.assume_init(length) };
                polled.map_ok(|_| length)
            }
            _ => {
                let bytes = buffer.initialize_unfilled_to(initialized);
                self.poll_attempt(cx, Direction::Read, is_drained.get(), bytes, |bytes| {
                    Attempt::Read(bytes)
                })
            }
        };
        let room = if initialized == 0 { buffer.remaining() } else { initialized };
        polled.map_ok(|length| {
            is_drained.set(length < room);
            buffer.advance(length);
        })
    }

    fn poll_write(&self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_attempt(cx, Direction::Write, false, data, |data| Attempt::Write(data))
    }

    fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_attempt(cx, Direction::Write, false, data, |data| Attempt::WriteVectored(data))
    }

    fn poll_flush(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends the writing direction. Succeeds if the connection has ended already.
    fn poll_end(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_over = |error: &io::Error| error.raw_os_error().is_some();
        match self.shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected && is_over(&error) => {
                Poll::Ready(Ok(()))
            }
            result => Poll::Ready(result),
        }
    }
}

/// Implements the traits of both crates for readable types, by the method of `$polled`.
macro_rules! polled_read {
    (|$stream:ident| $polled:expr; $([$($of:tt)*] $type:ty;)*) => {$(
        impl $($of)* tokio::io::AsyncRead for $type {
            #[track_caller]
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let $stream = &*self;
                $polled.poll_read(cx, buffer)
            }
        }

        impl $($of)* futures_io::AsyncRead for $type {
            #[track_caller]
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                let $stream = &*self;
                let mut buffer = tokio::io::ReadBuf::new(buffer);
                $polled.poll_read(cx, &mut buffer).map_ok(|()| buffer.filled().len())
            }
        }
    )*};
}

/// Implements the traits of both crates for writable types, by the methods of `$polled`.
macro_rules! polled_write {
    (|$stream:ident| $polled:expr; $([$($of:tt)*] $type:ty;)*) => {$(
        polled_write!(
            [$($of)*] tokio::io::AsyncWrite, $type, |$stream| $polled, poll_shutdown,
            fn is_write_vectored(&self) -> bool {
                true
            }
        );
        polled_write!([$($of)*] futures_io::AsyncWrite, $type, |$stream| $polled, poll_close);
    )*};
    (
        [$($of:tt)*] $trait:path, $type:ty, |$stream:ident| $polled:expr, $end:ident
        $(, $more:item)?
    ) => {
        impl $($of)* $trait for $type {
            #[track_caller]
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                data: &[u8],
            ) -> Poll<io::Result<usize>> {
                let $stream = &*self;
                $polled.poll_write(cx, data)
            }

            #[track_caller]
            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                data: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let $stream = &*self;
                $polled.poll_write_vectored(cx, data)
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $stream = &*self;
                $polled.poll_flush(cx)
            }

            fn $end(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $stream = &*self;
                $polled.poll_end(cx)
            }

            $($more)?
        }
    };
}

#[cfg(feature = "tls")]
pub(crate) use {polled_read, polled_write};

polled_read! {
    |stream| stream.socket();
    [] crate::TcpStream;
    [] crate::UnixStream;
    [] &crate::TcpStream;
    [] crate::ReadHalf<'_>;
    [<S>] crate::OwnedReadHalf<S>;
}

polled_write! {
    |stream| stream.socket();
    [] crate::TcpStream;
    [] crate::UnixStream;
    [] &crate::TcpStream;
    [] crate::WriteHalf<'_>;
    [<S>] crate::OwnedWriteHalf<S>;
}
