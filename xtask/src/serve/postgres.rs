//! PostgreSQL. Its superuser is `pikake`, who needs no password.

use std::process::Stdio;

use super::place::{Place, free_port};
use super::{READY, TRIES, is_over, until};
use crate::Result;
use crate::group::Group;
use crate::run::ENDS;

/// A PostgreSQL that runs, until this is dropped.
#[derive(Debug)]
pub(super) struct Postgres {
    group: Group,
    port: u16,
}

impl Postgres {
    pub(super) fn start(place: &Place) -> Result<Self> {
        let mut initdb = place.program("initdb");
        initdb.args(["-D", "data", "-U", "pikake", "-A", "trust"]);
        place.run(initdb.args(["--no-sync", "-E", "UTF8", "--locale=C"]))?;
        for _ in 0..TRIES {
            let port = free_port();
            let at = port.to_string();
            let mut postgres = place.program("postgres");
            postgres.args(["-D", "data", "-h", "127.0.0.1", "-p", &at, "-k", "", "-F"]);
            let group = place.start(&mut postgres)?;
            let mut postgres = Self { group, port };
            let is_ready = || {
                let mut command = place.program("pg_isready");
                command.args(["-q", "-h", "127.0.0.1", "-p", &at, "-U", "pikake"]);
                command.stdout(Stdio::null()).stderr(Stdio::null());
                command.status().is_ok_and(|status| status.success())
            };
            if until(READY, is_ready, || matches!(postgres.group.status(), Ok(None))) {
                return Ok(postgres);
            }
            if is_over() {
                break;
            }
        }
        Err("PostgreSQL did not start".into())
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.group.end(ENDS);
    }
}
