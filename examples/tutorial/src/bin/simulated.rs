// ANCHOR: all
//! Pulse, stage 7: tested in the simulator.
//!
//! ```sh
//! simulated 127.0.0.1:8443 cert.pem key.pem db=127.0.0.1:5432 web=127.0.0.1:8080
//! ```

use std::error::Error;

#[pikake::main(signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    pulse::https::check_and_serve(pulse::check_in_time).await
}

// ANCHOR: test
#[test]
fn results_are_new() {
    pikake::sim::Runs::new("results_are_new")
        .seeds(200)
        .run(|sim| pulse::world::world(sim, pulse::check_in_time));
}
// ANCHOR_END: test
// ANCHOR_END: all
