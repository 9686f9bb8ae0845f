//! Wakes that come from another thread.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::figures::{Figures, Stopwatch, quantile};
use crate::runtime::Runtime;
use crate::system::{Epoll, LOAD_CORE, SERVER_CORE, event_counter, pin};

/// Before a single wake, so that the runtime sleeps when it comes.
const PAUSE: Duration = Duration::from_micros(100);

/// Sends the time to so many receivers, waits until all have answered, and begins anew.
fn send_rounds(
    size: usize,
    rounds: usize,
    answers: Receiver<()>,
    send: impl Fn(usize, Instant) + Send + 'static,
) {
    thread::spawn(move || {
        pin(LOAD_CORE);
        for _ in 0..rounds {
            if size == 1 {
                thread::sleep(PAUSE);
            }
            (0..size).for_each(|number| send(number, Instant::now()));
            (0..size).for_each(|_| answers.recv().expect("the receivers answer"));
        }
    });
}

/// With one receiver, how long a wake takes; with many, how many there are in a second.
fn figures(size: usize, rounds: usize, mut waited: Vec<Duration>, watch: &Stopwatch) -> Figures {
    if size > 1 {
        return vec![("rate_per_s", 1e9 / watch.per(size * rounds)[0].1)];
    }
    let mut waited: Vec<f64> = waited.drain(..).map(|time| time.as_secs_f64() * 1e6).collect();
    let (half, most) = (quantile(&mut waited, 0.50), quantile(&mut waited, 0.99));
    vec![("wake_p50_us", half), ("wake_p99_us", most)]
}

/// Tasks that are sent something by another thread, over the common channel.
pub async fn wake<R: Runtime>(size: usize, rounds: usize) -> Figures {
    pin(SERVER_CORE);
    let (answer, answers) = channel();
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..size).map(|_| async_channel::bounded(1)).unzip();
    let receive = |receiver: async_channel::Receiver<Instant>| {
        let answer = answer.clone();
        R::spawn(async move {
            let mut waited = Vec::with_capacity(rounds);
            for _ in 0..rounds {
                let sent = receiver.recv().await.expect("the sender lives");
                waited.push(sent.elapsed());
                answer.send(()).expect("the sender lives");
            }
            waited
        })
    };
    let tasks: Vec<_> = receivers.into_iter().map(receive).collect();
    let watch = Stopwatch::start();
    send_rounds(size, rounds, answers, move |number, now| {
        let sender: &async_channel::Sender<Instant> = &senders[number];
        sender.try_send(now).expect("there is room");
    });
    let mut waited = Vec::new();
    for task in tasks {
        waited.extend(R::join(task).await);
    }
    figures(size, rounds, waited, &watch)
}

/// The floor: a queue, and an eventfd for a loop that could wait for sockets as well.
pub fn wake_floor(size: usize, rounds: usize) -> Figures {
    pin(SERVER_CORE);
    let (answer, answers) = channel();
    let queue = Arc::new(Mutex::new(Vec::new()));
    let counter = Arc::new(event_counter().expect("a descriptor"));
    let mut epoll = Epoll::new().expect("a descriptor");
    epoll.add(&counter, 0).expect("a descriptor that can be waited for");
    let watch = Stopwatch::start();
    let sender = (queue.clone(), counter.clone());
    send_rounds(size, rounds, answers, move |_, now| {
        let (queue, mut counter) = (&sender.0, &*sender.1);
        let first = {
            let mut queue = queue.lock().expect("no panics");
            queue.push(now);
            queue.len() == 1
        };
        if first {
            counter.write_all(&1_u64.to_ne_bytes()).expect("room for one more");
        }
    });
    let mut waited = Vec::with_capacity(size * rounds);
    let mut batch = Vec::new();
    while waited.len() < size * rounds {
        epoll.wait().expect("no signals").for_each(drop);
        (&*counter).read_exact(&mut [0; 8]).expect("it was written to");
        std::mem::swap(&mut batch, &mut *queue.lock().expect("no panics"));
        for sent in batch.drain(..) {
            waited.push(sent.elapsed());
            answer.send(()).expect("the sender lives");
        }
    }
    figures(size, rounds, waited, &watch)
}
