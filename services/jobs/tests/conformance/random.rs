//! Random programs, beside a model so simple that it can be trusted: each message is in one place.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{Broker, Deliveries, Receipt};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::help::*;
use crate::place::{Case, Place};

/// A delivery that is there comes within this, or is with another consumer.
const SOON: Duration = Duration::from_millis(20);

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Publish,
    Consume { prefetch: u16 },
    Next(usize),
    Ack(usize),
    GiveBack(usize),
    Bury(usize),
    Replay,
    Drop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Publish),
        2 => (1_u16..5).prop_map(|prefetch| Step::Consume { prefetch }),
        8 => any::<usize>().prop_map(Step::Next),
        4 => any::<usize>().prop_map(Step::Ack),
        2 => any::<usize>().prop_map(Step::GiveBack),
        1 => any::<usize>().prop_map(Step::Bury),
        1 => Just(Step::Replay),
        1 => any::<usize>().prop_map(Step::Drop),
    ]
}

/// Runs so many programs by a runner.
pub(crate) fn run(cases: u32, run: impl Fn(&[Step])) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let test = |steps: Vec<Step>| {
        run(&steps);
        Ok(())
    };
    runner.run(&vec(step(), 1..60), test).unwrap();
}

thread_local! {
    /// The program that the runner's case, which captures nothing, is to run.
    static PROGRAM: std::cell::RefCell<Vec<Step>> = const { std::cell::RefCell::new(Vec::new()) };
}

pub(crate) fn on(runner: fn(Case), steps: &[Step]) {
    PROGRAM.set(steps.to_vec());
    runner(|place| Box::pin(program(place)));
}

#[derive(Default)]
struct Model {
    waiting: BTreeSet<String>,
    /// Who has it, and how it is acknowledged.
    taken: BTreeMap<String, (usize, Receipt)>,
    dead: BTreeSet<String>,
    published: usize,
}

impl Model {
    fn pick(&self, number: usize) -> Option<(String, Receipt)> {
        let index = number.checked_rem(self.taken.len())?;
        self.taken.iter().nth(index).map(|(job, (_, receipt))| (job.clone(), *receipt))
    }
}

async fn program(place: &dyn Place) {
    let steps = PROGRAM.with_borrow(Clone::clone);
    let broker = place.open().await;
    declare(&broker).await;
    let mut model = Model::default();
    let mut consumers: BTreeMap<usize, (u16, Box<dyn Deliveries>)> = BTreeMap::new();
    for (number, step) in steps.into_iter().enumerate() {
        apply(&broker, &mut model, &mut consumers, number, step).await;
    }
    drop(consumers);
    let left: BTreeSet<String> = model.waiting.into_iter().chain(model.taken.into_keys()).collect();
    let mut came = BTreeSet::new();
    let mut deliveries = consume(&broker, 1_000).await;
    for _ in &left {
        let delivery = take(&mut deliveries).await;
        assert!(came.insert(seen(&delivery).0.to_owned()), "twice: {delivery:?}");
    }
    assert_eq!(came, left);
    let dead = model.dead.len() as u64;
    counted(&broker, |counts| (counts.ready, counts.dead) == (0, dead)).await;
}

async fn apply(
    broker: &Rc<dyn Broker>,
    model: &mut Model,
    consumers: &mut BTreeMap<usize, (u16, Box<dyn Deliveries>)>,
    number: usize,
    step: Step,
) {
    let some_consumer = |pick: usize, consumers: &BTreeMap<usize, _>| {
        pick.checked_rem(consumers.len()).and_then(|index| consumers.keys().nth(index).copied())
    };
    match step {
        Step::Publish => {
            model.published += 1;
            let job = format!("job {:03}", model.published);
            publish(broker, &[&job]).await;
            model.waiting.insert(job);
        }
        Step::Consume { prefetch } => {
            consumers.insert(number, (prefetch, consume(broker, prefetch).await));
        }
        Step::Next(pick) => {
            let Some(id) = some_consumer(pick, consumers) else { return };
            let Some((prefetch, deliveries)) = consumers.get_mut(&id) else { return };
            let Some(delivery) = take_soon(deliveries, SOON).await else { return };
            let job = seen(&delivery).0.to_owned();
            assert!(model.waiting.remove(&job), "not there to be delivered: {delivery:?}");
            model.taken.insert(job, (id, delivery.receipt));
            let has = model.taken.values().filter(|(by, _)| *by == id).count();
            assert!(has <= usize::from(*prefetch), "{has} of {prefetch}");
        }
        Step::Ack(pick) => {
            let Some((job, receipt)) = model.pick(pick) else { return };
            broker.ack(receipt).await.unwrap();
            model.taken.remove(&job);
        }
        Step::GiveBack(pick) => {
            let Some((job, receipt)) = model.pick(pick) else { return };
            broker.give_back(receipt).await.unwrap();
            model.taken.remove(&job);
            model.waiting.insert(job);
        }
        Step::Bury(pick) => {
            let Some((job, receipt)) = model.pick(pick) else { return };
            broker.bury(receipt, message(&job), "chance".to_owned()).await.unwrap();
            model.taken.remove(&job);
            model.dead.insert(job);
        }
        Step::Replay => {
            let count = broker.replay(QUEUE, None).await.unwrap();
            assert_eq!(count, model.dead.len() as u64);
            model.waiting.append(&mut model.dead);
        }
        Step::Drop(pick) => {
            let Some(id) = some_consumer(pick, consumers) else { return };
            consumers.remove(&id);
            let back: Vec<String> = model
                .taken
                .iter()
                .filter(|(_, (by, _))| *by == id)
                .map(|(job, _)| job.clone())
                .collect();
            for job in back {
                model.taken.remove(&job);
                model.waiting.insert(job);
            }
        }
    }
}
