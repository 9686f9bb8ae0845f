//! What a source consists of.

use xtask::source::{Kind, Module, Source, parts};

#[test]
fn comments_and_literals_are_told_from_code() {
    let text = r###"
let a = "// no \" comment"; // a comment with "
/* one /* in */ another " */ let b = '"';
let c = br#"a "quoted" // text"#; let d = b'\'';
fn e<'a>(f: &'a str) -> char { 'é' }
let r#type = r"\"; /* open
"###;
    let parts: Vec<_> = parts(text).into_iter().map(|(kind, at)| (kind, &text[at])).collect();
    assert_eq!(
        parts,
        [
            (Kind::Literal, r#""// no \" comment""#),
            (Kind::Comment, r#"// a comment with ""#),
            (Kind::Comment, r#"/* one /* in */ another " */"#),
            (Kind::Literal, r#"'"'"#),
            (Kind::Literal, r##""a "quoted" // text"#"##),
            (Kind::Literal, r"'\''"),
            (Kind::Literal, "'é'"),
            (Kind::Literal, r#""\""#),
            (Kind::Comment, "/* open\n"),
        ]
    );
}

#[test]
fn lines_of_comments_are_no_code() {
    let text = "\
//! A header.

/* A block
   of two lines */
fn f() { // behind code
    let text = \"
// in a literal

\";
}
";
    assert_eq!(Source::new(text.to_owned()).lines(), (5, 0));
}

#[test]
fn items_for_tests_are_counted_apart() {
    let text = "\
fn f() {
    #[cfg(test)]
    tests::COUNT.set([1; 2]);
    g();
}

#[cfg(test)]
use std::{fs, io};

#[cfg(all(test, unix))]
#[path = \"f_tests.rs\"]
mod tests;

#[cfg(test)]
/// A comment.
mod more {
    fn h() -> u8 {
        1
    }
}

#[cfg(not(test))]
fn i() {}
";
    assert_eq!(Source::new(text.to_owned()).lines(), (5, 13));
}

#[test]
fn declared_modules_are_listed() {
    let text = "\
mod a;
#[cfg(unix)]
#[path = \"unix.rs\"]
pub(crate) mod b;
mod c {
    fn f() {}
    mod d;
}
#[cfg(test)]
mod e;
// mod f;
";
    let module = |name: &str, around: &[&str], path: Option<&str>| Module {
        name: name.to_owned(),
        around: around.iter().map(|name| (*name).to_owned()).collect(),
        path: path.map(str::to_owned),
    };
    let declared =
        [module("a", &[], None), module("b", &[], Some("unix.rs")), module("d", &["c"], None)];
    assert_eq!(Source::new(text.to_owned()).modules(), declared);
}
