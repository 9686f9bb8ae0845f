//! The shop, and the first program of the guide: their output, and their command lines.

use std::time::Instant;

use rustix::process::Signal;

use crate::support::{Ended, HANG, Place, Running, example, run, wait_for};

/// The output of the shop without its first and last line.
const SHOP: &str = "\
shop.price      240 orders for 1293.60
shop.label      the last one says `parcel 0119`
shop.catalogue  [5133, 9592, 13848, 17984, 22044, 25997, 29977, 33860] goods
shop.charge     6 were tried again; not paid: the bank does not answer
shop.gift_wrap  NotRegistered: shop.gift_wrap

job               done  retried  failed  dead
shop.catalogue       8        0       0     0
shop.charge         59        8       1     0
shop.label         120        0       0     0
shop.price         240        0       0     0
all                427        8       1     1
";

#[track_caller]
fn is_as_promised(ended: &Ended, place: &str) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (first, rest) = ended.out.split_once('\n').expect("lines");
    assert!(first.starts_with(&format!("429 jobs through {place}")), "{first}");
    let (middle, last) = rest.trim_end().rsplit_once('\n').expect("lines");
    assert_eq!(format!("{middle}\n"), SHOP);
    let words: Vec<&str> = last.split_whitespace().collect();
    assert!(matches!(words[..], [_, "seconds,", _, "jobs/s"]), "{last}");
    assert_eq!(ended.err, "", "nothing moves where there is no terminal");
}

#[test]
fn shop_runs_on_its_own_database() {
    let place = Place::new();
    let mut command = place.command(&example("shop"), &[]);
    command.env_remove("PIKAKE_BROKER").env("TMPDIR", place.folder());
    let begin = Instant::now();
    is_as_promised(&run(command), "sqlite://");
    assert!(begin.elapsed() < HANG, "{:?}", begin.elapsed());
    assert_eq!(place.count(""), 0, "it leaves nothing behind");
}

/// The processes that a process has started and that are still there, zombies among them.
fn children(of: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{of}/task")) else { return Vec::new() };
    let of_thread = |thread: std::io::Result<std::fs::DirEntry>| {
        let path = thread.expect("it can be listed").path().join("children");
        std::fs::read_to_string(path).unwrap_or_default()
    };
    let texts: Vec<String> = threads.map(of_thread).collect();
    texts.iter().flat_map(|text| text.split_whitespace()).map(|id| id.parse().unwrap()).collect()
}

#[test]
fn shop_ends_by_a_signal() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let place = Place::new();
        let mut command = place.command(&example("shop"), &[]);
        command.env_remove("PIKAKE_BROKER").env("TMPDIR", place.folder());
        let shop = Running::start(command);
        let mut started = Vec::new();
        wait_for("its processes", || {
            started = children(shop.id());
            !started.is_empty()
        });
        shop.signal(signal);
        let ended = shop.end();
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!(ended.err, "", "it was told to end: that is no error");
        assert_eq!(place.count(""), 0, "it leaves nothing behind");
        wait_for("the end of its processes", || {
            started.iter().all(|id| !std::path::Path::new(&format!("/proc/{id}")).exists())
        });
    }
}

#[test]
fn shop_runs_from_the_command_line() {
    let place = Place::new();
    let _worker = place.worker(&example("shop"), &["worker", "--processes", "1"]);
    let send = |arguments: &[&str]| place.run(&example("shop"), arguments);
    assert_eq!(send(&["send", "shop.price", "3", "--wait"]).good(), "211");
    assert_eq!(send(&["send", "shop.label", "3", "--wait"]).good(), "\"parcel 0003\"");
    assert_eq!(send(&["send", "shop.catalogue", "100", "--wait"]).good(), "25");
    send(&["send", "shop.charge", "13", "--wait"]).failed(1, &["the bank does not answer"]);
}

/// Its text is in the guide as it is, from its first line of code on.
#[test]
fn program_of_the_guide_runs() {
    let program = include_str!("../../examples/first_job.rs");
    let program = &program[program.find("use std").expect("it has code")..];
    let guide = include_str!("../../../../docs/jobs.md");
    assert!(guide.contains(program), "docs/jobs.md shows another program than first_job.rs");
    let place = Place::new();
    let _worker = place.worker(&example("first_job"), &["worker"]);
    assert_eq!(place.run(&example("first_job"), &["send", "add", "2", "3", "--wait"]).good(), "5");
}
