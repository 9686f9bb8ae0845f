//! A command in Celery's form, as it is sent and read.
//!
//! Each program that may publish may send commands: a malformed, too large or too deep message is
//! no command.

use std::time::SystemTime;

use serde_json::{Map, Value};

use crate::broker::bus::{Notice, Topic};

/// The largest command that is read, in bytes: a list of ten thousand ids is smaller.
const LARGEST: usize = 1 << 20;

/// The exchange of replies.
pub(crate) const REPLIES: &str = "reply.celery.pidbox";

/// A command for workers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Command {
    pub(crate) method: String,
    pub(crate) arguments: Map<String, Value>,
    /// The names of the workers that are meant; `None`: those that match the pattern, or all.
    pub(crate) destination: Option<Vec<String>>,
    /// A pattern with `*`, `?` and `[…]`, which the worker's name has to match.
    pub(crate) pattern: Option<String>,
    pub(crate) ticket: Option<String>,
    /// The name of the subscriber who waits for replies.
    pub(crate) reply_to: Option<String>,
    /// The sender's clock.
    pub(crate) clock: u64,
}

impl Command {
    pub(crate) fn new(method: &str, arguments: Map<String, Value>) -> Self {
        Self {
            method: method.to_owned(),
            arguments,
            destination: None,
            pattern: None,
            ticket: None,
            reply_to: None,
            clock: 0,
        }
    }

    /// Reads a command; the error says why there is none, or why nobody waits for its effect.
    pub(crate) fn read(notice: &Notice, now: SystemTime) -> Result<Self, &'static str> {
        let expires = notice.headers.get("expires").and_then(Value::as_f64).unwrap_or(0.0);
        if expires > 0.0 && expires < seconds(now) {
            return Err("it has expired");
        }
        if notice.body.len() > LARGEST {
            return Err("it is too large");
        }
        let Ok(Value::Object(mut body)) = serde_json::from_slice(&notice.body) else {
            return Err("it is no JSON object");
        };
        let Some(Value::String(method)) = body.remove("method") else {
            return Err("it has no method");
        };
        let arguments = match body.remove("arguments") {
            Some(Value::Object(arguments)) => arguments,
            None | Some(Value::Null) => Map::new(),
            Some(_) => return Err("its arguments are no object"),
        };
        let destination = match body.remove("destination") {
            Some(Value::Array(names)) => Some(names.into_iter().filter_map(text).collect()),
            Some(Value::String(name)) => Some(vec![name]),
            None | Some(Value::Null) => None,
            Some(_) => return Err("its destination is no list"),
        };
        let pattern = body.remove("pattern").and_then(text);
        match body.remove("matcher").and_then(text).as_deref() {
            Some("glob") | None => {}
            Some(_) if pattern.is_none() => {}
            Some(_) => return Err("its matcher is not `glob`"),
        }
        let reply_to = body.get_mut("reply_to").and_then(Value::as_object_mut);
        let reply_to = reply_to.and_then(|to| to.remove("routing_key")).and_then(text);
        let clock = notice.headers.get("clock").and_then(Value::as_u64).unwrap_or(0);
        let ticket = body.remove("ticket").and_then(text);
        Ok(Self { method, arguments, destination, pattern, ticket, reply_to, clock })
    }

    /// The command as a message, which is worth nothing after `expires`.
    pub(crate) fn write(&self, expires: Option<SystemTime>) -> Notice {
        let mut body = Map::new();
        body.insert("method".to_owned(), self.method.as_str().into());
        body.insert("arguments".to_owned(), self.arguments.clone().into());
        body.insert("destination".to_owned(), self.destination.clone().into());
        body.insert("pattern".to_owned(), self.pattern.clone().into());
        let matcher = self.pattern.as_ref().map(|_| "glob");
        body.insert("matcher".to_owned(), matcher.into());
        if let Some(ticket) = &self.ticket {
            body.insert("ticket".to_owned(), ticket.as_str().into());
        }
        if let Some(key) = &self.reply_to {
            let to = serde_json::json!({"exchange": REPLIES, "routing_key": key});
            body.insert("reply_to".to_owned(), to);
        }
        let body = Value::from(body).to_string().into_bytes();
        let expires = expires.map_or(0.0, seconds);
        Notice::new(Topic::Commands, "", body)
            .header("clock", self.clock)
            .header("expires", expires)
    }

    /// Whether the worker of this name is meant.
    pub(crate) fn is_for(&self, worker: &str) -> bool {
        match (&self.destination, &self.pattern) {
            (Some(names), _) => names.iter().any(|name| name == worker),
            (None, Some(pattern)) => matches_glob(pattern, worker),
            (None, None) => true,
        }
    }

    /// A text among the arguments.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.arguments.get(name).and_then(Value::as_str)
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// Seconds since 1970.
pub(crate) fn seconds(moment: SystemTime) -> f64 {
    moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Whether a text matches a pattern of the shell. Takes time in proportion to the product of both
/// lengths.
fn matches_glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut read) = (0, 0);
    // After a `*`: the pattern behind it, and the text from where it is tried next.
    let mut star: Option<(usize, usize)> = None;
    while read < text.len() {
        let matched = match pattern.get(at) {
            Some('*') => {
                at += 1;
                star = Some((at, read));
                continue;
            }
            Some('?') => Some(at + 1),
            Some('[') => class(&pattern, at, text[read]),
            Some(one) => (*one == text[read]).then_some(at + 1),
            None => None,
        };
        match (matched, &mut star) {
            (Some(next), _) => (at, read) = (next, read + 1),
            (None, Some((behind, from))) => {
                *from += 1;
                (at, read) = (*behind, *from);
            }
            (None, None) => return false,
        }
    }
    pattern[at..].iter().all(|one| *one == '*')
}

/// The end of the class that begins at `at`, if it has the character. A class without an end is a
/// bracket.
fn class(pattern: &[char], at: usize, wanted: char) -> Option<usize> {
    let is_negated = pattern.get(at + 1) == Some(&'!');
    let begin = at + 1 + usize::from(is_negated);
    // A bracket that comes first is one of the characters.
    let end = pattern.iter().skip(begin + 1).position(|one| *one == ']').map(|end| begin + 1 + end);
    let Some(end) = end else { return (wanted == '[').then_some(at + 1) };
    let mut characters = &pattern[begin..end];
    let mut has_it = false;
    while let Some((first, rest)) = characters.split_first() {
        characters = match rest {
            ['-', last, rest @ ..] => {
                has_it |= (*first..=*last).contains(&wanted);
                rest
            }
            rest => {
                has_it |= *first == wanted;
                rest
            }
        };
    }
    (has_it != is_negated).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, text, matches) in [
            ("one@*", "one@pk", true),
            ("*@pk", "one@pk", true),
            ("o?e@p[a-k]", "one@pk", true),
            ("o?e@p[!a-k]", "one@pk", false),
            ("[]o]ne@pk", "one@pk", true),
            ("one[", "one[", true),
            ("", "one", false),
            ("*", "", true),
            ("**a*b", "xaxxb", true),
            ("a*b", "acbc", false),
        ] {
            assert_eq!(matches_glob(pattern, text), matches, "{pattern} {text}");
        }
        // Would take years if it were tried by recursion.
        assert!(!matches_glob(&"*a".repeat(50), &"a".repeat(49)));
    }

    #[test]
    fn a_command_is_read_as_it_was_written() {
        let mut command = Command::new("ping", Map::new());
        command.destination = Some(vec!["one@pk".to_owned()]);
        command.ticket = Some("7".to_owned());
        command.reply_to = Some("me".to_owned());
        command.clock = 3;
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(10);
        assert_eq!(Command::read(&command.write(Some(now)), now), Ok(command.clone()));
        let later = now + std::time::Duration::from_secs(1);
        assert_eq!(Command::read(&command.write(Some(now)), later), Err("it has expired"));
        assert_eq!(Command::read(&command.write(None), later), Ok(command));
    }

    #[test]
    fn others_are_not_commands() {
        let deep = format!(r#"{{"method": "ping", "arguments": {}}}"#, "[".repeat(100_000));
        for body in
            ["", "[]", "{}", r#"{"method": 3}"#, r#"{"method": "a", "arguments": 7}"#, &deep]
        {
            let notice = Notice::new(Topic::Commands, "", body.as_bytes().to_vec());
            assert!(Command::read(&notice, SystemTime::UNIX_EPOCH).is_err(), "{body:.40}");
        }
        let large = Notice::new(Topic::Commands, "", vec![b' '; LARGEST + 1]);
        assert_eq!(Command::read(&large, SystemTime::UNIX_EPOCH), Err("it is too large"));
    }
}
