//! tower on pikake: a layer around a service that waits by traps.
//!
//! ```text
//! slept for 1ms
//! timed out
//! ```
//!
//! The layers that need timers or tasks of tokio have others in their place, here a timeout.

use std::error::Error;
use std::time::Duration;

use pikake::{Interrupted, sleep, timeout_after};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

async fn nap(length: Duration) -> Result<Duration, Interrupted> {
    sleep(length).await?;
    Ok(length)
}

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let builder = ServiceBuilder::new().map_request(Duration::from_millis);
    let mut service = builder.service(service_fn(nap));
    let (limit, mut lines) = (Duration::from_millis(100), Vec::new());
    for milliseconds in [1, 3_600_000] {
        let call = service.ready().await?.call(milliseconds);
        lines.push(match timeout_after(limit, call).await {
            Ok(slept) => format!("slept for {:?}", slept?),
            Err(timed_out) => timed_out.to_string(),
        });
    }
    Ok(lines)
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    demo().await.map(|lines| println!("{}", lines.join("\n")))
}
