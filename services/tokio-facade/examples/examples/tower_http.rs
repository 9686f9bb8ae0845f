//! tower-http: files by `ServeDir`, and a limit of time.
//!
//! ```text
//! 200 OK
//! 408 Request Timeout
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_http::services::ServeDir;
use tower_http::timeout::TimeoutLayer;

async fn never(_: Request<String>) -> Result<Response<String>, Infallible> {
    pending().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let files = ServeDir::new(env!("CARGO_MANIFEST_DIR"));
    let request = Request::get("/Cargo.toml").body(String::new())?;
    println!("{}", files.oneshot(request).await?.status());

    let moment = Duration::from_millis(1);
    let limit = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, moment);
    let request = Request::get("/").body(String::new())?;
    println!("{}", limit.layer(service_fn(never)).oneshot(request).await?.status());
    Ok(())
}
