//! Random numbers, the wall clock and helper threads of a simulation.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pikake::sim::{Fault, FaultPlan, Sim};
use pikake::thread::run_in_thread;
use pikake::time::{elapsed_since, now, wall_time};
use pikake::{random, sleep, spawn, timeout_after};

const SECOND: Duration = Duration::from_secs(1);

fn drawn(seed: u64, others: usize, plan: FaultPlan) -> Vec<u64> {
    let drawn = Rc::new(RefCell::new(Vec::new()));
    let mut sim = Sim::new(seed);
    sim.client("a", {
        let drawn = drawn.clone();
        move || {
            let drawn = drawn.clone();
            async move {
                for _ in 0..3 {
                    drawn.borrow_mut().push(random::u64());
                    sleep(SECOND).await.unwrap();
                }
            }
        }
    });
    for number in 0..others {
        sim.client(&format!("other {number}"), || async {
            random::u64();
        });
    }
    sim.faults(plan).run().unwrap();
    drawn.take()
}

#[test]
fn random_numbers_depend_only_on_the_seed() {
    let alone = drawn(1, 0, FaultPlan::new());
    assert_eq!(alone, drawn(1, 3, FaultPlan::new()));
    assert_eq!(alone, drawn(1, 0, FaultPlan::new().at(SECOND, Fault::Isolate("a".into()))));
    assert_ne!(alone, drawn(2, 0, FaultPlan::new()));
}

#[pikake::test]
async fn real_kernel_draws_from_the_system() {
    assert_ne!(random::u64(), random::u64());
    assert!((0..100).all(|_| (3..7).contains(&random::range(3..7))));
    assert!((0..100).all(|_| (0.0..1.0).contains(&random::f64())));
    let mut items: Vec<u32> = (0..50).collect();
    random::shuffle(&mut items);
    assert!(items.contains(random::choose(&items).unwrap()));
    items.sort_unstable();
    assert!(items.into_iter().eq(0..50));
    assert_eq!(random::choose::<u8>(&[]), None);
    assert!(wall_time() > UNIX_EPOCH);
}

#[test]
fn wall_clocks_jump_without_moving_timers() {
    let start = SystemTime::UNIX_EPOCH + 1_000 * SECOND;
    let mut sim = Sim::new(1);
    let tells = move |first: i64, second: i64| {
        move || async move {
            let shows = |expected: i64| {
                let shown = wall_time().duration_since(start - 100 * SECOND).unwrap();
                assert_eq!(shown.as_secs() as i64 - 100, expected);
            };
            let began = now();
            shows(first);
            sleep(10 * SECOND).await.unwrap();
            shows(second);
            assert_eq!(elapsed_since(began).as_secs(), 10);
        }
    };
    sim.start_time(start);
    sim.client("right", tells(0, 10)).client("ahead", tells(5, 15));
    sim.client("behind", tells(-50, 60)).client("fast", tells(0, 11));
    sim.clock_offset("ahead", 5_000_000_000).clock_offset("behind", -50_000_000_000);
    let plan = "0s drift fast 100000; 5s set-clock behind 100000000000";
    sim.faults(plan.parse().unwrap()).run().unwrap();
}

#[test]
fn closures_take_virtual_time_and_queue() {
    let done = Rc::new(Cell::new(0));
    let mut sim = Sim::new(3);
    sim.client("a", {
        let done = done.clone();
        move || {
            let done = done.clone();
            async move {
                assert_eq!(run_in_thread(|| 6 * 7).await.unwrap(), 42);
                sleep(2 * SECOND).await.unwrap();
                // All threads are busy for as long as nobody says otherwise.
                let waits = spawn(run_in_thread(|| ()));
                assert!(timeout_after(SECOND, run_in_thread(|| ())).await.is_err());
                assert!(!waits.is_finished());
                waits.await.unwrap().unwrap();
                assert!(now().get() >= 10_000_000_000);
                done.set(1);
            }
        }
    });
    sim.faults("1s helpers a 0; 10s helpers a 1".parse().unwrap()).run().unwrap();
    assert_eq!(done.get(), 1);
}
