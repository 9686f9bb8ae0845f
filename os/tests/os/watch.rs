//! Watched directories.

use std::fs as std_fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pikake::fs::{Change, Watcher, watch};
use pikake::{TimedOut, sleep, timeout_after};

use crate::support::scratch::Scratch;

/// A limit for events of the system, on a busy machine.
const SOON: Duration = Duration::from_secs(10);

/// Long enough to be seen as a wait.
const A_MOMENT: Duration = Duration::from_millis(100);

async fn next(watcher: &mut Watcher) -> Change {
    timeout_after(SOON, watcher.next()).await.expect("it is told soon").unwrap()
}

/// The next change that is not one of what is in a file, or its times: systems differ there.
async fn next_name(watcher: &mut Watcher) -> Change {
    loop {
        match next(watcher).await {
            Change::Modified(_) => {}
            change => return change,
        }
    }
}

/// Whether nothing more is told, but what systems differ in.
async fn is_silent(watcher: &mut Watcher) -> bool {
    let telling = async { while let Ok(Change::Modified(_)) = watcher.next().await {} };
    timeout_after(A_MOMENT, telling).await == Err(TimedOut)
}

fn watched() -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    let directory = scratch.path("watched");
    std_fs::create_dir(&directory).unwrap();
    (scratch, directory)
}

#[pikake::test]
async fn a_file_is_made_changed_renamed_and_removed() {
    let (scratch, directory) = watched();
    let mut watcher = watch(&directory, false).await.unwrap();
    let (one, two) = (directory.join("one"), directory.join("two"));
    std_fs::write(&one, "x").unwrap();
    assert_eq!(next(&mut watcher).await, Change::Created(one.clone()));
    assert_eq!(next(&mut watcher).await, Change::Modified(one.clone()));
    std_fs::rename(&one, &two).unwrap();
    assert_eq!(next_name(&mut watcher).await, Change::Removed(one.clone()));
    assert_eq!(
        next_name(&mut watcher).await,
        Change::Renamed { from: one.clone(), to: two.clone() }
    );
    std_fs::remove_file(&two).unwrap();
    assert_eq!(next_name(&mut watcher).await, Change::Removed(two));
    // In from elsewhere, and out again.
    let outside = scratch.path("outside");
    std_fs::write(&outside, "x").unwrap();
    std_fs::rename(&outside, &one).unwrap();
    assert_eq!(next_name(&mut watcher).await, Change::Created(one.clone()));
    std_fs::rename(&one, &outside).unwrap();
    assert_eq!(next_name(&mut watcher).await, Change::Removed(one));
    assert!(is_silent(&mut watcher).await);
}

#[pikake::test]
async fn subdirectories_are_watched_on_request() {
    let (_scratch, directory) = watched();
    let below = directory.join("below");
    std_fs::create_dir(&below).unwrap();
    let mut all = watch(&directory, true).await.unwrap();
    let mut one = watch(&directory, false).await.unwrap();
    std_fs::write(below.join("file"), "x").unwrap();
    assert_eq!(next_name(&mut all).await, Change::Created(below.join("file")));
    assert!(is_silent(&mut one).await);
    // One that is made later is watched, too.
    let later = directory.join("later");
    std_fs::create_dir(&later).unwrap();
    assert_eq!(next_name(&mut all).await, Change::Created(later.clone()));
    // The new watch may take a moment.
    let since = Instant::now();
    for number in 0.. {
        std_fs::write(later.join(number.to_string()), "x").unwrap();
        if !is_silent(&mut all).await {
            break;
        }
        assert!(since.elapsed() < SOON, "nothing is told of {number} files");
    }
}

#[pikake::test]
async fn interrupted_wait_loses_no_change() {
    let (_scratch, directory) = watched();
    let mut watcher = watch(&directory, false).await.unwrap();
    for number in 0..20 {
        let path = directory.join(number.to_string());
        assert!(matches!(timeout_after(A_MOMENT / 20, watcher.next()).await, Err(TimedOut)));
        std_fs::create_dir(&path).unwrap();
        assert_eq!(next(&mut watcher).await, Change::Created(path));
    }
}

#[pikake::test]
async fn watching_a_missing_path_is_an_error() {
    let error = watch("/no/such/directory", true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().starts_with("watch /no/such/directory: "), "{error}");
}

#[pikake::test]
async fn slow_watcher_is_notified_of_missed_changes() {
    let (_scratch, directory) = watched();
    let mut watcher = watch(&directory, false).await.unwrap();
    // More than are kept; nobody asks meanwhile.
    for number in 0..6000 {
        std_fs::File::create(directory.join(number.to_string())).unwrap();
    }
    let since = Instant::now();
    let mut changes = Vec::new();
    let last = directory.join("last");
    // Told late, so that the queue fills up.
    sleep(5 * A_MOMENT).await.unwrap();
    std_fs::create_dir(&last).unwrap();
    while changes.last() != Some(&Change::Created(last.clone())) {
        assert!(since.elapsed() < SOON);
        changes.push(next(&mut watcher).await);
    }
    assert_eq!(changes[0], Change::Missed);
    assert!(changes.len() < 4200, "{} changes are kept", changes.len());
    let missed = changes.iter().filter(|change| **change == Change::Missed).count();
    assert_eq!(missed, 1);
}
