//! Redis's protocol, RESP 2: commands as bytes, and replies from bytes. Without socket, clock and
//! task.
//!
//! The reader keeps its place in a reply that has arrived in part, so each byte is read once.
//! Depth, length and size of a reply are bounded, and memory is taken only for what has arrived.

/// The longest value that Redis stores, in bytes (`proto-max-bulk-len`).
pub(crate) const MAX_VALUE: usize = 512 * 1024 * 1024;
/// The longest line, in bytes. Lines are lengths, numbers and errors.
const MAX_LINE: usize = 64 * 1024;
/// How deep lists may be nested: those of a transaction's script are the deepest that are asked
/// for.
const MAX_DEPTH: usize = 4;
/// The most elements in a reply, over all its lists: members of a chord.
const MAX_ELEMENTS: usize = 1 << 20;
/// How many bytes the values of a reply have at most: an announcement has the longest value, and a
/// name.
const MAX_REPLY: usize = MAX_VALUE + MAX_LINE;
/// The capacity, in bytes, to which the buffer is shrunk after a large reply.
const MAX_KEPT_BUFFER: usize = 256 * 1024;

/// A reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    Status(String),
    /// The server refuses a command, with its code and text.
    Error(String),
    Number(i64),
    Bytes(Vec<u8>),
    /// A value that is not there.
    Nothing,
    List(Vec<Reply>),
}

impl Reply {
    /// The error that the reply is or, as the reply to a transaction, has.
    pub(crate) fn error(&self) -> Option<&str> {
        match self {
            Self::Error(why) => Some(why),
            Self::List(replies) => replies.iter().find_map(|reply| match reply {
                Self::Error(why) => Some(&**why),
                _ => None,
            }),
            _ => None,
        }
    }
}

/// Adds a command and its arguments to the bytes that are to be sent.
pub(crate) fn write(command: &[&[u8]], to: &mut Vec<u8>) {
    to.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
    for part in command {
        to.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        to.extend_from_slice(part);
        to.extend_from_slice(b"\r\n");
    }
}

/// Reads replies from bytes that arrive in any pieces.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    buffer: Vec<u8>,
    /// How much of the buffer has been read.
    read: usize,
    /// How much of the buffer after `read` is known to have no end of a line.
    searched: usize,
    /// The length of the value that comes next, once its line has been read.
    value: Option<usize>,
    /// The lists around what comes next, and how many elements each of them lacks.
    lists: Vec<(usize, Vec<Reply>)>,
    /// How many elements the reply has so far.
    elements: usize,
    /// How many bytes the values of the reply have so far.
    bytes: usize,
}

impl Reader {
    /// Adds bytes that have arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.read);
        self.read = 0;
        if self.value.is_none() {
            self.buffer.shrink_to(MAX_KEPT_BUFFER);
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next reply; `None` if it has not arrived in full.
    ///
    /// # Errors
    ///
    /// The bytes are not RESP 2, or a reply is too large. The reader is of no more use.
    pub(crate) fn next(&mut self) -> Result<Option<Reply>, String> {
        loop {
            let reply = match self.value {
                Some(length) => {
                    let rest = &self.buffer[self.read..];
                    if rest.len() < length + 2 {
                        return Ok(None);
                    }
                    if &rest[length..length + 2] != b"\r\n" {
                        return Err("a value in a reply has no end".to_owned());
                    }
                    let value = rest[..length].to_vec();
                    self.read += length + 2;
                    self.value = None;
                    Reply::Bytes(value)
                }
                None => match self.line()? {
                    None => return Ok(None),
                    Some(line) => match self.begin(&line)? {
                        None => continue,
                        Some(reply) => reply,
                    },
                },
            };
            if let Some(whole) = self.add(reply) {
                (self.elements, self.bytes) = (0, 0);
                return Ok(Some(whole));
            }
        }
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<Option<Vec<u8>>, String> {
        let rest = &self.buffer[self.read..];
        let from = self.searched.saturating_sub(1);
        let end = rest[from..].windows(2).position(|pair| pair == b"\r\n").map(|at| from + at);
        if end.unwrap_or(rest.len()) > MAX_LINE {
            return Err(format!("a line of a reply is longer than {MAX_LINE} bytes"));
        }
        let Some(end) = end else {
            self.searched = rest.len();
            return Ok(None);
        };
        let line = rest[..end].to_vec();
        self.read += end + 2;
        self.searched = 0;
        Ok(Some(line))
    }

    /// Reads the line of a reply. `None`: more of the reply follows.
    fn begin(&mut self, line: &[u8]) -> Result<Option<Reply>, String> {
        let text = || String::from_utf8_lossy(line.get(1..).unwrap_or_default()).into_owned();
        let number = || {
            let number = std::str::from_utf8(&line[1..]).ok().and_then(|text| text.parse().ok());
            number.ok_or_else(|| format!("`{}` in a reply is no number", text().escape_debug()))
        };
        match line.first() {
            Some(b'+') => Ok(Some(Reply::Status(text()))),
            Some(b'-') => Ok(Some(Reply::Error(text()))),
            Some(b':') => Ok(Some(Reply::Number(number()?))),
            Some(kind @ (b'$' | b'*')) => match (kind, number()?) {
                (_, -1) => Ok(Some(Reply::Nothing)),
                (b'*', 0) => Ok(Some(Reply::List(Vec::new()))),
                (b'*', length) => {
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    self.elements = self.elements.saturating_add(length);
                    if self.elements > MAX_ELEMENTS || self.lists.len() == MAX_DEPTH {
                        return Err("a reply has too many elements, or lists in lists".to_owned());
                    }
                    self.lists.push((length, Vec::new()));
                    Ok(None)
                }
                (_, length) => {
                    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_VALUE);
                    let length = length.ok_or("a value in a reply is too long")?;
                    self.bytes += length;
                    if self.bytes > MAX_REPLY {
                        return Err("a reply is too long".to_owned());
                    }
                    self.value = Some(length);
                    Ok(None)
                }
            },
            _ => Err("the server does not speak Redis's protocol".to_owned()),
        }
    }

    /// Puts a reply into the list around it. Returns the reply that is whole by that.
    fn add(&mut self, mut reply: Reply) -> Option<Reply> {
        loop {
            let Some((lacking, elements)) = self.lists.last_mut() else { return Some(reply) };
            elements.push(reply);
            *lacking -= 1;
            if *lacking > 0 {
                return None;
            }
            reply = Reply::List(self.lists.pop().map(|(_, elements)| elements).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replies(reader: &mut Reader, pieces: &[&[u8]]) -> Result<Vec<Reply>, String> {
        let mut replies = Vec::new();
        for piece in pieces {
            reader.push(piece);
            while let Some(reply) = reader.next()? {
                replies.push(reply);
            }
        }
        Ok(replies)
    }

    const BYTES: &[u8] = b"+OK\r\n-ERR no\r\n:-7\r\n$-1\r\n*-1\r\n$0\r\n\r\n$4\r\na\r\nb\r\n*0\r\n\
        *3\r\n$1\r\nm\r\n*2\r\n:1\r\n*1\r\n$2\r\nxy\r\n$-1\r\n+end\r\n";

    fn expected() -> Vec<Reply> {
        let bytes = |text: &str| Reply::Bytes(text.into());
        vec![
            Reply::Status("OK".into()),
            Reply::Error("ERR no".into()),
            Reply::Number(-7),
            Reply::Nothing,
            Reply::Nothing,
            bytes(""),
            bytes("a\r\nb"),
            Reply::List(vec![]),
            Reply::List(vec![
                bytes("m"),
                Reply::List(vec![Reply::Number(1), Reply::List(vec![bytes("xy")])]),
                Reply::Nothing,
            ]),
            Reply::Status("end".into()),
        ]
    }

    #[test]
    fn replies_are_read_in_any_pieces() {
        for at in 0..BYTES.len() {
            let (one, two) = BYTES.split_at(at);
            assert_eq!(replies(&mut Reader::default(), &[one, two]), Ok(expected()), "{at}");
        }
        let single: Vec<&[u8]> = BYTES.chunks(1).collect();
        assert_eq!(replies(&mut Reader::default(), &single), Ok(expected()));
    }

    #[test]
    fn hostile_replies_are_errors() {
        let nested = b"*1\r\n".repeat(100_000);
        let line = [b"+".as_slice(), &b"x".repeat(MAX_LINE + 1)].concat();
        for bytes in [
            b"HTTP/1.1 400 Bad Request\r\n".as_slice(),
            b"\r\n",
            b":one\r\n",
            b"$-2\r\n",
            b"*-2\r\n",
            b"$99999999999\r\n",
            b"*1048577\r\n",
            b"*3\r\n*600000\r\n",
            b"$99999999999999999999999\r\n",
            b"$1\r\nabc",
            &nested,
            &line,
        ] {
            let mut reader = Reader::default();
            let read = replies(&mut reader, &[bytes]);
            let begin = String::from_utf8_lossy(&bytes[..bytes.len().min(30)]).into_owned();
            if begin.starts_with("*3") {
                assert_eq!(read, Ok(vec![]), "{begin}");
                assert!(replies(&mut reader, &[b"*600000\r\n"]).is_err());
                continue;
            }
            assert!(read.is_err(), "{begin}: {read:?}");
        }
    }

    #[test]
    fn large_reply_takes_only_what_has_arrived() {
        let mut reader = Reader::default();
        assert_eq!(replies(&mut reader, &[b"*1000000\r\n$500000000\r\nabc"]), Ok(vec![]));
        assert!(reader.buffer.capacity() < 1024);
    }

    #[test]
    fn bytes_of_a_reply_are_bounded() {
        let almost = || Reader { bytes: MAX_REPLY - 3, ..Reader::default() };
        let mut reader = almost();
        assert_eq!(replies(&mut reader, &[b"*2\r\n$3\r\nabc\r\n"]), Ok(vec![]));
        assert!(replies(&mut reader, &[b"$1\r\n"]).is_err());
        // Each reply begins anew.
        let mut reader = almost();
        assert_eq!(replies(&mut reader, &[b"$3\r\nabc\r\n$1\r\na\r\n"]).unwrap().len(), 2);
    }

    #[test]
    fn buffer_shrinks_after_a_large_value() {
        let value = [b"$10000000\r\n".as_slice(), &[b'x'; 10_000_000], b"\r\n"].concat();
        let mut reader = Reader::default();
        let pieces: Vec<&[u8]> = value.chunks(16 * 1024).collect();
        assert_eq!(replies(&mut reader, &pieces).unwrap().len(), 1);
        assert_eq!(replies(&mut reader, &[b"+OK\r\n"]).unwrap().len(), 1);
        assert!(reader.buffer.capacity() <= MAX_KEPT_BUFFER);
    }

    #[test]
    fn commands_are_lists_of_values() {
        let mut bytes = Vec::new();
        write(&[b"SET", b"k", "a\r\n\u{e9}".as_bytes()], &mut bytes);
        assert_eq!(bytes, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\na\r\n\u{e9}\r\n".as_bytes());
    }
}
