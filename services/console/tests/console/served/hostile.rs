//! Clients that do not keep to the protocol, and many clients.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use pikake::console::protocol::{FRAME_LIMIT, Part, Request, frame, read_frame, write_frame};
use pikake::{sleep, spawn, yield_now};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Program, ask, bare, eventually, ready, refusal};
use crate::support::child::is_child;

/// The number of clients at once.
const CLIENTS: usize = 100;

#[pikake::main(console)]
async fn a_thousand_tasks() {
    for _ in 0..1_000 {
        spawn(async { sleep(Duration::from_secs(3_600)).await }).detach();
    }
    yield_now().await.unwrap();
    ready().await;
}

/// Sends bytes, and reads what comes until the console closes the connection, or nothing comes for
/// a moment.
fn throw(stream: &mut UnixStream, bytes: &[u8]) -> Option<Part> {
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut last = None;
    while let Ok(Some(part)) = read_frame(stream) {
        last = Some(part);
    }
    last
}

/// Frames that are no requests, and bytes that are no frames.
fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    let json = prop_oneof![
        Just(String::from("{}")),
        Just(String::from("null")),
        Just(String::from(r#"{"request":"kernels","more":1}"#)),
        Just(String::from(r#"{"request":"cancel"}"#)),
        Just(String::from(r#"{"request":"profile","seconds":1e300}"#)),
        Just(String::from(r#"{"request":"trace","seconds":-1}"#)),
        Just(String::from(r#"{"request":"task","task":"1.2.3"}"#)),
        Just("[".repeat(100_000)),
        any::<String>(),
    ];
    let framed = json.prop_map(|json| {
        let mut bytes = (json.len() as u32).to_be_bytes().to_vec();
        bytes.extend(json.as_bytes());
        bytes
    });
    let cut = (framed.clone(), any::<prop::sample::Index>())
        .prop_map(|(bytes, at)| bytes[..at.index(bytes.len())].to_vec());
    let requests = prop::collection::vec(
        prop_oneof![
            Just(Request::Kernels),
            Just(Request::Stats),
            Just(Request::Time),
            Just(Request::Tasks { waits: true }),
        ],
        1..5,
    );
    let good = requests.prop_map(|all| all.iter().flat_map(|one| frame(one).unwrap()).collect());
    let mixed =
        (good.clone(), prop_oneof![framed.clone(), prop::collection::vec(any::<u8>(), 0..64)])
            .prop_map(|(mut good, bad): (Vec<u8>, Vec<u8>)| {
                good.extend(bad);
                good
            });
    prop_oneof![framed, cut, good, mixed, prop::collection::vec(any::<u8>(), 0..10_000)]
}

/// `PIKAKE_HOSTILE_SECONDS` has the test go on for so long.
#[test]
fn garbage_closes_one_connection() {
    if is_child("served::hostile::garbage_closes_one_connection") {
        return a_thousand_tasks();
    }
    let program = Program::start("hostile::garbage_closes_one_connection");
    let path = program.path();
    let other = std::cell::RefCell::new(program.client());
    let seconds = std::env::var("PIKAKE_HOSTILE_SECONDS").ok().map(|text| text.parse().unwrap());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut rounds = 0;
    while rounds == 0 || until.is_some_and(|until| Instant::now() < until) {
        let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
        let thrown = TestRunner::new(config).run(&hostile_bytes(), |bytes| {
            throw(&mut bare(&path), &bytes);
            let answer = ask(&mut other.borrow_mut(), &Request::Kernels);
            prop_assert_eq!(answer.kernels.len(), 1);
            Ok(())
        });
        thrown.unwrap();
        rounds += 1;
    }
    println!("{rounds} rounds of 64 cases");
    program.finish();
}

#[test]
fn malformed_requests_are_refused() {
    if is_child("served::hostile::malformed_requests_are_refused") {
        return a_thousand_tasks();
    }
    let program = Program::start("hostile::malformed_requests_are_refused");
    let path = program.path();
    let framed = |json: &str| [&(json.len() as u32).to_be_bytes(), json.as_bytes()].concat();
    let too_long = u32::MAX.to_be_bytes().to_vec();
    let above = (FRAME_LIMIT as u32 + 1).to_be_bytes().to_vec();
    for bytes in [framed("{}"), framed("kernels"), framed(&"[".repeat(1_000)), too_long, above] {
        let last = throw(&mut bare(&path), &bytes);
        assert!(matches!(last, Some(Part::Failed(_))), "{last:?}");
    }
    let mut client = program.client();
    for seconds in [-1.0, 1e300, 61.0] {
        let why = refusal(&mut client, &Request::Profile { seconds });
        assert!(why.contains("seconds"), "{why}");
    }
    assert_eq!(ask(&mut client, &Request::Kernels).kernels.len(), 1);
    program.finish();
}

proptest! {
    /// The reader of frames neither panics nor takes more memory than a frame has.
    #[test]
    fn any_bytes_are_a_frame_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut rest = bytes.as_slice();
        while let Ok(Some(_)) = read_frame::<Request>(&mut rest) {}
        let mut rest = bytes.as_slice();
        while let Ok(Some(_)) = read_frame::<Part>(&mut rest) {}
    }
}

#[test]
fn the_client_above_the_limit_is_refused() {
    if is_child("served::hostile::the_client_above_the_limit_is_refused") {
        return a_thousand_tasks();
    }
    let program = Program::start("hostile::the_client_above_the_limit_is_refused");
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| program.client()).collect();
    let why = refusal(&mut program.client(), &Request::Kernels);
    assert!(why.contains("100 clients"), "{why}");
    for client in &mut clients {
        let answer = ask(client, &Request::Tasks { waits: false });
        assert_eq!(answer.tasks.len(), 1_001);
    }
    clients.pop();
    eventually(|| program.client().ask(&Request::Kernels).ok());
    program.finish();
}

/// A client that reads nothing holds up nobody, and neither do clients that are gone.
#[cfg(target_os = "linux")]
#[test]
fn slow_and_lost_clients_hold_up_nobody() {
    if is_child("served::hostile::slow_and_lost_clients_hold_up_nobody") {
        return a_thousand_tasks();
    }
    let program = Program::start("hostile::slow_and_lost_clients_hold_up_nobody");
    let path = program.path();
    let before = descriptors(&program);
    let mut slow = bare(&path);
    for _ in 0..20 {
        write_frame(&mut slow, &Request::Waits).unwrap();
    }
    for _ in 0..20 {
        // The connection ends in the midst of the answer, or before it.
        let mut lost = bare(&path);
        write_frame(&mut lost, &Request::Tasks { waits: true }).unwrap();
        let _ = lost.read(&mut [0; 100]);
        drop(lost);
        drop(bare(&path));
    }
    let answer = program.ask(&Request::Waits);
    assert_eq!(answer.tasks.len(), 1_001);
    // The slow one is closed after some seconds.
    eventually(|| (descriptors(&program) <= before).then_some(()));
    let mut parts = 0;
    while let Ok(Some(_)) = read_frame::<Part>(&mut slow) {
        parts += 1;
    }
    assert!(parts < 20 * 5, "the answers were cut off: {parts} parts");
    program.finish();
}

/// Clients that have the process recorded for an hour take no more memory than four of them do.
#[test]
fn only_four_clients_record_at_once() {
    if is_child("served::hostile::only_four_clients_record_at_once") {
        return a_thousand_tasks();
    }
    let program = Program::start("hostile::only_four_clients_record_at_once");
    let long = Request::Trace { seconds: Some(3_600.0) };
    let mut recording: Vec<UnixStream> = (0..4).map(|_| bare(&program.path())).collect();
    recording.iter_mut().for_each(|stream| write_frame(stream, &long).unwrap());
    let short = Request::Trace { seconds: Some(0.001) };
    let mut client = program.client();
    let why = eventually(|| match client.ask(&short) {
        Err(pikake::console::client::ClientError::Failed(why)) => Some(why),
        _ => None,
    });
    assert!(why.contains("4 clients record this process"), "{why}");
    let why = refusal(&mut client, &Request::Profile { seconds: 0.001 });
    assert!(why.contains("4 clients record this process"), "{why}");
    assert_eq!(ask(&mut client, &Request::Waits).tasks.len(), 1_001);
    recording.pop();
    eventually(|| client.ask(&short).ok());
    program.finish();
}

/// Clients that have all waits listed, and do not read the answer, take no more memory than four of
/// them do.
#[test]
fn only_four_clients_list_waits_at_once() {
    if is_child("served::hostile::only_four_clients_list_waits_at_once") {
        return a_thousand_tasks();
    }
    let program = Program::start("hostile::only_four_clients_list_waits_at_once");
    let requests = [Request::Waits, Request::Tasks { waits: true }];
    let mut listing: Vec<UnixStream> = (0..4).map(|_| bare(&program.path())).collect();
    for (stream, request) in listing.iter_mut().zip(requests.iter().cycle()) {
        write_frame(stream, request).unwrap();
    }
    let mut client = program.client();
    for request in &requests {
        let why = eventually(|| match client.ask(request) {
            Err(pikake::console::client::ClientError::Failed(why)) => Some(why),
            _ => None,
        });
        assert!(why.contains("4 clients list the waits"), "{why}");
    }
    assert_eq!(ask(&mut client, &Request::Tasks { waits: false }).tasks.len(), 1_001);
    listing.pop();
    eventually(|| client.ask(&requests[1]).ok());
    program.finish();
}

/// Who sends without reading the answers loses the connection, so a client that has gone is
/// noticed.
#[test]
fn a_client_that_sends_too_early_is_closed() {
    if is_child("served::hostile::a_client_that_sends_too_early_is_closed") {
        return a_thousand_tasks();
    }
    let program = Program::start("hostile::a_client_that_sends_too_early_is_closed");
    let mut early = bare(&program.path());
    write_frame(&mut early, &Request::Trace { seconds: Some(3_600.0) }).unwrap();
    // The console may close the connection before it has all.
    let _ = early.write_all(&[b' '; 40_000]);
    let mut rest = Vec::new();
    let end = early.read_to_end(&mut rest);
    let is_closed = end.map_or_else(|e| e.kind() == std::io::ErrorKind::ConnectionReset, |_| true);
    assert!(is_closed);
    program.finish();
}

#[cfg(target_os = "linux")]
fn descriptors(program: &Program) -> u64 {
    program.ask(&Request::Stats).process.unwrap().descriptors.unwrap()
}
