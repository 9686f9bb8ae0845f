//! `examples/chat`.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, ToSocketAddrs};
use pikake::sim::{Runs, Sim};
use pikake::{sleep, spawn};

use crate::{guest::Guest, server};

const LINES: usize = 10;

type Heard = Rc<RefCell<Vec<String>>>;

/// Says its lines, a pause before each, and hears until everybody has said theirs.
async fn visit(
    server: impl ToSocketAddrs,
    name: &str,
    guests: usize,
    pause: Duration,
    heard: Heard,
) -> io::Result<()> {
    let mut guest = Guest::enter(server, name).await?;
    let mut said = 0;
    while heard.borrow().iter().filter(|line| line.contains('>')).count() < guests * LINES {
        if said < LINES {
            sleep(pause).await?;
            guest.say(&format!("line {said}")).await?;
            said += 1;
        }
        let line = guest.hear().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        heard.borrow_mut().push(line);
    }
    Ok(())
}

/// All have heard everything that was said, each guest's lines in order, and in one order.
fn check(heard: &[Heard]) {
    let said = |heard: &Heard| -> Vec<String> {
        heard.borrow().iter().filter(|line| line.contains('>')).cloned().collect()
    };
    let first = said(&heard[0]);
    for name in ["anna", "bert"] {
        let own: Vec<&String> = first.iter().filter(|line| line.starts_with(name)).collect();
        let expected: Vec<String> = (0..LINES).map(|line| format!("{name}> line {line}")).collect();
        assert_eq!(own, expected.iter().collect::<Vec<_>>());
    }
    assert_eq!(said(&heard[1]), first);
}

fn world(sim: &mut Sim) -> [Heard; 2] {
    sim.host("server", || async {
        let listener = TcpListener::bind("0.0.0.0:7000").await?;
        server::run(listener).await.map(drop)
    });
    ["anna", "bert"].map(|name| {
        let heard = Heard::default();
        let hears = heard.clone();
        sim.client(name, move || {
            let heard = hears.clone();
            async move {
                // Both are there before anything is said.
                sleep(Duration::from_millis(100)).await?;
                visit("server:7000", name, 2, Duration::from_secs(1), heard).await
            }
        });
        heard
    })
}

#[test]
fn reconnected_guest_receives_every_message() {
    let heard = RefCell::new(None);
    Runs::new("chat").seeds(50).run(|sim| {
        // The messages of the run before.
        heard.borrow_mut().take().inspect(|heard: &[Heard; 2]| check(heard));
        *heard.borrow_mut() = Some(world(sim));
        sim.faults("3s partition bert | server; 30s heal bert | server".parse().unwrap());
    });
    check(&heard.take().unwrap());
}

#[pikake::test]
async fn two_guests_chat_over_loopback_until_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = spawn(server::run(listener));
    let mut idle = Guest::enter(address, "carl").await.unwrap();
    assert_eq!(idle.hear().await.unwrap().unwrap(), "* carl is here");

    let heard = [Heard::default(), Heard::default()];
    let mut guests = Vec::new();
    for (name, heard) in ["anna", "bert"].into_iter().zip(heard.clone()) {
        guests.push(spawn(visit(address, name, 2, Duration::from_millis(5), heard)));
    }
    for guest in guests {
        guest.await.unwrap().unwrap();
    }
    check(&heard);

    server.cancel().await.unwrap();
    let mut last = None;
    while let Some(line) = idle.hear().await.unwrap() {
        last = Some(line);
    }
    assert_eq!(last.unwrap(), "* the chat is closed");
}
