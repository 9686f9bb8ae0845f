//! The bytes of the protocol, written down a second time.

use pikake::net::{MemoryStream, Read, Write};
use pikake::{sleep, timeout_after};
use std::time::Duration;

pub(crate) const HEARTBEAT: u8 = 31;
pub(crate) const FINISH: u8 = 30;

pub(crate) fn number(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

pub(crate) fn hello(frame_limit: u64, silence: u64, greeting: &[u8]) -> Vec<u8> {
    let numbers = [number(frame_limit), number(silence), number(greeting.len() as u64)].concat();
    [b"PKRP\x01\x01".as_slice(), &numbers, greeting].concat()
}

/// The hello of a peer that declares nothing unusual.
pub(crate) fn plain_hello() -> Vec<u8> {
    hello(1 << 20, 30_000, b"")
}

pub(crate) fn frame(kind: u8, flags: u8, id: u64, body: &[u8]) -> Vec<u8> {
    [number(body.len() as u64), vec![kind << 3 | flags], number(id), body.to_vec()].concat()
}

/// Reads until the end of the stream, or until nothing has come for a minute.
pub(crate) async fn read_all(stream: &MemoryStream) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 1_000]);
    while let Ok(Ok(count @ 1..)) =
        timeout_after(Duration::from_secs(60), stream.read(&mut buffer)).await
    {
        all.extend(&buffer[..count]);
    }
    all
}

/// Sends heartbeats until the stream ends.
pub(crate) async fn beat(stream: &MemoryStream) {
    while stream.write_all(&frame(HEARTBEAT, 0, 0, b"")).await.is_ok() {
        if sleep(Duration::from_secs(5)).await.is_err() {
            break;
        }
    }
}
