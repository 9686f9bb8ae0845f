//! What the program was asked for.

use std::net::SocketAddr;

/// What is printed when the options are wrong, or asked for.
pub(crate) const USAGE: &str = "\
usage: ten_thousand [--connections N] [--rounds N] [--size BYTES]
  --connections  how many are held at once, 1 to 25,000 (10,000)
  --rounds       how many messages each of them exchanges, 1 to 1,000,000 (10)
  --size         how long a message is, 1 to 65,536 bytes (64)
";

/// The status for options that make no sense.
pub(crate) const BAD_OPTIONS: u8 = 2;

/// Linux lends about 28,000 ports to the connections from one address to another.
const MOST_CONNECTIONS: usize = 25_000;

const MOST_ROUNDS: usize = 1_000_000;

/// A client writes a message before it reads the echo, so one must fit into the socket's buffers.
const LONGEST_MESSAGE: usize = 65_536;

/// The first word of a child's arguments, before the server's address.
const CLIENTS_OF: &str = "clients-of";

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) connections: usize,
    pub(crate) rounds: usize,
    pub(crate) size: usize,
}

pub(crate) enum Role {
    /// Server and clients.
    Both(Options),
    /// The clients alone: the second process, where one is needed.
    ClientsOf(SocketAddr, Options),
    Help,
}

impl Options {
    /// How many messages are exchanged, on all connections together.
    pub(crate) fn messages(&self) -> u64 {
        self.connections as u64 * self.rounds as u64
    }

    /// How many bytes go each way.
    pub(crate) fn bytes(&self) -> u64 {
        self.messages() * self.size as u64
    }

    /// The arguments of a process that is [`Role::ClientsOf`] with these options.
    pub(crate) fn for_clients_of(&self, server: SocketAddr) -> Vec<String> {
        let mut arguments = vec![CLIENTS_OF.to_owned(), server.to_string()];
        let named =
            [("--connections", self.connections), ("--rounds", self.rounds), ("--size", self.size)];
        arguments
            .extend(named.iter().flat_map(|(name, value)| [name.to_string(), value.to_string()]));
        arguments
    }
}

/// Reads the arguments after the program's name.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Role, String> {
    let mut options = Options { connections: 10_000, rounds: 10, size: 64 };
    let mut server = None;
    let mut arguments = arguments;
    while let Some(name) = arguments.next() {
        let (place, most) = match name.as_str() {
            "--help" | "-h" => return Ok(Role::Help),
            "--connections" => (&mut options.connections, MOST_CONNECTIONS),
            "--rounds" => (&mut options.rounds, MOST_ROUNDS),
            "--size" => (&mut options.size, LONGEST_MESSAGE),
            CLIENTS_OF => {
                let address = arguments.next().and_then(|address| address.parse().ok());
                server = Some(address.ok_or("clients-of needs a server's address")?);
                continue;
            }
            _ => return Err(format!("no such option: {name}")),
        };
        let value = arguments.next().ok_or_else(|| format!("{name} needs a number"))?;
        *place = match value.parse() {
            Ok(number) if (1..=most).contains(&number) => number,
            _ => {
                return Err(format!("{name} takes a number from 1 to {most}, not {value:?}"));
            }
        };
    }
    Ok(match server {
        Some(server) => Role::ClientsOf(server, options),
        None => Role::Both(options),
    })
}
