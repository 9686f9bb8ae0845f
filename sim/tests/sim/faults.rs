//! Faults: programs see the same effects as of a real fault.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, UdpSocket};
use pikake::sim::{FaultMix, Latency, Link, Network, Report, Runs, Sim};
use pikake::time::now;
use pikake::{sleep, spawn, timeout_after};

const SECOND: Duration = Duration::from_secs(1);

/// The notes of programs, each with its second.
#[derive(Clone, Default)]
struct Notes(Rc<RefCell<Vec<String>>>);

impl Notes {
    fn note(&self, text: impl std::fmt::Display) {
        let second = now().get() / 1_000_000_000;
        self.0.borrow_mut().push(format!("{second} {text}"));
    }
}

fn came_to<T>(outcome: io::Result<T>) -> String {
    outcome.map_or_else(|error| format!("{:?}", error.kind()), |_| "ok".to_owned())
}

/// Answers each byte with the same.
async fn echo() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        spawn(async move {
            let mut byte = [0];
            while let Ok(1) = stream.read(&mut byte).await {
                if stream.write_all(&byte).await.is_err() {
                    break;
                }
            }
        })
        .detach();
    }
}

async fn ask(stream: &TcpStream) -> io::Result<()> {
    stream.write_all(b"?").await?;
    stream.read_exact(&mut [0]).await?;
    Ok(())
}

/// Runs a client against an echo server, with faults.
fn run<F: Future<Output = ()> + 'static>(
    plan: &str,
    client: impl Fn(Notes) -> F + 'static,
) -> (Vec<String>, Report) {
    let notes = Notes::default();
    let mut sim = Sim::new(1);
    sim.host("server", echo);
    let given = notes.clone();
    sim.client("client", move || client(given.clone()));
    let report = sim.faults(plan.parse().unwrap()).run().unwrap();
    (notes.0.take(), report)
}

async fn ask_every_second(notes: Notes) {
    let stream = TcpStream::connect("server:7").await.unwrap();
    for _ in 0..5 {
        sleep(SECOND).await.unwrap();
        let outcome = ask(&stream).await;
        let failed = outcome.is_err();
        notes.note(came_to(outcome));
        if failed {
            break;
        }
    }
}

#[test]
fn partition_delays_everything_until_healed() {
    let (notes, _) =
        run("1500ms partition client | server; 10s heal client | server", ask_every_second);
    let [first, second, rest @ ..] = &notes[..] else { panic!("{notes:?}") };
    assert_eq!(first, "1 ok");
    let healed: u64 = second.split(' ').next().unwrap().parse().unwrap();
    assert!((10..20).contains(&healed) && second.ends_with("ok"), "{notes:?}");
    assert_eq!(rest.len(), 3);
}

#[test]
fn connection_times_out_after_a_long_cut() {
    for plan in [
        "1500ms partition client > server",
        "1500ms partition server > client",
        "1500ms isolate server",
    ] {
        let (notes, report) = run(plan, ask_every_second);
        assert_eq!(notes.len(), 2, "{plan}: {notes:?}");
        assert!(notes[1].ends_with("TimedOut"), "{plan}: {notes:?}");
        assert!((800..1_200).contains(&report.time.as_secs()), "{plan}: {report:?}");
    }
}

#[test]
fn connect_without_answer_times_out_after_minutes() {
    let (notes, _) = run("0s isolate server", async |notes| {
        notes.note(came_to(TcpStream::connect("10.0.0.1:7").await));
    });
    assert_eq!(notes, ["127 TimedOut"]);
}

#[test]
fn host_refuses_resets_or_accepts_late() {
    let (notes, _) =
        run("0s refuse server; 2s admit server; 3s slow-accept server 5s", async |notes| {
            sleep(SECOND).await.unwrap();
            notes.note(came_to(TcpStream::connect("server:7").await));
            sleep(SECOND * 3).await.unwrap();
            let stream = TcpStream::connect("server:7").await.unwrap();
            notes.note("connected");
            notes.note(came_to(ask(&stream).await));
        });
    assert_eq!(notes, ["1 ConnectionRefused", "4 connected", "9 ok"]);
    let (notes, _) = run("2500ms reset client | server", ask_every_second);
    assert_eq!(notes, ["1 ok", "2 ok", "3 ConnectionReset"]);
}

/// Both start anew.
#[test]
fn killed_host_resets_and_powerless_host_is_silent() {
    let (notes, _) = run("2500ms kill server", ask_every_second);
    assert_eq!(notes, ["1 ok", "2 ok", "3 ConnectionReset"]);
    let (notes, _) = run("2500ms power-off server; 20s restart server", async |notes| {
        ask_every_second(notes.clone()).await;
        let stream = TcpStream::connect("server:7").await.unwrap();
        notes.note(came_to(ask(&stream).await));
    });
    // The host that was started anew knows nothing of the connection.
    let [_, _, reset, again] = &notes[..] else { panic!("{notes:?}") };
    assert!(reset.ends_with("ConnectionReset") && again.ends_with("ok"), "{notes:?}");
}

#[test]
fn paused_host_resumes() {
    let (notes, _) = run("1500ms pause server; 8s resume server", ask_every_second);
    assert_eq!(notes, ["1 ok", "8 ok", "9 ok", "10 ok", "11 ok"]);
}

#[test]
fn long_step_takes_time_of_its_host_only() {
    let (notes, _) = run("500ms long-step client 3s", async |notes| {
        sleep(SECOND).await.unwrap();
        notes.note("first");
        assert!(timeout_after(SECOND, sleep(SECOND * 2)).await.is_err());
        notes.note("second");
    });
    assert_eq!(notes, ["4 first", "5 second"]);
}

#[test]
fn fault_cancels_a_task_in_a_trap() {
    let (notes, _) = run("0s cancel client 1 3", async |notes| {
        for _ in 0..5 {
            let slept = sleep(SECOND).await;
            notes.note(slept.is_ok());
            if slept.is_err() {
                break;
            }
        }
    });
    assert_eq!(notes, ["1 true", "2 true", "2 false"]);
}

#[test]
fn only_datagrams_are_lost_doubled_or_reordered() {
    const COUNT: u16 = 500;
    let mut network = Network::default();
    network.link = Link::new(Latency::Uniform(SECOND / 1_000, SECOND / 100));
    (network.link.loss, network.link.duplicate, network.link.reorder) = (0.1, 0.1, 0.1);
    let received = Rc::new(RefCell::new(Vec::new()));
    let mut sim = Sim::new(5);
    sim.network(network).host("server", echo);
    sim.client("receiver", {
        let received = received.clone();
        move || {
            let received = received.clone();
            async move {
                let socket = UdpSocket::bind("0.0.0.0:9").await.unwrap();
                let mut buffer = [0; 2];
                while let Ok(read) = timeout_after(SECOND * 5, socket.recv(&mut buffer)).await {
                    assert_eq!(read.unwrap(), 2);
                    received.borrow_mut().push(u16::from_be_bytes(buffer));
                }
            }
        }
    });
    sim.client("sender", || async {
        sleep(SECOND).await.unwrap();
        let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
        socket.connect("receiver:9").await.unwrap();
        let stream = TcpStream::connect("server:7").await.unwrap();
        for number in 0..COUNT {
            socket.send(&number.to_be_bytes()).await.unwrap();
            sleep(SECOND / 1_000).await.unwrap();
            if number % 50 == 0 {
                ask(&stream).await.unwrap();
            }
        }
    });
    sim.run().unwrap();
    let received = received.take();
    let mut unique = received.clone();
    unique.sort_unstable();
    unique.dedup();
    let lost = usize::from(COUNT) - unique.len();
    assert!((15..100).contains(&lost), "{lost} lost");
    assert!(
        (15..100).contains(&(received.len() - unique.len())),
        "{} twice",
        received.len() - unique.len()
    );
    assert!(received.is_sorted_by_key(|number| number / 100) || !received.is_sorted());
    assert!(!received.is_sorted());
}

#[test]
fn bandwidth_is_shared_by_what_is_sent() {
    let plan = "0s link client > server : bandwidth 1000000; 0s link server > client : latency 1ms";
    let (notes, _) = run(plan, async |notes| {
        let stream = TcpStream::connect("server:7").await.unwrap();
        let (read, write) = stream.into_split();
        let writer = spawn(async move { write.write_all(&vec![1; 3_000_000]).await.unwrap() });
        let mut left = 3_000_000;
        let mut buffer = vec![0; 65_536];
        while left > 0 {
            left -= read.read(&mut buffer).await.unwrap();
        }
        writer.await.unwrap();
        notes.note("three million bytes");
    });
    assert_eq!(notes, ["3 three million bytes"]);
}

#[test]
fn program_survives_drawn_faults() {
    Runs::new("drawn").seeds(30).check_determinism().run(|sim| {
        sim.host("server", echo).host("spare", echo);
        sim.client("client", || async {
            let mut answered = 0;
            while answered < 5 {
                let attempt = async {
                    let stream = TcpStream::connect("server:7").await?;
                    for _ in 0..5 {
                        ask(&stream).await?;
                        sleep(SECOND).await.map_err(io::Error::other)?;
                    }
                    io::Result::Ok(())
                };
                match timeout_after(SECOND * 10, attempt).await {
                    Ok(Ok(())) => answered += 1,
                    Ok(Err(error)) => {
                        assert_ne!(error.kind(), ErrorKind::InvalidInput);
                        sleep(SECOND).await.unwrap();
                    }
                    Err(_) => {}
                }
            }
        });
        // The client goes on through all of it; the others start anew and stand still as well.
        let servers = ["server", "spare"].map(String::from);
        let mut mix = FaultMix::new(SECOND * 60);
        (mix.crashes, mix.pauses) = (3, 2);
        sim.faults(mix.draw(sim.seed(), &servers)).fault_mix(FaultMix::network(SECOND * 60));
    });
}

/// A segment that was lost, and is on its way a second time, does not overtake one that was held at
/// a cut link.
#[test]
fn bytes_keep_their_order_through_losses_and_cuts() {
    Runs::new("faults::bytes_keep_their_order_through_losses_and_cuts").seeds(50).run(|sim| {
        let mut network = Network::default();
        network.link.loss = 0.2;
        sim.network(network).fault_mix(FaultMix::network(SECOND * 20));
        sim.host("server", || async {
            let listener = TcpListener::bind("0.0.0.0:7").await?;
            loop {
                let (stream, _) = listener.accept().await?;
                spawn(async move {
                    let (mut bytes, mut next) = ([0; 64], 0);
                    while let Ok(length @ 1..) = stream.read(&mut bytes).await {
                        for byte in &bytes[..length] {
                            assert_eq!(*byte, next);
                            next = next.wrapping_add(1);
                        }
                    }
                })
                .detach();
            }
            #[expect(unreachable_code, reason = "the type of the program")]
            io::Result::Ok(())
        });
        sim.client("client", || async {
            while now().get() < 20_000_000_000 {
                let Ok(stream) = TcpStream::connect("server:7").await else { continue };
                for byte in 0..200 {
                    if stream.write_all(&[byte]).await.is_err() {
                        break;
                    }
                    sleep(Duration::from_millis(5)).await.unwrap();
                }
            }
        });
    });
}

/// A byte is lost at a cut link, and its sender dies before it sends the byte again. The next byte
/// is still on its way.
#[test]
fn bytes_after_a_loss_need_their_sender() {
    let mut network = Network::default();
    network.link.latency = Latency::Fixed(Duration::from_millis(100));
    let mut sim = Sim::new(1);
    sim.host("server", || async {
        let listener = TcpListener::bind("0.0.0.0:7").await?;
        let (stream, _) = listener.accept().await?;
        for byte in *b"12" {
            stream.write_all(&[byte]).await?;
            sleep(Duration::from_millis(50)).await?;
        }
        sleep(SECOND).await?;
        io::Result::Ok(())
    });
    let notes = Notes::default();
    let given = notes.clone();
    sim.client("client", move || {
        let notes = given.clone();
        async move {
            let stream = TcpStream::connect("server:7").await.unwrap();
            notes.note(came_to(stream.read(&mut [0; 2]).await));
        }
    });
    // The bytes are sent after 300 and 350 ms.
    let plan = "390ms partition server > client; 410ms kill server; 420ms heal server > client";
    sim.network(network).faults(plan.parse().unwrap()).run().unwrap();
    assert_eq!(notes.0.take(), ["0 ConnectionReset"]);
}
