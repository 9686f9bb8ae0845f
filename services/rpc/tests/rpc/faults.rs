//! Faults of one side at some moment of a call, and what the other side makes of them.
//!
//! A row of a table is a name and a script, as the harness describes them.

use std::time::Duration;

use pikake::rpc::packets::PacketOptions;
use pikake::rpc::{Client, ClientBuilder, Server};

use crate::harness::{Called, FRAME_LIMIT, Row, SECOND, Served, call_rows, run, serve_rows};

const MOST: &str = "18446744073709551615";
/// The bytes of the largest number.
const MOST_BYTES: &str = "255 255 255 255 255 255 255 255 255 1";

fn same(server: Server) -> Server {
    server
}

fn stalling(queue: usize) -> PacketOptions {
    PacketOptions::new().queue_limit(queue).stall(10 * SECOND)
}

/// Handlers that ignore interruptions, and one that cannot.
const THREE: &str = "> request 1 stubborn; > request 2 shielded; > request 3 endless; 1ms; has 3;";

#[test]
fn handlers_end_as_their_client_and_server_do() {
    let repeated = "10ms; has 1; > cancel 1; ".repeat(10);
    let bigs: String = (2..12).map(|id| format!("> request {id} big 132 7; 1ms;")).collect();
    serve_rows(&[
        (
            "the deadline, without a cancel of the caller",
            same,
            "> request deadline 1 stubborn 208 134 3; > request deadline 2 shielded 208 134 3;
             > request deadline 3 endless 208 134 3; 149ms; has 2; 2ms; has 0;
             < answer failure begun 1 6 the caller's time is over
             | answer failure begun 2 6 the caller's time is over
             | answer failure begun 3 6 the caller's time is over; silence; begun 3",
        ),
        (
            "a deadline that is over before the call arrives",
            same,
            "> request deadline 1 stubborn 0; < answer failure 1 6 the caller's time is over;
             begun 0",
        ),
        (
            "further cancels do not begin the grace anew",
            same,
            &format!("> request 1 stubborn; {repeated} 10ms; has 0; < answer failure begun 1 6..."),
        ),
        (
            "the connection is lost",
            same,
            &format!(
                "bare; {THREE} > request 4 stubborn; > notice 5 pause 255 255 127;
                 > notice 6 collect 0; 1ms; > cancel 4; 1ms; begun 6; has 5; noted Err(Lost);
                 cut; 101ms; has 0; done; served Err(Disconnected)"
            ),
        ),
        (
            "the connection is lost, and there is no grace",
            |server| server.grace(Duration::ZERO),
            "bare; > request 1 sell 255 127; 1ms; has 1; cut; served Err(Disconnected);
             noted cancelled: the connection of the caller is lost",
        ),
        ("the server is dropped", same, &format!("{THREE} abort; has 0")),
        ("the channel of a notice", same, "> notice 1 collect 0; 1ms; noted Err(Lost)"),
        (
            "the client half-closes",
            same,
            "> request 1 sell 100; finish; < answer 1 100; end; served Ok(())",
        ),
        (
            "the client half-closes, and then goes away, which a write finds",
            same,
            "> request 1 stubborn; finish; drop; served Err(Io(...; has 0",
        ),
        (
            "the server ends, and takes no call that it has not named in `LEAVE`",
            same,
            "> request 1 sell 100; 10ms; closing; < leave 1; > request 2 sell 1; < answer 1 100;
             silence; begun 1; served Ok(())",
        ),
        (
            "the server ends while the connection is idle, after a packet of no call",
            same,
            "bare; > request 1 add 1 2 + 31 0; 10ms; closing; 1ms; cut; 1000ms; done;
             served Ok(())",
        ),
        (
            "the client does not wait for a place",
            |server| server.calls(1),
            "> request 1 stubborn; 1ms; > request 2 stubborn;
             served Err(Malformed(more calls than the server's limit)); begun 1; has 0",
        ),
        (
            "notices over the limit are not taken, and hold up nothing behind them",
            |server| server.calls(2),
            "> request 1 sell 232 7; > notice 2 pause 100; > notice 3 pause 100;
             > notice 4 pause 100; > notice 5 pause 100; > notice 6 pause 100;
             > request 7 add 1 2; < answer 7 3; begun 3; > cancel 1; < answer 1 232 7; 100ms;
             > notice 8 pause 100; 1ms; begun 4; drop; served Ok(()); begun 4; has 0",
        ),
        (
            "a cancel while answers wait to be written",
            |server| server.packets(stalling(2_000)),
            "stream 100; > request 1 stubborn; > request 2 big 132 7; > request 3 big 132 7;
             > request 4 big 132 7; 1ms; begun 4; has 1; > cancel 1; 101ms; has 0; abort",
        ),
        (
            "the deadline, while the request waits for room",
            |server| server.packets(stalling(2_000)),
            "stream 100; > request 1 big 132 7; > request 2 big 132 7; > request 3 big 132 7; 1ms;
             > request deadline 4 stubborn 208 134 3; 60ms; begun 3;
             < answer 1... | answer 2... | answer 3...; < answer failure 4 6 the caller's time is over; begun 3; abort",
        ),
        (
            "the client takes no answers: nothing behind the request that waits is read",
            |server| server.packets(stalling(5_000)),
            &format!(
                "stream 1000; > request 1 stubborn; {bigs} has 1; begun 8; > cancel 1;
                 served Err(Stalled(10s)); has 0; begun 8"
            ),
        ),
    ]);
}

/// The caller's cancel comes before, with or after the deadline, or the connection is lost about
/// then.
#[test]
fn a_cleanup_is_interrupted_by_one_cause() {
    for quarters in 0..2 * 50 * 4 {
        let at = f64::from(quarters) / 4.0;
        let end = match quarters % 3 {
            0 => "drop; served Ok(())",
            _ if at <= 50.0 => "< answer 1",
            _ => "< answer failure begun 1 6 the caller's time is over",
        };
        let script = format!(
            "> request deadline 1 clean 208 134 3; {at}ms; > cancel 1; {end}; noted Ok(())"
        );
        serve_rows(&[(&format!("a cancel after {at} ms"), same, &script)]);
    }
}

/// Plays a script against a server with few places, whose client grants credit for four items.
fn play_with_limits(script: &str) {
    let _row = Row(script);
    run(async {
        let options = PacketOptions::new().frame_limit(FRAME_LIMIT).greeting([0, 4]);
        let mut it = Served::with(4_096, options, |server| server.calls(3).items(2)).await;
        it.play(script).await;
        it.end().await;
    });
}

#[test]
fn packets_that_no_client_sends_end_the_connection() {
    let check = |packets: &str, expected: &str| {
        play_with_limits(&format!("{packets}; rest; served Err(Malformed({expected}))"));
    };
    let used = "the id of a call was used before";
    check("> request 5 add 1 2; > request 5 add 1 2", used);
    check("> request 5 endless; > request 4 add 1 2", used);
    check("> request 0 add 1 2", used);
    check(&format!("> notice {MOST} pause 1; > notice {MOST} pause 1"), used);
    for kind in ["answer", "cancel", "item", "end", "credit", "stop", "leave", "9", "29"] {
        check(&format!("> {kind} 7 0 0"), "a packet for a call that was never made");
    }
    for cut in ["", "1", "1 2", "1 2 3"] {
        check(&format!("> request 1 {cut}"), "a request ends before its arguments");
    }
    for flags in ["deadline", "metadata", "deadline metadata"] {
        check(&format!("> request {flags} 1 add"), "a frame ends within a number");
    }
    check("> request metadata 1 add 65", "a request has too much metadata");
    let four = "> request 1 endless; > request 2 endless; > request 3 endless; > request 4 endless";
    check(four, "more calls than the server's limit");
    for kind in ["answer", "leave", "9", "29"] {
        check(&format!("> request 1 sum 0; > {kind} 1 0"), "a packet of an unknown kind");
    }

    let upload =
        |packets: &str, expected| check(&format!("> request 1 sum 0; {packets}"), expected);
    let download =
        |packets: &str, expected| check(&format!("> request 1 count 99 0; {packets}"), expected);
    upload("> item 1", "a frame ends within a number");
    upload("> item 1 64 1", "a packet for a channel that cannot be");
    upload(&format!("> end 1 {MOST_BYTES}"), "a packet for a channel that cannot be");
    upload("> credit 1 0 1", "credit against the channel's direction");
    upload("> stop 1 0", "a stop against the channel's direction");
    download("> item 1 0 1", "an item against the channel's direction");
    download("> end 1 0", "an end against the channel's direction");
    download("> credit 1 0", "a frame ends within a number");
    // The handler may have used up its credit before.
    let most = format!("> credit 1 0 {MOST_BYTES}");
    download(&format!("{most}; {most}"), "more credit than a number holds");
    // The handler does not run in between.
    upload("> item 1 0 1; > item 1 0 1; > item 1 0 1", "an item without credit");
    upload("> end 1 0; > item 1 0 1", "an item after the last one");
    upload("> end 1 0; > end 1 0", "a second end of a channel");
}

#[test]
fn greetings_that_no_client_sends_end_the_connection() {
    for greeting in [&[][..], &[2, 1], &[0], &[0, 0x80], &[0, 0x80, 0]] {
        run(async {
            let options = PacketOptions::new().greeting(greeting);
            let mut served = Served::with(4_096, options, same).await;
            served.play("served Err(Malformed(...").await;
            served.end().await;
        });
    }
}

/// What a client may do, though it makes no sense, harms nothing: packets after the answer, unknown
/// methods, arguments that are none, channels that the method has not, zero credit, and an end of a
/// channel twice.
#[test]
fn late_and_useless_packets_are_ignored() {
    let useless = "> item 5 7 1; ".repeat(10);
    play_with_limits(&format!(
        "> request 1 add 6 1; < answer 1 7; > cancel 1 0 1; > item 1 0 1; > end 1 0 1;
         > credit 1 0 1; > stop 1 0 1;
         > request 2 1 2 3 4; > request 3 add; > request 4 sum 64;
         < answer failure 2 0; < answer failure 3 1 ...; < answer failure 4 1 ...;
         > request 5 sum 0; {useless} > item 5 0 9; < credit 5 0 1; > end 5 0; < answer 5 9;
         > request 6 count 232 7 0; > credit 6 0 0; < item 6 0 0; < item 6 0 1; < item 6 0 2;
         < item 6 0 3; > stop 6 0; > stop 6 0; > credit 6 0 5; < answer 6 4; has 0"
    ));
}

/// A handler does not wait for items or credit of a client that has said that it sends nothing
/// more.
#[test]
fn a_finished_client_sends_no_items() {
    play_with_limits(
        "> request 1 sum 0; > request 2 count 232 7 0; > item 1 0 5; 1ms; finish;
         < credit 1 0 1 | item 2 0 0 | item 2 0 1 | item 2 0 2 | item 2 0 3;
         < answer 1 5 | answer 2 4; end; served Ok(())",
    );
}

#[test]
fn callers_learn_what_their_server_did() {
    call_rows(Client::builder, &[
        (
            "refusals after a `LEAVE`: a call that was not taken goes to the next connection",
            "call; call; accept 10 16; < request 1 sell 1; < request 2 sell 1; > leave 1;
             > answer failure 2 3; > answer 1 7; accept 10 16; < request 1 sell 1; > answer 1 9;
             got 7; got 9",
        ),
        (
            "items for a caller that has given up and keeps its receiver",
            "count; accept 10 16; < request 1 count 9 0; cancel; < cancel 1; > item 1 0 5; call;
             < request 2 sell 1; > answer 1; > answer 2 3; got Interrupted(...), Maybe; got 3;
             item Err(Lost)",
        ),
        (
            "a call that is given up keeps its place until the answer",
            "call 5; accept 1 16; < request deadline 1 sell...; < cancel 1; got timed out;
             call 5; got timed out; > answer failure 1 6; call; < request 2 sell 1; > answer 2 8;
             got 8",
        ),
    ]);
    let giant = format!("accept {MOST_BYTES} {MOST_BYTES} 108 97 116 101 114");
    let called = "call; accept 3 2; < request 1 sell 1";
    call_rows(
        one_attempt,
        &[
            (
                "a server that takes no calls",
                "call; accept 0 16; got Connection(Malformed(a server that takes no calls)), No",
            ),
            ("a second answer", "call; accept 3 2; > answer 1 5; > answer 1 5; rest; got 5"),
            (
                "giant limits, and bytes of a later version",
                &format!("call; {giant}; < request 1 sell 1; > answer 1 5; got 5"),
            ),
            (
                "a server that leaves again and again",
                &format!(
                    "{called}; > leave {MOST}; > leave 5; > leave 1; > leave 1; > answer 1 5; got 5"
                ),
            ),
            (
                "a server that leaves before the call",
                &format!("{called}; > leave 0; rest; got ShuttingDown, No"),
            ),
            (
                "silence but for heartbeats, until the end of the stream",
                &format!("{called}; 200000ms; drop; got Connection(Disconnected), Maybe"),
            ),
        ],
    );
}

fn one_attempt() -> ClientBuilder {
    Client::builder().attempts(1)
}

#[test]
fn packets_that_no_server_sends_fail_the_call() {
    let check = |greeting: &str, packet: &str, expected: &str| {
        let script = format!("call; accept {greeting}; {packet}; got {expected}");
        call_rows(one_attempt, &[(&script, &script)]);
    };
    let malformed = |packet: &str, what: &str| {
        let expected = format!("Connection(Malformed({what})), Maybe");
        check("3 2; < request 1 sell 1", &format!("> {packet}; rest"), &expected);
    };
    for id in ["0", "2", MOST] {
        malformed(&format!("answer {id} 1"), "a packet for a call that is not under way");
        malformed(&format!("item {id} 0 1"), "a packet for a call that is not under way");
    }
    for kind in ["request", "cancel", "notice", "9", "29"] {
        malformed(&format!("{kind} 1 0 0"), "a packet of an unknown kind");
    }
    malformed("item 1 64", "a packet for a channel that cannot be");
    malformed("end 1", "a frame ends within a number");

    for answer in ["1", "1 128", "1 1 1", "error 1 1", "begun 1 128"] {
        check("3 2", &format!("> answer {answer}"), "Answer(...), Yes");
    }
    for body in ["", "200", "6 255 254"] {
        check("3 2", &format!("> answer failure 1 {body}"), "Ended(...), No");
        check("3 2", &format!("> answer failure begun 1 {body}"), "Ended(...), Yes");
    }
    for greeting in ["", "128", "3", "3 128", "0 2"] {
        check(greeting, "rest", "Connection(Malformed(...)), No");
    }
}

/// A caller is dropped so many steps after its answer was sent. Before the answer has arrived, a
/// cancel follows it.
#[test]
fn an_answer_that_races_with_the_cancel_is_dropped() {
    let ends = (0..20).map(|steps| {
        run(async move {
            let mut called = Called::new(Client::builder());
            let raced = pikake::spawn(called.shop.sell(1));
            called.play("accept 1 16; < request 1 sell 1; > answer 1 7").await;
            for _ in 0..steps {
                pikake::yield_now().await.unwrap();
            }
            raced.abort();
            let is_answered = raced.await.is_ok();
            // The only place is free again, if the answer came or not.
            called.play("call").await;
            let next = called.peers[0].next().await.unwrap();
            let is_cancelled = next == "cancel 1";
            match is_cancelled {
                true => called.play("< request 2 sell 1").await,
                false => assert_eq!(next, "request 2 sell 1"),
            }
            called.play("> answer 2 8; got 8").await;
            (is_cancelled, is_answered)
        })
    });
    let ends: Vec<_> = ends.collect();
    assert_eq!((ends[0], ends[19]), ((true, false), (false, true)));
    assert!(!ends.contains(&(true, true)), "an answered call was cancelled: {ends:?}");
    assert!(ends.is_sorted_by_key(|(is_cancelled, _)| !is_cancelled), "{ends:?}");
}
