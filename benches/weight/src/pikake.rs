//! Waits for a millisecond on pikake, with its default features.

#[pikake::main]
async fn main() -> Result<(), pikake::Interrupted> {
    pikake::sleep(std::time::Duration::from_millis(1)).await
}
