//! Pulse, stage 6: the page over HTTPS, by axum.
//!
//! ```sh
//! https 127.0.0.1:8443 cert.pem key.pem db=127.0.0.1:5432 web=127.0.0.1:8080
//! ```

use std::error::Error;

// ANCHOR: main
#[pikake::main(signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    pulse::https::check_and_serve(pulse::check).await
}
// ANCHOR_END: main
