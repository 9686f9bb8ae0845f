//! The errors for traits that cannot be services, and the texts that the errors point at.
//!
//! The tests of `pikake-rpc` compile traits that can be services.

use syn::parse::Parser;

use super::*;

/// The error for a trait, and the text that the error points at.
fn refused(service: &str) -> (String, String) {
    let service: ItemTrait = syn::parse_str(service).unwrap();
    let error = rewrite(service, &ServiceOptions::default()).expect_err("it cannot be a service");
    (error.to_string(), error.span().source_text().unwrap())
}

/// The error for the options of the attribute, and the text that the error points at.
fn refused_options(options: &str) -> (String, String) {
    let mut found = ServiceOptions::default();
    let parser = syn::meta::parser(|meta| found.take(&meta));
    let error = parser.parse_str(options).expect_err("they are wrong");
    (error.to_string(), error.span().source_text().unwrap())
}

#[test]
fn errors_point_at_the_refused_part_of_a_method() {
    let shared = "calls share the service, so it is `&self`";
    let receiver = "a method of a service takes `&self`";
    let named = "an argument has a name, which errors of the other side tell";
    let owned = "an argument travels, so nothing of it is borrowed: `String` instead of `&str`, \
                 `Vec<T>` instead of `&[T]`";
    let ordinary = "a method of a service is an ordinary method";
    let generics = "a method of a service has no generic parameters";
    for (method, at, message) in [
        ("fn f(&self);", "fn", "a method of a service is an `async fn`"),
        ("async fn f();", "f", receiver),
        ("async fn f(a: u8);", "f", receiver),
        ("async fn f(&mut self);", "&mut self", shared),
        ("async fn f(self);", "self", shared),
        ("async fn f(self: Rc<Self>);", "self: Rc<Self>", shared),
        ("async fn f(&self, name: &str);", "&str", owned),
        ("async fn f(&self, name: Option<&'static str>);", "&", owned),
        ("async fn f(&self, all: (u8, [&u8; 2]));", "&", owned),
        (
            "async fn f(&self, a: impl Send);",
            "impl Send",
            "an argument travels, so its type has a name",
        ),
        (
            "async fn f(&self) -> impl Send;",
            "impl Send",
            "an answer travels, so its type has a name",
        ),
        (
            "async fn f(&self) -> &str;",
            "&str",
            "an answer travels, so nothing of it is borrowed: `String` instead of `&str`, \
             `Vec<T>` instead of `&[T]`",
        ),
        ("async fn f(&self, _: u8);", "_", named),
        ("async fn f(&self, (a, b): (u8, u8)) {}", "(a, b)", named),
        ("async fn f(&self, ref a: u8) {}", "ref a", named),
        ("async fn f(&self, a @ 0..: u8) {}", "a @ 0..", named),
        (
            "async fn f(&self, a: u8, #[cfg(unix)] b: u8);",
            "#[cfg(unix)]",
            "an argument cannot be conditional: the other side may be built with other features",
        ),
        ("async fn f<T>(&self, it: T);", "<T>", generics),
        ("async fn f<'a>(&'a self);", "<'a>", generics),
        (
            "async fn f(&self) where Self: Sized;",
            "where Self: Sized",
            "a method of a service has no `where` clause",
        ),
        ("async unsafe fn f(&self);", "unsafe", ordinary),
        ("async extern \"C\" fn f(&self);", "extern \"C\"", ordinary),
        ("const LIMIT: u8 = 3;", "const LIMIT: u8 = 3;", "a service has methods only"),
        ("type Key;", "type Key;", "a service has methods only"),
        ("#[notice] async fn f(&self) -> u8;", "u8", "nobody waits for the value of a notice"),
        (
            "#[notice] #[idempotent] async fn f(&self);",
            "#[idempotent]",
            "a notice has no answer, so nobody knows when to try it again",
        ),
        ("#[name = 7] async fn f(&self);", "#[name = 7]", "a name is a text: `#[name = \"…\"]`"),
        ("#[name = \"\"] async fn f(&self);", "\"\"", "a name has at least one character"),
        ("async fn f(&self); async fn f(&self, a: u8);", "f", "a service has one method of a name"),
        (
            "async fn f(&self); #[name = \"f\"] async fn g(&self);",
            "g",
            "another method has the name `f` in messages",
        ),
        (
            "async fn new(&self);",
            "new",
            "the client has a `new` of its own: rename the method, with `#[name = \"new\"]` if clients call it by this name",
        ),
        (
            "async fn r#clone(&self);",
            "r#clone",
            "the client has a `clone` of its own: rename the method, with `#[name = \"clone\"]` if clients call it by this name",
        ),
    ] {
        let service = format!("trait Service {{ {method} }}");
        assert_eq!(refused(&service), (message.to_owned(), at.to_owned()), "{method}");
    }
}

#[test]
fn errors_point_at_the_refused_part_of_a_trait() {
    for (service, at, message) in [
        ("trait Service<T> {}", "<T>", "a service has no generic parameters"),
        ("unsafe trait Service {}", "unsafe", "a service is an ordinary trait"),
    ] {
        assert_eq!(refused(service), (message.to_owned(), at.to_owned()), "{service}");
    }
}

#[test]
fn errors_point_at_the_refused_option() {
    let options = "a service has only the options `name` and `crate`";
    for (text, at, message) in [
        ("version = 2", "version", options),
        ("idempotent", "idempotent", options),
        ("name = \"\"", "\"\"", "a name has at least one character"),
        ("name = Service", "Service", "expected string literal"),
    ] {
        assert_eq!(refused_options(text), (message.to_owned(), at.to_owned()), "{text}");
    }
}

/// A method under a condition may have the name of another one, which the condition excludes.
#[test]
fn conditional_methods_may_share_a_name() {
    let service = "trait Service { #[cfg(unix)] async fn f(&self); #[cfg(not(unix))] async fn f(&self, a: u8); }";
    let service: ItemTrait = syn::parse_str(service).unwrap();
    assert!(rewrite(service, &ServiceOptions::default()).is_ok());
}
