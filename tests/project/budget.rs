//! A package has no more code than `budget.tsv` says, and that is not much more than there is.

use std::fs;

use xtask::budget::{Budget, COLUMNS, FILE};

use crate::root;

/// A number that is so many lines too high is lowered.
const MAX_SLACK: usize = 100;

/// What is wrong with the recorded numbers, given those of the tree.
fn complaints(recorded: &Budget, found: &Budget) -> Vec<String> {
    let mut complaints = Vec::new();
    for name in recorded.packages.keys().filter(|name| !found.packages.contains_key(*name)) {
        complaints.push(format!("{name} is no package: remove its row"));
    }
    for (name, lines) in &found.packages {
        let Some(allowed) = recorded.packages.get(name) else {
            complaints.push(format!("{name} has no row"));
            continue;
        };
        for ((column, lines), allowed) in COLUMNS.iter().zip(lines).zip(allowed) {
            if lines > allowed {
                complaints
                    .push(format!("{name}: {lines} lines of {column}, and {allowed} allowed"));
            } else if allowed - lines >= MAX_SLACK {
                complaints.push(format!("{name}: write {lines} for {column}, and not {allowed}"));
            }
        }
    }
    let (published, allowed) = (found.published, recorded.published);
    if published > allowed {
        complaints
            .push(format!("published sources have {published} lines, and {allowed} are allowed"));
    }
    complaints
}

#[test]
fn packages_keep_to_the_budget() {
    let recorded = Budget::parse(&fs::read_to_string(root().join(FILE)).unwrap()).unwrap();
    let found = Budget::count(root()).unwrap();
    let complaints = complaints(&recorded, &found);
    assert!(
        complaints.is_empty(),
        "{}\n`cargo xtask budget --write` records the numbers of today",
        complaints.join("\n")
    );
}

#[test]
fn number_too_low_or_far_too_high_is_reported() {
    let budget = |lines: [usize; 4], published: usize| Budget {
        packages: [("net".to_owned(), lines)].into(),
        published,
    };
    let found = budget([1000, 500, 0, 0], 1000);
    assert!(complaints(&budget([1000, 599, 0, 0], 1000), &found).is_empty());
    assert!(complaints(&budget([1000, 500, 0, 0], 9000), &found).is_empty());
    assert_eq!(
        complaints(&budget([999, 600, 0, 0], 999), &found),
        [
            "net: 1000 lines of sources, and 999 allowed",
            "net: write 500 for tests, and not 600",
            "published sources have 1000 lines, and 999 are allowed",
        ]
    );
    assert_eq!(complaints(&Budget::default(), &budget([0; 4], 0)), ["net has no row"]);
    assert_eq!(Budget::parse(&found.to_string()), Ok(found));
}
