//! Messages of Celery's protocol 1, read as those of protocol 2.
//!
//! Protocol 1 has everything in the body, an object. Celery's senders use it with
//! `task_protocol = 1`, and its workers still take it.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::message::Message;

/// The members of the body that are headers in protocol 2.
const HEADERS: [&str; 8] =
    ["task", "id", "group", "group_index", "retries", "eta", "expires", "timelimit"];

/// Another name of the group, which counts.
const TASKSET: &str = "taskset";

/// Makes a message of protocol 1 one of protocol 2. Other messages stay as they are.
pub(crate) fn upgrade(message: &mut Message) {
    if message.headers.contains_key("task")
        || message.content_type.as_deref() != Some("application/json")
        || !message.body.trim_ascii_start().starts_with(b"{")
    {
        return;
    }
    let Ok(body) = serde_json::from_slice::<BTreeMap<String, &RawValue>>(&message.body) else {
        return;
    };
    let text = |name: &str, default: &'static str| body.get(name).map_or(default, |it| it.get());
    if !text("task", "").starts_with('"') {
        return;
    }
    for name in HEADERS {
        let given = if name == "group" { body.get(TASKSET) } else { None };
        if let Some(Ok(value)) = given.or(body.get(name)).map(|it| serde_json::from_str(it.get())) {
            let value: Value = value;
            message.headers.insert(name.to_owned(), value);
        }
    }
    let (args, kwargs) = (text("args", "[]"), text("kwargs", "{}"));
    let [callbacks, errbacks, chord] =
        ["callbacks", "errbacks", "chord"].map(|name| text(name, "null"));
    let embed = format!(
        r#"{{"callbacks":{callbacks},"errbacks":{errbacks},"chain":null,"chord":{chord}}}"#
    );
    message.body = format!("[{args},{kwargs},{embed}]").into_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::request::Request;
    use serde_json::json;
    use std::time::Duration;

    fn message(body: &str) -> Message {
        Message {
            content_type: Some("application/json".to_owned()),
            body: body.as_bytes().to_vec(),
            ..Message::default()
        }
    }

    #[test]
    fn message_of_protocol_one_is_read() {
        let body = json!({
            "task": "tasks.add", "id": "7", "args": [1, {"a": 2.50}], "kwargs": {"z": null},
            "group": null, "group_index": 3, "retries": 2, "eta": null, "utc": true,
            "expires": "2026-11-20T23:39:52.628371", "callbacks": [{"task": "tasks.next"}],
            "errbacks": null, "timelimit": [30, null], "taskset": "g", "chord": null,
        });
        let mut message = message(&body.to_string());
        message.headers.insert("tenant".to_owned(), "blue".into());
        upgrade(&mut message);
        let request = Request::read(&message).unwrap();
        assert_eq!((request.job, request.id, request.retries), ("tasks.add", "7", 2));
        assert_eq!((request.args, request.kwargs), (r#"[1,{"a":2.5}]"#, r#"{"z":null}"#));
        assert_eq!((request.group, request.root_id), (Some("g"), "7"));
        assert_eq!(request.hard_limit, Some(Duration::from_secs(30)));
        assert!(request.expires.is_some() && request.eta.is_none());
        let embed: Value = serde_json::from_str(request.embed).unwrap();
        assert_eq!(embed["callbacks"], json!([{"task": "tasks.next"}]));
        assert_eq!(message.headers["tenant"], "blue");
        let once = message.clone();
        upgrade(&mut message);
        assert_eq!(message, once);
    }

    #[test]
    fn other_messages_stay_as_they_are() {
        for body in ["", "{}", "[]", "{", r#"{"task": 7}"#, r#"[[], {}, {}]"#, r#"{"task": "a"#] {
            let mut other = message(body);
            upgrade(&mut other);
            assert_eq!(other, message(body), "{body}");
        }
        let mut pickled = message(r#"{"task": "a"}"#);
        pickled.content_type = None;
        let before = pickled.clone();
        upgrade(&mut pickled);
        assert_eq!(pickled, before);
        // What is missing or of another kind is refused when it is read.
        let mut least = message(r#" {"task": "a", "args": 7}"#);
        upgrade(&mut least);
        assert_eq!(Request::read(&least).unwrap_err(), crate::Poison::NoId);
        least.headers.insert("id".to_owned(), "7".into());
        assert_eq!(Request::read(&least).unwrap_err(), crate::Poison::Body);
    }
}
