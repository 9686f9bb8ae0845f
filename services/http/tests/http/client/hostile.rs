//! Servers that misbehave: nothing is believed, nothing is left behind, and the next request is
//! answered.

use pikake::http::client::ErrorKind;
use pikake::{TimedOut, timeout_after};

use super::{Conn, LONG, client, ms, run, scripted};

/// The script of most tests: `/bad` is answered as the test says, anything else as it should be.
async fn bad(conn: Conn, answer: impl AsRef<[u8]>, closes: bool) {
    while let Some(request) = conn.request().await {
        if request.contains("/bad ") {
            conn.send(&answer).await;
            if closes {
                return;
            }
        } else {
            conn.answer("good").await;
        }
    }
}

/// Asks for `/bad`, for its body, and for something else.
async fn asked(
    answer: impl AsRef<[u8]> + Clone + 'static,
    closes: bool,
) -> Result<String, ErrorKind> {
    let server = scripted(move |conn| bad(conn, answer.clone(), closes)).await;
    let client = client();
    let bad = async {
        let response = client.get(format!("{}/bad", server.url)).send().await?;
        response.limit(100_000).text().await
    };
    let result = timeout_after(ms(2000), bad).await;
    let good = client.post(&server.url).send().await.unwrap().text().await.unwrap();
    assert_eq!(good, "good");
    match result {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => Err(error.kind()),
        Err(TimedOut) => Err(ErrorKind::Interrupted),
    }
}

#[test]
fn truncated_bodies_are_errors() {
    run(async || {
        let ok = "HTTP/1.1 200 OK\r\n";
        for (answer, expected) in [
            ("content-length: 10\r\n\r\nshort", Err(ErrorKind::Body)),
            ("transfer-encoding: chunked\r\n\r\n5\r\nshort\r\n", Err(ErrorKind::Body)),
            ("transfer-encoding: chunked\r\n\r\n9\r\nshort", Err(ErrorKind::Body)),
            ("transfer-encoding: chunked\r\n\r\nlong", Err(ErrorKind::Body)),
            ("content-type: text/pl", Err(ErrorKind::Exchange)),
            // Without a length, the end of the connection is the end of the body.
            ("\r\nuntil the end", Ok("until the end".into())),
        ] {
            assert_eq!(asked(format!("{ok}{answer}"), true).await, expected, "{answer}");
        }
        for answer in ["", "HTT", "HTTP/1.1 200 OK\r\n"] {
            assert_eq!(asked(answer, true).await, Err(ErrorKind::Exchange), "{answer}");
        }
    });
}

#[test]
fn invalid_heads_are_errors() {
    run(async || {
        let header = |name: &str, length| {
            format!("HTTP/1.1 200 OK\r\n{name}: {}\r\n\r\n", "x".repeat(length))
        };
        let many: String = (0..1000).map(|at| format!("h{at}: x\r\n")).collect();
        let endless = "x".repeat(8 << 20);
        for answer in [
            "SSH-2.0-OpenSSH\r\n".into(),
            "\x16\x03\x01\x02\x00\r\n\r\n".into(),
            "HTTP/1.1 2000 OK\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nshorts".into(),
            "HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nshort".into(),
            header("x", 4 << 20),
            header("in valid", 5),
            format!("HTTP/1.1 200 OK\r\n{many}\r\n"),
            format!("HTTP/1.1 200 OK\r\nx: {endless}"),
        ] {
            let text: String = answer.chars().take(60).collect();
            assert_eq!(asked(answer, false).await, Err(ErrorKind::Exchange), "{text}");
        }
    });
}

#[test]
fn data_behind_the_body_closes_the_connection() {
    run(async || {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nshort and more", "short"),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nshortHTTP/1.1 200 OK\r\n\
                 content-length: 8\r\n\r\nsmuggled",
                "short",
            ),
            ("HTTP/1.1 204 No Content\r\n\r\nbody", ""),
        ] {
            assert_eq!(asked(answer, false).await, Ok(expected.into()), "{answer}");
        }
    });
}

#[pikake::sim(seeds = 3)]
async fn data_on_an_idle_connection_closes_it() {
    let server = scripted(async |conn| {
        while conn.request().await.is_some() {
            conn.answer("good").await;
            pikake::sleep(ms(20)).await.unwrap();
            conn.answer("nobody asked").await;
        }
    })
    .await;
    let client = client();
    for count in 1..4 {
        let text = client.post(&server.url).send().await.unwrap().text().await.unwrap();
        assert_eq!((text.as_str(), server.accepted.get()), ("good", count));
        pikake::sleep(ms(60)).await.unwrap();
    }
}

#[pikake::sim(seeds = 3)]
async fn silent_server_ends_by_a_timeout() {
    let chunk = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nshort\r\n";
    for answer in
        ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nx", chunk]
    {
        let server = scripted(move |conn: Conn| async move {
            conn.request().await;
            conn.send(answer).await;
            // Until the client closes.
            conn.request().await;
        })
        .await;
        let client = client();
        let asking = async { client.get(&server.url).send().await?.text().await };
        assert_eq!(timeout_after(ms(50), asking).await.map(drop), Err(TimedOut), "{answer}");
    }
}

#[test]
fn interim_responses_are_skipped() {
    run(async || {
        let early = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(100);
        let answer = format!("{early}HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone");
        assert_eq!(asked(answer, false).await, Ok("done".into()));
        let server = scripted(async |conn| {
            conn.request().await;
            while conn.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_ok() {}
        })
        .await;
        let client = client();
        let flooded = timeout_after(ms(100), client.get(&server.url).send()).await;
        assert_eq!(flooded.map(drop), Err(TimedOut));
    });
}

#[test]
fn endless_body_ends_at_its_limit() {
    run(async || {
        let server = scripted(async |conn| {
            conn.request().await;
            conn.send("HTTP/1.1 200 OK\r\n\r\n").await;
            while conn.stream.write_all(&[b'x'; 4096]).await.is_ok() {}
        })
        .await;
        let response = client().get(&server.url).send().await.unwrap();
        let error = response.limit(100_000).bytes().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLong);
        assert!(error.to_string().contains("the limit is 100000 bytes"), "{error}");
        let huge = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\nx", 1u64 << 60);
        assert_eq!(asked(huge, true).await, Err(ErrorKind::Body));
    });
}

#[test]
fn early_answer_to_an_upload_closes_the_connection() {
    run(async || {
        let server = scripted(async |conn| {
            if conn.number == 0 {
                drop(conn.stream.next_line().await);
                conn.send("HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig").await;
                // Takes no more of the body.
                pikake::sleep(LONG).await.ok();
            } else {
                conn.request().await;
                conn.answer("good").await;
                conn.request().await;
            }
        })
        .await;
        let client = client();
        let upload = client.post(&server.url).body(vec![b'x'; 32 << 20]).send();
        let response = upload.await.unwrap();
        assert_eq!(response.status(), 413);
        assert_eq!(response.text().await.unwrap(), "big");
        let text = client.post(&server.url).send().await.unwrap().text().await.unwrap();
        assert_eq!((text.as_str(), server.accepted.get()), ("good", 2));
    });
}

use pikake::net::Write as _;
