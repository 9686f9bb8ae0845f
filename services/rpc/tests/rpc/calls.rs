//! Calls and their ends.

use pikake::net::{TcpListener, TcpStream, UnixListener};
use pikake::rpc::{Client, Executed, Transport, channel};
use pikake::{Interrupted, spawn};

use crate::harness::{ADDRESS, Listening, MOMENT, pause, server};
use crate::shop::{Keeper, ShopClient};

#[pikake::sim(seeds = 1)]
async fn calls_are_answered_in_any_order() {
    let it = Listening::new(|server| server).await;
    let slow = spawn(it.shop.sell(100));
    assert_eq!(it.shop.add(2, 3).await.unwrap(), 5);
    assert!(!slow.is_finished());
    assert_eq!(slow.await.unwrap().unwrap(), 100);
    it.end().await;
}

#[pikake::sim(seeds = 1)]
async fn callers_that_give_up_interrupt_the_handler() {
    let it = Listening::new(|server| server).await;
    let call = spawn(it.shop.sell(60_000));
    pause(MOMENT).await;
    assert_eq!(it.keeper.under_way(), 1);
    call.request_cancel("changed my mind");
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.interrupted().and_then(Interrupted::reason), Some("changed my mind"));
    assert_eq!(error.executed, Executed::Maybe);
    pause(MOMENT).await;
    assert_eq!(it.keeper.under_way(), 0);
    assert_eq!(it.keeper.ends(), ["cancelled: the caller has given up"]);
    it.end().await;
}

#[pikake::sim(seeds = 1)]
async fn items_travel_in_both_directions() {
    let it = Listening::new(|server| server).await;
    let (sender, receiver) = channel(4);
    let sum = spawn(it.shop.sum(receiver));
    for number in 1..=1_000 {
        sender.send(number).await.unwrap();
    }
    sender.finish();
    assert_eq!(sum.await.unwrap().unwrap(), 500_500);
    let (sender, receiver) = channel(4);
    let count = spawn(it.shop.count(1_000, sender));
    for number in 0..1_000 {
        assert_eq!(receiver.recv().await.unwrap(), Some(number));
    }
    assert_eq!(receiver.recv().await.unwrap(), None);
    assert_eq!(count.await.unwrap().unwrap(), 1_000);
    it.end().await;
}

#[pikake::sim(seeds = 1)]
async fn metadata_and_notices_arrive() {
    let it = Listening::new(|server| server).await;
    it.shop.note("hello".to_owned()).await.unwrap();
    let tenant = ShopClient::new(Client::tcp(ADDRESS).with_metadata("tenant", "7"));
    let (method, first, _) = tenant.who().await.unwrap();
    assert_eq!((&*method, first.as_deref()), ("Shop.who", Some("7")));
    assert_eq!(*it.keeper.0.notes.borrow(), ["hello"]);
    drop(tenant);
    it.end().await;
}

#[pikake::sim(seeds = 1)]
async fn calls_travel_over_unix_sockets() {
    let listener = UnixListener::bind("/run/shop.sock").unwrap();
    let server = spawn(server(&Keeper::default()).serve(listener));
    let shop = ShopClient::new(Client::builder().unix("/run/shop.sock").build());
    assert_eq!(shop.add(2, 3).await.unwrap(), 5);
    server.cancel().await.unwrap();
}

#[pikake::sim(seeds = 1)]
async fn tcp_streams_send_small_packets_at_once() {
    let listener = TcpListener::bind(ADDRESS).await.unwrap();
    let stream = TcpStream::connect(ADDRESS).await.unwrap();
    assert!(!stream.nodelay().unwrap());
    stream.send_at_once().unwrap();
    assert!(stream.nodelay().unwrap());
    drop(listener);
}
