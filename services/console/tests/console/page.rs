//! The page of a profile.

use pikake::console::model::{BlockedSteps, ProfileRow, Samples, Stack};
use pikake::console::page::write_page;

fn row(name: &str, place: &str, busy: u64) -> ProfileRow {
    ProfileRow {
        name: name.to_owned(),
        spawned_at: place.to_owned(),
        spawned: 3,
        steps: 4,
        busy,
        longest: 1_500_000,
        waits: vec![("sleep".to_owned(), 2), ("yield".to_owned(), 1)],
    }
}

fn stack(thread: &str, frames: &[&str], count: u64) -> Stack {
    let frames = frames.iter().map(|&frame| frame.to_owned()).collect();
    Stack { thread: thread.to_owned(), frames, count, ..Stack::default() }
}

fn page(rows: &[ProfileRow], stacks: Vec<Stack>) -> String {
    let mut page = Vec::new();
    write_page(&mut page, "a <b>", rows, &Samples { frequency: 99, stacks, ..Samples::default() })
        .unwrap();
    String::from_utf8(page).unwrap()
}

fn boxes(page: &str) -> Vec<&str> {
    page.lines().filter(|line| line.contains("data-x")).collect()
}

#[test]
fn rows_are_sorted_by_time() {
    let page =
        page(&[row("few", "src/a.rs:1:1", 1_000), row("much", "src/b.rs:2:2", 3_000)], vec![]);
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("<tr><td>")).collect();
    let expected = |name, place, busy, text, share, percent, mean, mean_text| {
        format!(
            "<tr><td>{name}</td><td><code>{place}</code></td><td class=\"n\" data-v=\"3\">3</td>\
             <td class=\"n\" data-v=\"4\">4</td><td class=\"n\" data-v=\"{busy}\">{text}</td>\
             <td class=\"n\" data-v=\"{share}\">{percent} %</td><td class=\"n\" data-v=\"{mean}\">{mean_text}</td>\
             <td class=\"n\" data-v=\"1500000\">1.5ms</td><td>sleep\u{a0}2, yield\u{a0}1</td></tr>"
        )
    };
    assert_eq!(
        rows,
        [
            expected("much", "src/b.rs:2:2", 3_000, "3.0µs", 75, "75.0", 750, "750.0ns"),
            expected("few", "src/a.rs:1:1", 1_000, "1.0µs", 25, "25.0", 250, "250.0ns"),
        ]
    );
}

#[test]
fn a_function_is_one_box_in_all_its_lines() {
    let stacks = vec![
        stack("main", &["app::main (src/main.rs:3)", "app::work (src/main.rs:9)"], 2),
        stack("main", &["app::main (src/main.rs:4)", "app::work (src/main.rs:10)", "memcpy"], 1),
        stack("main", &["app::main", "<core::iter::Map<A, B> as core::iter::Iterator>::next"], 1),
    ];
    let page = page(&[], stacks);
    let part = |class, left, width, top, text, samples, percent| {
        format!(
            "<div class=\"{class}\" style=\"left:{left}%;width:{width}%;top:{top}px\" data-x=\"{left}\" \
             data-w=\"{width}\" title=\"{text}&#10;{samples} samples, {percent} %\">{text}</div>"
        )
    };
    let map = "&lt;core::iter::Map&lt;A, B&gt; as core::iter::Iterator&gt;::next";
    assert_eq!(
        boxes(&page),
        [
            part("other", "0.0000", "100.0000", 0, "all", 4, "100.0"),
            part("other", "0.0000", "100.0000", 18, "thread main", 4, "100.0"),
            part("own", "0.0000", "100.0000", 36, "app::main", 4, "100.0"),
            part("own", "0.0000", "75.0000", 54, "app::work", 3, "75.0"),
            part("other", "0.0000", "25.0000", 72, "memcpy", 1, "25.0"),
            part("other", "75.0000", "25.0000", 54, map, 1, "25.0"),
        ]
    );
}

#[test]
fn blocked_steps_have_a_flame_of_their_own() {
    let stack = stack("main", &["app::main", "read"], 7);
    let blocked = BlockedSteps {
        name: "writer".to_owned(),
        spawned_at: "src/a.rs:1:1".to_owned(),
        time: 1_500_000_000,
        stack,
    };
    let samples = Samples { frequency: 99, blocked: vec![blocked], ..Samples::default() };
    let mut page = Vec::new();
    write_page(&mut page, "title", &[], &samples).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("the process used no processor time"), "{page}");
    let names: Vec<&str> =
        boxes(&page).iter().map(|line| line.split('"').nth(9).unwrap()).collect();
    let expected = ["all", "task writer of src/a.rs:1:1", "app::main", "read"]
        .map(|name| format!("{name}&#10;1.5s, 100.0 %"));
    assert_eq!(names, expected);
}

#[test]
fn names_are_escaped() {
    let evil = "</script><img src=x onerror='alert(1)'>\"&";
    let mut all = row(evil, evil, 1);
    all.waits = vec![(evil.to_owned(), 1)];
    let page = page(&[all], vec![stack(evil, &[evil], 1)]);
    assert!(!page.contains("<img") && !page.contains("='alert"), "{page}");
    assert_eq!(page.matches("</script>").count(), 1, "{page}");
}

#[test]
fn the_page_loads_nothing() {
    let page = page(&[row("a", "b", 1)], vec![stack("main", &["f"], 1)]);
    for way in ["http", "src=", "href", "@import", "url(", "fetch", "import("] {
        assert!(!page.contains(way), "the page has {way}");
    }
}

#[test]
fn boxes_of_few_samples_are_left_out() {
    let stacks = vec![stack("main", &["rare"], 1), stack("main", &["frequent"], 9_999)];
    let page = page(&[], stacks);
    assert_eq!(boxes(&page).len(), 3);
    assert!(!page.contains("rare"));
}
