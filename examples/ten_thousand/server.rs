//! The server's end: accepts the connections, waits until all are there, echoes.

use std::rc::Rc;

use pikake::net::{TcpListener, TcpStream};
use pikake::spawn;

use crate::Failure;
use crate::tally::Tally;

/// Tells a client that it was accepted. Until then it counts as being connected, so that the
/// listener's backlog is bounded by what the clients do at a time.
pub(crate) const WELCOME: u8 = b'w';

/// Tells a client that all the others are there, too.
pub(crate) const GO: u8 = b'g';

/// Serves one connection after the other until all have been made, and all have ended.
pub(crate) async fn run(listener: TcpListener, tally: Rc<Tally>) -> Result<(), Failure> {
    for number in 0..tally.options.connections {
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(why) => {
                tally.fail(format!("the server, accepting connection {number}: {why}"));
                break;
            }
        };
        drop(spawn(attend(stream, number, tally.clone())));
    }
    tally.all_finished().await
}

async fn attend(stream: TcpStream, number: usize, tally: Rc<Tally>) {
    tally.join();
    if let Err(why) = echo(&stream, &tally).await {
        tally.fail(format!("the server's connection {number}: {why}"));
    }
    tally.finish();
}

async fn echo(stream: &TcpStream, tally: &Tally) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    stream.write_all(&[WELCOME]).await?;
    tally.all_joined().await?;
    stream.write_all(&[GO]).await?;

    // A read that leaves room has emptied the socket. So the one byte that no message needs saves
    // the kernel the attempt that would find out.
    let mut buffer = vec![0; tally.options.size + 1];
    loop {
        match stream.read(&mut buffer).await? {
            // Whoever ends before everybody is done was not held to the end.
            0 if !tally.is_exchange_over() => {
                return Err("it ended before the exchange was over".into());
            }
            0 => return Ok(()),
            length => {
                stream.write_all(&buffer[..length]).await?;
                tally.add_bytes(length);
            }
        }
    }
}
