//! The client in simulated worlds with faults, and with an interruption at every suspension.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use bytes::Bytes;
use pikake::http::client::ErrorKind;
use pikake::http::{Client, axum::local, serve};
use pikake::net::TcpListener;
use pikake::sim::{FaultMix, Runs};
use pikake::task::in_parallel;
use pikake::testing::Injector;
use pikake::{random, sleep, spawn, timed, timeout_after};

use super::{SOON, client, ms, scripted};

const SECOND: Duration = Duration::from_secs(1);

/// Answers with the number that was asked for, now or later, as a whole or in parts.
fn router() -> Router {
    let number = async |Path(number): Path<u64>| number.to_string();
    let slow = async |Path(number): Path<u64>| {
        drop(sleep(random_length(3 * SECOND)).await);
        number.to_string().repeat(10_000)
    };
    Router::new()
        .route("/{number}", get(number))
        .route("/slow/{number}", get(local(slow)))
        .route("/body/{number}", post(async |body: Bytes| body))
}

fn random_length(most: Duration) -> Duration {
    Duration::from_millis(random::range(1..most.as_millis() as u64))
}

/// One request whose answer is known. An error is an answer, another request's answer is none.
async fn ask(client: &Client, url: &str, number: u64) -> Result<(), ErrorKind> {
    let (request, expected) = match number % 3 {
        0 => (client.get(format!("{url}/{number}")), number.to_string()),
        1 => (client.get(format!("{url}/slow/{number}")), number.to_string().repeat(10_000)),
        _ => {
            let body = number.to_string().repeat(5_000);
            (client.post(format!("{url}/body/{number}")).body(body.clone()), body)
        }
    };
    let asking = async { request.send().await?.error_for_status()?.text().await };
    match timeout_after(random_length(8 * SECOND), asking).await {
        Ok(Ok(text)) if text == expected => Ok(()),
        Ok(Ok(text)) => panic!("{number} was answered with {}", &text[..text.len().min(20)]),
        Ok(Err(error)) => Err(error.kind()),
        Err(_) => Err(ErrorKind::Interrupted),
    }
}

/// Many requests at once, while the network fails; then one that is answered. The variable
/// `PIKAKE_LONG` asks for more worlds.
fn every_answer_is_that_of_its_request(builder: fn() -> Client, name: &str) {
    let seeds = if std::env::var_os("PIKAKE_LONG").is_some() { 400 } else { 10 };
    Runs::new(name).seeds(seeds).run(|sim| {
        sim.host("server", || async {
            let listener = TcpListener::bind("0.0.0.0:80").await?;
            serve(listener, router()).soft_deadline(SECOND).hard_deadline(2 * SECOND).await?;
            Ok::<_, Box<dyn std::error::Error>>(())
        });
        sim.client("client", move || async move {
            let client = builder();
            for round in 0..5 {
                let asking = (0..8).map(|at| {
                    let client = client.clone();
                    async move { ask(&client, "http://server", round * 100 + at).await }
                });
                for outcome in in_parallel(asking).await? {
                    // A panic is a wrong answer.
                    let _ = outcome.expect("an answer or an error");
                }
                sleep(random_length(5 * SECOND)).await?;
            }
            sleep(100 * SECOND).await?;
            let asking = async {
                while ask(&client, "http://server", 3).await.is_err() {
                    sleep(SECOND).await?;
                }
                Ok::<_, pikake::Interrupted>(())
            };
            timeout_after(600 * SECOND, asking).await??;
            drop(client);
            Ok::<_, Box<dyn std::error::Error>>(())
        });
        sim.fault_mix(FaultMix::network(30 * SECOND));
    });
}

#[test]
fn http1_answers_belong_to_their_requests_despite_faults() {
    every_answer_is_that_of_its_request(client, "http1_client");
}

#[test]
fn http2_answers_belong_to_their_requests_despite_faults() {
    let client = || Client::builder().no_proxy().http2_only().build().unwrap();
    every_answer_is_that_of_its_request(client, "http2_client");
}

/// hyper polls the timer of a ping again.
#[pikake::sim]
async fn timer_that_is_over_stays_over() {
    let timer = pikake::http::Timer::new();
    let mut over = hyper::rt::Timer::sleep(&timer, SECOND);
    over.as_mut().await;
    over.as_mut().await;
    hyper::rt::Timer::reset(&timer, &mut over, hyper::rt::Timer::now(&timer) + SECOND);
    let since = pikake::time::now();
    over.as_mut().await;
    assert!(pikake::time::elapsed_since(since) >= SECOND);
}

#[pikake::sim(seeds = 10)]
async fn idle_connections_end_in_virtual_time() {
    let ended = Rc::<Cell<usize>>::default();
    let counted = ended.clone();
    let server = scripted(move |conn| {
        let ended = counted.clone();
        async move {
            while conn.request().await.is_some() {
                conn.answer("good").await;
            }
            ended.set(ended.get() + 1);
        }
    })
    .await;
    let client = client();
    let ask = async || client.get(&server.url).send().await.unwrap().text().await.unwrap();
    ask().await;
    sleep(50 * SECOND).await.unwrap();
    ask().await;
    assert_eq!((server.accepted.get(), ended.get()), (1, 0));
    sleep(70 * SECOND).await.unwrap();
    assert_eq!((server.accepted.get(), ended.get()), (1, 1));
}

#[pikake::sim(seeds = 10)]
async fn timeouts_close_what_they_interrupt() {
    let open = Rc::<Cell<usize>>::default();
    let counted = open.clone();
    let server = scripted(move |conn| {
        let open = counted.clone();
        async move {
            open.set(open.get() + 1);
            while let Some(request) = conn.request().await {
                if request.contains("/never ") {
                    continue;
                }
                conn.answer("good").await;
            }
            open.set(open.get() - 1);
        }
    })
    .await;
    let client = client();
    for _ in 0..5 {
        let asking = (0..10).map(|_| {
            let request = client.get(format!("{}/never", server.url)).send();
            async move { timeout_after(random_length(SECOND), request).await.is_err() }
        });
        assert!(in_parallel(asking).await.unwrap().into_iter().all(Result::unwrap));
        sleep(SECOND).await.unwrap();
        assert_eq!(open.get(), 0);
    }
    let text = client.get(&server.url).send().await.unwrap().text().await.unwrap();
    assert_eq!((text.as_str(), open.get()), ("good", 1));
}

/// A deadline that passes, or a cancel, while the body of a redirect is read.
#[pikake::sim]
async fn interruption_ends_a_request_between_its_redirects() {
    let requests = Rc::<Cell<usize>>::default();
    let counted = requests.clone();
    let server = scripted(move |conn| {
        let requests = counted.clone();
        async move {
            while conn.request().await.is_some() {
                requests.set(requests.get() + 1);
                conn.send("HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 9\r\n\r\n").await;
            }
        }
    })
    .await;
    let client = client();
    let ask = || client.get(&server.url).send();
    let ended = timed(ms(50), ask()).await;
    let error = ended.output.unwrap().unwrap_err();
    assert!(error.interruption().unwrap().is_timeout(), "{error}");
    let asking = spawn(ask());
    sleep(ms(50)).await.unwrap();
    asking.request_cancel("enough");
    let error = asking.await.unwrap().unwrap_err();
    assert_eq!(error.interruption().unwrap().reason(), Some("enough"));
    assert_eq!((error.kind(), requests.get()), (ErrorKind::Interrupted, 2));
}

#[test]
fn interrupted_requests_leave_a_working_client() {
    let report = Injector::new().cleanup_limit(None).patience(ms(2)).run(
        || async {
            let server = scripted(async |conn| {
                while let Some(request) = conn.request().await {
                    let path = request.split(' ').nth(1).unwrap().to_owned();
                    // In two parts, so that the client waits for the second.
                    let length = path.len();
                    conn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n")).await;
                    if sleep(ms(1)).await.is_err() {
                        return;
                    }
                    conn.send(path).await;
                }
            })
            .await;
            let client = client();
            let ask = async |path: &str| {
                let mut response =
                    client.post(format!("{}{path}", server.url)).body("x").send().await?;
                let mut text = String::new();
                while let Some(part) = response.chunk().await? {
                    text.push_str(std::str::from_utf8(&part).unwrap());
                }
                Ok::<_, pikake::http::client::Error>(text)
            };
            let mut interruptions = 0;
            for path in ["/first", "/second", "/third"] {
                match ask(path).await {
                    Ok(text) => assert_eq!(text, path),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
                        interruptions += 1;
                    }
                }
            }
            interruptions
        },
        |run| {
            let interruptions = run.output.expect("the program ends");
            assert!(interruptions <= usize::from(run.interruption.is_some()));
        },
    );
    assert!(report.suspensions > 5 && report.cancels > 5, "{report:?}");
}

#[test]
fn interrupted_http2_requests_leave_a_working_client() {
    let report = Injector::new().cleanup_limit(None).patience(ms(2)).run(
        || async {
            let site = super::site(router()).await;
            let client = Client::builder().no_proxy().http2_only().build().unwrap();
            let mut interruptions = 0;
            for number in [3, 6, 9] {
                let asking = async {
                    client.get(format!("{}/{number}", site.url)).send().await?.text().await
                };
                match asking.await {
                    Ok(text) => assert_eq!(text, number.to_string()),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
                        interruptions += 1;
                    }
                }
            }
            interruptions
        },
        |run| {
            let interruptions = run.output.expect("the program ends");
            assert!(interruptions <= usize::from(run.interruption.is_some()));
        },
    );
    assert!(report.suspensions > 2 && report.cancels > 2, "{report:?}");
}

#[pikake::sim(seeds = 10)]
async fn unreachable_host_fails_for_all_that_wait() {
    let client = Client::builder().no_proxy().connect_timeout(3 * SECOND).build().unwrap();
    let asking = (0..20).map(|_| client.get("http://127.0.0.1:9").send());
    let asked = timeout_after(SOON, in_parallel(asking)).await.unwrap().unwrap();
    for error in asked {
        assert_eq!(error.unwrap().unwrap_err().kind(), ErrorKind::Connect);
    }
}
