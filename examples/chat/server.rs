//! The server: a room, and who is in it.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use pikake::net::{Ended, OwnedWriteHalf, TcpListener, TcpStream, interruption, serve};
use pikake::spawn;
use pikake::sync::broadcast::{self, RecvError};

use crate::guest::Lines;

const MOST_GUESTS: usize = 100;

/// Lines that a guest may be behind; more are lost to a guest who does not listen.
const BACKLOG: usize = 256;

type Room = broadcast::Sender<Rc<str>>;

/// Serves until it is interrupted; then all guests are told, and it ends.
pub(crate) async fn run(listener: TcpListener) -> io::Result<Ended> {
    let (room, _) = broadcast::channel(BACKLOG);
    let attend = move |stream, _: SocketAddr| attend(stream, room.clone());
    serve(listener, MOST_GUESTS, attend).await
}

async fn attend(stream: TcpStream, room: Room) {
    let (read, write) = stream.into_split();
    let mut lines = Lines::new(read);
    let Ok(Some(name)) = lines.next().await else { return };
    let listener = spawn(listen(room.subscribe(), write));
    // There may be nobody who listens.
    let say = |text: String| drop(room.send(text.into()));
    say(format!("* {name} is here"));
    let end = loop {
        match lines.next().await {
            Ok(Some(line)) => say(format!("{name}> {line}")),
            end => break end,
        }
    };
    // Who is sent home because the chat is closed has not left.
    if !end.is_err_and(|error| interruption(&error).is_some()) {
        say(format!("* {name} has left"));
    }
    // It passes on what has been said until now, and then sees that it is to end.
    let _ = listener.cancel().await;
}

/// Passes on to a guest what is said in the room.
async fn listen(mut room: broadcast::Receiver<Rc<str>>, write: OwnedWriteHalf) -> io::Result<()> {
    loop {
        let line = match room.recv().await {
            Ok(Ok(line)) => format!("{line}\n"),
            Ok(Err(RecvError::Lagged(count))) => format!("* you have missed {count} lines\n"),
            Ok(Err(RecvError::Closed)) | Err(_) => break,
        };
        write.write_all(line.as_bytes()).await?;
    }
    Ok(write.write_all(b"* the chat is closed\n").await?)
}
