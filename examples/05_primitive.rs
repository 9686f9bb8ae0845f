//! A primitive of your own: a channel with room for one message, made of two traps.
//!
//! A `WaitQueue` is a place to wait in. Whoever waits looks at the state, and while it does not
//! suit, parks and looks again; whoever changes the state wakes. That is the whole protocol, and
//! cancellation comes with it: an interrupted `send` has left the queue and gives its message back.
//!
//! It prints:
//!
//! ```text
//! received 1
//! received 2
//! received 3
//! nobody took 5, so it came back; a timeout: true
//! ```

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pikake::traps::{WaitQueue, park};
use pikake::{Interrupted, TaskError, spawn, timeout_after};

/// Holds one message, or none.
#[derive(Default)]
struct Slot {
    message: RefCell<Option<u32>>,
    senders: WaitQueue,
    receivers: WaitQueue,
}

impl Slot {
    /// Waits for room and leaves the message there. Interrupted, it gives the message back.
    async fn send(&self, message: u32) -> Result<(), (u32, Interrupted)> {
        // A loop, since another sender may have been quicker than the one that was woken.
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

#[pikake::main]
async fn main() -> Result<(), TaskError> {
    let slot = Rc::new(Slot::default());
    let receiver = spawn(receive_three(slot.clone()));
    for number in 1..=4 {
        // There is room for the fourth, but nobody who takes it.
        slot.send(number).await.expect("nobody interrupts this");
    }
    receiver.await?;

    let fifth = async {
        if let Err((message, why)) = slot.send(5).await {
            println!("nobody took {message}, so it came back; a timeout: {}", why.is_timeout());
        }
    };
    assert!(timeout_after(Duration::from_millis(20), fifth).await.is_err());
    Ok(())
}

async fn receive_three(slot: Rc<Slot>) {
    for _ in 0..3 {
        println!("received {}", slot.receive().await.expect("nobody interrupts this"));
    }
}
