//! Channels between threads: pikake's and others, each between the same threads and the same
//! kernels, so that nothing but the channel differs.
//!
//! Each is used as its documentation has it: awaited in a task, and in a thread without a kernel by
//! its blocking calls.

use std::future::Future;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::figures::Figures;

/// How many messages there is room for.
const ROOM: usize = 64;

/// A channel from many senders, of tasks and threads, to one receiver.
pub trait Between: 'static {
    type Sender: Clone + Send + 'static;
    type Receiver: Send + 'static;

    fn new(room: usize) -> (Self::Sender, Self::Receiver);
    fn send(sender: &Self::Sender, message: u64) -> impl Future<Output = ()>;
    fn blocking_send(sender: &Self::Sender, message: u64);
    /// `None`: all senders are gone.
    fn receive(receiver: &mut Self::Receiver) -> impl Future<Output = Option<u64>>;
    fn receive_blocking(receiver: &mut Self::Receiver) -> Option<u64>;
}

/// pikake's own.
struct Pikake;

impl Between for Pikake {
    type Sender = pikake::sync::shared::Sender<u64>;
    type Receiver = pikake::sync::shared::Receiver<u64>;

    fn new(room: usize) -> (Self::Sender, Self::Receiver) {
        pikake::sync::shared::channel(room)
    }

    async fn send(sender: &Self::Sender, message: u64) {
        sender.send(message).await.expect("the receiver lives");
    }

    fn blocking_send(sender: &Self::Sender, message: u64) {
        sender.blocking_send(message).expect("the receiver lives");
    }

    async fn receive(receiver: &mut Self::Receiver) -> Option<u64> {
        receiver.recv().await.expect("nobody interrupts")
    }

    fn receive_blocking(receiver: &mut Self::Receiver) -> Option<u64> {
        receiver.blocking_recv()
    }
}

struct AsyncChannel;

impl Between for AsyncChannel {
    type Sender = async_channel::Sender<u64>;
    type Receiver = async_channel::Receiver<u64>;

    fn new(room: usize) -> (Self::Sender, Self::Receiver) {
        async_channel::bounded(room)
    }

    async fn send(sender: &Self::Sender, message: u64) {
        sender.send(message).await.expect("the receiver lives");
    }

    fn blocking_send(sender: &Self::Sender, message: u64) {
        sender.send_blocking(message).expect("the receiver lives");
    }

    async fn receive(receiver: &mut Self::Receiver) -> Option<u64> {
        receiver.recv().await.ok()
    }

    fn receive_blocking(receiver: &mut Self::Receiver) -> Option<u64> {
        receiver.recv_blocking().ok()
    }
}

#[cfg(feature = "flume")]
struct Flume;

#[cfg(feature = "flume")]
impl Between for Flume {
    type Sender = flume::Sender<u64>;
    type Receiver = flume::Receiver<u64>;

    fn new(room: usize) -> (Self::Sender, Self::Receiver) {
        flume::bounded(room)
    }

    async fn send(sender: &Self::Sender, message: u64) {
        sender.send_async(message).await.expect("the receiver lives");
    }

    fn blocking_send(sender: &Self::Sender, message: u64) {
        sender.send(message).expect("the receiver lives");
    }

    async fn receive(receiver: &mut Self::Receiver) -> Option<u64> {
        receiver.recv_async().await.ok()
    }

    fn receive_blocking(receiver: &mut Self::Receiver) -> Option<u64> {
        receiver.recv().ok()
    }
}

#[cfg(feature = "tokio")]
struct TokioMpsc;

#[cfg(feature = "tokio")]
impl Between for TokioMpsc {
    type Sender = tokio::sync::mpsc::Sender<u64>;
    type Receiver = tokio::sync::mpsc::Receiver<u64>;

    fn new(room: usize) -> (Self::Sender, Self::Receiver) {
        tokio::sync::mpsc::channel(room)
    }

    async fn send(sender: &Self::Sender, message: u64) {
        sender.send(message).await.expect("the receiver lives");
    }

    fn blocking_send(sender: &Self::Sender, message: u64) {
        sender.blocking_send(message).expect("the receiver lives");
    }

    async fn receive(receiver: &mut Self::Receiver) -> Option<u64> {
        receiver.recv().await
    }

    fn receive_blocking(receiver: &mut Self::Receiver) -> Option<u64> {
        receiver.blocking_recv()
    }
}

/// The channels that this was built with, pikake's first.
pub const CHANNELS: &[&str] = &[
    "pikake",
    "async-channel",
    #[cfg(feature = "flume")]
    "flume",
    #[cfg(feature = "tokio")]
    "tokio-mpsc",
];

/// Whether a workload is one of channels between threads.
pub fn is_between(workload: &str) -> bool {
    workload.starts_with("channel_")
}

/// Runs such a workload; `size` is how many send.
pub fn run(workload: &str, channel: &str, size: usize, rounds: usize) -> Option<Figures> {
    match channel {
        "pikake" => run_with::<Pikake>(workload, size, rounds),
        "async-channel" => run_with::<AsyncChannel>(workload, size, rounds),
        #[cfg(feature = "flume")]
        "flume" => run_with::<Flume>(workload, size, rounds),
        #[cfg(feature = "tokio")]
        "tokio-mpsc" => run_with::<TokioMpsc>(workload, size, rounds),
        _ => None,
    }
}

fn run_with<B: Between>(workload: &str, size: usize, rounds: usize) -> Option<Figures> {
    let kind = workload
        .strip_prefix("channel_")?
        .trim_end_matches(|c: char| c == '_' || c.is_ascii_digit());
    let (senders_are_tasks, receiver_is_task) = match kind {
        "thread_to_task" => (false, true),
        "task_to_thread" => (true, false),
        "kernel_to_kernel" => (true, true),
        "thread_to_thread" => (false, false),
        _ => return None,
    };
    let (sender, mut receiver) = B::new(ROOM);
    let begun = Instant::now();
    let sending = if senders_are_tasks {
        vec![tasks::<B>(sender, size, rounds)]
    } else {
        threads::<B>(sender, size, rounds)
    };
    let mut sum = 0;
    if receiver_is_task {
        sum = pikake::run(async move {
            while let Some(message) = B::receive(&mut receiver).await {
                sum += message;
            }
            sum
        });
    } else {
        while let Some(message) = B::receive_blocking(&mut receiver) {
            sum += message;
        }
    }
    let took = begun.elapsed();
    sending.into_iter().for_each(|thread| thread.join().expect("no panics"));
    let rounds_sum = (rounds as u64 - 1) * rounds as u64 / 2;
    assert_eq!(sum, rounds_sum * size as u64, "each message comes once");
    Some(vec![("messages_per_s", (size * rounds) as f64 / took.as_secs_f64())])
}

/// So many threads that send.
fn threads<B: Between>(sender: B::Sender, size: usize, rounds: usize) -> Vec<JoinHandle<()>> {
    let threads = (0..size).map(|_| {
        let sender = sender.clone();
        thread::spawn(move || {
            (0..rounds as u64).for_each(|number| B::blocking_send(&sender, number))
        })
    });
    threads.collect()
}

/// A thread with a kernel and so many tasks that send.
fn tasks<B: Between>(sender: B::Sender, size: usize, rounds: usize) -> JoinHandle<()> {
    thread::spawn(move || {
        pikake::run(async move {
            let tasks: Vec<_> = (0..size)
                .map(|_| {
                    let sender = sender.clone();
                    pikake::spawn(async move {
                        for number in 0..rounds as u64 {
                            B::send(&sender, number).await;
                        }
                    })
                })
                .collect();
            drop(sender);
            for task in tasks {
                task.await.expect("the task returns");
            }
        });
    })
}
