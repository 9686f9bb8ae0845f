//! Programs leave no descriptor and no zombie, and give no descriptor to a child.
//!
//! The tests count the descriptors and children of their process.

use std::time::{Duration, Instant};

use pikake::fs::{self, File, watch};
use pikake::net::{TcpListener, UnixStream};
use pikake::process::{Command, Stdio};
use pikake::signal::{SIGUSR1, Signals};
use pikake::{Kernel, spawn, timeout_after};

use crate::alone;
use crate::support::scratch::Scratch;

const SHORT: Duration = Duration::from_millis(5);

/// A limit for threads that release something.
const SOON: Duration = Duration::from_secs(10);

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Children of this process, zombies among them.
fn children() -> Vec<String> {
    let mut all = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path().join("children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        all.extend(children.split_whitespace().map(str::to_owned));
    }
    all
}

#[track_caller]
fn comes_to<T: PartialEq + std::fmt::Debug>(what: &str, mut now: impl FnMut() -> T, expected: &T) {
    let since = Instant::now();
    while now() != *expected {
        assert!(since.elapsed() < SOON, "after {what}: {:?}, and not {expected:?}", now());
        std::thread::sleep(SHORT);
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn programs_leave_nothing_behind() {
    alone("leaks::programs_leave_nothing_behind", count_what_is_left);
}

fn count_what_is_left() {
    let scratch = Scratch::new();
    // The descriptors that this process inherited, and the one of the listed directory.
    let given = std::process::Command::new("ls").arg("/proc/self/fd").output().unwrap().stdout;
    let kernel = Kernel::new().unwrap();
    // The first run creates what stays for the process: the kernel's alarm and threads.
    kernel.run(async {
        // One sleep may be over before it is waited for.
        for _ in 0..20 {
            pikake::sleep(Duration::from_millis(1)).await.unwrap();
        }
        fs::metadata("/").await.unwrap();
    });
    let before = descriptors();
    let nobody: Vec<String> = Vec::new();
    let check = |what: &str| {
        comes_to(what, descriptors, &before);
        comes_to(what, children, &nobody);
    };

    kernel.run(async {
        for _ in 0..20 {
            assert!(shell("echo out; echo err >&2").output().await.unwrap().status.success());
        }
    });
    check("programs");

    kernel.run(async {
        for _ in 0..20 {
            assert!(Command::new("/no/such/program").output().await.is_err());
            assert!(Command::new("/etc").stdin(Stdio::piped()).spawn().is_err());
        }
    });
    check("programs that are none");

    kernel.run(async {
        for number in 0..20_u32 {
            let mut command = shell("trap '' TERM; echo; while :; do sleep 0.01; done");
            command.grace(SHORT);
            assert!(timeout_after(SHORT * (number % 5), command.output()).await.is_err());
        }
    });
    check("programs that do not end");

    kernel.run(async {
        for _ in 0..10 {
            drop(shell("sleep 0.05").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
            drop(shell("exec sleep 100").kill_on_drop(true).spawn().unwrap());
            let task = spawn(async { shell("exec sleep 100").output().await });
            pikake::yield_now().await.unwrap();
            task.abort();
            assert!(task.await.is_err());
        }
    });
    check("programs that were dropped");

    // The kernel ends while a child runs and a task waits for it.
    let other = Kernel::new().unwrap();
    other.run(async {
        spawn(async { shell("exec sleep 100").output().await.map(drop).unwrap_err() }).detach();
        let mut child = shell("sleep 0.1").spawn().unwrap();
        spawn(async move { child.wait().await }).detach();
        pikake::yield_now().await.unwrap();
    });
    other.shutdown();
    drop(other);
    check("a kernel that ended");

    kernel.run(async {
        for number in 0..50 {
            let path = scratch.path(&number.to_string());
            let _ = timeout_after(Duration::from_micros(number), async {
                let file = File::create(&path).await?;
                file.write_all(&[0; 10_000]).await?;
                file.close().await
            })
            .await;
        }
    });
    check("files that were given up");

    kernel.run(async {
        for _ in 0..10 {
            let mut signals = Signals::new([SIGUSR1]).unwrap();
            assert!(timeout_after(SHORT, signals.next()).await.is_err());
            let mut watcher = watch("/tmp", false).await.unwrap();
            let _ = timeout_after(Duration::ZERO, watcher.next()).await;
        }
    });
    check("signals and watchers");

    // The descriptors of a child, while this process has many.
    let seen = kernel.run(async {
        let _listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _pair = UnixStream::pair().unwrap();
        let _pipe = pikake::net::pipe().unwrap();
        let _signals = Signals::new([SIGUSR1]).unwrap();
        let _watcher = watch("/tmp", false).await.unwrap();
        let _file = File::open("/etc/passwd").await.unwrap();
        let mut other =
            shell("read line").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let seen = Command::new("ls").arg("/proc/self/fd").output().await.unwrap();
        other.kill().unwrap();
        other.wait().await.unwrap();
        seen.stdout
    });
    assert_eq!(String::from_utf8_lossy(&seen), String::from_utf8_lossy(&given));
    check("a look around");
}
