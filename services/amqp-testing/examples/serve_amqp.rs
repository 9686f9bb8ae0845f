//! The broker at a port, for clients outside of the test program (`cargo xtask suites amqp`).
//!
//! ```sh
//! cargo run -p pikake-amqp-testing --example serve_amqp -- 127.0.0.1:5672
//! ```
//!
//! Prints its address, and serves until SIGINT or SIGTERM.

use std::error::Error;

use pikake::net::TcpListener;
use pikake_amqp_testing::{Broker, serve};

#[pikake::main(signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    Ok(serve(Broker::new(), listener).await?)
}
