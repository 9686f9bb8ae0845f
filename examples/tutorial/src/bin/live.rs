// ANCHOR: all
//! Pulse, stage 8: a console, and a list of all tasks and their waits on a signal.
//!
//! ```sh
//! live 127.0.0.1:8443 cert.pem key.pem db=127.0.0.1:5432 web=127.0.0.1:8080
//! pikake waits $(pidof live)
//! kill -USR1 $(pidof live)
//! ```

use std::error::Error;

use pulse::check_in_time;
use pulse::https::check_and_serve;

// ANCHOR: main
#[pikake::main(signals, console)]
async fn main() -> Result<(), Box<dyn Error>> {
    check_and_serve(check_in_time).await
}
// ANCHOR_END: main
// ANCHOR_END: all
