//! Peers that make calls and take nothing, and futures that nobody polls.

use std::pin::pin;
use std::time::Duration;

use pikake::net::MemoryStream;
use pikake::rpc::packets::PacketOptions;
use pikake::rpc::{Client, Server};
use pikake::{spawn, timeout_after};

use crate::harness::{LONG, Peer, SECOND, Served, assert_like, is_pending, once, pause, why};
use crate::shop::ShopClient;

/// Notices have no limit of the protocol, so the server does not take all of them.
#[pikake::sim(seeds = 1)]
async fn notices_have_the_limit_of_calls() {
    let mut it = Served::new(4_096, |server| server.calls(3)).await;
    for id in 1..=100 {
        it.play(&format!("> notice {id} pause 255 255 127")).await;
    }
    pause(SECOND).await;
    assert_eq!(it.keeper.0.most.get(), 3);
    it.play("drop; served Err(Io(...").await;
    it.end().await;
}

/// A client that makes calls and takes no answers holds a bounded queue, and is let go.
#[pikake::sim(seeds = 1)]
async fn a_client_that_takes_no_answers_is_let_go() {
    // No more than the limit, however many are answered.
    const CALLS: usize = 3_000;
    let packets = PacketOptions::new().queue_limit(1_000);
    let options = PacketOptions::new().greeting([0, 4]).stall(LONG);
    let server = |server: Server| server.packets(packets).calls(CALLS);
    let mut it = Served::with(4_096, options, server).await;
    for id in 1..=CALLS {
        let call = format!("request {id} add 1 1");
        if timeout_after(60 * SECOND, it.peer.send(&call)).await.is_err() {
            break;
        }
    }
    it.play("served Err(Stalled(30s))").await;
    it.end().await;
}

/// A handler has begun to send, and nobody polls the send.
#[pikake::sim(seeds = 1)]
async fn an_unpolled_send_does_not_stop_the_server() {
    let packets = PacketOptions::new().queue_limit(1_000).stall(2 * LONG);
    let options = PacketOptions::new().greeting([0, 4]);
    let mut it = Served::with(4_096, options, |server| server.packets(packets)).await;
    it.play(
        "> request 1 send_half 0; 1000ms; > request 2 add 1 1; < item 1 0 ...; < answer 2 2;
         > cancel 1; < end incomplete 1 0; < answer 1 1; drop; served ...",
    )
    .await;
    it.end().await;
}

/// Calls wait for a place, and nobody polls some of them.
#[pikake::sim(seeds = 1)]
async fn a_lost_connection_ends_calls_behind_unpolled_ones() {
    let (here, there) = MemoryStream::pair(4_096);
    let shop = ShopClient::new(once(Client::builder().attempts(1), "peer", there).build());
    let under_way = spawn(shop.sell(1));
    let mut peer = Peer::open(here, PacketOptions::new().greeting([1, 2])).await;
    peer.play("< request 1 sell 1").await;
    let (mut second, mut third, mut fourth) =
        (pin!(shop.sell(2)), pin!(shop.sell(3)), pin!(shop.sell(4)));
    for call in [&mut second, &mut third, &mut fourth] {
        assert!(is_pending(call.as_mut()).await);
    }
    let last = spawn(shop.sell(5));
    pause(Duration::from_secs(1)).await;
    drop(peer);
    assert!(under_way.await.unwrap().is_err());
    let why = why(timeout_after(LONG, last).await.expect("the failure").unwrap());
    assert_like(why, "Connection(...), No");
}
