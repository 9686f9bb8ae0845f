//! What cannot be a job: what is said, and of what.
//!
//! Apart, as a list. What can be one is compiled in the tests of `pikake-jobs`.

use super::*;

/// The error, and the text that it points at.
fn refused(function: &str) -> (String, String) {
    let function: ItemFn = syn::parse_str(function).unwrap();
    let error = rewrite(function, JobOptions::default()).expect_err("it cannot be a job");
    (error.to_string(), error.span().source_text().unwrap())
}

#[test]
fn what_cannot_be_a_job_is_pointed_at() {
    let named = "a job's arguments have names, by which they can be sent";
    let owns = "a job's arguments come from a message, so it owns them (`String`, not `&str`)";
    let generics = "a job is sent by its name, which cannot carry types: it has no generics";
    let own_name = "a job is a value of its name, so none of its arguments can be called so";
    for (function, at, message) in [
        ("fn f(_: u8) {}", "_", named),
        ("fn f(a: u8, (b, c): (u8, u8)) {}", "(b, c)", named),
        ("fn f(ref a: u8) {}", "ref a", named),
        ("fn f(a @ 0..: u8) {}", "a @ 0..", named),
        ("async fn f(name: &str) {}", "&str", owns),
        ("fn f<T>(it: T) {}", "<T>", generics),
        ("fn f<'a>(it: Vec<&'a u8>) {}", "<'a>", generics),
        ("async fn send(to: u8, send: bool) {}", "send", own_name),
        ("fn f(mut f: u8) {}", "f", own_name),
        (
            "fn f(self, a: u8) {}",
            "self",
            "a job is a free function: what it needs comes in its message",
        ),
        ("unsafe fn f() {}", "unsafe", "a job is an ordinary function"),
        ("extern \"C\" fn f() {}", "extern \"C\"", "a job is an ordinary function"),
        (
            "fn f(a: impl Send) {}",
            "impl Send",
            "a job's arguments come from a message, so their types have names",
        ),
        ("fn f() -> impl Send {}", "impl Send", "a job's value is sent, so its type has a name"),
        (
            "fn f(a: u8, #[cfg(unix)] b: u8) {}",
            "#[cfg(unix)]",
            "a job has the same arguments always: who sends it may have been built otherwise",
        ),
    ] {
        assert_eq!(refused(function), (message.to_owned(), at.to_owned()), "{function}");
    }
}
