//! What goes wrong with a real RabbitMQ: it is killed and comes back, connections are cut, it is
//! out of memory. A broker of its own, since the others would not like that.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::support::{HANG, Shared, connect, run};
use pikake_amqp::{
    Connection, ConsumeOptions, Error, ExchangeOptions, Message, Options, PublishError,
    QueueOptions, Stale, State, Table, persistent, short,
};
use pikake_net::{TcpListener, TcpStream};
use pikake_traps::{CancelOnDrop, blocking, sleep, spawn, timeout_after};
use xtask::Server;

static BROKER: Shared = Shared::new();

/// RabbitMQ 3.10 saves who leads a quorum queue every five seconds. Killed before it has, it never
/// finds a leader again.
const QUORUM_SAVES: Duration = Duration::from_secs(12);

/// For how long a broker takes no messages before that is told, while another command goes to it.
const BLOCKED: Duration = Duration::from_secs(10);

fn message(queue: &str, number: u32) -> Message {
    Message {
        exchange: short("").unwrap(),
        routing_key: short(queue).unwrap(),
        properties: persistent().with_message_id(number.to_string().as_str().into()),
        body: number.to_be_bytes().to_vec(),
        mandatory: true,
    }
}

/// A command to the broker, while the kernel's tasks go on.
async fn command(broker: &Server, command: &'static str) {
    let broker = broker.clone();
    blocking(move || broker.command(command)).await.unwrap();
}

async fn until(connection: &Connection, wanted: impl Fn(&State) -> bool) {
    while !wanted(&connection.state()) {
        connection.changed().await.unwrap();
    }
}

fn number(body: &[u8]) -> u32 {
    u32::from_be_bytes(body.try_into().unwrap())
}

/// Between client and broker: passes everything on until it is told to cut.
async fn proxy(listener: TcpListener, to: u16, cut: Rc<Cell<u32>>) {
    let mut made = Vec::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let broker = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
        let (mut cr, cw) = client.into_split();
        let (mut br, bw) = broker.into_split();
        let copy = async |from: &mut pikake_net::OwnedReadHalf<TcpStream>,
                          to: &pikake_net::OwnedWriteHalf<TcpStream>,
                          left: &mut dyn FnMut(usize) -> bool| {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut buffer).await {
                if !left(length) || to.write_all(&buffer[..length]).await.is_err() {
                    return;
                }
            }
        };
        let cut = cut.clone();
        let up = spawn(async move { copy(&mut cr, &bw, &mut |_| true).await });
        let down = spawn(async move {
            copy(&mut br, &cw, &mut |length| {
                let left = cut.get().checked_sub(length as u32);
                cut.set(left.unwrap_or(u32::MAX));
                left.is_some()
            })
            .await;
            up.abort();
        });
        made.push(down.cancel_on_drop());
    }
}

#[test]
fn a_broker_that_is_killed_and_comes_back_finds_everything_going_on() {
    let Some(broker) = BROKER.get() else { return };
    let address = broker.address();
    run(async {
        // What is posted meanwhile waits for as long as a broker takes to start.
        let options = Options { blocked_deadline: HANG, ..Options::default() };
        let connection = Connection::open(&address, options).await.unwrap();
        let channel = connection.channel().await.unwrap();
        let none = Table::default;
        channel.declare_queue("kept", QueueOptions::quorum()).await.unwrap();
        let private = channel.declare_queue("", QueueOptions::private()).await.unwrap().name;
        let transient = ExchangeOptions { durable: false, ..ExchangeOptions::of_kind("fanout") };
        channel.declare_exchange("gone-with-the-broker", transient).await.unwrap();
        channel.bind(&private, "gone-with-the-broker", "", none()).await.unwrap();
        let mut kept = channel.consume("kept", ConsumeOptions::default()).await.unwrap();
        let mut answers = channel.consume(&private, ConsumeOptions::default()).await.unwrap();
        for n in 0..5 {
            channel.post(message("kept", n)).await.unwrap().await.unwrap();
        }
        let held = kept.next().await.unwrap();
        kept.next().await.unwrap().ack().unwrap();
        sleep(QUORUM_SAVES).await.unwrap();

        command(&broker, "kill").await;
        until(&connection, |state| matches!(state, State::Recovering { .. })).await;
        assert_eq!(held.ack(), Err(Stale));
        // Held back until there is a broker.
        let late = spawn({
            let channel = channel.clone();
            async move { channel.post(message("kept", 5)).await?.await }
        });
        sleep(Duration::from_millis(300)).await.unwrap();
        command(&broker, "start").await;
        let back = Instant::now();
        let first = kept.next().await.unwrap();
        let took = back.elapsed();
        assert!(took < Duration::from_secs(10), "the first delivery after {took:?}");
        println!("the first delivery {took:?} after the broker answered");
        let mut seen = vec![number(&first.body)];
        first.ack().unwrap();
        late.await.unwrap().unwrap();
        while seen.len() < 5 {
            let delivery = kept.next().await.unwrap();
            delivery.ack().unwrap();
            seen.push(number(&delivery.body));
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 2, 3, 4, 5]);
        let to_all = channel.publish("gone-with-the-broker", "", persistent(), b"x".to_vec(), true);
        to_all.await.unwrap();
        assert_eq!(answers.next().await.unwrap().body, b"x");
        channel.delete_queue("kept").await.unwrap();
    });
}

#[test]
fn messages_under_way_when_connections_are_cut_are_all_there() {
    const COUNT: u32 = 3000;
    let Some(broker) = BROKER.get() else { return };
    let to = broker.port();
    run(async {
        let direct = connect(&broker.address()).await;
        let queue = direct.channel().await.unwrap();
        queue.declare_queue("cut", QueueOptions::quorum()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("amqp://{}", listener.local_addr().unwrap()).parse().unwrap();
        let cut = Rc::new(Cell::new(u32::MAX));
        let _proxy: CancelOnDrop<()> = spawn(proxy(listener, to, cut.clone())).cancel_on_drop();
        let connection = Connection::open(&address, Options::default()).await.unwrap();
        let consumed = connection.channel().await.unwrap();
        let mut consumer = consumed.consume("cut", ConsumeOptions::default()).await.unwrap();
        let channel = connection.channel().await.unwrap();
        let publishing = spawn(async move {
            let mut confirms = std::collections::VecDeque::new();
            for n in 0..COUNT {
                if n % 600 == 300 {
                    cut.set(2500); // so many octets from now on
                }
                confirms.push_back(channel.post(message("cut", n)).await.unwrap());
                while confirms.len() > 100 {
                    confirms.pop_front().unwrap().await.unwrap();
                }
            }
            for confirm in confirms {
                confirm.await.unwrap();
            }
        });
        let (mut seen, mut twice) = (std::collections::BTreeSet::new(), 0);
        while seen.len() < COUNT as usize {
            let delivery = consumer.next().await.unwrap();
            let _stale = delivery.ack();
            twice += u32::from(!seen.insert(number(&delivery.body)));
        }
        publishing.await.unwrap();
        println!("{twice} of {COUNT} came twice");
        queue.delete_queue("cut").await.unwrap();
    });
}

#[test]
fn without_republishing_what_was_under_way_is_uncertain() {
    let Some(broker) = BROKER.get() else { return };
    let to = broker.port();
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("amqp://{}", listener.local_addr().unwrap()).parse().unwrap();
        let cut = Rc::new(Cell::new(u32::MAX));
        let _proxy = spawn(proxy(listener, to, cut.clone())).cancel_on_drop();
        let options = Options { republish: false, ..Options::default() };
        let connection = Connection::open(&address, options).await.unwrap();
        let channel = connection.channel().await.unwrap();
        let queue = channel.declare_queue("", QueueOptions::private()).await.unwrap().name;
        cut.set(0);
        let error = channel.post(message(&queue, 1)).await.unwrap().await.unwrap_err();
        assert!(matches!(error, PublishError::Uncertain), "{error}");
        cut.set(u32::MAX);
        until(&connection, |state| matches!(state, State::Open)).await;
        cut.set(0);
        let error = channel.purge(&queue).await.unwrap_err();
        assert!(matches!(error, Error::ConnectionLost(_)), "{error}");
        channel.post(message(&queue, 2)).await.unwrap().await.unwrap();
    });
}

#[test]
fn without_reconnecting_a_lost_connection_is_the_end() {
    let Some(broker) = BROKER.get() else { return };
    let to = broker.port();
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("amqp://{}", listener.local_addr().unwrap()).parse().unwrap();
        let cut = Rc::new(Cell::new(u32::MAX));
        let _proxy = spawn(proxy(listener, to, cut.clone())).cancel_on_drop();
        let options = Options { reconnect: None, ..Options::default() };
        let connection = Connection::open(&address, options).await.unwrap();
        let channel = connection.channel().await.unwrap();
        let queue = channel.declare_queue("", QueueOptions::private()).await.unwrap().name;
        let mut consumer = channel.consume(&queue, ConsumeOptions::default()).await.unwrap();
        cut.set(0);
        let lost = channel.purge(&queue).await.unwrap_err();
        assert!(matches!(lost, Error::ConnectionLost(_)), "{lost}");
        assert!(matches!(consumer.next().await, Err(Error::ConnectionLost(_))));
        assert!(matches!(connection.channel().await, Err(Error::ConnectionLost(_))));
        assert!(matches!(connection.changed().await, Ok(State::Closed(_))));
    });
}

#[test]
fn a_broker_out_of_memory_holds_messages_back_and_hangs_nobody() {
    let Some(broker) = BROKER.get() else { return };
    let address = broker.address();
    run(async {
        let options = Options { blocked_deadline: BLOCKED, ..Options::default() };
        let connection = Connection::open(&address, options).await.unwrap();
        let channel = connection.channel().await.unwrap();
        let queue = channel.declare_queue("", QueueOptions::private()).await.unwrap().name;
        command(&broker, "ctl set_vm_memory_high_watermark 0.00001").await;
        // The broker says so when it sees the first message, which it does not take.
        let first = channel.post(message(&queue, 1)).await.unwrap();
        until(&connection, |state| matches!(state, State::Blocked { .. })).await;
        let State::Blocked { reason } = connection.state() else { panic!("it is blocked") };
        assert!(reason.contains("memory"), "{reason}");
        let begun = Instant::now();
        let held = channel.post(message(&queue, 2)).await.unwrap_err();
        assert!(matches!(held, PublishError::Blocked { .. }), "{held}");
        assert!(begun.elapsed() >= BLOCKED, "{:?}", begun.elapsed());
        assert_eq!(held.into_message().expect("it was not sent").body, 2_u32.to_be_bytes());
        let sent = timeout_after(HANG, first).await.unwrap().unwrap_err();
        assert!(matches!(sent, PublishError::Blocked { message: None, .. }), "{sent}");
        assert!(sent.is_uncertain());
        let waits = spawn({
            let (channel, message) = (channel.clone(), message(&queue, 3));
            async move { channel.post(message).await?.await }
        });
        command(&broker, "ctl set_vm_memory_high_watermark 0.4").await;
        waits.await.unwrap().unwrap();
        until(&connection, |state| matches!(state, State::Open)).await;
        let bodies = [channel.get(&queue, true).await, channel.get(&queue, true).await];
        let bodies = bodies.map(|got| number(&got.unwrap().expect("a message").body));
        assert_eq!(bodies, [1, 3]);
    });
}
