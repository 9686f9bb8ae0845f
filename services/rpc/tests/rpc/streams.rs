//! Channels of calls.

use std::fmt::Debug;
use std::future::Future;

use pikake::net::{MemoryStream, TcpListener};
use pikake::rpc::packets::PacketOptions;
use pikake::rpc::{Client, ClientBuilder, Codec, NotSent, ReceiveError, Receiver, Sender, channel};
use pikake::testing::Injector;
use pikake::{spawn, timeout_after};

use crate::harness::{
    ADDRESS, CREDIT, LONG, Listening, MOMENT, Row, SECOND, assert_like, assert_no_tasks, once,
    pause, run, send_all, server, why,
};
use crate::raw::{beat, hello};
use crate::shop::{Even, Keeper, Nested, Pipe, ReadEven, ShopClient, Twice};

/// A server and a client with frames of at most 10,000 bytes.
async fn listening(builder: ClientBuilder) -> Listening {
    let packets = PacketOptions::new().frame_limit(10_000);
    let builder = builder.packets(packets.clone());
    Listening::of(builder, |server| server.packets(packets)).await
}

/// Runs `test` with a client of a server. The connection and no task outlives it.
fn with_codec<F: Future<Output = ()>>(codec: Codec, test: impl FnOnce(ShopClient, Keeper) -> F) {
    run(async {
        let it = listening(Client::builder().codec(codec)).await;
        test(it.shop.clone(), it.keeper.clone()).await;
        let (sender, receiver) = channel(1);
        sender.finish();
        assert_eq!(it.shop.sum(receiver).await.unwrap(), 0);
        it.end().await;
    });
}

fn with_shop<F: Future<Output = ()>>(test: impl FnOnce(ShopClient, Keeper) -> F) {
    with_codec(Codec::Postcard, test);
}

/// Sends until the channel takes no more for a while, and returns the number.
async fn send_until_full(sender: &Sender<u64>) -> usize {
    let mut sent = 0;
    while let Ok(Ok(())) = timeout_after(SECOND, sender.send(1)).await {
        sent += 1;
    }
    sent
}

async fn send_each(sender: &Sender<u64>, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        sender.send(number).await.unwrap();
    }
}

#[track_caller]
fn assert_closed(why: &NotSent) {
    assert!(matches!(why, NotSent::Closed), "{why}");
}

/// Receives these items, and then the end in order, or its error.
async fn assert_received<T>(receiver: &Receiver<T>, items: impl IntoIterator<Item = T>, end: &str)
where
    T: PartialEq + Debug,
{
    for item in items {
        assert_eq!(receiver.recv().await.unwrap(), Some(item));
    }
    let next = receiver.recv().await;
    assert_like(format!("{next:?}"), end);
}

#[test]
fn uploads_have_exactly_the_credit() {
    for (taken, more) in [(0, 100), (8, 0)] {
        with_shop(async |shop, keeper| {
            let (sender, receiver) = channel(100);
            let call = spawn(shop.hold(taken, receiver));
            pause(MOMENT).await;
            // Half of the credit comes back at once.
            let full = CREDIT + taken;
            assert_eq!(send_until_full(&sender).await, full);
            keeper.0.may_go_on.set(true);
            send_each(&sender, [1].repeat(more)).await;
            sender.finish();
            assert_eq!(call.await.unwrap().unwrap(), (full + more) as u64);
        });
    }
}

#[test]
fn downloads_have_exactly_the_credit() {
    with_shop(async |shop, keeper| {
        let (sender, receiver) = channel(100);
        let call = spawn(shop.count(1_000, sender));
        pause(MOMENT).await;
        drop(receiver);
        assert_eq!(call.await.unwrap().unwrap(), CREDIT as u64);
        assert_eq!(keeper.ends(), ["Closed"]);
    });
}

/// Items that were sent before the end travelled cost no credit, and grant none.
#[test]
fn items_of_before_the_call_come_first() {
    with_shop(async |shop, _| {
        let (sender, receiver) = channel(100);
        send_each(&sender, 1_000..1_050).await;
        let call = spawn(shop.count(100, sender));
        pause(MOMENT).await;
        assert_received(&receiver, (1_000..1_050).chain(0..100), "Ok(None)").await;
        assert_eq!(call.await.unwrap().unwrap(), 100);

        let (sender, receiver) = channel(100);
        send_each(&sender, 0..50).await;
        let call = spawn(shop.sum(receiver));
        send_each(&sender, 50..100).await;
        sender.finish();
        assert_eq!(call.await.unwrap().unwrap(), 4_950);

        let (sender, receiver) = channel(100);
        send_each(&sender, 1_000..1_050).await;
        let call = spawn(shop.count(1_000, sender));
        pause(MOMENT).await;
        for _ in 0..50 {
            receiver.recv().await.unwrap();
        }
        pause(MOMENT).await;
        drop(receiver);
        assert_eq!(call.await.unwrap().unwrap(), CREDIT as u64);
    });
}

#[test]
fn ends_that_go_before_the_call_are_known() {
    with_shop(async |shop, keeper| {
        let (sender, receiver) = channel(1);
        drop(receiver);
        let sent = timeout_after(LONG, shop.count(1_000, sender)).await.unwrap().unwrap();
        assert!(sent <= CREDIT as u64, "{sent} items");
        assert_eq!(keeper.ends(), ["Closed"]);
        let (sender, receiver) = channel(1);
        sender.send(7).await.unwrap();
        sender.finish();
        assert_eq!(shop.sum(receiver).await.unwrap(), 7);
    });
}

#[test]
fn ends_that_go_during_the_call_are_known() {
    with_shop(async |shop, _| {
        let (sender, receiver) = channel(1);
        let call = spawn(shop.take_some(3, receiver));
        assert!(!sender.is_closed());
        let (sent, why) = send_all(&sender, 1).await;
        assert_closed(&why);
        assert!(sender.is_closed());
        assert!((3..=3 + CREDIT).contains(&sent), "{sent} items");
        assert!(!call.is_finished());
        assert_eq!(call.await.unwrap().unwrap(), 3);
    });
}

/// A call that has ended takes its channels with it, and the receiver learns that items may be
/// missing.
#[test]
fn ends_that_outlive_the_call_are_closed() {
    with_shop(async |shop, keeper| {
        let (sender, receiver) = channel(1);
        shop.keep(sender).await.unwrap();
        assert_received(&receiver, [1], "Err(Lost)").await;
        let kept = keeper.0.kept.borrow_mut().pop().unwrap();
        assert_eq!(kept.await.unwrap(), "Err(Closed)");
    });
}

#[test]
fn ends_travel_within_other_values() {
    for codec in [Codec::Postcard, Codec::Json] {
        with_codec(codec, async |shop, _| {
            let (input, receiver) = channel(1);
            let (outputs, results): (Vec<_>, Vec<_>) = (0..5).map(|_| channel(1)).unzip();
            let nested =
                Nested { name: "pipe".to_owned(), input: Some(receiver), outputs, none: None };
            let call = spawn(shop.nested(nested));
            for number in 0..50 {
                input.send(number).await.unwrap();
                for (factor, result) in (1..).zip(&results) {
                    assert_eq!(result.recv().await.unwrap(), Some(number * factor));
                }
            }
            input.finish();
            assert_eq!(call.await.unwrap().unwrap(), "pipe");
            for result in results {
                assert_eq!(result.recv().await.unwrap(), None);
            }

            let ((numbers, input), (output, doubled)) = (channel(4), channel(4));
            let call = spawn(shop.double(Pipe { output, input, even: Even(2) }));
            numbers.send(4).await.unwrap();
            numbers.finish();
            assert_received(&doubled, [8], "Ok(None)").await;
            call.await.unwrap().unwrap();
            // The error is that of the number, and not that the channels have travelled.
            let ((_numbers, input), (output, _doubled)) = (channel(4), channel(4));
            let why = why(shop.double(Pipe { output, input, even: Even(3) }).await);
            assert!(why.contains("an odd number"), "{why}");
        });
    }
}

#[test]
fn more_channels_than_the_limit_are_refused() {
    with_shop(async |shop, _| {
        let (outputs, results): (Vec<_>, Vec<_>) = (0..65).map(|_| channel::<u64>(1)).unzip();
        let nested = Nested { name: String::new(), input: None, outputs, none: None };
        let why = why(shop.nested(nested).await);
        assert!(why.contains("at most 64 channels") && why.ends_with(", No"), "{why}");
        for result in results {
            assert!(matches!(result.recv().await, Err(ReceiveError::Lost)));
        }
    });
}

#[test]
fn ends_travel_once_and_in_calls_only() {
    with_shop(async |shop, _| {
        let (sender, receiver) = channel(1);
        let twice = why(shop.twice(Twice(receiver)).await);
        assert!(twice.contains("has travelled before"), "{twice}");
        assert_closed(&sender.send(1).await.unwrap_err().why);
        let both = why(shop.both(channel(1)).await);
        assert!(both.contains("belongs to a call already"), "{both}");

        let (sender, receiver) = channel::<u64>(1);
        for text in [
            serde_json::to_string(&sender).unwrap_err().to_string(),
            serde_json::to_string(&receiver).unwrap_err().to_string(),
            serde_json::from_str::<Receiver<u64>>("0").unwrap_err().to_string(),
            serde_json::from_str::<Sender<u64>>("0").unwrap_err().to_string(),
        ] {
            assert!(text.contains("travels only as an argument of a call"), "{text}");
        }
        // Neither has left.
        sender.send(7).await.unwrap();
        sender.finish();
        assert_eq!(shop.sum(receiver).await.unwrap(), 7);

        assert!(why(shop.answers_with_an_end().await).starts_with("Answer("));
        let (ends, _received) = channel(1);
        let carried = shop.carries_ends(ends).await.unwrap();
        assert!(carried.contains("only as an argument"), "{carried}");
        let (sender, receiver) = channel(1);
        let forwarded = shop.forward(receiver).await.unwrap();
        assert!(forwarded.contains("belongs to a call already"), "{forwarded}");
        assert_closed(&sender.send(1).await.unwrap_err().why);
    });
}

#[test]
fn items_that_cannot_be_sent_are_errors() {
    with_shop(async |shop, keeper| {
        let (sender, receiver) = channel(4);
        let call = spawn(shop.evens(receiver));
        pause(MOMENT).await;
        for number in 0..100 {
            match sender.send(Even(number)).await {
                Ok(()) => assert_eq!(number % 2, 0),
                Err(error) => {
                    assert!(matches!(error.why, NotSent::Encode(_)), "{error}");
                    assert_eq!(error.into_item(), Even(number));
                    assert_eq!(number % 2, 1);
                }
            }
        }
        sender.finish();
        assert_eq!(call.await.unwrap().unwrap(), (0..100).step_by(2).collect::<Vec<_>>());
        // The sender of these has gone on, so the receiver is told.
        let (sender, receiver) = channel(4);
        for number in 0..4 {
            sender.send(Even(number)).await.unwrap();
        }
        sender.finish();
        assert_eq!(shop.evens(receiver).await.unwrap(), [0, 2]);
        assert_eq!(keeper.ends(), ["Lost"]);
    });
}

#[test]
fn items_that_cannot_be_read_end_their_channel() {
    with_shop(async |shop, keeper| {
        let (sender, receiver) = channel(4);
        let call = spawn(shop.read_evens(receiver));
        let closed = loop {
            if let Err(error) = sender.send(ReadEven(2)).await {
                break error;
            }
            match sender.send(ReadEven(3)).await {
                Ok(()) => pause(MOMENT).await,
                Err(error) => break error,
            }
        };
        assert_closed(&closed.why);
        assert!(!call.is_finished());
        let text = call.await.unwrap().unwrap();
        assert!(text.starts_with("the item cannot be read: "), "{text}");

        let (sender, receiver) = channel(4);
        let call = spawn(shop.send_odds(sender));
        assert_received(&receiver, [ReadEven(2), ReadEven(4)], "Err(Decode(...").await;
        call.await.unwrap().unwrap();
        assert!(matches!(receiver.recv().await, Err(ReceiveError::Decode(_))));
        assert_eq!(keeper.ends().last().unwrap(), "Closed");
    });
}

#[test]
fn items_have_the_limit_of_frames() {
    with_shop(async |shop, _| {
        let (sender, receiver) = channel(4);
        let call = spawn(shop.texts(receiver));
        pause(MOMENT).await;
        // The number of the channel, and the length of the text, are in the frame as well.
        for size in [1, 9_997, 9_998, 20_000, 2] {
            match sender.send("x".repeat(size)).await {
                Ok(()) => assert!(size <= 9_997),
                Err(error) => {
                    assert!(matches!(&error.why, NotSent::Encode(text) if text.contains("10000")));
                    assert!(size > 9_997 && error.into_item().len() == size);
                }
            }
        }
        sender.finish();
        assert_eq!(call.await.unwrap().unwrap(), [1, 9_997, 2]);
        let (sender, receiver) = channel(4);
        let call = spawn(shop.large(20_000, sender));
        let expected = ["before", "after"].map(str::to_owned);
        assert_received(&receiver, expected, "Ok(None)").await;
        assert!(call.await.unwrap().unwrap().contains("10000"));
    });
}

/// A caller that gives up in the middle of a stream, and keeps the receiver, harms no other call.
#[test]
fn callers_give_up_in_the_middle() {
    with_shop(async |shop, keeper| {
        for _ in 0..20 {
            let (sender, receiver) = channel(4);
            let call = spawn(shop.count(1_000, sender));
            for number in 0..20 {
                assert_eq!(receiver.recv().await.unwrap(), Some(number));
            }
            call.request_cancel("changed my mind");
            let error = call.await.unwrap().unwrap_err();
            assert!(error.interrupted().is_some(), "{error}");
            let lost = loop {
                match receiver.recv().await {
                    Ok(item) => assert!(item.is_some(), "an end in order"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(lost, ReceiveError::Lost), "{lost}");
        }
        for _ in 0..20 {
            let (sender, receiver) = channel(4);
            let call = spawn(shop.sum(receiver));
            send_each(&sender, [1; 20]).await;
            call.abort();
            assert_closed(&send_all(&sender, 1).await.1);
        }
        pause(MOMENT).await;
        let ended = keeper.ends();
        assert!(!ended.is_empty() && ended.iter().all(|what| what != "None"), "{ended:?}");
    });
}

/// A receiver takes no half of the items for the whole, whatever ends the sender before `finish`.
#[test]
fn senders_that_do_not_finish_lose_the_rest() {
    with_shop(async |shop, keeper| {
        for is_cancelled in [true, false] {
            let (sender, receiver) = channel(4);
            let sending = spawn(async move {
                for number in 0.. {
                    sender.send(number).await?;
                    if number == 50 {
                        pikake::sleep(LONG).await?;
                    }
                }
                sender.finish();
                Ok::<_, std::io::Error>(())
            });
            let call = spawn(shop.sum(receiver));
            pause(MOMENT).await;
            match is_cancelled {
                true => assert!(sending.cancel().await.is_ok()),
                false => sending.abort(),
            }
            assert_eq!(call.await.unwrap().unwrap(), 50 * 51 / 2);
            assert_eq!(keeper.ends(), ["Lost"]);
        }
        // A handler that returns has not finished, and one that panics has not either.
        let (sender, receiver) = channel(4);
        shop.send_one(sender).await.unwrap();
        assert_received(&receiver, [1], "Err(Lost)").await;
        let (sender, receiver) = channel(4);
        let panicked = timeout_after(LONG, shop.send_and_panic(sender)).await.unwrap();
        assert_eq!(why(panicked), "Panicked, Yes");
        assert_received(&receiver, [1], "Err(Lost)").await;
    });
}

/// A sender that waits for room on the connection learns that the call is over, or that the server
/// takes nothing.
#[test]
fn the_end_of_a_call_ends_waits_for_room() {
    for is_cancelled in [true, false] {
        let _row = Row(if is_cancelled { "the call is cancelled" } else { "the server stalls" });
        run(async {
            let (here, there) = MemoryStream::pair(100);
            let packets = PacketOptions::new().queue_limit(1_000);
            let builder = Client::builder().attempts(1).packets(packets);
            let shop = ShopClient::new(once(builder, "memory", here).build());
            let server = spawn(async move {
                let hello = hello(1 << 20, 30_000, &[3, 100]);
                pikake::net::Write::write_all(&there, &hello).await.unwrap();
                beat(&there).await;
            });
            let (sender, receiver) = channel(4);
            let call = spawn(shop.texts(receiver));
            let sending = spawn(async move { send_all(&sender, "x".repeat(300)).await.1 });
            pause(MOMENT).await;
            if is_cancelled {
                call.cancel().await.unwrap();
                let closed = timeout_after(MOMENT, sending).await.expect("it is told");
                assert_closed(&closed.unwrap());
                server.cancel().await.unwrap();
            } else {
                assert_closed(&sending.await.unwrap());
                assert_eq!(why(call.await.unwrap()), "Connection(Stalled(30s)), Maybe");
                server.await.unwrap();
            }
            drop(shop);
            pause(LONG).await;
            assert_no_tasks();
        });
    }
}

/// A connection that is lost closes all channels on both sides.
#[pikake::sim(seeds = 1)]
async fn a_lost_connection_loses_its_channels() {
    for is_server_lost in [true, false] {
        let (here, there) = MemoryStream::pair(200);
        let serving = spawn(server(&Keeper::default()).serve_connection(there));
        let builder = once(Client::builder().attempts(1), "memory", here);
        let shop = ShopClient::new(builder.build());
        let (input, receiver) = channel(4);
        let (sender, output) = channel(4);
        let (numbers, counted) = channel(4);
        let (echo, count) = (shop.echo(receiver, sender), shop.count(1_000, numbers));
        let calls = [spawn(echo), spawn(async { count.await.map(drop) })];
        drop(shop);
        input.send(1).await.unwrap();
        assert_eq!(output.recv().await.unwrap(), Some(1));
        assert_eq!(counted.recv().await.unwrap(), Some(0));
        if is_server_lost {
            serving.abort();
            for call in calls {
                let why = why(call.await.unwrap());
                assert!(why.starts_with("Connection(") || why.starts_with("Ended("), "{why}");
                assert!(!why.ends_with(", No"), "{why}");
            }
        } else {
            calls.into_iter().for_each(|call| call.abort());
            pause(MOMENT).await;
            let _ = serving.await.unwrap();
        }
        assert!(!matches!(output.recv().await, Ok(Some(_))));
        // The call says whether the end is in order.
        while let Ok(Some(_)) = counted.recv().await {}
        assert_closed(&send_all(&input, 1).await.1);
        pause(LONG).await;
        assert_no_tasks();
    }
}

/// Wherever `send` and `next` are interrupted, each item arrives once.
#[test]
fn interruptions_lose_no_item() {
    let report = Injector::new().cleanup_limit(None).run(
        || async {
            let (here, there) = MemoryStream::pair(100);
            let serving = spawn(server(&Keeper::default()).items(2).serve_connection(there));
            let shop = ShopClient::new(once(Client::builder(), "memory", here).build());
            let (input, receiver) = channel(1);
            let (sender, output) = channel(1);
            let call = spawn(shop.echo(receiver, sender));
            drop(shop);
            let (mut received, mut told) = (Vec::new(), 0);
            let next = async |told: &mut usize| loop {
                match output.recv().await {
                    Ok(item) => break item,
                    Err(ReceiveError::Interrupted(_)) => *told += 1,
                    Err(error) => panic!("{error}"),
                }
            };
            for number in 0..8 {
                while let Err(error) = input.send(number).await {
                    assert!(error.interrupted().is_some() && error.into_item() == number);
                    told += 1;
                }
                if number % 2 == 1 {
                    received.push(next(&mut told).await.unwrap());
                }
            }
            input.finish();
            while let Some(item) = next(&mut told).await {
                received.push(item);
            }
            pikake::shield(call).await.unwrap().unwrap();
            let _ = pikake::shield(serving).await.unwrap();
            (received, told)
        },
        |run| {
            let (received, told) = run.output.as_ref().expect("it waits on traps");
            assert_eq!(*received, [0, 1, 2, 3, 4, 5, 6, 7]);
            assert!(*told <= 1);
        },
    );
    assert!(report.suspensions > 5 && report.cancels > 10, "{report:?}");
}

/// A later version of the service, with another channel.
mod later {
    use pikake::rpc::Receiver;

    #[pikake::service]
    pub(super) trait Shop {
        async fn sum(&self, numbers: Receiver<u64>, others: Option<Receiver<u64>>) -> u64;
    }

    /// Nobody offers the later version here.
    impl Shop for () {
        async fn sum(&self, _: Receiver<u64>, _: Option<Receiver<u64>>) -> u64 {
            unreachable!()
        }
    }

    const _: fn() -> ShopServer<()> = || ShopServer::new(());
}

/// A server that is older ignores a channel that it does not know, and no other call is harmed.
#[test]
fn channels_that_the_server_does_not_know_are_ignored() {
    for codec in [Codec::Postcard, Codec::Json] {
        run(async move {
            let listener = TcpListener::bind(ADDRESS).await.unwrap();
            let serving = spawn(server(&Keeper::default()).serve(listener));
            let client = Client::builder().codec(codec).tcp(ADDRESS).build();
            let shop = later::ShopClient::new(client);
            let (sender, receiver) = channel(4);
            let (other, others) = channel(4);
            let call = spawn(shop.sum(receiver, Some(others)));
            sender.send(1).await.unwrap();
            assert_eq!(send_until_full(&other).await, CREDIT);
            sender.send(2).await.unwrap();
            sender.finish();
            assert_eq!(call.await.unwrap().unwrap(), 3);
            assert_closed(&other.send(1).await.unwrap_err().why);
            serving.cancel().await.unwrap();
        });
    }
}

#[pikake::sim(seeds = 1)]
async fn channels_work_without_a_call() {
    let (sender, receiver) = channel(2);
    let sending = spawn(async move {
        send_each(&sender, 0..100).await;
        sender.finish();
    });
    assert_received(&receiver, 0..100, "Ok(None)").await;
    sending.await.unwrap();
    let (sender, receiver) = channel(2);
    sender.send(1).await.unwrap();
    drop(receiver);
    assert_closed(&sender.send(2).await.unwrap_err().why);
}

#[pikake::sim(seeds = 1)]
async fn too_much_metadata_is_refused() {
    let it = listening(Client::builder()).await;
    let mut client = Client::tcp(ADDRESS);
    for number in 0..=65 {
        let (sender, receiver) = channel(1);
        sender.finish();
        let summed = ShopClient::new(client.clone()).sum(receiver).await;
        match number {
            65 => assert!(why(summed).starts_with("Encode(")),
            _ => assert_eq!(summed.unwrap(), 0),
        }
        client = client.with_metadata(format!("name {number}"), "value");
    }
    drop(client);
    it.end().await;
}
