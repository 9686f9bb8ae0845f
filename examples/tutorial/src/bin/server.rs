// ANCHOR: all
//! Pulse, stage 5: real checks over TCP, and a server that sends the page.
//!
//! ```sh
//! server 127.0.0.1:7000 db=127.0.0.1:5432 web=127.0.0.1:8080
//! ```

use std::error::Error;

use pikake::net::{TcpListener, TcpStream, serve};
use pikake::try_task_group;
use pulse::{Page, check, check_all, services};

/// How many clients may read the page at a time.
const MOST_CLIENTS: usize = 100;

// ANCHOR: main
#[pikake::main(signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: server ADDRESS NAME=ADDRESS…")?;
    let services = services(arguments)?;
    let listener = TcpListener::bind(&address).await?;
    println!("the page is at {}", listener.local_addr()?);

    let page = Page::default();
    let ended = try_task_group(async |tasks| {
        tasks.spawn_daemon(check_all(services, page.clone(), check));
        serve(listener, MOST_CLIENTS, move |stream, _| send(page.clone(), stream)).await
    })
    .await?;
    println!("{ended}");
    Ok(())
}

/// Sends the page to a client.
async fn send(page: Page, stream: TcpStream) {
    if let Err(error) = stream.write_all(page.text().as_bytes()).await {
        println!("a client left early: {error}");
    }
}
// ANCHOR_END: main
// ANCHOR_END: all
