//! Which requests are sent again, and how often.

use std::cell::Cell;
use std::rc::Rc;

use axum::http::Method;
use pikake::http::client::{Body, ErrorKind};
use pikake::net::{BufReader, TcpListener};

use super::{client, ms, run, scripted, scripted_at};

/// A server that closes connections when the request of this number has come (over all
/// connections), with this answer.
async fn closes_at(
    numbers: &'static [usize],
    last_words: &'static str,
) -> (super::Scripted, Rc<Cell<usize>>) {
    let requests = Rc::<Cell<usize>>::default();
    let counted = requests.clone();
    let server = scripted(move |conn| {
        let counted = counted.clone();
        async move {
            while conn.request().await.is_some() {
                let number = counted.replace(counted.get() + 1);
                if numbers.contains(&number) {
                    conn.send(last_words).await;
                    return;
                }
                conn.answer("good").await;
            }
        }
    })
    .await;
    (server, requests)
}

#[test]
fn request_on_a_closed_connection_is_repeated_if_idempotent() {
    run(async || {
        for (method, is_repeated) in [
            (Method::GET, true),
            (Method::HEAD, true),
            (Method::OPTIONS, true),
            (Method::PUT, true),
            (Method::DELETE, true),
            (Method::POST, false),
            (Method::PATCH, false),
            (Method::from_bytes(b"CUSTOM").unwrap(), false),
        ] {
            let (server, requests) = closes_at(&[1], "").await;
            let client = client();
            client.get(&server.url).send().await.unwrap().text().await.unwrap();
            let result = client.request(method.clone(), &server.url).body("body").send().await;
            if is_repeated {
                assert_eq!(result.unwrap().status(), 200, "{method}");
            } else {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::Exchange, "{method}");
            }
            let expected = if is_repeated { (3, 2) } else { (2, 1) };
            assert_eq!((requests.get(), server.accepted.get()), expected, "{method}");
        }
    });
}

#[test]
fn request_is_repeated_once_and_not_on_new_connections() {
    run(async || {
        // The server also closes the second connection.
        let (server, requests) = closes_at(&[1, 2], "").await;
        let client = client();
        client.get(&server.url).send().await.unwrap().text().await.unwrap();
        let error = client.get(&server.url).send().await.unwrap_err();
        assert_eq!((error.kind(), requests.get()), (ErrorKind::Exchange, 3));
        // A new connection.
        let (server, requests) = closes_at(&[0], "").await;
        let error = client.get(&server.url).send().await.unwrap_err();
        assert_eq!((error.kind(), requests.get()), (ErrorKind::Exchange, 1));
        // An answer, if an invalid one.
        let (server, requests) = closes_at(&[1], "what?\r\n\r\n").await;
        client.get(&server.url).send().await.unwrap().text().await.unwrap();
        let error = client.get(&server.url).send().await.unwrap_err();
        assert_eq!((error.kind(), requests.get()), (ErrorKind::Exchange, 2));
        // A body that cannot be read again.
        let (server, requests) = closes_at(&[1], "").await;
        client.get(&server.url).send().await.unwrap().text().await.unwrap();
        let stream = Body::from_stream(futures::stream::iter([Ok::<_, std::io::Error>("body")]));
        let error = client.put(&server.url).body(stream).send().await;
        // By chunks, which the script takes for a request without a body.
        assert_eq!((error.unwrap_err().kind(), requests.get()), (ErrorKind::Exchange, 2));
    });
}

#[test]
fn error_after_something_was_sent_does_not_deny_it() {
    run(async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = pikake::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let conn = super::Conn { number: 0, stream: BufReader::new(stream) };
            conn.request().await;
            conn.answer("good").await;
            conn.request().await;
            // Before the connection: the request is sent again to nobody.
            drop(listener);
        });
        let client = client();
        client.get(&url).send().await.unwrap().text().await.unwrap();
        let error = client.get(&url).send().await.unwrap_err();
        server.await.unwrap();
        assert_eq!(error.kind(), ErrorKind::Exchange, "{error}");
        let server = scripted(async |conn| {
            conn.request().await;
            let gone = "http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
            conn.send(format!("HTTP/1.1 307 Gone\r\nlocation: {gone}")).await;
        })
        .await;
        let error = client.post(&server.url).body("body").send().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Redirect, "{error}");
        assert!(error.to_string().starts_with("POST http://127.0.0.1:1/: "), "{error}");
    });
}

#[pikake::sim(seeds = 3)]
async fn connection_that_was_closed_meanwhile_is_not_used() {
    let server = scripted(async |conn| {
        conn.request().await;
        conn.answer("good").await;
    })
    .await;
    let client = client();
    for count in 1..5 {
        // No repetition helps a POST.
        let text = client.post(&server.url).body("body").send().await.unwrap().text().await;
        assert_eq!((text.unwrap().as_str(), server.accepted.get()), ("good", count));
        pikake::sleep(ms(20)).await.unwrap();
    }
}

#[test]
fn restarted_server_is_found_again() {
    run(async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let script = async |conn: super::Conn| {
            while conn.request().await.is_some() {
                conn.answer("good").await;
            }
        };
        let first = scripted_at(listener, script);
        let (url, client) = (first.url.clone(), client());
        let five = async || {
            let asking = (0..5).map(|_| {
                let request = client.post(&url).send();
                async { request.await.unwrap().text().await.unwrap() }
            });
            pikake::task::in_parallel(asking).await.unwrap();
        };
        five().await;
        drop(first);
        let second = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break scripted_at(listener, script),
                Err(_) => pikake::sleep(ms(5)).await.unwrap(),
            }
        };
        five().await;
        drop(second);
        let error = loop {
            match client.get(&url).send().await {
                Ok(_) => pikake::sleep(ms(5)).await.unwrap(),
                Err(error) => break error,
            }
        };
        assert!([ErrorKind::Connect, ErrorKind::Exchange].contains(&error.kind()), "{error}");
    });
}

#[test]
fn keep_alive_of_the_server_is_obeyed() {
    run(async || {
        let server = scripted(async |conn| {
            while conn.request().await.is_some() {
                conn.send("HTTP/1.1 200 OK\r\nkeep-alive: timeout=1, max=5\r\ncontent-length: 4\r\n\r\ngood")
                    .await;
            }
        })
        .await;
        let client = client();
        for count in 1..4 {
            let text = client.get(&server.url).send().await.unwrap().text().await.unwrap();
            assert_eq!((text.as_str(), server.accepted.get()), ("good", count));
        }
    });
}
