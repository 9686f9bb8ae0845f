//! The server: the lives of handlers, limits, interceptors, and the end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{Closing, MemoryStream, Patience, TcpListener, TcpStream};
use pikake::rpc::packets::{Packet, PacketOptions, open};
use pikake::rpc::{
    Answer, CallFailure, CallInfo, Client, Executed, Handler, Server, UnfinishedCall, current_call,
};
use pikake::sim::{Latency, Network, Sim};
use pikake::traps::{elapsed_since, now};
use pikake::{spawn, timeout_after, yield_now};

use crate::harness::{
    ADDRESS, FRAME_LIMIT, GRACE, Listening, MS, SECOND, Served, begin, packet, pause, run, server,
    why,
};
use crate::shop::{Keeper, ShopClient, Unreadable, Unwritable};

/// A client of the server that makes one attempt.
fn attempt() -> ShopClient {
    ShopClient::new(Client::builder().tcp(ADDRESS).attempts(1).build())
}

/// The client takes larger answers, and the server keeps none of them in its queue.
#[pikake::sim(seeds = 1)]
async fn answers_keep_to_the_servers_frame_limit() {
    let packets = PacketOptions::new().frame_limit(FRAME_LIMIT);
    let it = Listening::new(|server| server.packets(packets)).await;
    assert_eq!(it.shop.big(900).await.unwrap().len(), 900);
    let why = why(it.shop.big(1_100).await);
    assert!(why.starts_with("Answer(") && why.ends_with(", Yes"), "{why}");
    it.end().await;
}

#[pikake::sim(seeds = 1)]
async fn handlers_end_with_their_caller_and_the_grace() {
    let it = Listening::new(|server| server).await;
    let (shop, since) = (&it.shop, now());
    begin(&it.keeper, timeout_after(50 * MS, shop.stubborn())).await.detach();
    begin(&it.keeper, timeout_after(50 * MS, shop.shielded())).await.detach();
    // The cancel of the caller comes with the deadline, and changes nothing.
    pause((50 + 99) * MS - elapsed_since(since)).await;
    assert_eq!(it.keeper.under_way(), 2);
    pause(10 * MS).await;
    assert_eq!(it.keeper.under_way(), 0);

    let calls =
        [begin(&it.keeper, shop.stubborn()).await, begin(&it.keeper, shop.shielded()).await];
    for call in calls {
        call.request_cancel("enough");
        assert!(why(call.await.unwrap()).starts_with("Interrupted("));
    }
    pause(98 * MS).await;
    assert_eq!(it.keeper.under_way(), 2);
    pause(10 * MS).await;
    assert_eq!(it.keeper.under_way(), 0);
    assert_eq!(shop.add(1, 2).await.unwrap(), 3);
    it.end().await;
}

/// The deadline of the server is some time after that of the caller, whose cancel comes about then.
#[test]
fn a_cleanup_is_interrupted_once_behind_a_network() {
    for (delay, seed) in
        [0, 1, 5, 40].into_iter().flat_map(|delay| (0..20).map(move |at| (delay, at)))
    {
        let mut sim = Sim::new(seed);
        let mut network = Network::default();
        network.link.latency = Latency::Uniform(delay * MS, delay * MS * 11 / 10);
        let ends = Rc::new(RefCell::new(Vec::new()));
        let noted = ends.clone();
        sim.client("server", move || {
            let noted = noted.clone();
            async move {
                let keeper = Keeper::default();
                let listener = TcpListener::bind("0.0.0.0:7000").await.unwrap();
                let serving = spawn(server(&keeper).serve(listener));
                pause(SECOND).await;
                serving.cancel().await.unwrap();
                noted.borrow_mut().extend(keeper.ends());
            }
        });
        sim.client("client", || async {
            let shop = ShopClient::new(Client::tcp("server:7000"));
            // The client has a connection.
            assert_eq!(shop.add(1, 2).await.unwrap(), 3);
            for _ in 0..3 {
                assert!(timeout_after(50 * MS, shop.clean()).await.is_err());
            }
        });
        sim.network(network);
        sim.run().unwrap();
        assert_eq!(*ends.borrow(), ["Ok(())"; 3], "delay {delay} ms, seed {seed}");
    }
}

/// Whatever the handler does, and whenever the call is cancelled.
#[pikake::sim(seeds = 1)]
async fn each_request_has_one_answer() {
    let mut it = Served::new(10_000, |server| {
        server.intercept(async |info, next| match info.id % 50 {
            7 => Answer::refused("é".repeat(FRAME_LIMIT)),
            8 => panic!("the interceptor is broken"),
            _ => next.await,
        })
    })
    .await;
    // The last two are without arguments, and without a method.
    let calls = [
        "add 1 2",
        "sell 1",
        "stubborn",
        "shielded",
        "endless",
        "big 255 127",
        "panic",
        "panic",
        "panic_when_dropped",
        "panic_when_written",
        "panic_when_read 1",
        "add 1",
        "1 2 3 4",
    ];
    let (mut answers, mut id) = (BTreeMap::new(), 0);
    for delay in 0..4 {
        let first = id + 1;
        for call in calls {
            id += 1;
            it.peer.send(&format!("request {id} {call}")).await.unwrap();
        }
        for _ in 0..delay {
            pause(MS / 2).await;
        }
        for id in first..=id {
            it.peer.send(&format!("cancel {id}")).await.unwrap();
        }
        answers.extend((first..=id).map(|id| (id, 0)));
    }
    let reader = it.peer.reader.as_mut().unwrap();
    while let Ok(packet) = timeout_after(20 * SECOND, reader.next()).await {
        let packet = packet.unwrap().unwrap();
        assert_eq!(packet.kind, 1);
        assert!(packet.body.len() <= FRAME_LIMIT);
        *answers.get_mut(&packet.id).unwrap() += 1;
    }
    assert!(answers.values().all(|count| *count == 1), "{answers:?}");
    it.end().await;
}

#[pikake::sim(seeds = 1)]
async fn panics_of_user_code_are_errors() {
    let it = Listening::new(|server| server).await;
    let shop = &it.shop;
    assert_eq!(why(shop.panic().await), "Panicked, Yes");
    assert_eq!(why(shop.panic_when_written().await.map(drop)), "Panicked, Yes");
    let why = why(shop.panic_when_read(Unreadable(0)).await);
    assert!(why.starts_with("Arguments(") && why.ends_with("panicked), No"), "{why}");
    assert!(timeout_after(MS, shop.panic_when_dropped()).await.is_err());
    assert_eq!(shop.add(1, 2).await.unwrap(), 3);
    it.end().await;
}

#[pikake::sim(seeds = 1)]
async fn current_call_is_of_the_task() {
    let it = Listening::new(|server| server).await;
    assert!(it.shop.spawn_a_task().await.unwrap());
    assert!(current_call().is_none());
    it.end().await;
}

#[pikake::sim(seeds = 1)]
async fn connections_do_not_delay_each_other() {
    let packets = PacketOptions::new().queue_limit(5_000).stall(10 * SECOND);
    let it = Listening::new(|server| server.packets(packets)).await;
    it.shop.add(1, 2).await.unwrap();
    let stream = TcpStream::connect(ADDRESS).await.unwrap();
    let (reader, writer) = open(stream, PacketOptions::new().greeting([0, 16])).await.unwrap();
    let flood = spawn(async move {
        let (kind, _, _, body) = packet("request 0 big 255 255 3");
        for id in 1.. {
            if writer.send(Packet::new(kind, id, &body)).await.is_err() {
                break;
            }
        }
    });
    for _ in 0..100 {
        let since = now();
        it.shop.add(1, 2).await.unwrap();
        assert!(elapsed_since(since) < 10 * MS, "{:?}", elapsed_since(since));
        pause(MS).await;
    }
    assert!(it.keeper.begun() < 500, "{}", it.keeper.begun());
    drop(reader);
    flood.cancel().await.unwrap();
    it.end().await;
}

/// A client that takes no credit gets none without end.
#[pikake::sim(seeds = 1)]
async fn credit_that_nobody_takes_is_bounded() {
    let packets = PacketOptions::new().queue_limit(1_000).stall(100 * SECOND);
    let options = packets.clone().greeting([0, 16]);
    let mut it = Served::with(100, options, |server| server.items(1).packets(packets)).await;
    it.play("> request 1 sum 0").await;
    let mut sent = 0;
    while let Ok(sending) = timeout_after(SECOND, it.peer.send("item 1 0 7")).await {
        sending.unwrap();
        sent += 1;
        assert!(sent < 10_000, "{sent} items, each for a credit");
        pause(MS).await;
    }
    assert!(sent > 100, "{sent} items");
    it.play("abort").await;
    it.end().await;
}

/// A connection that has said nothing is not waited for, and one whose answers are on their way is.
#[pikake::sim(seeds = 1)]
async fn a_server_that_ends_waits_for_answers_only() {
    let (keeper, closing) = (Keeper::default(), Closing::new());
    let (_silent, there) = MemoryStream::pair(1_000);
    let serving = spawn(server(&keeper).closing(&closing).serve_connection(there));
    let mut it = Served::new(10_000, |server| server).await;
    it.play("> request 1 add 1 2; closing").await;
    closing.begin();
    timeout_after(2 * SECOND, serving).await.expect("nobody said hello").unwrap().unwrap();
    pause(5 * SECOND).await;
    assert!(!it.serving.as_ref().unwrap().is_finished());
    it.play("rest; drop; 1000ms; done; served Ok(())").await;
    it.end().await;
}

#[test]
#[should_panic(expected = "room for at least one connection")]
fn a_server_needs_room_for_a_connection() {
    let _ = Server::new().connections(0);
}

/// A server, two calls that do not end, and the deadlines of the end. Returns how long it took, the
/// calls that were left, and why they failed.
async fn end_with(patience: Patience, grace: Duration) -> (Duration, Vec<String>, Vec<String>) {
    let (keeper, closing, since) = (Keeper::default(), Closing::new(), now());
    let listener = TcpListener::bind(ADDRESS).await.unwrap();
    let server = server(&keeper).grace(grace).patience(patience).closing(&closing);
    let server = spawn(server.serve(listener));
    let shop = attempt();
    let mut calls =
        vec![begin(&keeper, shop.stubborn()).await, begin(&keeper, shop.shielded()).await];
    closing.begin();
    pause(10 * MS).await;
    let late = shop.add(1, 2);
    calls.push(spawn(async { late.await.map(drop) }));
    let report = server.await.unwrap().unwrap();
    assert!(!report.is_clean(), "{report}");
    assert_eq!(keeper.under_way(), 0);
    let show = |what: &str, left: &UnfinishedCall| {
        let peer: std::net::SocketAddr = left.peer.parse().unwrap();
        assert!(format!("{left}").ends_with(&format!("call {} of {peer}", left.id)));
        format!("{what} {} {}", left.method, left.id)
    };
    let interrupted = report.interrupted.iter().map(|left| show("interrupted", left));
    let dropped = report.dropped.iter().map(|left| show("dropped", left));
    let (left, after) = (interrupted.chain(dropped).collect(), elapsed_since(since));
    let mut causes = Vec::new();
    for call in calls {
        causes.push(why(call.await.unwrap()));
    }
    (after, left, causes)
}

#[test]
fn the_report_names_the_calls_that_were_left() {
    let both = ["Shop.stubborn 1", "Shop.shielded 2"];
    let expected: Vec<_> = ["interrupted", "dropped"]
        .iter()
        .flat_map(|what| both.map(|call| format!("{what} {call}")))
        .collect();
    let patience = Patience { soft: 300 * MS, hard: 5 * SECOND };
    let (after, left, causes) = run(end_with(patience, GRACE));
    assert!(after >= 400 * MS && after < 500 * MS, "{after:?}");
    assert_eq!(left, expected);
    // The handlers were dropped by the grace, so the calls have answers.
    assert!(causes[..2].iter().all(|cause| cause.starts_with("Ended(")), "{causes:?}");
    let late = &causes[2];
    assert!(late.starts_with("ShuttingDown") || late.starts_with("Connection("), "{causes:?}");

    // The hard deadline drops handlers.
    let patience = Patience { soft: 300 * MS, hard: 200 * MS };
    let (after, left, causes) = run(end_with(patience, 60 * SECOND));
    assert!(after >= 500 * MS && after < 600 * MS, "{after:?}");
    assert_eq!(left, expected);
    assert!(!causes[0].starts_with("Interrupted("), "{causes:?}");
}

#[pikake::sim(seeds = 1)]
async fn too_many_calls_in_all_are_overloaded() {
    let it = Listening::new(|server| server.all_calls(2)).await;
    let other = attempt();
    let sales = [100, 200].map(|millis| spawn(it.shop.sell(millis)));
    pause(10 * MS).await;
    assert_eq!(why(other.add(1, 2).await), "Overloaded, No");
    pause(100 * MS).await;
    assert_eq!(other.add(1, 2).await.unwrap(), 3);
    for sale in sales {
        sale.await.unwrap().unwrap();
    }
    assert_eq!(it.keeper.begun(), 2);
    drop(other);
    it.end().await;
}

#[pikake::sim(seeds = 1)]
async fn a_connection_has_a_limit_of_calls() {
    let it = Listening::new(|server| server.calls(2)).await;
    let sales = [100, 100, 100].map(|millis| spawn(it.shop.sell(millis)));
    pause(50 * MS).await;
    assert_eq!(it.keeper.under_way(), 2);
    // Another connection has places of its own.
    assert_eq!(attempt().add(1, 2).await.unwrap(), 3);
    for sale in sales {
        sale.await.unwrap().unwrap();
    }
    it.end().await;
}

#[pikake::sim(seeds = 1)]
async fn further_connections_wait() {
    let it = Listening::new(|server| server.connections(1)).await;
    let first = Client::tcp(ADDRESS);
    ShopClient::new(first.clone()).add(1, 2).await.unwrap();
    assert!(timeout_after(SECOND, it.shop.add(1, 2)).await.is_err());
    first.close().await.unwrap();
    drop(first);
    assert_eq!(it.shop.add(1, 2).await.unwrap(), 3);
    it.end().await;
}

/// An interceptor keeps the handler of a call that it refuses.
#[pikake::sim(seeds = 1)]
async fn a_kept_handler_does_not_begin_after_its_call() {
    let kept = Rc::new(RefCell::new(None));
    let keeping = kept.clone();
    let it = Listening::new(|server| {
        server.intercept(async move |_: Rc<CallInfo>, next: Handler| {
            keeping.replace(Some(next));
            Answer::refused("later")
        })
    })
    .await;
    assert_eq!(why(it.shop.sell(10).await), "Refused(later), No");
    let handler = kept.take().unwrap();
    assert!(handler.await.is_error());
    assert_eq!(it.keeper.begun(), 0);
    it.end().await;
}

/// Interceptors end calls before and after the handler, and the caller learns whether the handler
/// has begun.
#[pikake::sim(seeds = 1)]
async fn failures_tell_whether_the_handler_began() {
    let it = Listening::new(|server| {
        server.intercept(async |info: Rc<CallInfo>, next: Handler| match info.metadata("act") {
            Some("refuse") => Answer::refused("before"),
            Some("panic") => resume_unwind(Box::new("expected")),
            Some("wait") => {
                let _ = pikake::sleep(1_000 * SECOND).await;
                Answer::refused("interrupted")
            }
            Some("refuse late") => {
                drop(next.await);
                Answer::refused("after")
            }
            Some("panic late") => {
                drop(next.await);
                resume_unwind(Box::new("expected"))
            }
            Some("give up") => {
                let _ = timeout_after(MS, next).await;
                Answer::refused("too slow")
            }
            _ => Answer::value(Unwritable),
        })
    })
    .await;
    let cases = [
        ("refuse", "Refused(before), No"),
        ("panic", "Panicked, No"),
        ("wait", "timed out"),
        ("refuse late", "Refused(after), Yes"),
        ("panic late", "Panicked, Yes"),
        ("give up", "Refused(too slow), Yes"),
        ("misanswer", "Panicked, No"),
    ];
    for (act, expected) in cases {
        let before = it.keeper.begun();
        let shop = ShopClient::new(Client::tcp(ADDRESS).with_metadata("act", act));
        let sold = spawn(timeout_after(SECOND, shop.sell(10))).await.unwrap();
        assert_eq!(sold.map_or("timed out".to_owned(), why), expected, "{act}");
        assert_eq!(it.keeper.begun() > before, expected.ends_with("Yes"), "{act}");
    }
    it.end().await;
}

/// A call that the server's end cancels before its first step may be tried elsewhere.
#[test]
fn calls_that_a_server_never_began_were_not_executed() {
    let unbegun = (0..20).filter(|steps| {
        run(async {
            let mut it = Served::new(10_000, |server| server).await;
            it.play("> request 1 stubborn").await;
            for _ in 0..*steps {
                yield_now().await.unwrap();
            }
            it.serving.as_ref().unwrap().request_cancel("the server ends");
            let begun = it.peer.rest().await;
            let is_unbegun = it.keeper.begun() == 0;
            let answers = begun.iter().filter(|packet| !packet.starts_with("leave"));
            let begins = answers.map(|packet| {
                packet.starts_with(match is_unbegun {
                    true => "answer failure 1 3",
                    false => "answer failure begun 1 ",
                })
            });
            assert!(begins.into_iter().all(|is_expected| is_expected), "{begun:?}");
            it.play("drop; served ...").await;
            it.end().await;
            is_unbegun
        })
    });
    assert!(unbegun.count() > 0);
}

#[pikake::sim(seeds = 1)]
async fn interceptors_run_in_order() {
    let notes = Rc::new(RefCell::new(Vec::new()));
    let around = |name: &'static str| {
        let notes = notes.clone();
        move |info: Rc<CallInfo>, next: Handler| {
            let notes = notes.clone();
            async move {
                notes.borrow_mut().push(format!("{name}: {} begins", info.method));
                let answer = next.await;
                notes.borrow_mut().push(format!("{name} ends"));
                answer
            }
        }
    };
    let check = async |info: Rc<CallInfo>, next: Handler| match info.metadata("key") {
        Some("secret") => next.await,
        _ => Answer::refused("the key is missing"),
    };
    let (outer, inner) = (around("outer"), around("inner"));
    let it =
        Listening::new(|server| server.intercept(outer).intercept(check).intercept(inner)).await;
    let refused = timeout_after(SECOND, it.shop.sell(10)).await.unwrap().unwrap_err();
    assert_eq!(refused.executed, Executed::No, "{refused}");
    assert!(refused.to_string().contains("refused: the key is missing"), "{refused}");
    assert!(matches!(refused.failure, CallFailure::Refused(_)));
    assert_eq!(it.keeper.begun(), 0);
    let shop = ShopClient::new(Client::tcp(ADDRESS).with_metadata("key", "secret"));
    shop.sell(10).await.unwrap();
    let expected = [
        "outer: Shop.sell begins",
        "outer ends",
        "outer: Shop.sell begins",
        "inner: Shop.sell begins",
        "inner ends",
        "outer ends",
    ];
    assert_eq!(*notes.borrow(), expected);
    drop(shop);
    it.end().await;
}
