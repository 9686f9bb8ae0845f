//! A stream whose ends are on two threads: the socket on the kernel's, its bytes anywhere.
//!
//! For libraries that poll a stream on a thread of their own. Two tasks of the kernel copy between
//! the socket and two buffers, which are all that the threads share:
//!
//! ```text
//!   kernel's thread                                  the library's thread
//!   socket ──▶ reading task ──▶ [ inbound  ] ──▶ poll_read
//!   socket ◀── writing task ◀── [ outbound ] ◀── poll_write
//! ```

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, Read};
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures::io::{AsyncRead, AsyncWrite};
use pikake::net::TcpStream;
use pikake::{future_wait, spawn};

/// How much a buffer holds before who fills it has to wait.
const CAPACITY: usize = 64 * 1024;

/// One direction: bytes, and why there are no more.
#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    end: Option<End>,
    /// Whoever waits at either side.
    wakers: Vec<Waker>,
}

#[derive(Clone, Debug)]
enum End {
    /// Who fills it is done.
    Done,
    Failed(io::ErrorKind, String),
    /// Who empties it is gone.
    Abandoned,
}

impl End {
    fn error(&self) -> io::Error {
        match self {
            Self::Failed(kind, text) => io::Error::new(*kind, text.clone()),
            Self::Done | Self::Abandoned => io::ErrorKind::BrokenPipe.into(),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<Pipe>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pipe> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the pipe, then wakes those who wait, since something may have changed.
    fn change<R>(&self, work: impl FnOnce(&mut Pipe) -> R) -> R {
        let mut pipe = self.lock();
        let result = work(&mut pipe);
        let wakers = std::mem::take(&mut pipe.wakers);
        drop(pipe);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    fn end(&self, end: End) {
        self.change(|pipe| pipe.end = pipe.end.take().or(Some(end)));
    }

    fn poll_fill(&self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let mut pipe = self.lock();
        if let Some(end) = &pipe.end {
            return Poll::Ready(Err(end.error()));
        }
        let length = data.len().min(CAPACITY.saturating_sub(pipe.bytes.len()));
        if length == 0 && !data.is_empty() {
            pipe.wakers.push(cx.waker().clone());
            return Poll::Pending;
        }
        drop(pipe);
        self.change(|pipe| pipe.bytes.extend(&data[..length]));
        Poll::Ready(Ok(length))
    }

    fn poll_empty(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut pipe = self.lock();
        if pipe.bytes.is_empty() {
            return match &pipe.end {
                Some(End::Done) => Poll::Ready(Ok(0)),
                Some(end) => Poll::Ready(Err(end.error())),
                None => {
                    pipe.wakers.push(cx.waker().clone());
                    Poll::Pending
                }
            };
        }
        drop(pipe);
        Poll::Ready(self.change(|pipe| pipe.bytes.read(into)))
    }

    fn poll_abandoned(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut pipe = self.lock();
        if let Some(End::Abandoned) = pipe.end {
            return Poll::Ready(());
        }
        pipe.wakers.push(cx.waker().clone());
        Poll::Pending
    }
}

/// The far end of a socket that stays with its kernel. It may be used on any thread.
///
/// # Cancellation
///
/// Dropped, it closes the socket when what was written has been sent.
#[derive(Debug)]
pub struct Relay {
    inbound: Shared,
    outbound: Shared,
}

impl Relay {
    /// Starts the tasks that copy. To be called inside the stream's kernel.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn start(stream: TcpStream) -> Self {
        let relay = Self { inbound: Shared::default(), outbound: Shared::default() };
        let stream = Rc::new(stream);
        let (from, inbound) = (stream.clone(), relay.inbound.clone());
        let reading = spawn(async move {
            let copying = async {
                let mut buffer = vec![0; CAPACITY];
                loop {
                    let length = from.read(&mut buffer).await?;
                    if length == 0 {
                        return Ok::<_, io::Error>(());
                    }
                    let mut rest = &buffer[..length];
                    while !rest.is_empty() {
                        let filled = future_wait(poll_fn(|cx| inbound.poll_fill(cx, rest))).await;
                        rest = &rest[filled??..];
                    }
                }
            };
            let abandoned = poll_fn(|cx| inbound.poll_abandoned(cx));
            let ended = futures::future::select(Box::pin(copying), abandoned).await;
            if let futures::future::Either::Left((copied, _)) = ended {
                inbound.end(match copied {
                    Ok(()) => End::Done,
                    Err(error) => End::Failed(error.kind(), error.to_string()),
                });
            }
        });
        reading.detach();
        let outbound = relay.outbound.clone();
        let writing = spawn(async move {
            let mut buffer = vec![0; CAPACITY];
            let copied: io::Result<()> = async {
                loop {
                    let emptied = poll_fn(|cx| outbound.poll_empty(cx, &mut buffer));
                    match future_wait(emptied).await?? {
                        0 => return stream.shutdown(Shutdown::Write),
                        length => stream.write_all(&buffer[..length]).await?,
                    }
                }
            }
            .await;
            if let Err(error) = copied {
                outbound.end(End::Failed(error.kind(), error.to_string()));
            }
        });
        writing.detach();
        relay
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.outbound.end(End::Done);
        self.inbound.change(|pipe| pipe.end = Some(End::Abandoned));
    }
}

impl AsyncRead for Relay {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.inbound.poll_empty(cx, into)
    }
}

impl AsyncWrite for Relay {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.outbound.poll_fill(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outbound.end(End::Done);
        Poll::Ready(Ok(()))
    }
}
