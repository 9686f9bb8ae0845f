//! Signals in one kernel after another, each with a descriptor of the pipe.

use rustix::process::{getpid, kill_process, Signal};
use tokio::runtime::Builder;
use tokio::signal::unix::{signal, SignalKind};

#[test]
fn each_kernel_sees_signals() {
    for _ in 0..3 {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut signals = signal(SignalKind::user_defined1()).unwrap();
            kill_process(getpid(), Signal::USR1).unwrap();
            assert_eq!(signals.recv().await, Some(()));
        });
    }
}
