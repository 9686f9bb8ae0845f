//! Brokers that are away, silent, short of memory, or not up yet.

use std::time::Instant;

use rustix::process::Signal;

use crate::support::{HANG, Place, Running, application, broker, pikake};

/// Without its limit, the command would end with another code, or not at all.
#[test]
fn send_ends_at_its_limit() {
    let (_listener, silent) = broker::silent();
    let alarmed = broker::start(0, |broker| broker.block(Some("low on memory")));
    let unconfirmed = broker::start(0, |broker| broker.hold_confirms("pikake"));
    let cases = [
        (silent, "add was not sent: the broker has not answered within 3s"),
        (alarmed, "add may have been sent or not"),
        (unconfirmed, "add may have been sent or not"),
    ];
    for (url, said) in cases {
        let place = Place::at(url);
        for more in [&[][..], &["--wait"]] {
            let line = [&["send", "add", "1", "2", "--timeout", "3"], more].concat();
            let begun = Instant::now();
            place.run(&pikake(), &line).failed(4, &[said]);
            assert!(begun.elapsed() < HANG, "{line:?}: {:?}", begun.elapsed());
        }
    }
}

#[test]
fn worker_waits_for_a_broker() {
    let port = broker::free_port();
    let place = Place::at(broker::url(port));
    let mut worker = Running::start(place.command(&application(), &["worker"]));
    worker.until("waits for the broker");
    worker.until("waits for the broker");
    broker::start(port, |_| {});
    worker.until("the worker is ready");
    assert_eq!(place.pikake(&["send", "add", "1", "2", "--wait"]), "3");
    worker.signal(Signal::TERM);
    let ended = worker.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.err.contains("secret"), "{ended:?}");
}

#[test]
fn signal_ends_the_wait_for_a_broker() {
    let place = Place::at(broker::url(broker::free_port()));
    let mut worker = Running::start(place.command(&application(), &["worker"]));
    worker.until("waits for the broker");
    worker.signal(Signal::TERM);
    worker.end().failed(143, &[]);
}

#[test]
fn worker_that_does_not_wait_fails_at_once() {
    let place = Place::at(broker::url(broker::free_port()));
    let ended = place.run(&application(), &["worker", "--wait-for-broker", "no"]);
    ended.failed(3, &["cannot be reached", "Is it running?"]);
}

#[test]
fn dashboard_waits_for_a_broker() {
    let port = broker::free_port();
    let place = Place::at(broker::url(port));
    let mut dashboard = Running::start(place.command(&pikake(), &["dashboard"]));
    dashboard.until("waits for the broker");
    broker::start(port, |_| {});
    dashboard.until("Ctrl-C ends the page");
    dashboard.signal(Signal::INT);
    dashboard.end();
    // The file of a database does not come.
    let place = Place::at("sqlite:///nowhere/jobs.db".to_owned());
    place.run(&pikake(), &["dashboard"]).failed(3, &["there is no database"]);
}
