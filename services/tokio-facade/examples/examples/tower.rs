//! tower: a buffer with a task of its own, and a limit of time.
//!
//! ```text
//! slept for 1ms
//! request timed out
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

async fn nap(length: Duration) -> Result<Duration, Infallible> {
    tokio::time::sleep(length).await;
    Ok(length)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let limit = Duration::from_millis(500);
    let builder = ServiceBuilder::new().buffer(4).concurrency_limit(1).timeout(limit);
    let mut service = builder.service(service_fn(nap));
    for length in [Duration::from_millis(1), Duration::from_secs(3600)] {
        match service.ready().await?.call(length).await {
            Ok(slept) => println!("slept for {slept:?}"),
            Err(error) => println!("{error}"),
        }
    }
    Ok(())
}
