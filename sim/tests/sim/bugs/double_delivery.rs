//! A client resends its payments when the connection breaks before their confirmation.
//!
//! The bug: the bank does not check whether it has booked the payment already.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, serve};
use pikake::sim::{Cause, FaultMix, Sim};
use pikake::{random, sleep, timeout_after};

const PAYMENTS: u8 = 10;
const PATIENCE: Duration = Duration::from_secs(2);
const FAULTS_WITHIN: Duration = Duration::from_secs(10);

type Booked = Rc<RefCell<Vec<u8>>>;

async fn bank(booked: Booked, bug: bool) -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    let attend = move |stream: TcpStream, _| {
        let booked = booked.clone();
        async move {
            let mut payment = [0];
            while stream.read_exact(&mut payment).await.is_ok() {
                let is_known = booked.borrow().contains(&payment[0]);
                if bug || !is_known {
                    booked.borrow_mut().push(payment[0]);
                }
                if stream.write_all(&payment).await.is_err() {
                    break;
                }
            }
        }
    };
    serve(listener, 10, attend).await.map(drop)
}

/// Pays what is left, until the connection breaks.
async fn pay(confirmed: &mut u8) -> io::Result<()> {
    let bank = TcpStream::connect("bank:80").await?;
    while *confirmed < PAYMENTS {
        sleep(Duration::from_millis(random::range(0..2_000))).await?;
        bank.write_all(&[*confirmed]).await?;
        bank.read_exact(&mut [0]).await?;
        *confirmed += 1;
    }
    Ok(())
}

fn world(sim: &mut Sim, bug: bool) {
    let booked = Booked::default();
    let seen = booked.clone();
    sim.host("bank", move || bank(booked.clone(), bug));
    sim.client("payer", || async {
        let mut confirmed = 0;
        while confirmed < PAYMENTS {
            // Every failure is retried.
            let _ = timeout_after(PATIENCE * u32::from(PAYMENTS), pay(&mut confirmed)).await;
            sleep(Duration::from_millis(100)).await?;
        }
        Ok::<_, pikake::Interrupted>(())
    });
    sim.invariant("nothing is booked twice", move || {
        let booked = seen.borrow();
        let twice = (1..booked.len()).find(|place| booked[..*place].contains(&booked[*place]));
        twice.map_or(Ok(()), |place| Err(format!("payment {} is", booked[place])))
    });
    sim.fault_mix(FaultMix::network(FAULTS_WITHIN));
}

#[test]
fn a_double_delivery_is_found_within_20_seeds() {
    let failure = super::found_within(20, world);
    assert!(matches!(failure.cause, Cause::Invariant { .. }));
    assert!(failure.left_out > 0 && failure.plan.to_string().contains("reset"), "{failure}");
}

#[test]
fn sound_program_fails_no_seed() {
    super::sound(world);
}
