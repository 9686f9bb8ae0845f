//! Shutdowns of the server with clients in the backlog, with running handlers, and with its kernel.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;

use axum::routing::get;
use pikake::http::serve;
use pikake::net::TcpListener;
use pikake::traps::KernelHandle;
use pikake::{Kernel, sleep, spawn, yield_now};

use crate::site::{Handlers, LONG, alone, ms, router};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

fn client(address: std::net::SocketAddr) -> std::net::TcpStream {
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.write_all(REQUEST).unwrap();
    client
}

/// Connections beyond the limit are reset.
#[test]
fn shutdown_serves_the_backlog_up_to_the_limit() {
    const ROOM: usize = 3;
    let _alone = alone();
    Kernel::new().unwrap().run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = serve(listener, router(&Rc::default())).connections(ROOM);
        let server = spawn(server.into_future());
        yield_now().await.unwrap();
        // In one step, in which the server accepts nobody.
        let clients: Vec<_> = (0..ROOM + 2).map(|_| client(address)).collect();
        let silent = std::net::TcpStream::connect(address).unwrap();
        server.request_cancel("enough");
        let report = server.await.unwrap().unwrap();
        assert_eq!(report.answered, ROOM as u64, "{report}");
        for (number, mut client) in clients.into_iter().chain([silent]).enumerate() {
            let mut answer = String::new();
            let read = client.read_to_string(&mut answer);
            if number < ROOM {
                assert!(read.is_ok() && answer.ends_with("hello"), "{number}: {answer}");
            } else {
                assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset, "{number}");
            }
        }
        let refused = std::net::TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn full_server_resets_its_backlog_at_shutdown() {
    let _alone = alone();
    Kernel::new().unwrap().run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let handlers = Rc::<Handlers>::default();
        let server = serve(listener, router(&handlers)).connections(1).soft_deadline(ms(200));
        let server = spawn(server.into_future());
        let mut hanging = std::net::TcpStream::connect(address).unwrap();
        hanging.write_all(b"GET /hang HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        while handlers.running.get() == 0 {
            sleep(ms(1)).await.unwrap();
        }
        let mut waiting = client(address);
        server.request_cancel("enough");
        while let Ok(late) = std::net::TcpStream::connect(address) {
            drop(late);
            sleep(ms(1)).await.unwrap();
        }
        // Long before the one that is served has ended.
        assert_eq!(handlers.running.get(), 1);
        let reset = waiting.read(&mut [0; 8]).unwrap_err();
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
        let report = server.await.unwrap().unwrap();
        assert_eq!((report.answered, report.interrupted.len()), (1, 1), "{report}");
    });
}

#[test]
fn shutdown_waits_for_handlers_that_clean_up() {
    let _alone = alone();
    Kernel::new().unwrap().run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let handlers = Rc::<Handlers>::default();
        let server = spawn(serve(listener, router(&handlers)).into_future());
        let mut client = std::net::TcpStream::connect(address).unwrap();
        client.write_all(b"GET /hang HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        while handlers.running.get() == 0 {
            sleep(ms(1)).await.unwrap();
        }
        drop(client);
        while handlers.told.get() == 0 {
            sleep(ms(1)).await.unwrap();
        }
        server.request_cancel("enough");
        let report = server.await.unwrap().unwrap();
        assert_eq!(handlers.running.get(), 0);
        assert!(report.interrupted.is_empty(), "the handler had ended before: {report}");
    });
}

#[test]
fn request_at_kernel_shutdown_delays_no_end() {
    let _alone = alone();
    let kernel = Kernel::new().unwrap();
    let mut stopping = None;
    let ended = kernel.try_run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = async || KernelHandle::current().shutdown().unwrap();
        let router = router(&Rc::default()).route("/stop", get(stop));
        let _server = spawn(serve(listener, router).into_future());
        let mut client = std::net::TcpStream::connect(address).unwrap();
        // The second one is read with the first.
        let both = [b"GET /stop HTTP/1.1\r\nhost: x\r\n\r\n", REQUEST].concat();
        client.write_all(&both).unwrap();
        stopping = Some(std::time::Instant::now());
        drop(sleep(LONG).await);
    });
    assert!(ended.is_ok(), "{ended:?}");
    kernel.shutdown();
    let took = stopping.unwrap().elapsed();
    assert!(took < ms(5000), "the connection waited for a request that never ran: {took:?}");
}

#[test]
fn kernel_shutdown_ends_a_server_in_order() {
    let _alone = alone();
    let kernel = Kernel::new().unwrap();
    let ended = Rc::new(RefCell::new(None));
    kernel.run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (server, slot) = (serve(listener, router(&Rc::default())), ended.clone());
        spawn(async move { *slot.borrow_mut() = Some(server.await) }).detach();
        let client = pikake::net::TcpStream::connect(address).await.unwrap();
        client.write_all(REQUEST).await.unwrap();
        client.read(&mut [0; 100]).await.unwrap();
    });
    kernel.shutdown();
    let report = ended.take().expect("the task has ended").expect("in order");
    assert_eq!(report.answered, 1);
    assert!(report.ended_by.is_some_and(|why| why.is_cancel()));
}
