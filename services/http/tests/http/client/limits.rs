//! How many connections there are, and how long they stay.

use std::cell::Cell;
use std::rc::Rc;

use pikake::http::Client;
use pikake::http::client::ErrorKind;
use pikake::task::in_parallel;
use pikake::{sleep, spawn, timeout_after};

use super::{client, ms, run, scripted};

#[test]
fn host_has_a_limited_number_of_connections() {
    run(async || {
        let (running, most) = (Rc::<Cell<usize>>::default(), Rc::<Cell<usize>>::default());
        let (counted, highest) = (running.clone(), most.clone());
        let server = scripted(move |conn| {
            let (running, most) = (counted.clone(), highest.clone());
            async move {
                while conn.request().await.is_some() {
                    running.set(running.get() + 1);
                    most.set(most.get().max(running.get()));
                    sleep(ms(5)).await.unwrap();
                    running.set(running.get() - 1);
                    conn.answer("good").await;
                }
            }
        })
        .await;
        let client = Client::builder().no_proxy().connections_per_host(3).build().unwrap();
        let asking = (0..20).map(|_| {
            let request = client.get(&server.url).send();
            async { request.await.unwrap().text().await.unwrap() }
        });
        let texts = in_parallel(asking).await.unwrap();
        assert!(texts.into_iter().all(|text| text.unwrap() == "good"));
        assert_eq!((most.get(), server.accepted.get()), (3, 3));
    });
}

#[pikake::sim(seeds = 3)]
async fn request_waits_for_a_connection_within_its_limit() {
    let server = scripted(async |conn| {
        while conn.request().await.is_some() {
            conn.answer("good").await;
        }
    })
    .await;
    let builder = Client::builder().no_proxy().connections_per_host(1);
    let client = builder.wait(Some(ms(30))).build().unwrap();
    let held = client.post(&server.url).send().await.unwrap();
    let text = held.text().await.unwrap();
    assert_eq!(text, "good");
    let slow = scripted(async |conn| {
        conn.request().await;
        conn.request().await;
    })
    .await;
    let (other, url) = (client.clone(), slow.url.clone());
    let holding = spawn(async move { other.get(url).send().await.map(drop) });
    while slow.accepted.get() == 0 {
        sleep(ms(1)).await.unwrap();
    }
    let error = client.get(&slow.url).send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pool, "{error}");
    holding.cancel().await.unwrap();
    drop(holding);
}

#[pikake::sim(seeds = 3)]
async fn idle_connections_are_closed_after_their_time() {
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
    let client = Client::builder().no_proxy().idle_timeout(ms(50)).build().unwrap();
    client.get(&server.url).send().await.unwrap().text().await.unwrap();
    while ended.get() == 0 {
        sleep(ms(5)).await.unwrap();
    }
    client.get(&server.url).send().await.unwrap().text().await.unwrap();
    assert_eq!(server.accepted.get(), 2);
    drop(client);
    while ended.get() < 2 {
        sleep(ms(5)).await.unwrap();
    }
}

#[test]
fn closed_client_sends_nothing() {
    run(async || {
        let server = scripted(async |conn| {
            while conn.request().await.is_some() {
                conn.answer("good").await;
            }
        })
        .await;
        let client = client();
        client.get(&server.url).send().await.unwrap().text().await.unwrap();
        client.close(ms(1000)).await;
        let error = client.get(&server.url).send().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Pool, "{error}");
    });
}

#[pikake::sim(seeds = 3)]
async fn interrupted_wait_for_a_body_goes_on() {
    let server = scripted(async |conn| {
        conn.request().await;
        conn.send("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsome").await;
        sleep(ms(60)).await.unwrap();
        conn.send("more").await;
        conn.request().await;
    })
    .await;
    let mut response = client().get(&server.url).send().await.unwrap();
    let mut text = Vec::new();
    while text.len() < 8 {
        if let Ok(part) = timeout_after(ms(10), response.chunk()).await {
            text.extend_from_slice(&part.unwrap().unwrap());
        }
    }
    assert_eq!(text, b"somemore");
}
