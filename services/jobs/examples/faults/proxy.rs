//! Bad weather between clients and broker: connections that end at any octet, with and without a
//! farewell, that stall, and that are slow.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use pikake_net::{OwnedReadHalf, OwnedWriteHalf, TcpListener, TcpStream};
use pikake_traps::{random, sleep, spawn, timeout_after};

/// Shared by the proxy and who makes the weather.
#[derive(Debug, Default)]
pub(crate) struct Weather {
    pub(crate) is_bad: Cell<bool>,
    pub(crate) cuts: Cell<usize>,
}

/// One in so many pieces ends its connection in the middle,
const CUT: u64 = 2_000;
/// stalls before it does,
const STALL: u64 = 3_000;
/// or comes late.
const LATE: u64 = 100;
const LATENESS: Range<u64> = 1..150;
const STALLED: Range<u64> = 500..3_000;

fn chance(one_in: u64) -> bool {
    random::range(0..one_in) == 0
}

async fn wait(milliseconds: Range<u64>) {
    // Interrupted, the run is over.
    drop(sleep(Duration::from_millis(random::range(milliseconds))).await);
}

/// Passes connections on to the broker's port.
pub(crate) async fn proxy(listener: TcpListener, to: u16, lives: Range<u64>, weather: Rc<Weather>) {
    while let Ok((client, _)) = listener.accept().await {
        let (weather, lives) = (weather.clone(), lives.clone());
        spawn(async move {
            // Without a broker, the client sees its connection end.
            let Ok(broker) = TcpStream::connect(("127.0.0.1", to)).await else { return };
            if weather.is_bad.get() && chance(2) {
                // Its end is a reset.
                for stream in [&client, &broker] {
                    drop(stream.set_linger(Some(Duration::ZERO)));
                }
            }
            let was_bad = weather.is_bad.get();
            let life = match was_bad {
                true => Duration::from_millis(random::range(lives)),
                false => Duration::from_secs(24 * 3_600),
            };
            let _is_over = timeout_after(life, both_ways(client, broker, &weather)).await;
            weather.cuts.set(weather.cuts.get() + usize::from(was_bad));
        })
        .detach();
    }
}

/// Until one of the sides ends.
async fn both_ways(client: TcpStream, broker: TcpStream, weather: &Rc<Weather>) {
    let (from_client, to_client) = client.into_split();
    let (from_broker, to_broker) = broker.into_split();
    let up = spawn(one_way(from_client, to_broker, weather.clone())).cancel_on_drop();
    one_way(from_broker, to_client, weather.clone()).await;
    drop(up);
}

async fn one_way(
    from: OwnedReadHalf<TcpStream>,
    to: OwnedWriteHalf<TcpStream>,
    weather: Rc<Weather>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let mut piece = &buffer[..length];
        let is_bad = weather.is_bad.get();
        let (is_cut, stalls) = (is_bad && chance(CUT), is_bad && chance(STALL));
        if is_cut || stalls {
            piece = &piece[..random::range(0..length as u64) as usize];
        }
        if is_bad && chance(LATE) {
            wait(LATENESS).await;
        }
        if to.write_all(piece).await.is_err() {
            return;
        }
        if stalls {
            wait(STALLED).await;
        }
        if is_cut || stalls {
            return;
        }
    }
}
