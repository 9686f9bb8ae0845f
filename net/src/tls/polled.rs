//! The poll-based traits of a TLS stream: `tokio::io` and `futures_io`.
//!
//! A stream stores one *wait* per direction between two polls: a future that receives or sends
//! records. The next poll of the direction polls it with the new waker. A wait holds no plaintext
//! of its own, so nothing is lost if the caller never polls again.
//!
//! ```text
//!   poll_read:      decrypted bytes? ──no──▶ receive records, and again
//!   poll_write:     send what is left ──▶ encrypt ──▶ begin to send ──▶ the number of bytes
//!   poll_flush:     send what is left ──▶ flush the carrier
//!   poll_shutdown:  close_notify ──▶ send what is left ──▶ end the carrier's direction
//! ```
//!
//! A write is complete when its data is encrypted, since a record cannot be taken back. The sending
//! that it begins is shielded: an interruption is left for a poll that can return it.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, Write as _};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use pikake_traps::{Direction, shield};
use rustls::Writer;
use tokio::io::ReadBuf;

use crate::read_write::{Read, Write};
use crate::seam::{polled_read, polled_write};
use crate::tls::stream::{Inner, TlsStream};

/// A future that was polled once. The most do not wait, and are polled where they are made.
type Wait = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// What the carrier does once all records are sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Goal {
    Nothing,
    Flush,
    Finish,
}

/// The waits of a stream that is polled, one per direction.
#[derive(Default)]
pub(super) struct Waits {
    read: RefCell<Option<Wait>>,
    write: RefCell<Option<(Goal, Wait)>>,
}

impl Waits {
    /// Drops an abandoned wait, since another operation of this direction begins.
    pub(super) fn abandon(&self, direction: Direction) {
        match direction {
            Direction::Read => drop(self.read.take()),
            Direction::Write => drop(self.write.take()),
        }
    }
}

/// Sends all records, and reaches a goal.
async fn send<S: Read + Write>(inner: &Inner<S>, goal: Goal) -> io::Result<()> {
    inner.drain().await?;
    reach(inner, goal).await
}

/// Reaches a goal, when all records are sent. A drop loses nothing.
async fn reach<S: Read + Write>(inner: &Inner<S>, goal: Goal) -> io::Result<()> {
    match goal {
        Goal::Nothing => Ok(()),
        Goal::Flush => inner.carrier.flush().await,
        Goal::Finish => inner.carrier.finish().await,
    }
}

impl<S: Read + Write + 'static> TlsStream<S> {
    /// Waits for records.
    fn poll_fill(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The wait is taken out, so nothing is borrowed while user code runs.
        let mut wait = match self.waits.read.take() {
            Some(wait) => wait,
            None => {
                if let Poll::Ready(filled) = pin!(self.inner.fill()).poll(cx) {
                    return Poll::Ready(filled);
                }
                let inner = self.inner.clone();
                Box::pin(async move { inner.fill().await })
            }
        };
        let filled = wait.as_mut().poll(cx);
        if filled.is_pending() {
            self.waits.read.replace(Some(wait));
        }
        filled
    }

    /// Receives records.
    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_fill(cx))?;
        pin!(self.inner.process()).poll(cx).map_ok(drop)
    }

    /// Sends all records, and reaches a goal.
    fn poll_send(&self, cx: &mut Context<'_>, goal: Goal) -> Poll<io::Result<()>> {
        loop {
            let (reaches, mut wait) = match self.waits.write.take() {
                Some(wait) => wait,
                None => {
                    // A write of the carrier that has to wait is not dropped: it may have written.
                    if self.inner.try_drain()? {
                        if let Poll::Ready(sent) = pin!(reach(&self.inner, goal)).poll(cx) {
                            return Poll::Ready(sent);
                        }
                    }
                    let inner = self.inner.clone();
                    let wait: Wait = Box::pin(async move { send(&inner, goal).await });
                    (goal, wait)
                }
            };
            match wait.as_mut().poll(cx) {
                Poll::Pending => {
                    self.waits.write.replace(Some((reaches, wait)));
                    return Poll::Pending;
                }
                // A wait that was stored may have had a smaller goal.
                Poll::Ready(Ok(())) if reaches < goal => {}
                sent => return sent,
            }
        }
    }

    /// Sends as much as the carrier takes now. The next poll of the direction continues, and
    /// returns the error if there is one.
    fn begin_to_send(&self, cx: &mut Context<'_>) {
        let sending = pin!(shield(poll_fn(|cx| self.poll_send(cx, Goal::Nothing))));
        let _ = sending.poll(cx);
    }

    fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if let Some(read) = self.inner.put_plaintext(buffer) {
                return Poll::Ready(read);
            }
            ready!(self.poll_receive(cx))?;
            if self.inner.has_an_answer() {
                self.begin_to_send(cx);
            }
        }
    }

    /// Encrypts bytes, once all earlier records are sent. `write` passes the bytes to rustls.
    fn poll_encrypt(
        &self,
        cx: &mut Context<'_>,
        write: impl FnOnce(&mut Writer<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(cx, Goal::Nothing))?;
        let written = self.inner.write_plaintext(write)?;
        self.begin_to_send(cx);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(cx, Goal::Flush)
    }

    /// Ends the writing direction. Succeeds if the connection has ended already.
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.say_goodbye();
        let is_over = |error: &io::Error| {
            error.kind() == io::ErrorKind::NotConnected && error.raw_os_error().is_some()
        };
        match ready!(self.poll_send(cx, Goal::Finish)) {
            Err(error) if is_over(&error) => Poll::Ready(Ok(())),
            ended => Poll::Ready(ended),
        }
    }

    fn poll_write(&self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_encrypt(cx, |writer| writer.write(data))
    }

    fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_encrypt(cx, |writer| writer.write_vectored(data))
    }
}

polled_read!(|stream| stream; [<S: Read + Write + 'static>] TlsStream<S>;);
polled_write!(|stream| stream; [<S: Read + Write + 'static>] TlsStream<S>;);
