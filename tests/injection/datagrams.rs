//! Datagrams: each arrives once.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};

use pikake::net::{UdpSocket, UnixDatagram};
use pikake::{Task, shield, spawn};

use crate::support::insist::{a_moment, insist_on_sockets};
use crate::support::scratch::Scratch;

async fn udp_pair() -> (UdpSocket, UdpSocket) {
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let one = UdpSocket::bind(anywhere).await.unwrap();
    let other = UdpSocket::bind(anywhere).await.unwrap();
    one.connect(other.local_addr().unwrap()).await.unwrap();
    other.connect(one.local_addr().unwrap()).await.unwrap();
    (one, other)
}

/// Receiving: each datagram once.
macro_rules! receives {
    ($($test:ident: $pair:expr;)*) => {$(
        #[test]
        fn $test() {
            insist_on_sockets(vec![0, 1, 2, 3], async |insistent| {
                let (here, there) = $pair;
                spawn(async move {
                    for number in 0..4 {
                        a_moment().await;
                        there.send(&[number]).await.unwrap();
                    }
                })
                .detach();
                let mut got = Vec::new();
                for round in 0..4 {
                    let mut buffer = [0; 8];
                    let length = match round % 2 {
                        0 => insistent.on(async || here.recv(&mut buffer).await).await,
                        _ => {
                            insistent.on(async || here.peek(&mut buffer).await).await;
                            let receive = async || here.recv_from(&mut buffer).await;
                            insistent.on(receive).await.0
                        }
                    };
                    got.extend(&buffer[..length]);
                }
                got
            });
        }
    )*};
}

receives! {
    receiving_over_udp: shield(udp_pair()).await;
    receiving_over_unix: UnixDatagram::pair().unwrap();
}

#[test]
fn sending_datagrams() {
    // Unix sockets lose none, and make the sender wait.
    let scratch = Scratch::new();
    let number = Cell::new(0);
    insist_on_sockets(true, async |insistent| {
        number.set(number.get() + 1);
        let path = scratch.path(&number.get().to_string());
        let there = UnixDatagram::bind(&path).unwrap();
        let here = UnixDatagram::unbound().unwrap();
        here.connect(&path).unwrap();
        let mut receiver: Task<Vec<u16>> = spawn(async move {
            let mut got = Vec::new();
            let mut buffer = [0; 2];
            while got.last() != Some(&999) {
                there.recv(&mut buffer).await.unwrap();
                got.push(u16::from_be_bytes(buffer));
            }
            got
        });
        for number in 0..1000_u16 {
            let data = number.to_be_bytes();
            match number % 2 {
                0 => insistent.on(async || here.send(&data).await).await,
                _ => insistent.on(async || here.send_to(&data, &path).await).await,
            };
        }
        insistent.on(async || (&mut receiver).await).await == (0..1000).collect::<Vec<_>>()
    });
}

#[test]
fn sending_over_udp_has_room() {
    // Loopback always takes a datagram; it is the share of a step that makes a task wait.
    insist_on_sockets((), async |insistent| {
        let (here, there) = shield(udp_pair()).await;
        let to = there.local_addr().unwrap();
        for _ in 0..50 {
            insistent.on(async || here.send(b"x").await).await;
            insistent.on(async || here.send_to(b"x", to).await).await;
        }
    });
}
