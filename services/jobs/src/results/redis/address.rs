//! The `redis://` or `rediss://` URL of a Redis.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::broker::outcomes::LONGEST_LIFE;

/// Redis's own port.
const PORT: u16 = 6379;
/// How long outcomes are kept: Celery's `result_expires`.
const EXPIRES: Duration = Duration::from_secs(24 * 3_600);

/// Where a Redis runs, and what a connection to it says first. `Debug` and `Display` do not show
/// the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) db: u32,
    /// How long outcomes are kept; zero: until somebody deletes them.
    pub(crate) expires: Duration,
    pub(crate) tls: Option<Tls>,
}

/// TLS, by the names of redis-py.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Tls {
    /// The trusted authorities; by default, those of the platform.
    pub(crate) roots: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) is_unverified: bool,
}

impl Address {
    /// Host and port, for errors.
    pub(crate) fn host_and_port(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    /// An error does not show the URL, which may have a password.
    fn from_str(url: &str) -> Result<Self, String> {
        let wrong =
            |why: &str| format!("the URL of the results: {why} (redis://:password@host:port/db)");
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("no `://`"))?;
        let tls = match scheme {
            "redis" => None,
            "rediss" if cfg!(feature = "tls") => Some(Tls::default()),
            "rediss" => {
                return Err(wrong("`rediss://` needs the feature `tls` of the crate `pikake`"));
            }
            _ => return Err(wrong("the scheme is neither `redis` nor `rediss`")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, db) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, at) = match authority.rsplit_once('@') {
            Some((user, at)) => (Some(user), at),
            None => (None, authority),
        };
        let decoded = |text: &str| {
            let text = percent_decode_str(text).decode_utf8();
            text.map(String::from).map_err(|_| wrong("a part of it is not UTF-8"))
        };
        let (user, password) = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
            Some((user, password)) => (Some(decoded(user)?), Some(decoded(password)?)),
            None => (None, None),
        };
        let (host, port) = match at.strip_prefix('[').and_then(|at| at.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or("(none)"))),
            None => match at.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (at, None),
            },
        };
        let port = match port {
            None => PORT,
            Some(port) => port.parse().map_err(|_| wrong("the port is no number up to 65535"))?,
        };
        let db = match db.trim_matches('/') {
            "" => 0,
            db => db.parse().map_err(|_| wrong("the database is no number"))?,
        };
        let mut address = Self {
            // Celery's `redis://` is localhost, too.
            host: if host.is_empty() { "localhost".to_owned() } else { host.to_owned() },
            port,
            user: user.filter(|user| !user.is_empty()),
            password: password.filter(|password| !password.is_empty()),
            db,
            expires: EXPIRES,
            tls,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            address.set(name, decoded(value)?).map_err(|why| wrong(&why))?;
        }
        Ok(address)
    }
}

impl Address {
    fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        if name == "expires" {
            let seconds = value.parse().map_err(|_| "`expires` is no number of seconds")?;
            self.expires = Duration::from_secs(seconds);
            if self.expires > LONGEST_LIFE {
                return Err("`expires` is longer than ten years (0 keeps outcomes for good)".into());
            }
            return Ok(());
        }
        let tls = self.tls.as_mut().ok_or_else(|| match name.starts_with("ssl_") {
            true => format!("`{name}` is for `rediss://`"),
            false => format!("the parameter `{name}` is not known"),
        })?;
        match (name, &*value) {
            ("ssl_ca_certs", _) => tls.roots = Some(value.into()),
            ("ssl_certfile", _) => tls.certificate = Some(value.into()),
            ("ssl_keyfile", _) => tls.key = Some(value.into()),
            ("ssl_cert_reqs", "none" | "CERT_NONE") => tls.is_unverified = true,
            ("ssl_cert_reqs", "required" | "CERT_REQUIRED") => tls.is_unverified = false,
            ("ssl_cert_reqs", _) => {
                return Err("`ssl_cert_reqs` is `required` or `none`".to_owned());
            }
            _ => return Err(format!("the parameter `{name}` is not known")),
        }
        Ok(())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        write!(f, "{scheme}://{}/{}", self.host_and_port(), self.db)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Parts = (String, u16, Option<String>, Option<String>, u32);

    fn parts(url: &str) -> Parts {
        let a: Address = url.parse().unwrap();
        (a.host, a.port, a.user, a.password, a.db)
    }

    #[test]
    fn parts_of_a_url() {
        let plain = |host: &str, port, db| -> Parts { (host.into(), port, None, None, db) };
        assert_eq!(parts("redis://"), plain("localhost", 6379, 0));
        assert_eq!(parts("redis://h/2"), plain("h", 6379, 2));
        assert_eq!(parts("redis://[::1]:7/"), plain("::1", 7, 0));
        assert_eq!(parts("redis://[::1]"), plain("::1", 6379, 0));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(parts("redis://:p%40%2F@h:1/3"), ("h".into(), 1, None, some("p@/"), 3));
        assert_eq!(parts("redis://ann:s@h"), ("h".into(), 6379, some("ann"), some("s"), 0));
        let expires = |url: &str| url.parse::<Address>().unwrap().expires.as_secs();
        assert_eq!([expires("redis://h?expires=60"), expires("redis://h")], [60, 86_400]);
    }

    #[test]
    fn errors_and_debug_do_not_show_the_password() {
        for url in [
            "redis:h",
            "http://:secret@h",
            "redis://:secret@h:99999",
            "redis://:secret@h:x",
            "redis://:secret@[::1]x",
            "redis://:secret@h/one",
            "redis://:secret@h/?colour=blue",
            "redis://:secret@h/?expires=soon",
            "redis://:secret@h/?expires=99999999999999999",
            "redis://:secret@h/?ssl_certfile=/a",
            "redis://:%ff@h/secret",
        ] {
            let error = url.parse::<Address>().unwrap_err();
            assert!(error.contains("redis://:password@host:port/db"), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let address: Address = "redis://ann:secret@h/1".parse().unwrap();
        assert_eq!(format!("{address:?}"), "Address(redis://h:6379/1)");
    }
}
