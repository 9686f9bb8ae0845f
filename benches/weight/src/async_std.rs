//! Waits for a millisecond on async-std, with its attributes.

#[async_std::main]
async fn main() {
    async_std::task::sleep(std::time::Duration::from_millis(1)).await;
}
