//! Processes that are out of something.

use std::fs::File;

use pikake::console::Console;
use pikake::console::protocol::Request;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{Program, ask, ready};
use crate::support::child::is_child;

#[test]
fn a_process_without_descriptors_is_served() {
    if is_child("served::shortage::a_process_without_descriptors_is_served") {
        return out_of_descriptors();
    }
    let program = Program::start("shortage::a_process_without_descriptors_is_served");
    for _ in 0..5 {
        let mut client = program.client();
        let answer = ask(&mut client, &Request::Waits);
        assert_eq!(super::named(&answer, "out_of_descriptors").waits.len(), 1);
        let process = ask(&mut client, &Request::Stats).process.unwrap();
        assert_eq!(process.descriptor_limit, Some(64));
        // All but the one that may be in reserve.
        #[cfg(target_os = "linux")]
        assert!((62..=64).contains(&process.descriptors.unwrap()), "{process:?}");
        // A second client waits until the first one has gone.
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| ask(&mut program.client(), &Request::Kernels));
            drop(client);
            second.join().unwrap()
        });
        assert_eq!(second.kernels.len(), 1);
    }
    program.finish();
}

#[pikake::main(console)]
async fn out_of_descriptors() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).unwrap();
    // The reading thread of the parent's line is there before.
    pikake::thread::run_in_thread(|| ()).await.unwrap();
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    ready().await;
    drop(files);
}

/// The program goes on without a console, and says why there is none.
#[test]
fn a_program_without_a_socket_goes_on() {
    if is_child("served::shortage::a_program_without_a_socket_goes_on") {
        return by_variable();
    }
    let folder = tempfile::tempdir().unwrap();
    let errors = folder.path().join("errors");
    let program = Program::start_by("shortage::a_program_without_a_socket_goes_on", |child| {
        child.env("PIKAKE_CONSOLE", folder.path().join("missing/socket"));
        child.stderr(File::create(&errors).unwrap());
    });
    program.finish();
    let text = std::fs::read_to_string(&errors).unwrap();
    assert!(text.contains("WARN") && text.contains("missing/socket"), "{text}");
}

#[pikake::main]
async fn by_variable() {
    ready().await;
}

/// `/dev/full` has no sockets, so a file system without room is one of no size.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error_with_the_path() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    let folder = tempfile::tempdir().unwrap();
    // One inode, which the root of the file system takes.
    let options = Some(c"nr_inodes=1");
    if mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), options).is_err() {
        return eprintln!("skipped: no file system can be mounted");
    }
    let error = Console::builder().path(folder.path().join("socket")).start().unwrap_err();
    unmount(folder.path(), UnmountFlags::DETACH).unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!(error.to_string().contains("socket"), "{error}");
}
