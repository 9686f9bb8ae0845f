//! Waits for a millisecond on tokio, with the feature `full`.

#[tokio::main]
async fn main() {
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
}
