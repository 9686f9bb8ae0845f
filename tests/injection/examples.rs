//! The programs of the examples.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pikake::testing::{Injector, Kind, interrupt_everywhere};
use pikake::traps::{WaitQueue, park};
use pikake::{Interrupted, shield, sleep, spawn, timeout_after, yield_now};

use crate::support::insist::{FOREVER, a_few_steps, check_told, ms};

/// The channel of `examples/05_primitive.rs`.
#[derive(Default)]
struct Slot {
    message: RefCell<Option<u32>>,
    senders: WaitQueue,
    receivers: WaitQueue,
}

impl Slot {
    async fn send(&self, message: u32) -> Result<(), (u32, Interrupted)> {
        while self.message.borrow().is_some() {
            if let Err(why) = park(&self.senders).await {
                return Err((message, why));
            }
        }
        self.message.replace(Some(message));
        self.receivers.wake(1);
        Ok(())
    }

    async fn receive(&self) -> Result<u32, Interrupted> {
        loop {
            if let Some(message) = self.message.take() {
                self.senders.wake(1);
                return Ok(message);
            }
            park(&self.receivers).await?;
        }
    }
}

#[test]
fn interrupted_send_loses_no_message() {
    let program = || async {
        let slot = Rc::new(Slot::default());
        let received = Rc::new(RefCell::new(Vec::new()));
        let receiver = spawn({
            let (slot, received) = (slot.clone(), received.clone());
            async move {
                while let Ok(message) = slot.receive().await {
                    received.borrow_mut().push(message);
                    a_few_steps().await;
                }
            }
        });
        let mut back = Vec::new();
        for message in 0..6 {
            if let Err((message, _)) = slot.send(message).await {
                back.push(message);
            }
        }
        shield(sleep(ms(1))).await.unwrap(); // until nobody goes on any more
        drop(receiver);
        let all = received.take();
        (all, back)
    };
    Injector::new().cleanup_limit(None).run(program, |run| {
        let (received, back) = run.output.clone().unwrap();
        assert!(back.len() <= 1);
        let expected: Vec<u32> = (0..6).filter(|message| !back.contains(message)).collect();
        assert_eq!(received, expected);
    });
}

#[test]
fn interrupted_receive_loses_no_message() {
    let program = || async {
        let slot = Rc::new(Slot::default());
        for sender in 0..2 {
            let slot = slot.clone();
            spawn(async move {
                for number in 0..3 {
                    a_few_steps().await;
                    slot.send(10 * sender + number).await.unwrap();
                }
            })
            .detach();
        }
        let mut received = Vec::new();
        let mut told = 0;
        while received.len() < 6 {
            match slot.receive().await {
                Ok(message) => received.push(message),
                Err(_) => told += 1,
            }
        }
        // A message that comes after the cancel, and before the receiver's next step, is received.
        told += usize::from(yield_now().await.is_err());
        received.sort_unstable();
        (received, told)
    };
    Injector::new().cleanup_limit(None).run(program, |run| {
        let (received, told) = run.output.clone().unwrap();
        assert_eq!(received, [0, 1, 2, 10, 11, 12]);
        check_told(run, told);
    });
}

#[test]
fn a_transaction_is_done_or_rolled_back() {
    // The one of `examples/03_deadline.rs`.
    async fn transaction(changes: &Cell<u32>) -> Result<(), Interrupted> {
        changes.set(1);
        let done = async {
            sleep(ms(5)).await?;
            changes.set(2);
            sleep(ms(5)).await
        };
        if let Err(why) = done.await {
            while changes.get() > 0 {
                sleep(ms(5)).await?;
                changes.set(changes.get() - 1);
            }
            return Err(why);
        }
        Ok(())
    }
    let program = || async {
        let changes = Cell::new(0);
        let result = timeout_after(FOREVER, transaction(&changes)).await.unwrap();
        (result.is_ok(), changes.get())
    };
    interrupt_everywhere(program, |run| {
        let expected = match &run.interruption {
            Some(by) if by.kind != Kind::CancelGoingOn || by.suspension < 2 => (false, 0),
            _ => (true, 2),
        };
        assert_eq!(run.output, Some(expected));
    });
}
