//! redis in the simulator: a client whose connections break, and a small server that speaks the
//! protocol of Redis.
//!
//! ```text
//! all values are stored
//! the client connected again: in all of them
//! a command got no answer: in some of them
//! ```
//!
//! The server closes each connection after some commands, and the network fails as well. The
//! `ConnectionManager` connects again, after pauses in virtual time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{BufReader, TcpListener, TcpStream, lookup_host, serve};
use pikake::random;
use pikake::sim::{FaultMix, Runs, Sim, always, sometimes};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{AsyncCommands, Client};

/// The values that the client stores.
const VALUES: u32 = 50;

/// A connection is closed after fewer commands.
const COMMANDS: u64 = 20;

/// When the network is whole again.
const HEALED: Duration = Duration::from_secs(30);

/// How long the manager waits for an answer, and between two attempts to connect.
const PATIENCE: Duration = Duration::from_secs(2);

/// The connections that the server has had, and its values.
#[derive(Default)]
struct Store {
    connections: Cell<u32>,
    values: RefCell<BTreeMap<String, String>>,
}

impl Store {
    fn answer(&self, command: &[String]) -> String {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words[..] {
            ["SET", key, value] => {
                self.values.borrow_mut().insert(key.to_owned(), value.to_owned());
                "+OK\r\n".to_owned()
            }
            ["GET", key] => match self.values.borrow().get(key) {
                Some(value) => format!("${}\r\n{value}\r\n", value.len()),
                None => "$-1\r\n".to_owned(),
            },
            // Its name and version, when it connects.
            ["CLIENT", ..] => "+OK\r\n".to_owned(),
            _ => format!("-ERR unknown command {words:?}\r\n"),
        }
    }

    async fn attend(self: Rc<Self>, stream: TcpStream) -> io::Result<()> {
        self.connections.set(self.connections.get() + 1);
        let reader = BufReader::new(stream);
        for _ in 0..random::range(5..COMMANDS) {
            let Some(command) = next_command(&reader).await? else { break };
            reader.get_ref().write_all(self.answer(&command).as_bytes()).await?;
        }
        Ok(())
    }
}

/// A command: the count of its words, then the length and the bytes of each word.
async fn next_command(reader: &BufReader<TcpStream>) -> io::Result<Option<Vec<String>>> {
    let Some(head) = reader.next_line().await? else { return Ok(None) };
    let count: usize = head.trim_start_matches('*').parse().map_err(io::Error::other)?;
    let mut words = Vec::new();
    for _ in 0..count {
        // These words contain no line feed, so the length is not needed.
        reader.next_line().await?;
        words.push(reader.next_line().await?.ok_or(io::ErrorKind::UnexpectedEof)?);
    }
    Ok(Some(words))
}

async fn server(store: Rc<Store>) -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:6379").await?;
    let attend = move |stream, _: SocketAddr| {
        let attending = store.clone().attend(stream);
        async move { drop(attending.await) }
    };
    serve(listener, 100, attend).await.map(drop)
}

async fn client(store: Rc<Store>) -> Result<(), Box<dyn Error>> {
    let address = lookup_host("server:6379").await?.next().ok_or("no address")?;
    let client = Client::open(format!("redis://{address}"))?;
    let config = ConnectionManagerConfig::new().set_max_delay(PATIENCE);
    let config = config.set_response_timeout(Some(PATIENCE));
    let manager = ConnectionManager::new_lazy_with_config(client, config)?;
    for number in 0..VALUES {
        let mut manager = manager.clone();
        while let Err(error) = manager.set::<_, _, ()>(number, number * number).await {
            sometimes!(error.is_timeout() || error.is_io_error(), "a command got no answer");
        }
        let stored = loop {
            if let Ok(stored) = manager.get::<_, u32>(number).await {
                break stored;
            }
        };
        assert_eq!(stored, number * number);
    }
    always!(store.connections.get() > 1, "the client connected again");
    Ok(())
}

fn world(sim: &mut Sim) {
    let store = Rc::<Store>::default();
    let server_store = store.clone();
    sim.host("server", move || server(server_store.clone()));
    sim.client("client", move || client(store.clone()));
    sim.fault_mix(FaultMix::network(HEALED));
}

pub(crate) fn demo(name: &str) -> Vec<String> {
    let runs =
        Runs::new(name).seeds(20).expect(["the client connected again", "a command got no answer"]);
    runs.check_determinism().run(world);
    vec![
        "all values are stored".to_owned(),
        "the client connected again: in all of them".to_owned(),
        "a command got no answer: in some of them".to_owned(),
    ]
}

fn main() {
    for line in demo("client_outlives_its_connections") {
        println!("{line}");
    }
}
