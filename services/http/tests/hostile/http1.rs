//! HTTP/1: heads, bodies and readers that are endless, slow or too large.

use std::time::Instant;

use futures::future::join_all;
use pikake::{sleep, timeout_after};

use crate::site::{CONNECTIONS, MUCH, PATIENCE, SOON, Site, dribble, ms, rest};

const HEAD: &str = "POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n";

#[test]
fn silent_client_is_disconnected() {
    Site::run(async |site| {
        // Nothing at all, half of a line, half of a head, half of what both versions begin with.
        let beginnings = ["", "GE", "GET / HTTP/1.1\r\nhost: x\r\n", "PRI * HTTP/2.0\r\n", "PRI"];
        let silent = beginnings.map(|beginning| async move {
            let since = Instant::now();
            let client = site.sends(beginning).await;
            let answer = rest(&client).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
            assert!(since.elapsed() >= PATIENCE, "{beginning}");
        });
        futures::join!(join_all(silent), site.is_serving());
        // One that has asked, and then says no more.
        let idle = site.sends("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(rest(&idle).await.ends_with("hello"));
    });
}

#[test]
fn slow_head_is_disconnected() {
    Site::run(async |site| {
        let client = site.sends("GET / HTTP/1.1\r\n").await;
        futures::join!(dribble(&client, b"x: y\r\n"), site.is_serving());
    });
}

#[test]
fn missing_or_slow_body_is_disconnected() {
    Site::run(async |site| {
        let (silent, slow) = (site.sends(HEAD).await, site.sends(HEAD).await);
        let chunked = "POST /upload HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
        let slow_chunk = site.sends(chunked).await;
        let (answer, ..) = futures::join!(
            rest(&silent),
            dribble(&slow, b"x"),
            dribble(&slow_chunk, b"1\r\nx\r\n"),
            site.is_serving()
        );
        assert_eq!(answer, "");
        site.lets_go().await;
    });
}

#[test]
fn slow_but_steady_client_is_served() {
    Site::run(async |site| {
        // A body that takes thrice the server's patience, at a decent pace.
        let sending = async {
            let client = site.sends(HEAD).await;
            for _ in 0..100 {
                client.write_all(&[b'x'; 1000]).await.unwrap();
                sleep(PATIENCE * 3 / 100).await.unwrap();
            }
            let mut buffer = [0; 1000];
            let length = timeout_after(SOON, client.read(&mut buffer)).await.unwrap().unwrap();
            let answer = String::from_utf8_lossy(&buffer[..length]);
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("100000"), "{answer}");
        };
        // A handler may take its time, however long the client has nothing to do.
        let waiting = async {
            let request = "GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            assert!(rest(&site.sends(request).await).await.ends_with("slow"));
        };
        // A response that is read with pauses.
        let reading = async {
            let request = "GET /much HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            let client = site.sends(request).await;
            let (mut all, mut buffer) = (0, vec![0; MUCH / 50]);
            loop {
                match client.read(&mut buffer).await.unwrap() {
                    0 => break,
                    length => all += length,
                }
                if all < MUCH / 2 {
                    sleep(PATIENCE / 20).await.unwrap();
                }
            }
            assert!(all > MUCH, "{all}");
        };
        futures::join!(sending, waiting, reading);
    });
}

#[test]
fn client_that_does_not_read_is_disconnected() {
    Site::run(async |site| {
        let request = "GET /much HTTP/1.1\r\nhost: x\r\n\r\n";
        let silent = site.sends(request).await;
        let (slow, many) = (site.sends(request).await, site.connect().await);
        let sipping = async {
            let since = Instant::now();
            while let Ok(1..) = slow.read(&mut [0]).await {
                if since.elapsed() > PATIENCE * 4 {
                    break;
                }
                sleep(ms(20)).await.unwrap();
            }
        };
        // Requests in a row, and none of the answers is read.
        let asking = async {
            while let Ok(Ok(())) =
                timeout_after(PATIENCE * 4, many.write_all(request.repeat(100).as_bytes())).await
            {
            }
        };
        futures::join!(sipping, asking, site.is_serving());
        site.lets_go().await;
        drop(silent);
    });
}

#[test]
fn oversized_requests_are_refused() {
    Site::run(async |site| {
        let get = "GET / HTTP/1.1\r\nhost: x\r\n";
        let line = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(100_000));
        let header = format!("{get}x: {}\r\n\r\n", "x".repeat(1 << 20));
        let headers = format!("{get}{}\r\n", "x: y\r\n".repeat(200));
        let chunk = "POST /upload HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\
                     ffffffffffffffffff\r\nx";
        let cases = [
            (line, "414"),
            (header, "431"),
            (headers, "431"),
            (HEAD.replace("100000", "99999999999999999999"), "400"),
            (HEAD.replace("100000", "-1"), "400"),
            (chunk.to_owned(), "400"),
            ("\x16\x03\x01\x02\0\x01\0".to_owned(), "400"),
            ("GET / HTTP/1.1\r\nbad header\r\n\r\n".to_owned(), "400"),
        ];
        for (request, status) in cases {
            let client = site.connect().await;
            // It may be refused before it has said all.
            let (_, answer) = futures::join!(client.write_all(request.as_bytes()), rest(&client));
            let expected = format!("HTTP/1.1 {status}");
            let begin = &request[..request.len().min(60)];
            assert!(answer.starts_with(&expected), "{begin}: {answer}");
        }
        // A body beyond axum's own limit; the answer may be lost with what was not read.
        let head = HEAD.replace("100000", "10000000");
        let client = site.sends(head).await;
        let body = vec![b'x'; 10_000_000];
        let (_, answer) = futures::join!(client.write_all(&body), rest(&client));
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413"), "{answer}");
    });
}

#[test]
fn pipelined_requests_are_answered_until_garbage() {
    Site::run(async |site| {
        let get = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        let client = site.sends(format!("{}\0\x01\x02nonsense\r\n\r\n{get}", get.repeat(3))).await;
        let answer = rest(&client).await;
        assert_eq!(answer.matches("HTTP/1.1 200").count(), 3, "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 400").count(), 1, "{answer}");
    });
}

#[test]
fn silent_clients_free_their_connections() {
    Site::run(async |site| {
        let mut silent = Vec::new();
        for number in 0..CONNECTIONS * 3 {
            silent.push(match number % 2 {
                0 => site.connect().await,
                _ => site.sends(HEAD).await,
            });
        }
        // Those before it are in its way, for as long as the server is patient with them.
        let since = Instant::now();
        site.is_serving().await;
        assert!(since.elapsed() >= PATIENCE);
        drop(silent);
    });
}
