//! The figures of HTTP servers and of workers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{StatusCode, header::CONTENT_TYPE};
use axum::routing::get;
use pikake::console::metrics;
use pikake::http;
use pikake::jobs::App;
use pikake::net::{TcpListener, TcpStream};
use pikake::traps::CancelOnDrop;
use pikake::{Bound, sleep, spawn, yield_now};

use super::{check_form, labels, value};
use crate::support::child;

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

/// The value of a figure of this kernel, with labels beside those of the kernel.
fn of(text: &str, name: &str, further: &str) -> Option<f64> {
    let labels = labels().replace('}', &format!("{further}}}"));
    value(text, &format!("{name}{labels}"))
}

/// Sends a request, and returns the response.
async fn fetch(address: SocketAddr, path: &str) -> String {
    let client = TcpStream::connect(address).await.unwrap();
    client.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
    let mut response = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match client.read(&mut buffer).await.unwrap() {
            0 => return String::from_utf8(response).unwrap(),
            read => response.extend(&buffer[..read]),
        }
    }
}

/// Gets the text as Prometheus does.
async fn scrape(address: SocketAddr) -> String {
    let response = fetch(address, "/metrics").await;
    let (head, text) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK") && head.contains(metrics::CONTENT_TYPE), "{head}");
    check_form(text);
    text.to_owned()
}

/// Whether the handler of `/slow` runs.
static IS_SLOW: AtomicBool = AtomicBool::new(false);

async fn until_slow(is_slow: bool) {
    while IS_SLOW.load(Ordering::Relaxed) != is_slow {
        sleep(Duration::from_millis(1)).await.unwrap();
    }
}

fn app() -> Router {
    let page = async || {
        let text = metrics::text().await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
        Ok::<_, StatusCode>(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
    };
    let slow = async || {
        let wait = Bound::future(async {
            IS_SLOW.store(true, Ordering::Relaxed);
            let _ = sleep(HOUR).await;
            IS_SLOW.store(false, Ordering::Relaxed);
        });
        wait.await;
    };
    Router::new()
        .route("/metrics", get(page))
        .route("/slow", get(slow))
        .route("/ok", get(async || "ok"))
        .route(
            "/crash",
            get(async || {
                if true {
                    panic!("as it must be")
                }
            }),
        )
}

type Ended = Result<http::Report, http::ServeError>;

/// Starts a server, which ends with the drop of the task.
async fn start() -> (SocketAddr, CancelOnDrop<Ended>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (address, spawn(http::serve(listener, app()).into_future()).cancel_on_drop())
}

#[test]
fn scraped_text_has_figures_of_http() {
    pikake::run(async {
        let (address, _server) = start().await;
        // A second server of the same kernel is in the same figures.
        let (other, _other_server) = start().await;
        for (address, path, status) in [
            (address, "/ok", "200"),
            (other, "/ok", "200"),
            (address, "/absent", "404"),
            (address, "*", "400"),
            (address, "/crash", "500"),
        ] {
            let response = fetch(address, path).await;
            assert!(response.starts_with(&format!("HTTP/1.0 {status} ")), "{response}");
        }
        let text = scrape(address).await;
        assert_eq!(of(&text, "pikake_http_connections", ""), Some(1.0), "{text}");
        assert_eq!(of(&text, "pikake_http_running_requests", ""), Some(1.0), "{text}");
        let responses = |text: &str, class: &str| {
            of(text, "pikake_http_responses_total", &format!(",status=\"{class}\""))
        };
        let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        let counts = classes.map(|class| responses(&text, class).unwrap());
        assert_eq!(counts, [0.0, 2.0, 0.0, 2.0, 1.0], "the one with the text is not sent yet");
        assert_eq!(of(&text, "pikake_http_unanswered_requests_total", ""), Some(0.0));
        let timed = "pikake_http_response_time_seconds_count";
        // Another test may have asked for the figures before.
        let timed_before = of(&text, timed, "").unwrap();

        fetch(other, "/ok").await;
        let text = scrape(address).await;
        assert_eq!(responses(&text, "2xx"), Some(4.0), "{text}");
        assert!(of(&text, timed, "") > Some(timed_before), "{text}");
        assert!(of(&text, "pikake_http_response_time_seconds_sum", "") > Some(0.0), "{text}");
    });
}

/// The program of the next test, in a process of its own: times are measured from one moment on in
/// the whole process.
#[pikake::main]
async fn first_text() {
    let (address, _server) = start().await;
    for _ in 0..3 {
        fetch(address, "/ok").await;
    }
    let text = scrape(address).await;
    assert_eq!(of(&text, "pikake_http_response_time_seconds_count", ""), Some(3.0), "{text}");
}

#[test]
fn first_text_has_the_times_of_earlier_requests() {
    let test = "metrics::services::first_text_has_the_times_of_earlier_requests";
    if child::is_child(test) {
        return first_text();
    }
    let (succeeded, printed) = child::run(child::child(test).env("PIKAKE_CONSOLE", "0"));
    assert!(succeeded, "{printed}");
}

#[test]
fn requests_of_reset_clients_are_unanswered() {
    pikake::run(async {
        let (address, _server) = start().await;
        let client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        until_slow(true).await;
        let text = metrics::text().await.unwrap();
        assert_eq!(of(&text, "pikake_http_running_requests", ""), Some(1.0), "{text}");
        // A client that only ends its side may wait for the answer, and has one.
        client.set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        until_slow(false).await;
        // The task of the request ends after its future, and that of the connection after both.
        for _ in 0..10 {
            yield_now().await.unwrap();
        }
        let text = metrics::text().await.unwrap();
        assert_eq!(of(&text, "pikake_http_unanswered_requests_total", ""), Some(1.0), "{text}");
        assert_eq!(of(&text, "pikake_http_running_requests", ""), Some(0.0), "{text}");
        assert_eq!(of(&text, "pikake_http_connections", ""), Some(0.0), "{text}");
    });
}

#[pikake::job]
async fn double(number: i64) -> i64 {
    number * 2
}

#[pikake::job(retries = 0)]
async fn fails() -> Result<(), String> {
    Err("no luck".into())
}

#[pikake::job]
async fn lasts() {
    let _ = sleep(HOUR).await;
}

#[test]
fn text_has_figures_of_jobs() {
    pikake::run(async {
        let app = App::new("memory://")
            .unwrap()
            .jobs([double::JOB, fails::JOB, lasts::JOB])
            .concurrency(1)
            .prefetch(4);
        let app = app.connect().await.unwrap();
        let _worker = spawn(app.run_worker()).cancel_on_drop();
        assert_eq!(double::delay(2).await.unwrap().wait().await.unwrap(), 4);
        assert_eq!(double::delay(3).await.unwrap().wait().await.unwrap(), 6);
        assert!(fails::delay().await.unwrap().wait().await.is_err());
        lasts::delay().await.unwrap();
        for number in 0..9 {
            double::delay(number).await.unwrap();
        }
        let until = Instant::now() + Duration::from_secs(60);
        let text = loop {
            let text = metrics::text().await.unwrap();
            assert!(Instant::now() < until, "{text}");
            let runs =
                of(&text, "pikake_jobs_running", ",job=\"console::metrics::services::lasts\"");
            if (of(&text, "pikake_jobs_waiting", ""), runs) == (Some(3.0), Some(1.0)) {
                break text;
            }
            sleep(Duration::from_millis(1)).await.unwrap();
        };
        check_form(&text);
        let job = |job: &str| format!(",job=\"console::metrics::services::{job}\"");
        let running = |name| of(&text, "pikake_jobs_running", &job(name));
        assert_eq!((running("lasts"), running("double")), (Some(1.0), Some(0.0)), "{text}");
        let ended = |name, outcome: &str| {
            let labels = format!("{},outcome=\"{outcome}\"", job(name));
            of(&text, "pikake_jobs_ended_total", &labels)
        };
        assert_eq!(ended("double", "done"), Some(2.0), "{text}");
        assert_eq!(ended("fails", "failed"), Some(1.0), "{text}");
        assert_eq!(ended("lasts", "done"), Some(0.0), "{text}");
        let runs = |name| of(&text, "pikake_jobs_run_time_seconds_count", &job(name));
        assert_eq!((runs("double"), runs("fails")), (Some(2.0), Some(1.0)), "{text}");
        assert_eq!(of(&text, "pikake_jobs_connected", ""), Some(1.0), "{text}");
    });
}
