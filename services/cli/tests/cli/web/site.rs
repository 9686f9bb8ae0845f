//! The server: who is answered, and what the process is asked.

use pikake::console::protocol::{Part, Request};
use serde_json::json;

use super::Page;
use super::fake::{Fake, answers, kernel, key, task};
use crate::support::wait_for;

fn small() -> Fake {
    let tasks = vec![task(1, "main", None, &[]), task(2, "audit", Some(1), &[1])];
    Fake::new(answers(kernel(), tasks, Vec::new()))
}

#[test]
fn wrong_token_is_not_found() {
    let fake = small();
    let page = Page::of_fake(&fake);
    let (port, token) = (page.port, &page.token);
    assert_eq!(token.len(), 32, "{token}");
    let last = if token.ends_with('0') { "1" } else { "0" };
    let other = format!("{}{last}", &token[..31]);
    for path in [
        "/".to_owned(),
        format!("/{token}"),
        format!("/{other}/"),
        format!("/{other}/api/tasks"),
        format!("/{token}0/"),
        format!("/{}/", &token[1..]),
        "//".to_owned(),
        "/page.js".to_owned(),
        format!("/{token}/../page.js"),
        format!("/{token}/nothing.js"),
        format!("/{token}/api/nothing"),
        format!("/{token}/api/tasks/1.2"),
    ] {
        let host = format!("Host: 127.0.0.1:{port}\r\nConnection: close");
        let answer = page.send(&format!("GET {path} HTTP/1.1\r\n{host}\r\n\r\n"));
        assert_eq!((answer.status, answer.body.as_str()), (404, "nothing is here"), "{path}");
    }
    assert_eq!(fake.take_asked(), []);
}

/// A name that somebody's DNS server makes this machine's is no way to the page.
#[test]
fn foreign_host_is_forbidden() {
    let page = Page::of_fake(&small());
    let (port, token) = (page.port, &page.token);
    let get = |host: &str| {
        page.send(&format!("GET /{token}/ HTTP/1.1\r\nConnection: close\r\n{host}\r\n")).status
    };
    for host in [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "192.168.1.7",
        "",
        "[::2]:80",
    ] {
        assert_eq!(get(&format!("Host: {host}\r\n")), 403, "{host}");
    }
    // No host at all.
    assert_eq!(get("Host: 127.0.0.1:80:80\r\n"), 400);
    for host in
        [&format!("127.0.0.1:{port}"), "localhost:8000", "localhost", "[::1]:9", "127.0.0.1"]
    {
        assert_eq!(get(&format!("Host: {host}\r\n")), 200, "{host}");
    }
    let without = page.send(&format!("GET /{token}/ HTTP/1.0\r\n\r\n"));
    assert_eq!(without.status, 403);
    let absolute =
        "GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(page.send(absolute).status, 403);
}

#[test]
fn every_answer_has_the_policy() {
    let page = Page::of_fake(&small());
    let cases = [
        page.get(""),
        page.get("page.js"),
        page.get("api/tasks"),
        page.get("api/trace?seconds=0"),
        page.get("nothing"),
        page.get("api/cancel/1.1"),
    ];
    let statuses: Vec<u16> = cases.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 200, 400, 404, 405]);
    for answer in cases {
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
             img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
            "cross-origin-opener-policy: same-origin",
        ] {
            assert!(answer.head.contains(header), "{header} is not in {answer:?}");
        }
        assert!(!answer.head.contains("access-control"), "{answer:?}");
    }
}

/// The page and all that it refers to, directly or not.
#[test]
fn every_file_of_the_page_is_served() {
    let page = Page::of_fake(&small());
    let mut files = vec![String::new()];
    let mut at = 0;
    while let Some(file) = files.get(at).cloned() {
        let answer = page.get(&file);
        assert_eq!(answer.status, 200, "{file}");
        let media_type = match file.rsplit_once('.') {
            None => "text/html",
            Some((_, "css")) => "text/css",
            Some(_) => "text/javascript",
        };
        assert!(
            answer.head.contains(&format!("content-type: {media_type}; charset=utf-8")),
            "{file}"
        );
        for begin in ["src=\"", "href=\"", "from \"./"] {
            let found = answer.body.split(begin).skip(1).filter_map(|rest| rest.split('"').next());
            for name in found.filter(|name| !name.starts_with('#') && !name.starts_with("data:")) {
                if !files.iter().any(|known| known == name) {
                    files.push(name.to_owned());
                }
            }
        }
        at += 1;
    }
    files.sort();
    let expected = [
        "",
        "api.js",
        "dom.js",
        "page.css",
        "page.js",
        "profile.js",
        "stats.js",
        "tasks.js",
        "timelines.js",
        "waits.js",
    ];
    assert_eq!(files, expected);
}

#[test]
fn changes_need_post_and_token_header() {
    let fake = small();
    let page = Page::of_fake(&fake);
    for path in ["api/cancel/1.2", "api/abort/1.2"] {
        assert_eq!(page.get(path).status, 405, "{path}");
        assert_eq!(page.request("PUT", path, "", "{}").status, 405, "{path}");
        assert_eq!(page.request("POST", path, "", "{}").status, 403, "{path}");
        let wrong = format!("X-Pikake-Token: {}\r\n", "0".repeat(32));
        assert_eq!(page.request("POST", path, &wrong, "{}").status, 403, "{path}");
    }
    for path in ["", "page.js", "api/tasks", "api/profile?seconds=1"] {
        assert_eq!(page.post(path, "").status, 405, "{path}");
    }
    assert_eq!(fake.take_asked(), []);

    let answer = page.post("api/cancel/1.2", r#"{"reason": "closing time"}"#);
    assert_eq!(answer.json()["answer"]["ended"], json!([true, "the task has ended"]));
    assert_eq!(page.post("api/abort/1.2", "").status, 200);
    let (cancel, abort) = (
        Request::Cancel { task: key(2), reason: "closing time".to_owned() },
        Request::Abort { task: key(2) },
    );
    assert_eq!(fake.take_asked(), [cancel, abort]);
    for body in ["", "no JSON", &format!(r#"{{"reason": "{}"}}"#, "x".repeat(10_000))] {
        assert_eq!(page.post("api/cancel/1.2", body).status, 400);
    }
    assert_eq!(fake.take_asked(), []);
}

#[test]
fn each_route_asks_the_process() {
    let fake = small();
    let page = Page::of_fake(&fake);
    let cases = [
        ("tasks", Request::Tasks { waits: false }),
        ("waits", Request::Waits),
        ("task/1.2", Request::Task { task: key(2) }),
        ("stats", Request::Stats),
        ("blocked", Request::Blocked),
        ("trace", Request::Trace { seconds: None }),
        ("trace?seconds=0.5", Request::Trace { seconds: Some(0.5) }),
        ("profile?seconds=2", Request::Profile { seconds: 2.0 }),
    ];
    for (path, request) in cases {
        let answer = page.get(&format!("api/{path}"));
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        assert_eq!(answer.json()["process"]["program"], "shop", "{path}");
        assert_eq!(fake.take_asked(), [request], "{path}");
    }
    let told = page.get("api/waits").json();
    assert_eq!(told["answer"]["tasks"][1]["name"], "audit");
    assert_eq!(told["answer"]["kernels"][0]["thread"], "main");
    let edge = &told["answer"]["graph"]["edges"][0];
    assert_eq!((&edge["from"], &edge["to"]), (&json!("1.2"), &json!("1.1")));
    // The age grows with the connection, whose greeting has told it once.
    let later = page.get("api/waits").json();
    assert!(later["process"]["age"].as_u64() > told["process"]["age"].as_u64(), "{later}");
    // One connection has served them all.
    assert_eq!(fake.close_connections(), 1);
}

/// The process times steps as long as a connection is open that has asked for it.
#[test]
fn steps_are_timed_while_a_page_wants_it() {
    let fake = small();
    let page = Page::of_fake(&fake);
    assert_eq!(page.get("api/tasks?timed").status, 200);
    assert_eq!(page.get("api/tasks?timed").status, 200);
    let tasks = Request::Tasks { waits: false };
    assert_eq!(fake.take_asked(), [Request::Time, tasks.clone(), tasks]);
    assert_eq!(fake.open_connections(), 2);
    wait_for("the end of the timing", || fake.open_connections() == 1);
}

#[test]
fn malformed_arguments_are_told() {
    let fake = small();
    let page = Page::of_fake(&fake);
    for path in [
        "task/",
        "task/x",
        "task/1",
        "profile",
        "profile?seconds=",
        "profile?seconds=0",
        "profile?seconds=-1",
        "profile?seconds=nan",
        "profile?seconds=61",
        "trace?seconds=1e9",
        "trace?seconds=x",
    ] {
        let answer = page.get(&format!("api/{path}"));
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.json()["error"].is_string(), "{path}");
    }
    assert_eq!(fake.take_asked(), []);
}

#[test]
fn failed_request_is_told() {
    let fake = Fake::new(|_| vec![Part::Failed("there is no task 1.9".to_owned())]);
    let page = Page::of_fake(&fake);
    let answer = page.get("api/task/1.9");
    assert_eq!((answer.status, answer.json()), (422, json!({ "error": "there is no task 1.9" })));
}

#[test]
fn lost_connection_is_replaced() {
    let fake = small();
    let page = Page::of_fake(&fake);
    assert_eq!(page.get("api/tasks").status, 200);
    assert_eq!(fake.close_connections(), 1);
    assert_eq!(page.get("api/tasks").status, 200);
}

#[test]
fn end_of_the_process_is_told() {
    let fake = small();
    let page = Page::of_fake(&fake);
    fake.end();
    let answer = page.get("api/tasks");
    assert_eq!(answer.status, 502);
    assert!(answer.json()["error"].is_string());
    assert_eq!(page.get("").status, 200);
}

#[test]
fn interrupt_ends_the_page_in_order() {
    let page = Page::of_fake(&small());
    assert_eq!(page.get("").status, 200);
    assert_eq!(page.interrupt(), Some(0));
}
