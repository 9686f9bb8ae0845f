//! A client: finds the leader, and repeats a request until a leader has answered.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use pikake::rpc::packets::PacketOptions;
use pikake::rpc::{CallError, CallFailure, Client, Error};
use pikake::{Interrupted, random, sleep, timeout_after};

use crate::service::{AccountsClient, AccountsError, Id, RequestId, Transfer};

/// How long a server may take before another one is asked.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(1);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// A client of a server, that soon notices when the server is gone.
pub fn connect(address: &str) -> Client {
    let packets = PacketOptions::new().silence(Duration::from_secs(1));
    let builder = Client::builder().packets(packets).connect_timeout(ATTEMPT_LIMIT).attempts(1);
    builder.tcp(address).build()
}

/// Asks the servers for transfers.
pub struct Teller {
    name: String,
    servers: Vec<AccountsClient>,
    /// The server to ask first.
    leader: Cell<Id>,
    requests: Cell<u64>,
}

/// Why a request has no answer.
#[derive(Debug)]
pub enum AskError {
    /// The servers have refused the request.
    Refused(AccountsError),
    /// The caller was interrupted. The request may have an effect, now or later.
    GaveUp(Interrupted),
    /// The request cannot be made, now or later: the client and the servers differ.
    Impossible(CallError),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => write!(f, "refused: {error}"),
            Self::GaveUp(interrupted) => write!(f, "given up: {interrupted}"),
            Self::Impossible(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for AskError {}

impl Teller {
    /// A client of all servers, each by a client of its own. The requests have the name and a
    /// random number: those of a client that restarts are others than before.
    pub fn new(name: &str, clients: Vec<Client>) -> Self {
        let servers = clients.into_iter().map(AccountsClient::new).collect();
        Self {
            name: format!("{name}-{:016x}", random::u64()),
            servers,
            leader: Cell::new(0),
            requests: Cell::new(0),
        }
    }

    /// A name for a request.
    pub fn new_request(&self) -> RequestId {
        self.requests.set(self.requests.get() + 1);
        (self.name.clone(), self.requests.get())
    }

    /// Makes a transfer, and returns its number among all changes. The same request again changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`AskError`].
    pub async fn transfer(
        &self,
        request: &RequestId,
        transfer: &Transfer,
    ) -> Result<u64, AskError> {
        self.ask(async |server| server.transfer(request.clone(), transfer.clone()).await).await
    }

    /// The balance of an account.
    ///
    /// # Errors
    ///
    /// [`AskError`].
    pub async fn balance(&self, account: &str) -> Result<u64, AskError> {
        self.ask(async |server| server.balance(account.to_owned()).await).await
    }

    /// Asks one server after the other. All requests may be repeated, so it is no matter why an
    /// attempt failed.
    async fn ask<T>(
        &self,
        request: impl AsyncFn(&AccountsClient) -> Result<T, Error<AccountsError>>,
    ) -> Result<T, AskError> {
        loop {
            let asked = self.leader.get();
            let attempt = timeout_after(ATTEMPT_LIMIT, request(&self.servers[asked])).await;
            let mut leader = None;
            match attempt {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(Error::Service(AccountsError::NotLeader(known)))) => leader = known,
                Ok(Err(Error::Service(AccountsError::Unknown))) | Err(_) => {}
                Ok(Err(Error::Service(refused))) => return Err(AskError::Refused(refused)),
                Ok(Err(Error::Call(error))) => {
                    if let Some(interrupted) = error.interrupted() {
                        return Err(AskError::GaveUp(interrupted.clone()));
                    }
                    if is_permanent(&error.failure) {
                        return Err(AskError::Impossible(error));
                    }
                }
            }
            self.leader.set(leader.unwrap_or((asked + 1) % self.servers.len()));
            sleep(PAUSE).await.map_err(AskError::GaveUp)?;
        }
    }
}

/// Whether another attempt fails as well.
fn is_permanent(failure: &CallFailure) -> bool {
    matches!(
        failure,
        CallFailure::Encode(_)
            | CallFailure::Arguments(_)
            | CallFailure::UnknownMethod
            | CallFailure::Refused(_)
    )
}

impl fmt::Debug for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Teller").field("name", &self.name).finish_non_exhaustive()
    }
}
