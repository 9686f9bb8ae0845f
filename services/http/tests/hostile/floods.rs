//! Connections by the thousand, and resets at every stage.

use std::io::{Read, Write};
use std::time::Duration;

use pikake::sleep;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::site::{CONNECTIONS, Site, ms, reset};

#[test]
fn resets_at_every_stage_leave_nothing_behind() {
    const TIMES: usize = 400;
    const STAGES: [&str; 5] = [
        "",
        "GET / HTTP/1.1\r\nho",
        "POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nxxx",
        "GET /much HTTP/1.1\r\nhost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ];
    Site::run(async |site| {
        for round in 0..TIMES {
            for (number, beginning) in STAGES.into_iter().enumerate() {
                let client = site.sends(beginning).await;
                match (round + number) % 4 {
                    0 => {}
                    1 => drop(pikake::yield_now().await),
                    2 => sleep(ms(0)).await.unwrap(),
                    // As soon as the server has said something, if it does.
                    _ if number >= 3 => drop(client.read(&mut [0; 100]).await),
                    _ => {}
                }
                reset(client);
            }
            if round % 100 == 0 {
                site.is_serving().await;
            }
        }
        site.settles().await;
    });
}

#[test]
fn reset_clients_interrupt_their_handlers() {
    Site::run(async |site| {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS - 1 {
            clients.push(site.sends("GET /hang HTTP/1.1\r\nhost: x\r\n\r\n").await);
        }
        site.handlers_run(clients.len()).await;
        site.is_serving().await;
        let count = clients.len();
        clients.into_iter().for_each(reset);
        site.handlers_run(0).await;
        assert_eq!(site.handlers.told.get(), count);
    });
}

fn allow_descriptors_below(number: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(number), maximum }).unwrap();
}

#[test]
fn server_waits_while_descriptors_are_short() {
    Site::run(async |site| {
        let before = getrlimit(Resource::Nofile).current.unwrap();
        // In one step, so that the server has not taken them yet.
        let clients: Vec<_> = (0..CONNECTIONS / 2)
            .map(|_| {
                let mut client = std::net::TcpStream::connect(site.address).unwrap();
                client
                    .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                    .unwrap();
                client
            })
            .collect();
        allow_descriptors_below(0);
        sleep(ms(50)).await.unwrap();
        let used = processor_time();
        sleep(ms(500)).await.unwrap();
        let used = processor_time() - used;
        allow_descriptors_below(before);
        assert!(used < ms(250), "it spins: {used:?} of processor time in half a second");
        site.is_serving().await;
        for mut client in clients {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("hello"), "{answer}");
        }
    });
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
