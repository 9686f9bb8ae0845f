//! A pool of connections, and queries with a time limit.
//!
//! The bug: a query that times out leaves by `?` and does not return its connection to the pool.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, serve};
use pikake::sim::{Cause, Sim};
use pikake::sync::Queue;
use pikake::{random, sleep, timeout_after};

const CONNECTIONS: usize = 2;
const QUERIES: usize = 20;
const LIMIT: Duration = Duration::from_millis(100);
/// A query seldom takes longer than the limit, and never without the network.
const SLOWEST_MILLIS: u64 = 87;

#[derive(Clone)]
struct Pool(Rc<Queue<TcpStream>>);

impl Pool {
    async fn open() -> io::Result<Self> {
        let pool = Self(Rc::new(Queue::unbounded()));
        for _ in 0..CONNECTIONS {
            pool.add().await?;
        }
        Ok(pool)
    }

    async fn add(&self) -> io::Result<()> {
        self.put(TcpStream::connect("database:80").await?)
    }

    fn put(&self, stream: TcpStream) -> io::Result<()> {
        self.0.try_put(stream).map_err(|_| io::Error::other("the pool is closed"))
    }

    /// A query. A connection on which it was given up is replaced: the answer may yet come.
    async fn query(&self, bug: bool) -> io::Result<()> {
        let stream = self.0.get().await?.expect("it is not closed");
        let asked = timeout_after(LIMIT, async {
            stream.write_all(b"?").await?;
            stream.read_exact(&mut [0]).await?;
            io::Result::Ok(())
        });
        if bug {
            asked.await??;
        } else if !matches!(asked.await, Ok(Ok(()))) {
            drop(stream);
            return self.add().await;
        }
        self.put(stream)
    }
}

async fn database() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    let attend = async |stream: TcpStream, _| {
        while stream.read_exact(&mut [0]).await.is_ok() {
            let takes = random::range(0..SLOWEST_MILLIS) + random::range(0..SLOWEST_MILLIS) / 8;
            if sleep(Duration::from_millis(takes)).await.is_err()
                || stream.write_all(b"!").await.is_err()
            {
                break;
            }
        }
    };
    serve(listener, 100, attend).await.map(drop)
}

fn world(sim: &mut Sim, bug: bool) {
    sim.host("database", database);
    sim.client("client", move || async move {
        let pool = Pool::open().await?;
        for _ in 0..QUERIES {
            // A query may fail; the next one is to have a connection again.
            let _ = pool.query(bug).await;
        }
        assert_eq!(pool.0.len(), CONNECTIONS, "every connection is back");
        io::Result::Ok(())
    });
}

#[test]
fn leaky_timeout_is_found_within_100_seeds() {
    let failure = super::found_within(100, world);
    let Cause::Panicked { text, .. } = &failure.cause else { panic!("{failure}") };
    assert!(text.contains("every connection is back"));
}

#[test]
fn sound_program_fails_no_seed() {
    super::sound(world);
}
