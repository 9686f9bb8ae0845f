//! Code lines are counted by package and by what they are for.

use std::fs;
use std::path::Path;

use xtask::budget::Budget;

const FILES: [(&str, &str); 11] = [
    ("Cargo.toml", "[package]\n"),
    ("build.rs", "fn main() {}\n"),
    ("src/lib.rs", "mod a;\n#[cfg(test)]\nmod b_tests;\n\n// A comment.\n"),
    ("src/a.rs", "mod inner;\n"),
    ("src/a/inner.rs", "fn f() {}\nfn g() {}\n"),
    ("src/b_tests.rs", "fn f() {}\nfn g() {}\nfn h() {}\n"),
    ("tests/all/main.rs", "fn f() {}\n"),
    ("examples/shown/Cargo.toml", "[[bin]]\npath = \"src/shown.rs\"\npublish = false\n"),
    ("examples/shown/src/shown.rs", "fn f() {}\n"),
    ("examples/shown/tests/all.rs", "fn f() {}\n"),
    ("target/debug/build.rs", "fn f() {}\n"),
];

const COUNTED: &str = "\
package\tsources\ttests\texamples\tbenches
.\t5\t6\t0\t0
examples/shown\t0\t1\t1\t0
published\t5
";

#[test]
fn lines_are_counted_by_package_and_purpose() {
    let root = std::env::temp_dir().join(format!("pikake-budget-{}", std::process::id()));
    for (file, text) in FILES {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(file, text).unwrap();
    }
    let counted = Budget::count(&root).unwrap();
    fs::remove_dir_all(&root).unwrap();
    assert_eq!(counted.to_string(), COUNTED);
    assert_eq!(Budget::parse(&format!("# A comment.\n{COUNTED}")), Ok(counted));
    assert!(Budget::parse("time\t1\t2").is_err());
}
