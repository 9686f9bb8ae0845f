//! Handlers and state of axum that are not `Send`.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::routing::get;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use pikake::http::axum::routing::{any, post};
use pikake::http::axum::{Local, local};
use pikake::sleep;
use tower_service::Service;

const MOMENT: Duration = Duration::from_millis(20);

#[derive(Clone, Default)]
struct Notes(Rc<RefCell<Vec<String>>>);

async fn nothing() -> StatusCode {
    let slept = sleep(MOMENT).await;
    slept.map_or(StatusCode::REQUEST_TIMEOUT, |()| StatusCode::NO_CONTENT)
}

async fn note(
    State(notes): State<Local<Notes>>,
    Path(name): Path<String>,
    Query(by): Query<Vec<(String, String)>>,
    body: Bytes,
) -> Result<String, StatusCode> {
    sleep(MOMENT).await.map_err(|_| StatusCode::REQUEST_TIMEOUT)?;
    notes.0.borrow_mut().push(format!("{name} {by:?} {}", body.len()));
    Ok(notes.0.borrow().len().to_string())
}

async fn ask(router: &mut Router, request: Request) -> (StatusCode, String) {
    let (parts, body) = router.call(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status, String::from_utf8(body.to_vec()).unwrap())
}

#[pikake::sim(seeds = 3)]
async fn local_handlers_extract_wait_and_answer() {
    let notes = Notes::default();
    let captured = notes.clone();
    let last = local(move || {
        let last = captured.0.borrow().last().cloned();
        async move { sleep(MOMENT).await.map_or_else(|why| why.to_string(), |()| last.unwrap()) }
    });
    let mut router = Router::new()
        .route("/nothing", any(nothing))
        .route(
            "/note/{name}",
            post(note).get(local(async |request: Request| {
                sleep(MOMENT).await.unwrap();
                request.uri().path().to_owned()
            })),
        )
        .route("/last", get(last))
        .with_state(Local::new(notes.clone()));
    let get = |path: &str| Request::get(path).body(Default::default()).unwrap();
    let post = |path: &str, body: &'static str| Request::post(path).body(body.into()).unwrap();
    let ok = |text: &str| (StatusCode::OK, text.to_owned());

    assert_eq!(ask(&mut router, get("/nothing")).await.0, StatusCode::NO_CONTENT);
    assert_eq!(ask(&mut router, post("/note/a?by=me", "abc")).await, ok("1"));
    assert_eq!(ask(&mut router, get("/last")).await, ok(r#"a [("by", "me")] 3"#));
    assert_eq!(ask(&mut router, get("/note/b")).await, ok("/note/b"));
    // What an extractor rejects is not passed to the handler.
    let (status, _) = ask(&mut router, post("/note/%ff", "")).await;
    assert_eq!((status, notes.0.borrow().len()), (StatusCode::BAD_REQUEST, 1));
    // The router drops its handlers and its state here.
    drop(router);
    assert_eq!(Rc::strong_count(&notes.0), 1);
}

#[test]
fn state_dropped_on_another_thread_is_dropped_at_home() {
    let notes = Notes::default();
    let kept = notes.clone();
    pikake::run(async move {
        let state = Local::new(notes);
        let router: Router<()> = Router::new().route("/", post(note)).with_state(state);
        pikake::thread::run_in_thread(move || drop(router)).await.unwrap();
        while Rc::strong_count(&kept.0) > 1 {
            sleep(Duration::from_millis(1)).await.unwrap();
        }
    });
}

/// The compiler prints the head of our `impl Handler` below axum's error, whole up to five lines.
#[test]
fn refusal_of_a_handler_names_local() {
    let source = include_str!("../../src/axum.rs");
    let from = source.find("impl<H, M: 'static, S: 'static> Handler<M, S> for Local<H>").unwrap();
    let head = source[from..].split("\n{").next().unwrap();
    assert!(head.contains("`get(pikake::http::axum::local(handler))`"), "{head}");
    assert!(head.lines().count() <= 5, "{head}");
}
