//! Calls on bare sockets, without a stream around them.

use std::io;

use pikake::traps::{
    AsAttempt, Attempt, OpenSocket, Opened, SocketId, attempt, open_socket, socket_wait,
};

pub(crate) fn pair() -> (SocketId, SocketId) {
    match open_socket(OpenSocket::UnixStreamPair).unwrap() {
        Opened::Pair(one, other) => (one, other),
        opened => panic!("a pair was asked for: {opened:?}"),
    }
}

pub(crate) fn write(socket: SocketId, text: &str) {
    attempt(socket, Attempt::Write(text.as_bytes())).unwrap();
}

/// Waits for a few bytes; returns how many came.
pub(crate) async fn read(socket: SocketId) -> io::Result<usize> {
    socket_wait(socket, ReadSome([0; 4])).await
}

struct ReadSome([u8; 4]);

impl AsAttempt for ReadSome {
    type Output = usize;

    fn attempt(&mut self) -> Attempt<'_> {
        Attempt::Read(&mut self.0)
    }

    fn output(&mut self, moved: usize) -> usize {
        moved
    }
}

/// Finds out that there is nothing to read, after which a wait for it suspends.
pub(crate) fn drain(socket: SocketId) {
    let error = attempt(socket, Attempt::Read(&mut [0; 8])).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}
