//! A chat: whoever connects says a name, and then hears every line that anybody says.
//!
//! The server ([`server.rs`](server.rs)) has one room, a broadcast channel, and two tasks for each
//! guest: one hears, one says. With an address as its argument (`127.0.0.1:7000`), the program
//! serves there until it is stopped, and `nc` will do for a guest. Without one, two guests talk,
//! and it prints:
//!
//! ```text
//! anna: * anna is here
//! anna: * bert is here
//! bert: * bert is here
//! bert: anna> hello, bert
//! anna: bert> hello, anna
//! anna: * bert has left
//! anna: * the chat is closed
//! ```

use std::error::Error;
use std::io;

use pikake::net::TcpListener;
use pikake::spawn;

mod guest;
mod server;

use guest::Guest;

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    if let Some(address) = std::env::args().nth(1) {
        let listener = TcpListener::bind(&address).await?;
        println!("listening at {}", listener.local_addr()?);
        server::run(listener).await?;
        return Ok(());
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = spawn(server::run(listener));

    let mut anna = Guest::enter(address, "anna").await?;
    show("anna", &mut anna).await?;
    let mut bert = Guest::enter(address, "bert").await?;
    show("anna", &mut anna).await?;
    show("bert", &mut bert).await?;
    anna.say("hello, bert").await?;
    show("bert", &mut bert).await?;
    anna.hear().await?;
    bert.say("hello, anna").await?;
    show("anna", &mut anna).await?;
    drop(bert);
    show("anna", &mut anna).await?;
    server.cancel().await?;
    show("anna", &mut anna).await?;
    assert_eq!(anna.hear().await?, None);
    Ok(())
}

async fn show(name: &str, guest: &mut Guest) -> io::Result<()> {
    if let Some(line) = guest.hear().await? {
        println!("{name}: {line}");
    }
    Ok(())
}
