//! What locks and channels take of memory: the size of their handles, and the heap bytes that they
//! hold. See the README.

#[path = "../../tests/support/live_bytes.rs"]
mod live_bytes;

use std::future::Future;

use futures_util::join;

use pikake_benches::on_pikake::Pikake;
use pikake_benches::runtime::{Channel, Common, Runtime};

use live_bytes::live_bytes;

/// How many of each are made.
const COUNT: usize = 1_000;

/// Messages that a channel has room for.
const ROOM: usize = 64;

/// Makes some, uses each once, and prints the bytes of one: its size, its heap when made, its heap
/// after use.
async fn print<T: 'static>(name: &str, make: impl Fn() -> T, using: impl AsyncFn(&'static mut T)) {
    // What the kernel keeps for later waits does not count.
    using(Box::leak(Box::new(make()))).await;
    let mut all = Vec::with_capacity(COUNT);
    let before = live_bytes();
    let heap = || (live_bytes() - before) as f64 / COUNT as f64;
    all.resize_with(COUNT, make);
    let made = heap();
    // Leaked, so that tasks can use them.
    for one in all.leak() {
        using(one).await;
    }
    println!("{name}\t{}\t{made:.0}\t{:.0}", size_of::<T>(), heap());
}

/// One task takes all there is, and another one waits for it.
async fn contend<G: 'static>(take: impl AsyncFn() -> G + Copy + 'static) {
    let first = take().await;
    let second = Pikake::spawn(async move { drop(take().await) });
    Pikake::yield_now().await;
    drop(first);
    Pikake::join(second).await;
}

/// A sender waits for room once, the receiver for a message.
fn channel<C: Channel>(name: &str) -> impl Future<Output = ()> {
    print(
        name,
        || C::new(ROOM),
        async |(sender, receiver): &'static mut (C::Sender, C::Receiver)| {
            let fill = async {
                Pikake::yield_now().await;
                for message in 0..=ROOM as u32 {
                    C::send(sender, message).await;
                }
            };
            let empty = async {
                for message in 0..=ROOM as u32 {
                    assert_eq!(C::receive(receiver).await, message);
                }
            };
            join!(empty, fill);
        },
    )
}

async fn print_all() {
    println!("bytes\tsize\theap\theap, used");
    {
        use pikake::sync::{Mutex, Semaphore};
        print(
            "mutex, pikake",
            || Mutex::new(()),
            async |lock: &'static mut Mutex<()>| {
                let lock = &*lock;
                contend(async move || lock.lock().await.expect("nobody interrupts")).await;
            },
        )
        .await;
        print(
            "semaphore, pikake",
            || Semaphore::new(1),
            async |semaphore: &'static mut Semaphore| {
                let semaphore = &*semaphore;
                contend(async move || semaphore.acquire().await.expect("nobody interrupts")).await;
            },
        )
        .await;
    }
    #[cfg(feature = "tokio")]
    {
        use tokio::sync::{Mutex, Semaphore};
        print(
            "mutex, tokio",
            || Mutex::new(()),
            async |lock: &'static mut Mutex<()>| {
                let lock = &*lock;
                contend(async move || lock.lock().await).await;
            },
        )
        .await;
        print(
            "semaphore, tokio",
            || Semaphore::new(1),
            async |semaphore: &'static mut Semaphore| {
                let semaphore = &*semaphore;
                contend(async move || semaphore.acquire().await.expect("nobody closes it")).await;
            },
        )
        .await;
    }
    {
        use async_lock::{Mutex, Semaphore};
        print(
            "mutex, async-lock",
            || Mutex::new(()),
            async |lock: &'static mut Mutex<()>| {
                let lock = &*lock;
                contend(async move || lock.lock().await).await;
            },
        )
        .await;
        print(
            "semaphore, async-lock",
            || Semaphore::new(1),
            async |semaphore: &'static mut Semaphore| {
                let semaphore = &*semaphore;
                contend(async move || semaphore.acquire().await).await;
            },
        )
        .await;
    }
    channel::<<Pikake as Runtime>::Channel>("channel, pikake mpsc").await;
    #[cfg(feature = "tokio")]
    channel::<<pikake_benches::on_tokio::Tokio as Runtime>::Channel>("channel, tokio mpsc").await;
    channel::<Common>("channel, async-channel").await;
}

fn main() {
    Pikake::run(print_all());
}
