//! The page in Chromium: what it shows, that names are text, and that its policy admits all it
//! does.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::Page;
use super::fake::{Fake, answers, kernel, key, stuck_kernel, task};
use crate::support::{Ended, run};

/// The time of the page, in milliseconds, after which the document is looked at.
const BUDGET: &str = "4000";

/// The document of a view after a few seconds.
pub(crate) fn document(chromium: &PathBuf, page: &Page, view: &str) -> String {
    let profile = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(chromium);
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--enable-logging=stderr", "--v=0", "--window-size=1280,800", "--dump-dom"]);
    command.arg(format!("--virtual-time-budget={BUDGET}"));
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    command.arg(format!("{}#{view}", page.address())).stdin(Stdio::null());
    let ended: Ended = run(command);
    // Errors of the page, and what its policy has refused.
    let said: Vec<&str> = ended.err.lines().filter(|line| line.contains(":CONSOLE")).collect();
    assert_eq!(said, Vec::<&str>::new(), "{view}");
    ended.good()
}

#[track_caller]
pub(crate) fn assert_shows(document: &str, texts: &[&str]) {
    for text in texts {
        assert!(document.contains(text), "`{text}` is not in: {document}");
    }
}

#[test]
fn every_view_is_shown() {
    let Some(chromium) = xtask::needs::CHROMIUM.find_or_skip() else { return };
    let tasks = vec![
        task(1, "main", None, &[]),
        task(2, "accounts", Some(1), &[3]),
        task(3, "audit", Some(1), &[2]),
    ];
    let fake = Fake::new(answers(kernel(), tasks, vec![vec![key(2), key(3)]]));
    let page = Page::of_fake(&fake);
    let deadlock = ["Deadlock of 2 tasks", "accounts (2)", "audit (3)"];
    let cases: [(&str, &[&str]); 6] = [
        ("tasks", &["<h1 id=\"program\">shop</h1>", "3 tasks", "park at src/bank.rs:3:9", "live"]),
        ("tasks/1.2", &["mutex `accounts`", "shop::transfer::{{closure}}", "Cancel…", "Abort…"]),
        ("waits", &["<svg", "marker-end=\"url(#head-bad)\"", "3 tasks of 3 wait, 2 of them"]),
        ("timelines", &["There are no events."]),
        ("profile", &["Record to see where the time goes."]),
        ("stats", &["Memory of futures", "4,711"]),
    ];
    for (view, texts) in cases {
        let document = document(&chromium, &page, view);
        assert_shows(&document, texts);
        assert_shows(&document, &deadlock);
    }
}

#[test]
fn long_deadlock_is_a_short_banner() {
    let Some(chromium) = xtask::needs::CHROMIUM.find_or_skip() else { return };
    let tasks: Vec<_> = (1..=8).map(|id| task(id, "fork", None, &[id % 8 + 1])).collect();
    let fake = Fake::new(answers(kernel(), tasks, vec![(1..=8).map(key).collect()]));
    let document = document(&chromium, &Page::of_fake(&fake), "tasks");
    let rest = " waits for 2 other tasks, the last of which waits for ";
    assert_shows(&document, &["Deadlock of 8 tasks", rest]);
}

#[test]
fn names_are_text() {
    let Some(chromium) = xtask::needs::CHROMIUM.find_or_skip() else { return };
    let name = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>";
    let tasks = vec![task(1, name, None, &[2]), task(2, name, Some(1), &[1])];
    let fake = Fake::new(answers(kernel(), tasks, vec![vec![key(1), key(2)]]));
    let page = Page::of_fake(&fake);
    for view in ["tasks/1.1", "waits"] {
        let document = document(&chromium, &page, view);
        assert_shows(&document, &["&lt;script&gt;document.title", "shop "]);
        assert!(!document.contains("<img"), "{document}");
        assert_eq!(document.matches("<script").count(), 1, "{document}");
        assert!(!document.contains("<title>owned"), "{document}");
    }
}

#[test]
fn stuck_kernel_is_a_banner() {
    let Some(chromium) = xtask::needs::CHROMIUM.find_or_skip() else { return };
    let tasks = vec![task(1, "main", None, &[]), task(2, "crunch", Some(1), &[])];
    let fake = Fake::new(answers(stuck_kernel(), tasks, Vec::new()));
    let page = Page::of_fake(&fake);
    let document = document(&chromium, &page, "tasks");
    assert_shows(
        &document,
        &[
            "Kernel 1 (main) is stuck",
            "crunch (2)",
            "has been in one step for 30.0 s. What is told of its tasks is 29.0 s old.",
            "class=\"stale\"",
        ],
    );
}

/// The document has the rows in sight, and room for the others.
#[test]
fn thousand_tasks_are_shown() {
    let Some(chromium) = xtask::needs::CHROMIUM.find_or_skip() else { return };
    let mut tasks = vec![task(1, "main", None, &[])];
    tasks.extend((2..=1000).map(|number| task(number, "request", Some(1), &[1])));
    let fake = Fake::new(answers(kernel(), tasks, Vec::new()));
    let page = Page::of_fake(&fake);
    let tasks = document(&chromium, &page, "tasks");
    assert_shows(&tasks, &["1,000 tasks", "aria-rowcount=\"1001\""]);
    let rows = tasks.matches("data-id=").count();
    assert!((20..100).contains(&rows), "{rows} rows");
    assert_shows(&document(&chromium, &page, "tasks/1.900"), &["data-id=\"1.900\""]);
    assert_shows(&document(&chromium, &page, "waits"), &["999 tasks request", "and 499 more"]);
}
