//! The errors for functions that cannot be jobs, and the texts that the errors point at.
//!
//! The tests of `pikake-jobs` compile functions that can be jobs.

use super::*;

/// The error for a function, and the text that the error points at.
fn refused(function: &str) -> (String, String) {
    let function: ItemFn = syn::parse_str(function).unwrap();
    let error = rewrite(function, JobOptions::default()).expect_err("it cannot be a job");
    (error.to_string(), error.span().source_text().unwrap())
}

#[test]
fn a_key_names_an_argument() {
    let mut options = JobOptions::default();
    options.keys.push(("rate_by", LitStr::new("user", Span::call_site())));
    let function: ItemFn = syn::parse_str("async fn send(to: u8) {}").unwrap();
    let error = rewrite(function, options).expect_err("there is no such argument");
    assert_eq!(error.to_string(), "no argument of the job has this name");
}

/// Doctests of the job run once, and links of its first paragraph keep their targets.
#[test]
fn summary_is_the_first_paragraph_and_link_targets() {
    let function: ItemFn = syn::parse_quote! {
        /// Adds
        /// [numbers][1].
        ///
        /// # Examples
        ///
        /// ```
        /// add(2, 3)
        /// ```
        ///
        /// [1]: https://example.org
        #[doc(hidden)]
        #[doc = include_str!("more.md")]
        async fn add(a: u8, b: u8) {}
    };
    let docs: Vec<_> = function.attrs.iter().collect();
    let expected = "\nAdds\n[numbers][1].\n\n[1]: https://example.org";
    assert_eq!(summary(&docs), expected);
    assert_eq!(summary(&[]), "\n");
}

#[test]
fn rates_are_celerys() {
    let nanos = |text: &str| rate(&syn::parse_str(text).unwrap()).ok();
    let rates = ["\"10/s\"", "\"2/m\"", "\"0.5/h\"", "4", "0.5", "\"0\"", "\"1/d\"", "true"];
    let second = 1_000_000_000;
    let spaced = [second / 10, 30 * second, 7_200 * second, second / 4, 2 * second];
    assert_eq!(
        rates.map(nanos),
        [
            Some(spaced[0]),
            Some(spaced[1]),
            Some(spaced[2]),
            Some(spaced[3]),
            Some(spaced[4]),
            None,
            None,
            None
        ]
    );
}

#[test]
fn errors_point_at_the_refused_part() {
    let named = "a job's arguments must have names, since they can be sent by name";
    let owns = "a job's arguments come from a message, so the job owns them (`String`, not `&str`)";
    let generics = "a job cannot be generic: its message carries its name, and no types";
    for (function, at, message) in [
        ("fn f(_: u8) {}", "_", named),
        ("fn f(a: u8, (b, c): (u8, u8)) {}", "(b, c)", named),
        ("async fn f(name: &str) {}", "&str", owns),
        ("fn f<T>(it: T) {}", "<T>", generics),
        ("fn f<'a>(it: Vec<&'a u8>) {}", "<'a>", generics),
        (
            "fn f(self, a: u8) {}",
            "self",
            "a job is a free function: all its arguments come in its message",
        ),
        ("unsafe fn f() {}", "unsafe", "a job is an ordinary function"),
        ("extern \"C\" fn f() {}", "extern \"C\"", "a job is an ordinary function"),
        (
            "fn f(a: impl Send) {}",
            "impl Send",
            "a job's arguments come from a message, so their types must be named",
        ),
        ("fn f() -> impl Send {}", "impl Send", "a job's value is sent, so its type must be named"),
        (
            "fn f(a: u8, #[cfg(unix)] b: u8) {}",
            "#[cfg(unix)]",
            "a job's arguments cannot be conditional: a sender may be built with other features",
        ),
    ] {
        assert_eq!(refused(function), (message.to_owned(), at.to_owned()), "{function}");
    }
}

/// The error for a batch, and the text that the error points at.
fn refused_batch(function: &str) -> (String, String) {
    let function: ItemFn = syn::parse_str(function).unwrap();
    let (size, wait) = (LitInt::new("10", Span::call_site()), quote!());
    let batch = Batch { size, wait, span: function.sig.ident.span() };
    let options = JobOptions { batch: Some(batch), ..JobOptions::default() };
    let error = rewrite(function, options).expect_err("it cannot be a batch");
    (error.to_string(), error.span().source_text().unwrap())
}

#[test]
fn errors_of_batches_point_at_the_refused_part() {
    let takes = "a batch has one argument, a `Vec` of the messages' arguments";
    let returns = "a batch returns nothing, or a `Vec` with the value of each message";
    for (function, at, message) in [
        ("async fn f(a: u8) {}", "u8", takes),
        ("async fn f(a: Vec<u8>, b: u8) {}", "a: Vec<u8>, b: u8", takes),
        ("async fn f(a: Vec<u8>) -> u8 { 1 }", "u8", returns),
        ("async fn f(a: Vec<u8>) -> Result<u8, E> { 1 }", "u8", returns),
        (
            "fn f(a: Vec<u8>) {}",
            "f",
            "a batch is an `async fn`: threads and processes run single jobs",
        ),
    ] {
        assert_eq!(refused_batch(function), (message.to_owned(), at.to_owned()), "{function}");
    }
}
