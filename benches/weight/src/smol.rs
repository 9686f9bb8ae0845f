//! Waits for a millisecond on smol.

fn main() {
    smol::block_on(async {
        smol::Timer::after(std::time::Duration::from_millis(1)).await;
    });
}
