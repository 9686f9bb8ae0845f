//! What a test says that lacks something, and what it comes to.

use xtask::Need;
use xtask::needs::{MUST_NOT_SKIP, Source};

use crate::{in_child, is_child, texts};

const NOTHING: Need = Need::new("a thing", Source::Debian("no-such-package"), || None);

/// Played by children of the tests below.
#[test]
fn lacks_something() {
    if is_child() {
        let None = NOTHING.find_or_skip() else { panic!("there is no such thing") };
    }
}

/// The harness captures what tests print, and prints it for tests that fail.
#[test]
fn skipped_test_passes_and_says_so_uncaptured() {
    let output = in_child("needs::lacks_something").env_remove(MUST_NOT_SKIP).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}");
    assert!(out.contains("1 passed"), "{out}");
    let hint = "a thing: `cargo xtask test` installs it, or apt-get install no-such-package";
    assert_eq!(err, format!("skipped: needs::lacks_something needs {hint}\n"));
}

#[test]
fn no_test_may_be_skipped_with_the_variable_set() {
    let output = in_child("needs::lacks_something").env(MUST_NOT_SKIP, "1").output().unwrap();
    let (out, err) = texts(&output);
    assert!(!output.status.success(), "{out}");
    assert!(out.contains("test needs::lacks_something ... FAILED"), "{out}");
    assert!(out.contains("needs a thing: `cargo xtask test` installs it"), "{out}");
    assert!(out.contains(MUST_NOT_SKIP), "{out}");
    assert!(!err.contains("skipped"), "{err}");
}

/// With one test at a time, the thread of a test is the main one.
#[test]
fn skipped_test_on_the_main_thread_is_named_by_its_place() {
    let mut child = in_child("needs::lacks_something");
    let output = child.arg("--test-threads=1").env_remove(MUST_NOT_SKIP).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}");
    assert!(err.starts_with("skipped: ") && err.contains("needs a thing"), "{err}");
    assert!(err.contains("needs.rs:") || err.contains("lacks_something"), "{err}");
}
