//! `dashboard` and `worker --http`: what they answer, what they change, and what a browser shows.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pikake::jobs::App;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{HANG, Place, Running, application, pikake, wait_for};
use crate::web::Page;
use crate::web::browser::{assert_shows, document};

/// The token of pages whose address a test must know beforehand.
const TOKEN: &str = "a-token-for-the-tests";

fn dashboard(place: &Place) -> Page {
    Page::of(place.command(&pikake(), &["dashboard"]))
}

/// A worker with an HTTP server, and its page.
fn worker(place: &Place) -> (Running, Page) {
    let arguments =
        ["worker", "--concurrency", "1", "--http", "127.0.0.1:0", "--http-token", TOKEN];
    let mut worker = Running::start(place.command(&application(), &arguments));
    let line = worker.until("dashboard, ");
    let address = line.rsplit(' ').next().expect("an address").replace("TOKEN", TOKEN);
    worker.until("the worker is ready");
    (worker, Page::at(&address))
}

impl Page {
    /// Asks until the answer is as wanted.
    #[track_caller]
    fn until(&self, path: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        loop {
            let answer = self.get(path);
            assert_eq!(answer.status, 200, "{}", answer.body);
            let answer = answer.json();
            if is_there(&answer) {
                return answer;
            }
            assert!(begin.elapsed() < HANG, "{path} never was as wanted: {answer:#}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

fn send(place: &Place, arguments: &[&str]) -> String {
    place.pikake(&[&["send"], arguments].concat())
}

#[test]
fn page_shows_and_controls_the_workers() {
    let place = Place::new();
    let _worker = place.worker(&application(), &["worker", "--concurrency", "1"]);
    let page = dashboard(&place);
    let first = page.until("api/overview", |answer| {
        answer["snapshot"]["workers"].as_array().is_some_and(|workers| workers.len() == 1)
    });
    assert_eq!(first["snapshot"]["workers"][0]["concurrency"], 1, "{first:#}");
    // The page's server listens to events once the worker was asked for them.
    page.until("api/overview", |answer| answer["snapshot"]["at"] != first["snapshot"]["at"]);

    send(&place, &["add", "2", "3", "--wait"]);
    let failed = send(&place, &["fails", "\"no luck\""]);
    let jobs = page.until("api/jobs", |answer| {
        answer["jobs"]
            .as_array()
            .is_some_and(|jobs| jobs.iter().filter(|job| job["ended"].is_number()).count() >= 2)
    });
    let of = |name: &str| {
        let jobs = jobs["jobs"].as_array().expect("a list");
        jobs.iter().find(|job| job["name"] == name).cloned().unwrap_or_default()
    };
    assert_eq!((&of("add")["state"], &of("add")["result"]), (&json!("succeeded"), &json!("5")));
    assert_eq!(of("fails")["state"], "failed", "{jobs:#}");
    let one = page.get(&format!("api/job/{failed}")).json();
    assert_eq!(one["job"]["name"], "fails");
    let found = page.get("api/jobs?state=failed&find=no%20luck").json();
    assert_eq!(found["count"], 1, "{found:#}");

    let import = send(&place, &["import", "600000"]);
    page.until("api/overview", |answer| {
        let job = &answer["snapshot"]["running"][0];
        (&job["id"], &job["progress"]) == (&json!(import), &json!({"current": 3, "total": 10}))
    });
    assert_eq!(page.post(&format!("api/cancel/{import}"), r#"{"terminate": true}"#).status, 200);
    page.until("api/overview", |answer| answer["snapshot"]["running_count"] == 0);

    let nap = send(&place, &["nap", &place.argument(), "600000"]);
    page.until("api/overview", |answer| answer["snapshot"]["running"][0]["id"] == json!(nap));
    let cancelled = page.post(&format!("api/cancel/{nap}"), r#"{"terminate": true}"#);
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    page.until("api/overview", |answer| answer["snapshot"]["running_count"] == 0);
    page.until(&format!("api/job/{nap}"), |answer| answer["job"]["state"] == "revoked");

    assert_eq!(page.post("api/pause/pikake", "{}").status, 200);
    let queue = |answer: &Value| {
        let queues = answer["snapshot"]["queues"].as_array().expect("a list");
        queues.iter().find(|queue| queue["name"] == "pikake").cloned().unwrap_or_default()
    };
    page.until("api/overview", |answer| queue(answer)["is_paused"] == true);
    let late = send(&place, &["add", "1", "1"]);
    page.until("api/overview", |answer| queue(answer)["ready"] == 1);
    assert_eq!(page.post("api/resume/pikake", "{}").status, 200);
    page.until("api/overview", |answer| queue(answer)["ready"] == 0);
    page.until("api/jobs", |answer| {
        answer["jobs"].as_array().is_some_and(|jobs| {
            jobs.iter().any(|job| job["id"] == json!(late) && job["state"] == "succeeded")
        })
    });

    let unknown = send(&place, &["nobody-knows-this", "7"]);
    let dead = page.until("api/dead/pikake", |answer| answer["dead"][0]["id"] == json!(unknown));
    assert_eq!(dead["dead"][0]["arguments"], "(7)", "{dead:#}");
    let replayed = page.post("api/replay/pikake", &json!({ "job": unknown }).to_string());
    assert_eq!((replayed.status, &replayed.json()["replayed"]), (200, &json!(1)));

    assert!(sends_events(&place));
    assert_eq!(page.interrupt(), Some(0));
    assert!(!sends_events(&place), "the end of the page turns off what the page has turned on");
}

/// The first look at the page is in an incident: it has the runs before.
#[test]
fn page_counts_the_runs_before_it_was_opened() {
    let place = Place::new();
    let _worker = place.worker(&application(), &["worker", "--concurrency", "1"]);
    for number in 1..=3 {
        send(&place, &["add", "2", &number.to_string(), "--wait"]);
    }
    send(&place, &["fails", "\"no luck\""]);
    let page = dashboard(&place);
    let answer = page.until("api/overview", |answer| {
        answer["names"].as_array().is_some_and(|names| names.len() == 2)
    });
    let names = &answer["names"];
    assert_eq!(
        (&names[0]["name"], &names[0]["succeeded"]),
        (&json!("add"), &json!(3)),
        "{names:#}"
    );
    assert!(names[0]["p99"].is_number() && names[0]["longest"].is_number(), "{names:#}");
    assert_eq!((&names[1]["name"], &names[1]["failed"]), (&json!("fails"), &json!(1)), "{names:#}");
}

/// Whether the only worker sends events of jobs.
fn sends_events(place: &Place) -> bool {
    pikake::run(async {
        let app = App::new(place.url()).expect("a URL").attach().await.expect("a broker");
        let answers = app.control().tell("conf", json!({})).await.expect("answers");
        let conf = answers[0].result.as_ref().expect("a configuration");
        conf["worker_send_task_events"] == true
    })
}

#[test]
fn changes_need_the_token() {
    let place = Place::new();
    place.pikake(&["send", "add", "1", "1"]);
    let page = dashboard(&place);
    for path in ["api/pause/pikake", "api/cancel/x", "api/replay/pikake", "api/resume/pikake"] {
        assert_eq!(page.request("POST", path, "", "{}").status, 403, "{path}");
        let wrong = "X-Pikake-Token: 0123456789abcdef0123456789abcdef\r\n";
        assert_eq!(page.request("POST", path, wrong, "{}").status, 403, "{path}");
        assert_eq!(page.get(path).status, 405, "{path}");
        assert_eq!(page.post(path, "{").status, 400, "{path}");
    }
    for path in ["api", "api/nothing", "api/cancel", "api/dead/", "api/job/%zz", "nothing.js"] {
        let status = page.get(path).status;
        assert!([400, 404, 405].contains(&status), "{path}: {status}");
    }
    assert_eq!(page.get("api/dead/nobody").status, 422);
    let get = |path: &str, host: &str| {
        page.send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
            .status
    };
    assert_eq!(get("/", "127.0.0.1"), 404);
    assert_eq!(get("/0123456789abcdef0123456789abcdef/", "127.0.0.1"), 404);
    assert_eq!(get("/healthz", "anywhere.example"), 200);
    assert_eq!(get(&page.path(), "evil.example"), 403);
    assert_eq!(page.interrupt(), Some(0));
}

#[test]
fn worker_answers_probes() {
    let place = Place::new();
    let (worker, page) = worker(&place);
    let get = |path: &str| {
        page.send(&format!("GET {path} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n"))
    };
    assert_eq!((get("/healthz").status, get("/readyz").status), (200, 200));
    send(&place, &["add", "2", "3", "--wait"]);
    let metrics = get("/metrics");
    assert!(metrics.head.contains("application/openmetrics-text"), "{}", metrics.head);
    for line in ["outcome=\"done\"} 1\n", "pikake_jobs_run_time_seconds_count", "# EOF\n"] {
        assert!(metrics.body.contains(line), "{line}: {}", metrics.body);
    }
    page.until("api/overview", |answer| answer["snapshot"]["workers"][0]["processed"] == 1);

    send(&place, &["nap", &place.argument(), "600000"]);
    wait_for("a job", || place.count(".begun") == 1);
    worker.signal(Signal::TERM);
    wait_for("the worker's end", || get("/readyz").status == 503);
    assert_eq!(get("/healthz").status, 200);
    assert!(get("/readyz").body.contains("shutting down"));
    worker.signal(Signal::TERM);
    worker.end();
}

#[test]
fn short_tokens_are_refused() {
    let place = Place::new();
    let refused = place.run(&pikake(), &["dashboard", "--http-token", "secret"]);
    refused.failed(2, &["--http-token", "a token has at least 16 letters"]);
    let worker = |more: &[&str]| {
        let mut command = place.command(&application(), &[&["worker"], more].concat());
        command.env("PIKAKE_HTTP_TOKEN", "tok");
        Running::start(command)
    };
    worker(&["--http", "127.0.0.1:0"]).end().failed(2, &["PIKAKE_HTTP_TOKEN"]);
    // Without a page, nobody needs the token.
    let mut without = worker(&[]);
    without.until("the worker is ready");
}

#[test]
fn every_view_of_the_dashboard_is_shown() {
    let Some(chromium) = xtask::needs::CHROMIUM.find_or_skip() else { return };
    let place = Place::new();
    let (_worker, page) = worker(&place);
    page.until("api/overview", |answer| !answer["snapshot"]["workers"][0].is_null());
    let first = page.get("api/overview").json();
    page.until("api/overview", |answer| answer["snapshot"]["at"] != first["snapshot"]["at"]);
    let markup = r#""<img src=x onerror=alert(1)>""#;
    send(&place, &["fails", markup]);
    send(&place, &["nobody-knows-this", markup]);
    page.until("api/jobs?state=failed", |answer| answer["count"] == 2);
    page.until("api/dead/pikake", |answer| answer["dead"][0].is_object());
    send(&place, &["import", "600000"]);
    page.until("api/overview", |answer| !answer["snapshot"]["running"][0]["progress"].is_null());
    let cases: [(&str, &[&str]); 4] = [
        ("overview", &["sqlite://", "live", "pikake", "greetings", "Pause…", "fails", "5 min ago"]),
        ("running", &["1 job runs", "import", "600000", "3/10", "Cancel…"]),
        ("recent", &["fails", "failed", "&lt;img src=x"]),
        (
            "dead/pikake",
            &["nobody-knows-this", "no job `nobody-knows-this` is registered", "Replay…"],
        ),
    ];
    for (view, texts) in cases {
        let document = document(&chromium, &page, view);
        assert_shows(&document, texts);
        assert!(!document.contains("<img"), "{document}");
    }
}

/// With nobody to ask, the page says so, and what it has shown stays.
#[test]
fn page_without_workers_is_no_error() {
    let place = Place::new();
    place.pikake(&["send", "add", "1", "1"]);
    let page = dashboard(&place);
    let answer = page.until("api/overview", |answer| answer["snapshot"]["at"] != json!(0.0));
    assert_eq!(answer["snapshot"]["error"], Value::Null, "{answer:#}");
    assert_eq!(answer["snapshot"]["workers"], json!([]), "{answer:#}");
}

#[test]
fn address_in_use_is_named() {
    let place = Place::new();
    place.pikake(&["send", "add", "1", "1"]);
    let page = dashboard(&place);
    let address = format!("127.0.0.1:{}", page.port());
    let mut command = Command::new(pikake());
    command.args(["dashboard", "--listen", &address]).env("PIKAKE_BROKER", place.url());
    command.stdin(Stdio::null());
    crate::support::run(command).failed(5, &[&*format!("nothing can listen at {address}")]);
}
