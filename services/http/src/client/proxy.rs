//! Proxies: which one is asked for a URL, and by which credentials.

use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use url::{Host, Url};

use super::route::host_and_port;

/// A proxy.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Proxy {
    pub(crate) is_tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) authorization: Option<HeaderValue>,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

/// The header of a name and a password (RFC 7617).
pub(crate) fn basic(name: &str, password: &str) -> HeaderValue {
    let text = format!("Basic {}", BASE64_STANDARD.encode(format!("{name}:{password}")));
    let mut value = HeaderValue::try_from(text).expect("base64 is valid in a header");
    value.set_sensitive(true);
    value
}

/// The credentials in a URL as a header, if there are any. They are taken off the URL.
pub(crate) fn take_credentials(url: &mut Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let decoded = |text: &str| {
        // A query is decoded alike, but for two characters.
        let query = format!("={}", text.replace('+', "%2B").replace('&', "%26"));
        let first = url::form_urlencoded::parse(query.as_bytes()).next();
        first.map(|(_, value)| value.into_owned()).unwrap_or_default()
    };
    let value = basic(&decoded(url.username()), &decoded(url.password().unwrap_or_default()));
    // These fail for URLs that have no host, and so no credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    Some(value)
}

impl Proxy {
    /// From `http://name:password@host:port`, or `host:port`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        // The error must not repeat the text, which may have a password.
        let mut url = Url::parse(&full).map_err(|error| format!("the proxy's URL: {error}"))?;
        let authorization = take_credentials(&mut url);
        let is_tls = match url.scheme() {
            "http" => false,
            "https" if cfg!(feature = "tls") => true,
            scheme => {
                return Err(format!(
                    "a proxy by {scheme} is not supported: use http:// or, with the feature `tls`, https://"
                ));
            }
        };
        let (host, port) = host_and_port(&url).ok_or("the proxy's URL has no host")?;
        Ok(Self { is_tls, host, port, authorization })
    }
}

/// What an entry of `NO_PROXY` excludes.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Pattern {
    All,
    /// A name with its subdomains.
    Domain(String),
    /// Addresses that agree in these many first bits.
    Network(IpAddr, u8),
}

impl Pattern {
    fn parse(text: &str) -> (Self, Option<u16>) {
        if text == "*" {
            return (Self::All, None);
        }
        let network = |address: &str, bits: Option<&str>| {
            let address: IpAddr = address.trim_matches(['[', ']']).parse().ok()?;
            let all = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Some(all), |bits| bits.parse().ok().filter(|b| *b <= all))?;
            Some(Self::Network(address, bits))
        };
        let found = match text.split_once('/') {
            Some((address, bits)) => network(address, Some(bits)),
            None => network(text, None),
        };
        if let Some(network) = found {
            return (network, None);
        }
        let (name, port) = match text.rsplit_once(':').map(|(name, port)| (name, port.parse())) {
            Some((name, Ok(port))) => (name, Some(port)),
            _ => (text, None),
        };
        let pattern = network(name, None).unwrap_or_else(|| {
            let name = name.trim_start_matches('*').trim_matches('.');
            Self::Domain(name.to_ascii_lowercase())
        });
        (pattern, port)
    }

    fn matches(&self, host: &Host<&str>) -> bool {
        let address = match host {
            Host::Domain(_) => None,
            Host::Ipv4(address) => Some(IpAddr::from(*address)),
            Host::Ipv6(address) => Some(IpAddr::from(*address)),
        };
        match self {
            Self::All => true,
            Self::Domain(domain) => match host {
                Host::Domain(host) => {
                    let host = host.trim_end_matches('.');
                    let front = host.strip_suffix(domain.as_str());
                    front.is_some_and(|front| front.is_empty() || front.ends_with('.'))
                }
                _ => false,
            },
            Self::Network(network, bits) => match (network, address) {
                (IpAddr::V4(network), Some(IpAddr::V4(address))) => {
                    let differ = u32::from(*network) ^ u32::from(address);
                    differ.leading_zeros() >= u32::from(*bits)
                }
                (IpAddr::V6(network), Some(IpAddr::V6(address))) => {
                    let differ = u128::from(*network) ^ u128::from(address);
                    differ.leading_zeros() >= u32::from(*bits)
                }
                _ => false,
            },
        }
    }
}

/// A proxy, or why its URL is invalid.
type Parsed = Option<Result<Rc<Proxy>, String>>;

/// The proxies of a client.
#[derive(Clone, Default, Debug)]
pub(crate) struct Proxies {
    http: Parsed,
    https: Parsed,
    except: Vec<(Pattern, Option<u16>)>,
}

impl Proxies {
    /// From the variables of the environment.
    pub(crate) fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// The names in lower case come first, as in curl. `HTTP_PROXY` in a CGI program is a header of
    /// the request, and ignored.
    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&str]| {
            let values = names.iter().filter_map(|name| variable(name));
            values.map(|value| value.trim().to_owned()).find(|value| !value.is_empty())
        };
        let proxy = |names: &[&str]| first(names).map(|text| Proxy::parse(&text).map(Rc::new));
        let is_cgi = variable("REQUEST_METHOD").is_some();
        let http: &[&str] = match is_cgi {
            true => &["http_proxy", "all_proxy", "ALL_PROXY"],
            false => &["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"],
        };
        let https = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
        let except = first(&["no_proxy", "NO_PROXY"]).unwrap_or_default();
        Self { http: proxy(http), https: proxy(&https), except: patterns(&except) }
    }

    /// One proxy for all URLs but those of `except`, a list as in `NO_PROXY`.
    pub(crate) fn all(proxy: &str, except: &str) -> Result<Self, String> {
        let proxy = Some(Ok(Rc::new(Proxy::parse(proxy)?)));
        Ok(Self { http: proxy.clone(), https: proxy, except: patterns(except) })
    }

    /// The proxy for a URL.
    pub(crate) fn of(&self, url: &Url) -> Result<Option<Rc<Proxy>>, String> {
        let proxy = if url.scheme() == "https" { &self.https } else { &self.http };
        let Some(proxy) = proxy else { return Ok(None) };
        let Some(host) = url.host() else { return Ok(None) };
        let is_excepted = self.except.iter().any(|(pattern, port)| {
            pattern.matches(&host) && (port.is_none() || *port == url.port_or_known_default())
        });
        if is_excepted { Ok(None) } else { proxy.clone().map(Some) }
    }
}

fn patterns(list: &str) -> Vec<(Pattern, Option<u16>)> {
    let entries = list.split([',', ' ']).map(str::trim).filter(|entry| !entry.is_empty());
    entries.map(Pattern::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        Proxies::from_variables(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn chosen(proxies: &Proxies, url: &str) -> String {
        match proxies.of(&Url::parse(url).unwrap()) {
            Ok(Some(proxy)) => proxy.to_string(),
            Ok(None) => "direct".into(),
            Err(error) => error,
        }
    }

    #[test]
    fn variables_choose_the_proxy() {
        let both = proxies(&[
            ("HTTP_PROXY", "http://upper:1"),
            ("http_proxy", "lower:2"),
            ("HTTPS_PROXY", "http://secure:3"),
        ]);
        assert_eq!(chosen(&both, "http://a/"), "http://lower:2");
        assert_eq!(chosen(&both, "https://a/"), "http://secure:3");
        let all = proxies(&[("ALL_PROXY", "http://all:4"), ("HTTP_PROXY", "")]);
        assert_eq!(chosen(&all, "http://a/"), "http://all:4");
        assert_eq!(chosen(&all, "https://a/"), "http://all:4");
        let cgi = proxies(&[("REQUEST_METHOD", "GET"), ("HTTP_PROXY", "http://attacker:5")]);
        assert_eq!(chosen(&cgi, "http://a/"), "direct");
        assert_eq!(chosen(&proxies(&[]), "http://a/"), "direct");
        let socks = proxies(&[("http_proxy", "socks5://a:1")]);
        assert!(chosen(&socks, "http://a/").contains("socks5 is not supported"));
    }

    #[test]
    fn no_proxy_excludes_hosts() {
        let list =
            "example.com, .dot.org,*.star.net,10.0.0.0/8,192.168.1.7,[::1],fd00::/8,ported:8080";
        let some = proxies(&[("ALL_PROXY", "p:1"), ("NO_PROXY", list)]);
        let direct = [
            "http://example.com/",
            "https://a.example.com/",
            "http://EXAMPLE.com:90/",
            "http://a.dot.org/",
            "http://dot.org/",
            "http://a.star.net/",
            "http://10.200.3.4/",
            "http://192.168.1.7/",
            "http://[::1]:80/",
            "http://[fd12::1]/",
            "http://ported:8080/",
        ];
        let proxied = [
            "http://notexample.com/",
            "http://example.com.evil.org/",
            "http://11.0.0.1/",
            "http://192.168.1.8/",
            "http://[::2]/",
            "http://ported/",
        ];
        for url in direct {
            assert_eq!(chosen(&some, url), "direct", "{url}");
        }
        for url in proxied {
            assert_eq!(chosen(&some, url), "http://p:1", "{url}");
        }
        let none = proxies(&[("ALL_PROXY", "p:1"), ("no_proxy", "*")]);
        assert_eq!(chosen(&none, "http://a/"), "direct");
    }

    #[test]
    fn credentials_are_decoded_and_removed() {
        let mut url = Url::parse("http://us%65r:p%40ss+word@host/path").unwrap();
        let value = take_credentials(&mut url).unwrap();
        assert_eq!(value, basic("user", "p@ss+word"));
        assert_eq!(url.as_str(), "http://host/path");
        assert_eq!(take_credentials(&mut url), None);
        let proxy = Proxy::parse("http://a:b@proxy:3128").unwrap();
        assert_eq!((proxy.authorization, proxy.port), (Some(basic("a", "b")), 3128));
    }
}
