//! A failure report has only the faults that the failure needs, and its replay command repeats it.

use std::io;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, serve};
use pikake::sim::{Cause, Failure, FaultMix, Runs, Sim};
use pikake::sleep;

use crate::support::child::{self, child, is_child};

const SECOND: Duration = Duration::from_secs(1);

/// A client that does not try again, in a world where connections are reset now and then.
fn world(sim: &mut Sim) {
    sim.host("server", || async {
        let listener = TcpListener::bind("0.0.0.0:7").await?;
        serve(listener, 10, async |stream: TcpStream, _| {
            while let Ok(1) = stream.read(&mut [0]).await {
                if stream.write_all(b"!").await.is_err() {
                    break;
                }
            }
        })
        .await
        .map(drop)
    });
    sim.host("other", || async {
        sleep(1_000 * SECOND).await.unwrap();
    });
    sim.client("client", || async {
        let stream = TcpStream::connect("server:7").await?;
        for _ in 0..30 {
            stream.write_all(b"?").await?;
            stream.read_exact(&mut [0]).await?;
            sleep(SECOND).await.map_err(io::Error::other)?;
        }
        io::Result::Ok(())
    });
    sim.fault_mix(FaultMix::network(30 * SECOND));
}

/// The failure, as the program for a child reports it.
fn found() -> Box<Failure> {
    let mut failure = Runs::new(NAME).try_run(world).unwrap_err();
    failure.test = Some(NAME.to_owned());
    failure
}

const NAME: &str = "minimised::replayed_program";

/// Printed by a replay that found no failure.
const HELD: &str = "the world held";

#[test]
fn one_fault_of_many_is_left() {
    let all = Runs::new(NAME).keep_all_faults().try_run(world).unwrap_err();
    let found = found();
    assert_eq!(found.seed, all.seed);
    assert!(found.cause.is_like(&all.cause));
    assert!(all.plan.entries().len() >= 8 && !all.plan_is_given, "{all}");
    let text = found.plan.to_string();
    assert!(text.contains("reset") && !text.contains(';'), "{text}");
    assert_eq!(found.left_out + 1, all.plan.entries().len());
    let replay = format!("PIKAKE_SEED={} PIKAKE_FAULTS='{text}' cargo test {NAME}", found.seed);
    assert_eq!(found.replay(), replay);
    assert!(found.to_string().contains(&format!("(1 of {};", found.left_out + 1)), "{found}");
}

#[test]
fn replay_command_repeats_the_failure() {
    let found = found();
    let replayed = |faults: &str| {
        let mut child = child(NAME);
        child.env("PIKAKE_SEED", found.seed.to_string()).env("PIKAKE_FAULTS", faults);
        child::run(&mut child)
    };
    let same = found.to_string().replace(
        &format!("\n         (1 of {}; it fails without the others as well)", found.left_out + 1),
        "",
    );
    let (is_good, printed) = replayed(&found.plan.to_string());
    assert!(!is_good && printed.contains(&same), "{found}: {printed}");
    let (is_good, printed) = replayed("");
    assert!(is_good && printed.contains(HELD), "without faults it does not fail: {printed}");
    let (is_good, printed) = replayed("later");
    assert!(!is_good && printed.contains("PIKAKE_FAULTS is no plan of faults"), "{printed}");
}

/// A program for a child, which fails with the faults that were found.
#[test]
fn replayed_program() {
    if is_child(NAME) {
        Runs::new(NAME).run(world);
        println!("{HELD}");
    }
}

#[test]
fn a_failure_that_needs_no_fault_says_so() {
    let failure = Runs::new("unlucky").try_run(|sim| {
        world(sim);
        sim.client("another", || async { Err::<(), _>("whatever happens") });
    });
    let failure = failure.unwrap_err();
    assert!(matches!(failure.cause, Cause::Failed { ref host, .. } if host == "another"));
    assert!(failure.plan.entries().is_empty() && failure.left_out > 0);
    assert!(failure.to_string().contains("faults:  none; it fails without the"), "{failure}");
    let test = "minimised::a_failure_that_needs_no_fault_says_so";
    assert_eq!(failure.replay(), format!("PIKAKE_SEED=0 PIKAKE_FAULTS='' cargo test {test}"));
}
