// ANCHOR: all
//! Pulse, stage 8: a list of all tasks and their waits, on a signal.
//!
//! ```sh
//! live 127.0.0.1:8443 cert.pem key.pem db=127.0.0.1:5432 web=127.0.0.1:8080
//! kill -USR1 $(pidof live)
//! ```

use std::cell::Cell;
use std::error::Error;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::signal::{SIGUSR1, Signals};
use pikake::{Kernel, interrupt_on_signals, task};
use pulse::check_in_time;
use pulse::https::check_and_serve;

// ANCHOR: main
fn main() -> Result<(), Box<dyn Error>> {
    pikake::log_to_stderr();
    let kernel = Kernel::builder().name("pulse").build()?;
    let _on_signals = interrupt_on_signals(&kernel.handle())?;
    let is_wanted = Rc::new(Cell::new(false));
    let listening = listen(is_wanted.clone());
    kernel.enter(|| task::Builder::new().name("listen").spawn(listening).detach())?;

    let ended = kernel.try_run_by(check_and_serve(check_in_time), |main| {
        while !main.is_ended() {
            kernel.turn(None).expect("the system can wait");
            if is_wanted.take() {
                print_waits(&kernel);
            }
        }
    });
    kernel.shutdown();
    ended?
}

/// Asks for a list at each SIGUSR1.
async fn listen(is_wanted: Rc<Cell<bool>>) -> io::Result<()> {
    let mut signals = Signals::new([SIGUSR1])?;
    loop {
        signals.next().await?;
        is_wanted.set(true);
    }
}

/// Prints what each task waits for, in the order of the tasks.
fn print_waits(kernel: &Kernel) {
    kernel.inspect();
    kernel.turn(Some(Duration::ZERO)).expect("the system can wait");
    let mut waits = kernel.waits();
    waits.sort_by_key(|wait| (wait.task.id(), wait.place.line()));
    for wait in waits {
        let name = match wait.task.name() {
            "" => format!("task of {}", wait.task.spawned_at()),
            name => name.to_owned(),
        };
        println!("{name}: {} at {}", wait.trap, wait.place);
    }
    println!();
}
// ANCHOR_END: main
// ANCHOR_END: all
