//! The query of a broker's URL: `?cacertfile=/etc/ca.pem&heartbeat=10`.
//!
//! The URL library ignores unknown names, so a misspelt `cacertfile` would go unnoticed. The names
//! are RabbitMQ's ("URI Query Parameters").

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::client::options::Options;

/// All known names, in the order of the documentation.
const KNOWN: [&str; 9] = [
    "cacertfile",
    "certfile",
    "keyfile",
    "verify",
    "server_name_indication",
    "auth_mechanism",
    "heartbeat",
    "connection_timeout",
    "channel_max",
];

/// The names for TLS only.
const OF_TLS: [&str; 5] = ["cacertfile", "certfile", "keyfile", "verify", "server_name_indication"];

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Query {
    pub(crate) tls: Tls,
    /// Whether the client certificate authenticates, instead of user and password.
    pub(crate) is_external: bool,
    heartbeat: Option<Duration>,
    connect_timeout: Option<Duration>,
    channel_max: Option<u16>,
}

/// Trusted certificate authorities, and the client's certificate.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Tls {
    /// The file of trusted authorities, instead of the platform's.
    pub(crate) roots: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    /// The file of the key. `None` if the certificate's file has the key.
    pub(crate) key: Option<PathBuf>,
    pub(crate) is_unverified: bool,
    /// The name that the certificate must have, instead of the host's.
    pub(crate) name: Option<String>,
}

fn parse_number<N: FromStr>(name: &str, value: &str) -> Result<N, String>
where
    N::Err: Display,
{
    value.parse().map_err(|error| format!("`{name}={value}`: {error}"))
}

fn unknown_value(name: &str, value: &str, known: &str) -> String {
    format!("`{name}={value}`: known are {known}")
}

impl Query {
    pub(crate) fn parse(query: &str, is_tls: bool) -> Result<Self, String> {
        let mut parsed = Self::default();
        let mut seen = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let (name, value) = (&*name, &*value);
            if !KNOWN.contains(&name) {
                return Err(format!("`{name}` is unknown; known are {}", KNOWN.join(", ")));
            }
            if seen.contains(&name.to_owned()) {
                return Err(format!("`{name}` is given twice"));
            }
            if OF_TLS.contains(&name) && !is_tls {
                return Err(format!("`{name}` is for amqps:// only"));
            }
            if value.is_empty() {
                return Err(format!("`{name}` has no value"));
            }
            parsed.set(name, value)?;
            seen.push(name.to_owned());
        }
        if parsed.tls.key.is_some() && parsed.tls.certificate.is_none() {
            return Err("`keyfile` without `certfile`".to_owned());
        }
        if parsed.is_external && parsed.tls.certificate.is_none() {
            return Err("`auth_mechanism=external` is a login by `certfile`".to_owned());
        }
        Ok(parsed)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let tls = &mut self.tls;
        match name {
            "cacertfile" => tls.roots = Some(value.into()),
            "certfile" => tls.certificate = Some(value.into()),
            "keyfile" => tls.key = Some(value.into()),
            "verify" => {
                tls.is_unverified = match value {
                    "verify_peer" => false,
                    "verify_none" => true,
                    _ => return Err(unknown_value(name, value, "verify_peer and verify_none")),
                };
            }
            "server_name_indication" => tls.name = Some(value.to_owned()),
            "auth_mechanism" => {
                self.is_external = match &*value.to_ascii_lowercase() {
                    "plain" => false,
                    "external" => true,
                    _ => return Err(unknown_value(name, value, "plain and external")),
                };
            }
            "heartbeat" => {
                let seconds: u16 = parse_number(name, value)?;
                self.heartbeat = Some(Duration::from_secs(seconds.into()));
            }
            "connection_timeout" => {
                let milliseconds: std::num::NonZeroU32 = parse_number(name, value)?;
                self.connect_timeout = Some(Duration::from_millis(milliseconds.get().into()));
            }
            _ => self.channel_max = Some(parse_number(name, value)?),
        }
        Ok(())
    }

    /// The options, overridden by the query.
    pub(crate) fn apply_to(&self, options: Options) -> Options {
        Options {
            heartbeat: self.heartbeat.unwrap_or(options.heartbeat),
            connect_timeout: self.connect_timeout.unwrap_or(options.connect_timeout),
            channel_max: self.channel_max.unwrap_or(options.channel_max),
            ..options
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_overrides_the_options() {
        let query = "heartbeat=7&connection_timeout=1500&channel_max=9&auth_mechanism=PLAIN";
        let options = Query::parse(query, false).unwrap().apply_to(Options::default());
        assert_eq!(options.heartbeat, Duration::from_secs(7));
        assert_eq!(options.connect_timeout, Duration::from_millis(1500));
        assert_eq!(options.channel_max, 9);
        let none = Query::parse("", false).unwrap().apply_to(Options::default());
        assert_eq!(none.heartbeat, Options::default().heartbeat);

        let query = "cacertfile=%2Fa%20b%2Fca.pem&certfile=/c&keyfile=/k&verify=verify_none\
                     &server_name_indication=n&auth_mechanism=external";
        let parsed = Query::parse(query, true).unwrap();
        let tls = Tls {
            roots: Some("/a b/ca.pem".into()),
            certificate: Some("/c".into()),
            key: Some("/k".into()),
            is_unverified: true,
            name: Some("n".into()),
        };
        assert_eq!((parsed.tls, parsed.is_external), (tls, true));
        assert!(!Query::parse("verify=verify_peer", true).unwrap().tls.is_unverified);
    }

    #[test]
    fn invalid_parameters_are_named_in_the_error() {
        let cases = [
            ("cacert=/ca", "`cacert` is unknown; known are cacertfile, "),
            ("depth=2", "`depth` is unknown"),
            ("heartbeat=ten", "`heartbeat=ten`: invalid digit"),
            ("heartbeat=70000", "`heartbeat=70000`: number too large"),
            ("connection_timeout=0", "`connection_timeout=0`: "),
            ("channel_max=-1", "`channel_max=-1`: "),
            ("heartbeat=1&heartbeat=2", "`heartbeat` is given twice"),
            ("heartbeat", "`heartbeat` has no value"),
            ("verify=none", "`verify=none`: known are verify_peer and verify_none"),
            ("auth_mechanism=amqplain", "`auth_mechanism=amqplain`: known are plain and external"),
            ("keyfile=/k", "`keyfile` without `certfile`"),
            ("auth_mechanism=external", "`auth_mechanism=external` is a login by `certfile`"),
        ];
        for (query, error) in cases {
            let found = Query::parse(query, true).unwrap_err();
            assert!(found.starts_with(error), "{query}: {found}");
        }
        for name in OF_TLS {
            let found = Query::parse(&format!("{name}=/x"), false).unwrap_err();
            assert_eq!(found, format!("`{name}` is for amqps:// only"));
        }
    }
}
