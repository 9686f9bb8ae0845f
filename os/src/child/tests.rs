//! Tests of children without process descriptors.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use pikake_kernel::Kernel;
use pikake_traps::{TimedOut, spawn, timeout_after};
use signal_hook::consts::SIGTERM;

use crate::process::{Child, Command, Stdio};

const A_MOMENT: Duration = Duration::from_millis(20);

fn child(script: &str) -> Child {
    let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
    child.detect_exit_by_signal().unwrap();
    child
}

#[test]
fn sigchld_reports_the_end_of_children() {
    Kernel::new().unwrap().run(async {
        let mut late = child("read line; exit 3");
        let stdin = late.stdin.take().unwrap();
        assert!(matches!(timeout_after(A_MOMENT, late.wait()).await, Err(TimedOut)));
        // The end of another child is not the end of this one.
        assert_eq!(child("exit 4").wait().await.unwrap().code(), Some(4));
        assert_eq!(late.try_wait().unwrap(), None);
        stdin.write_all(b"\n").await.unwrap();
        assert_eq!(late.wait().await.unwrap().code(), Some(3));
        // A child that ends before the wait.
        let mut early = child("exit 5");
        std::thread::sleep(10 * A_MOMENT);
        assert_eq!(early.wait().await.unwrap().code(), Some(5));
        let mut stopped = child("exec sleep 100");
        assert_eq!(stopped.stop(100 * A_MOMENT).await.unwrap().signal(), Some(SIGTERM));
        // Many children that end at once, so signals are merged.
        let tasks: Vec<_> = (0..50)
            .map(|code| spawn(async move { child(&format!("exit {code}")).wait().await }))
            .collect();
        for (code, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap().unwrap().code(), Some(code as i32));
        }
    });
}
