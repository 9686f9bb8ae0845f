//! Redis, whose password is `pikake`. What it has answered is on disk.

use super::certificates::certificates;
use super::place::{Place, answers, free_port};
use super::{READY, TRIES, is_over, until};
use crate::Result;
use crate::group::Group;
use crate::run::ENDS;

/// So many databases, of which each test has one.
const DATABASES: &str = "10000";

/// A Redis that runs, until this is dropped.
#[derive(Debug)]
pub(super) struct Redis {
    port: u16,
    tls: u16,
    /// `None` after `kill`.
    group: Option<Group>,
}

impl Redis {
    pub(super) fn start(place: &Place) -> Result<Self> {
        certificates(place)?;
        for _ in 0..TRIES {
            let mut redis = Self { port: free_port(), tls: free_port(), group: None };
            if redis.start_again(place).is_ok() {
                return Ok(redis);
            }
            if is_over() {
                break;
            }
        }
        Err("Redis did not start".into())
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Starts the server, with its ports and its data.
    pub(super) fn start_again(&mut self, place: &Place) -> Result {
        if self.group.is_some() {
            return Err("it runs".into());
        }
        let mut redis = place.program("redis-server");
        redis.args(["--bind", "127.0.0.1", "--port", &self.port.to_string()]);
        redis.args(["--tls-port", &self.tls.to_string(), "--tls-auth-clients", "optional"]);
        for (option, file) in [("cert", "server.pem"), ("key", "server.key"), ("ca-cert", "ca.pem")]
        {
            redis.args([format!("--tls-{option}-file"), format!("tls/{file}")]);
        }
        redis.args(["--requirepass", "pikake", "--databases", DATABASES]);
        redis.args(["--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
        let mut group = place.start(&mut redis)?;
        let is_ready = || answers(self.port) && answers(self.tls);
        let is_ready = until(READY, is_ready, || matches!(group.status(), Ok(None)));
        self.group = Some(group);
        match is_ready {
            true => Ok(()),
            false => {
                self.group = None;
                Err("Redis did not start".into())
            }
        }
    }

    /// Ends the server at once.
    pub(super) fn kill(&mut self) {
        self.group = None;
    }

    /// The port of TLS and the folder of the certificates.
    pub(super) fn tls(&self, place: &Place) -> String {
        format!("{} {}", self.tls, place.folder().join("tls").display())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(group) = &mut self.group {
            group.end(ENDS);
        }
    }
}
