//! A guest, and lines of text over a connection.

use std::io;

use pikake::net::{OwnedReadHalf, OwnedWriteHalf, TcpStream, ToSocketAddrs};

/// Bytes that are read at a time.
const CHUNK: usize = 1_024;

/// What comes over a connection, line by line.
pub(crate) struct Lines {
    read: OwnedReadHalf,
    /// What was read of lines to come.
    rest: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(read: OwnedReadHalf) -> Self {
        Self { read, rest: Vec::new() }
    }

    /// The next line; `None` when there is none any more.
    pub(crate) async fn next(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            let mut chunk = [0; CHUNK];
            match self.read.read(&mut chunk).await? {
                0 => return Ok(None),
                length => self.rest.extend_from_slice(&chunk[..length]),
            }
        }
    }
}

/// Somebody in the chat.
pub(crate) struct Guest {
    lines: Lines,
    write: OwnedWriteHalf,
}

impl Guest {
    pub(crate) async fn enter(server: impl ToSocketAddrs, name: &str) -> io::Result<Self> {
        let (read, write) = TcpStream::connect(server).await?.into_split();
        let guest = Self { lines: Lines::new(read), write };
        guest.say(name).await?;
        Ok(guest)
    }

    pub(crate) async fn say(&self, line: &str) -> io::Result<()> {
        Ok(self.write.write_all(format!("{line}\n").as_bytes()).await?)
    }

    /// The next line that is said in the room; `None` when the chat is over.
    pub(crate) async fn hear(&mut self) -> io::Result<Option<String>> {
        self.lines.next().await
    }
}
