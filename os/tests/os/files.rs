//! Files, in threads.
//!
//! The assertions of Curio's tests of files, and their tests here:
//!
//! | there | here |
//! | --- | --- |
//! | read, readall | `a_file_is_read_whole_or_in_pieces` (`read_to_end`, `fs::read_to_string`) |
//! | read1, readinto, readinto1 | the same (`read`, which reads into the caller's buffer) |
//! | readline, readlines, readiter, anext (2) | `lines_are_read_up_to_a_limit` |
//! | write, writelines | `written_data_are_in_the_file` |
//! | seek_tell | `position_stays_between_operations` |
//! | truncate | `file_is_truncated_and_extended` |
//! | bad_usage, must_be_asynccontext | a file is opened or there is none; nothing to test |
//! | sync_iter, sync_with | a future that is not awaited does nothing, and the compiler says so |
//! | blocking | `File::from_std`, in `file_from_std_keeps_its_position` |
//! | misc (repr) | `file_debug_shows_its_path` |

use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake::fs::{self, File, LostWrite, OpenOptions};
use pikake::net::{BufReader, LimitExceeded, Write, interruption};
use pikake::{Kernel, TimedOut, sleep, spawn, timed, timeout_after, yield_now};

use crate::support::scratch::Scratch;

/// Long enough to be seen as a wait.
const A_MOMENT: Duration = Duration::from_millis(50);

/// A limit for immediate effects, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(10);

const THREE_LINES: &str = "line 1\nline 2\nline 3\n";

/// A file's error that is a lost write.
fn lost(error: &std::io::Error) -> &LostWrite {
    error.get_ref().and_then(|inside| inside.downcast_ref()).expect("a lost write")
}

/// A kernel with a single helper thread, so that who waits for it can be told.
fn with_one_thread<T>(body: impl Future<Output = T>) -> T {
    let kernel = Kernel::builder().helper_threads(1).build().unwrap();
    let output = kernel.run(body);
    kernel.shutdown();
    output
}

#[pikake::test]
async fn a_file_is_read_whole_or_in_pieces() {
    let scratch = Scratch::new();
    let path = scratch.path("three");
    fs::write(&path, THREE_LINES).await.unwrap();
    assert_eq!(fs::read_to_string(&path).await.unwrap(), THREE_LINES);
    assert_eq!(fs::read(&path).await.unwrap(), THREE_LINES.as_bytes());

    let file = File::open(&path).await.unwrap();
    let mut buffer = [0; 6];
    assert_eq!(file.read(&mut []).await.unwrap(), 0);
    assert_eq!(file.read(&mut buffer).await.unwrap(), 6);
    assert_eq!(&buffer, b"line 1");
    assert_eq!(file.read_at(&mut buffer, 14).await.unwrap(), 6);
    assert_eq!(&buffer, b"line 3");
    assert_eq!(file.read_to_end(100).await.unwrap(), &THREE_LINES.as_bytes()[6..]);
    assert_eq!(file.read(&mut buffer).await.unwrap(), 0);
    assert_eq!(file.read_to_end(0).await.unwrap(), b"");
}

#[pikake::test]
async fn read_to_end_stops_at_the_limit() {
    let scratch = Scratch::new();
    let path = scratch.path("three");
    fs::write(&path, THREE_LINES).await.unwrap();
    let file = File::open(&path).await.unwrap();
    let error = file.read_to_end(20).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    // It has taken nothing.
    assert_eq!(file.read_to_end(21).await.unwrap(), THREE_LINES.as_bytes());
    let error = File::open("/dev/zero").await.unwrap().read_to_end(5_000_000).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileTooLarge);
}

#[pikake::test]
async fn lines_are_read_up_to_a_limit() {
    let scratch = Scratch::new();
    let path = scratch.path("three");
    fs::write(&path, THREE_LINES).await.unwrap();
    let reader = BufReader::new(File::open(&path).await.unwrap());
    let mut lines = reader.lines();
    for expected in ["line 1", "line 2", "line 3"] {
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some(expected));
    }
    assert_eq!(lines.next_line().await.unwrap(), None);
    assert_eq!(reader.next_line().await.unwrap(), None);
    let reader = BufReader::new(File::open("/dev/zero").await.unwrap()).limit(100_000);
    let error = reader.next_line().await.unwrap_err();
    let inside = error.get_ref().and_then(|inside| inside.downcast_ref::<LimitExceeded>());
    assert_eq!(inside.map(|exceeded| exceeded.limit), Some(100_000));
}

#[pikake::test]
async fn written_data_are_in_the_file() {
    let scratch = Scratch::new();
    let path = scratch.path("written");
    let file = File::create(&path).await.unwrap();
    for line in THREE_LINES.split_inclusive('\n') {
        file.write_all(line.as_bytes()).await.unwrap();
    }
    Write::flush(&file).await.unwrap();
    file.sync_data().await.unwrap();
    file.sync_all().await.unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), THREE_LINES);
    assert_eq!(file.metadata().await.unwrap().len(), 21);
    file.close().await.unwrap();
}

#[pikake::test]
async fn position_stays_between_operations() {
    let scratch = Scratch::new();
    let path = scratch.path("three");
    fs::write(&path, THREE_LINES).await.unwrap();
    let options = OpenOptions::new().read(true).write(true).clone();
    let file = File::open_with(&path, options).await.unwrap();
    assert_eq!(file.seek(SeekFrom::Start(5)).await.unwrap(), 5);
    file.write_all(b"X").await.unwrap();
    assert_eq!(file.seek(SeekFrom::Current(0)).await.unwrap(), 6);
    assert_eq!(file.seek(SeekFrom::Current(-6)).await.unwrap(), 0);
    assert_eq!(file.read_to_end(6).await.unwrap_err().kind(), ErrorKind::FileTooLarge);
    assert_eq!(file.seek(SeekFrom::End(-7)).await.unwrap(), 14);
    assert_eq!(file.read_to_end(100).await.unwrap(), b"line 3\n");
    assert_eq!(file.seek(SeekFrom::Current(0)).await.unwrap(), 21);
    let error = file.seek(SeekFrom::Current(-22)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(file.seek(SeekFrom::End(-22)).await.is_err());
    assert_eq!(file.seek(SeekFrom::Current(0)).await.unwrap(), 21);
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("line X\n"));
}

#[pikake::test]
async fn file_is_truncated_and_extended() {
    let scratch = Scratch::new();
    let path = scratch.path("three");
    fs::write(&path, THREE_LINES).await.unwrap();
    let options = OpenOptions::new().read(true).write(true).clone();
    let file = File::open_with(&path, options).await.unwrap();
    file.set_len(4).await.unwrap();
    file.seek(SeekFrom::Start(2)).await.unwrap();
    file.write_all(b"ke").await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"like");
    file.set_len(6).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"like\0\0");
}

#[pikake::test]
async fn appended_data_come_last() {
    let scratch = Scratch::new();
    let path = scratch.path("log");
    let (one, two) = (File::append(&path).await.unwrap(), File::append(&path).await.unwrap());
    one.write_all(b"one ").await.unwrap();
    two.write_all(b"two ").await.unwrap();
    one.seek(SeekFrom::Start(0)).await.unwrap();
    one.write_all(b"three").await.unwrap();
    assert_eq!(one.seek(SeekFrom::Current(0)).await.unwrap(), 13);
    assert_eq!(fs::read_to_string(&path).await.unwrap(), "one two three");
}

#[pikake::test]
async fn file_from_std_keeps_its_position() {
    let scratch = Scratch::new();
    let path = scratch.path("three");
    fs::write(&path, THREE_LINES).await.unwrap();
    let mut file = std::fs::File::open(&path).unwrap();
    file.seek(SeekFrom::Start(7)).unwrap();
    let file = File::from_std(file).unwrap();
    assert_eq!(file.read_to_end(100).await.unwrap(), b"line 2\nline 3\n");
    // Files without positions are refused.
    let (reader, _writer) = std::io::pipe().unwrap();
    let error = File::from_std(std::os::fd::OwnedFd::from(reader).into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSeekable);
}

#[pikake::test]
async fn file_debug_shows_its_path() {
    let file = File::open("/etc/passwd").await.unwrap();
    assert!(format!("{file:?}").contains("/etc/passwd"));
}

#[pikake::test]
async fn directories_are_made_listed_renamed_removed() {
    let scratch = Scratch::new();
    let deep = scratch.path("a/b/c");
    fs::create_dir_all(&deep).await.unwrap();
    fs::create_dir(scratch.path("d")).await.unwrap();
    fs::write(deep.join("one"), "1").await.unwrap();
    assert_eq!(fs::copy(deep.join("one"), deep.join("two")).await.unwrap(), 1);
    fs::rename(deep.join("two"), deep.join("three")).await.unwrap();
    fs::hard_link(deep.join("one"), deep.join("hard")).await.unwrap();
    fs::symlink(deep.join("one"), deep.join("soft")).await.unwrap();
    assert_eq!(fs::read_link(deep.join("soft")).await.unwrap(), deep.join("one"));
    let real = fs::canonicalize(deep.join("../c/soft")).await.unwrap();
    assert_eq!(real, std::fs::canonicalize(deep.join("one")).unwrap());
    assert!(fs::symlink_metadata(deep.join("soft")).await.unwrap().is_symlink());
    assert!(fs::metadata(deep.join("soft")).await.unwrap().is_file());
    let mut names: Vec<_> =
        fs::read_dir(&deep).await.unwrap().iter().map(fs::DirEntry::file_name).collect();
    names.sort();
    assert_eq!(names, ["hard", "one", "soft", "three"]);
    let permissions = fs::Permissions::from_mode(0o400);
    fs::set_permissions(deep.join("three"), permissions).await.unwrap();
    assert_eq!(fs::metadata(deep.join("three")).await.unwrap().permissions().mode() & 0o777, 0o400);
    fs::remove_file(deep.join("one")).await.unwrap();
    assert!(!fs::exists(deep.join("one")).await.unwrap());
    fs::remove_dir(scratch.path("d")).await.unwrap();
    fs::remove_dir_all(scratch.path("a")).await.unwrap();
    assert!(!fs::exists(scratch.path("a")).await.unwrap());
}

#[pikake::test]
async fn errors_name_the_operation_and_the_path() {
    for (error, text) in [
        (File::open("/no/file").await.unwrap_err(), "open /no/file: "),
        (fs::read("/no/file").await.unwrap_err(), "read /no/file: "),
        (fs::write("/no/file", "x").await.unwrap_err(), "write /no/file: "),
        (fs::rename("/no/file", "/no/other").await.unwrap_err(), "rename /no/file to /no/other: "),
        (fs::read_dir("/no/file").await.unwrap_err(), "read the directory /no/file: "),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().starts_with(text), "{error}");
    }
}

#[pikake::test]
async fn full_disk_error_reports_the_bytes_written() {
    let full = OpenOptions::new().write(true).clone();
    let file = File::open_with("/dev/full", full).await.unwrap();
    let error = file.write_all(b"hello").await.unwrap_err();
    assert_eq!((error.written, error.source.kind()), (0, ErrorKind::StorageFull));
    // It is told once, and the file is as good as before.
    assert_eq!(file.seek(SeekFrom::Current(0)).await.unwrap(), 0);
    file.close().await.unwrap();
}

#[pikake::test]
async fn partial_write_on_a_full_disk_is_reported() {
    let scratch = Scratch::new();
    let directory = scratch.path("small");
    fs::create_dir(&directory).await.unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=1m", "none"];
    let mounted = std::process::Command::new("mount").args(mount).arg(&directory).output().unwrap();
    if !mounted.status.success() {
        // Not everybody may mount; then `/dev/full` has to do.
        return;
    }
    let file = File::create(directory.join("file")).await.unwrap();
    let error = file.write_all(&vec![1; 3 << 20]).await.unwrap_err();
    let length = file.metadata().await.unwrap().len();
    let closed = file.close().await;
    let copied = fs::write(directory.join("other"), vec![1; 100]).await;
    // A thread that has ended its work may be about to let go of the file.
    let unmounted = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        std::process::Command::new("umount").arg(&directory).output().unwrap().status.success()
    });
    assert!(unmounted);
    assert_eq!((error.written, error.source.kind()), (1 << 20, ErrorKind::StorageFull));
    assert_eq!(length, 1 << 20);
    closed.unwrap();
    assert_eq!(copied.unwrap_err().kind(), ErrorKind::StorageFull);
}

#[pikake::test]
async fn operations_of_tasks_are_ordered_and_whole() {
    let scratch = Scratch::new();
    let path = scratch.path("pieces");
    let file = Rc::new(File::create(&path).await.unwrap());
    let mut tasks = Vec::new();
    for number in 0..40_u8 {
        let file = file.clone();
        tasks.push(spawn(async move { file.write_all(&[number; 1000]).await }));
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let expected: Vec<u8> = (0..40).flat_map(|number| [number; 1000]).collect();
    assert_eq!(std::fs::read(&path).unwrap(), expected);
}

#[test]
fn interrupted_wait_for_a_thread_leaves_no_trace() {
    with_one_thread(async {
        let scratch = Scratch::new();
        let path = scratch.path("file");
        let file = File::create(&path).await.unwrap();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let busy = spawn(pikake::thread::run_in_thread(move || gone.recv()));
        yield_now().await.unwrap();
        let error = timed(A_MOMENT, file.write_all(b"hello")).await.output.unwrap().unwrap_err();
        assert_eq!(error.written, 0);
        assert!(interruption(&error.source).is_some());
        drop(go);
        let _ = busy.await.unwrap().unwrap();
        file.write_all(b"bye").await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"bye");
    });
}

/// A file whose writes block: the system asks a process that does not answer. A FIFO does the same,
/// but has no positions; so the write is of a lock's holder.
#[pikake::test]
async fn next_operation_waits_for_an_abandoned_one() {
    let scratch = Scratch::new();
    let path = scratch.path("slow");
    let file = Rc::new(File::create(&path).await.unwrap());
    // Much, so that it takes its time; interrupted as soon as its thread has begun.
    let much = vec![7; 64 << 20];
    let mut taken = Vec::new();
    let since = Instant::now();
    let done = timed(Duration::from_millis(1), file.write_all(&much)).await;
    match done.output.expect("it was told") {
        Ok(()) => taken.push(much.len()),
        Err(error) => taken.push(error.written),
    }
    assert!(since.elapsed() < AT_ONCE);
    // The reported length is true as soon as the next operation is done.
    let length = file.seek(SeekFrom::Current(0)).await.unwrap();
    assert_eq!(length as usize, taken[0]);
    assert_eq!(std::fs::metadata(&path).unwrap().len() as usize, taken[0]);
}

#[test]
fn failed_abandoned_write_fails_the_next_operation() {
    // The limit of file sizes belongs to the process, so the body runs in a child.
    if std::env::var_os("PIKAKE_LIMITED").is_none() {
        let this = std::env::current_exe().unwrap();
        let test = "files::failed_abandoned_write_fails_the_next_operation";
        let script =
            format!("ulimit -f 8192; trap '' XFSZ; exec '{}' --exact {test}", this.display());
        let limited = std::process::Command::new("sh")
            .args(["-c", &script])
            .env("PIKAKE_LIMITED", "yes")
            .output()
            .unwrap();
        let (out, err) =
            (String::from_utf8_lossy(&limited.stdout), String::from_utf8_lossy(&limited.stderr));
        assert!(limited.status.success() && out.contains("1 passed"), "{out}{err}");
        return;
    }
    const LIMIT: usize = 4096 * 1024;
    pikake::run(async {
        let scratch = Scratch::new();
        let file = File::create(scratch.path("limited")).await.unwrap();
        let data = vec![1; LIMIT + 1000];
        // Delivered to whoever waits.
        let error = file.write_all(&data).await.unwrap_err();
        assert_eq!((error.written, error.source.kind()), (LIMIT, ErrorKind::FileTooLarge));
        // Given up: until its thread has begun before the deadline, which it mostly does.
        for _ in 0..1000 {
            file.set_len(0).await.unwrap();
            file.seek(SeekFrom::Start(0)).await.unwrap();
            let done = timed(Duration::from_micros(300), file.write_all(&data)).await;
            let error = done.output.unwrap().unwrap_err();
            if error.written != data.len() {
                continue;
            }
            assert!(interruption(&error.source).is_some());
            let error = file.metadata().await.unwrap_err();
            let lost = lost(&error);
            assert_eq!((lost.written, lost.missing), (LIMIT, 1000));
            assert_eq!(error.kind(), ErrorKind::FileTooLarge);
            // Once.
            assert_eq!(file.metadata().await.unwrap().len() as usize, LIMIT);
            assert_eq!(file.seek(SeekFrom::Current(0)).await.unwrap() as usize, LIMIT);
            return;
        }
        panic!("in a thousand times no write was given up after it had begun");
    });
}

#[pikake::test]
async fn abandoned_read_takes_nothing() {
    let scratch = Scratch::new();
    let path = scratch.path("long");
    let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&path, content.clone()).await.unwrap();
    let file = File::open(&path).await.unwrap();
    let mut all: Vec<u8> = Vec::new();
    let mut buffer = [0; 4096];
    let mut number = 0;
    loop {
        number += 1;
        let deadline = Duration::from_micros(number % 50);
        match timed(deadline, file.read(&mut buffer)).await.output.expect("it was told") {
            Ok(0) => break,
            Ok(length) => all.extend(&buffer[..length]),
            Err(error) => assert!(interruption(&error).is_some(), "{error}"),
        }
    }
    assert!(all == content, "{} bytes of {}", all.len(), content.len());
}

#[test]
fn hanging_file_blocks_no_other_and_no_shutdown() {
    // The other end of a FIFO that nobody opens: `open` blocks until somebody does.
    let scratch = Scratch::new();
    let path = scratch.path("fifo");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let since = Instant::now();
    pikake::run(async {
        let opening = timeout_after(A_MOMENT, File::open(&path)).await;
        assert!(matches!(opening, Err(TimedOut)));
        fs::write(scratch.path("other"), "x").await.unwrap();
        sleep(Duration::from_millis(1)).await.unwrap();
    });
    assert!(since.elapsed() < AT_ONCE);
    // Somebody opens it, so that its thread may end.
    let other = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert!(other.write_at(b"x", 0).is_err());
}
