//! The attribute macros of pikake. Use them through the `pikake` crate.
//!
//! `main`, `test` and `sim` turn an `async fn` into an ordinary function that runs it: `main` and
//! `test` in a fresh kernel, `sim` in a simulated world for each seed. `test` and `sim` make tests.
//! `job` makes a job, `service` a client and a server.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "jobs")]
mod job;
#[cfg(any(feature = "jobs", feature = "rpc"))]
mod returned;
mod select;
#[cfg(feature = "rpc")]
mod service;

use proc_macro::TokenStream;
use proc_macro2::{Span, TokenStream as Tokens};
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, ItemFn, Lit, LitInt, LitStr, Signature, parse_macro_input};

/// Runs an `async fn main` in a fresh kernel.
///
/// With the default feature `log-to-stderr` the program prints the warnings and errors of `tracing`
/// to standard error, unless it sets a subscriber of its own before its first `await`; see
/// `pikake::log_to_stderr`.
///
/// Options:
///
/// * `name = "…"`: the name of the main task; by default that of the function.
/// * `signals`: the first SIGINT or SIGTERM interrupts the main task; see
///   `pikake::interrupt_on_signals`;
/// * `threads = 4`: four kernels, each on a thread of its own. The function runs on the first, the
///   others wait for work; see `pikake::other_kernels` and `pikake::on_kernels`. A literal 0 does
///   not compile, and another zero is a panic;
/// * `console`: the program `pikake` can look into the process, and SIGUSR1 and SIGQUIT write what
///   it shows to standard error; see `pikake::console`.
///
/// # Examples
///
/// ```
/// use pikake::{Interrupted, sleep};
/// use std::time::Duration;
///
/// #[pikake::main]
/// async fn main() -> Result<(), Interrupted> {
///     sleep(Duration::from_millis(1)).await
/// }
/// ```
///
/// ```compile_fail
/// #[pikake::main(threads = 0)]
/// async fn main() {}
/// ```
#[proc_macro_attribute]
pub fn main(options: TokenStream, function: TokenStream) -> TokenStream {
    expand(Options { owns_process: true, ..Options::default() }, options, function)
}

/// Makes a test of an `async fn`, which runs in a fresh kernel.
///
/// Unlike `main`, the attribute sets no subscriber for `tracing`: a test shares its process with
/// others. The test fails if a task of its kernel
/// [swallows an interruption](https://docs.rs/pikake/latest/pikake/interruption/index.html).
///
/// Options: `name`, as for `main`. The function may return any type that a test may return.
///
/// # Examples
///
/// ```
/// use pikake::{Interrupted, yield_now};
///
/// #[pikake::test]
/// async fn another_task_runs_first() -> Result<(), Interrupted> {
///     let task = pikake::spawn(async { 6 * 7 });
///     yield_now().await?;
///     assert!(task.is_finished());
///     Ok(())
/// }
/// ```
#[proc_macro_attribute]
pub fn test(options: TokenStream, function: TokenStream) -> TokenStream {
    let attribute = quote!(#[::core::prelude::v1::test]);
    expand(Options { attribute, ..Options::default() }, options, function)
}

/// Makes a test of an `async fn`, which runs in a simulated world for each of many seeds.
///
/// The function is the main task of the world's only host. `pikake::sim` explains simulations, and
/// how to repeat a failed run. Options:
///
/// * `seeds = 200`: the number of seeds; by default a hundred;
/// * `threads = 3`: the number of the host's kernels, as for `main`, all of them in virtual time;
///   by default one;
/// * `name = "…"`: the name of the host and of its main task; by default that of the function.
///
/// The function may return nothing, or a result.
///
/// The attribute needs the feature `sim` of pikake, which a program turns on for its tests alone:
///
/// ```toml
/// [dev-dependencies]
/// pikake = { git = "…", features = ["sim"] }
/// ```
///
/// # Examples
///
/// ```
/// use pikake::{Interrupted, sleep};
/// use std::time::Duration;
///
/// /// Takes no time: an hour of the world is a step of the test.
/// #[pikake::sim(seeds = 20)]
/// async fn an_hour() -> Result<(), Interrupted> {
///     sleep(Duration::from_secs(3_600)).await
/// }
/// ```
#[proc_macro_attribute]
pub fn sim(options: TokenStream, function: TokenStream) -> TokenStream {
    if !cfg!(feature = "sim") {
        return syn::Error::new(Span::call_site(), NO_SIM).to_compile_error().into();
    }
    let mut found = SimOptions::default();
    let parser = syn::meta::parser(|meta| found.take(&meta));
    parse_macro_input!(options with parser);
    let function = parse_macro_input!(function as ItemFn);
    rewrite_sim(function, &found).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Makes a job of a function, which runs later, in another process or on another machine.
///
/// The function stays as it is: `add(2, 3).await` calls it and sends nothing. The macro adds a type
/// of the same name and visibility, whose functions have the arguments of the job:
///
/// | item | meaning |
/// | --- | --- |
/// | `add::JOB` | the job's `Definition`, for `App::jobs([add::JOB])` |
/// | `add::delay(2, 3).await?` | sends the job, and returns a handle |
/// | `add::with(2, 3)` | a call with settings of its own, to be sent later |
/// | `add::after(3)` | the job without its first argument, to follow another job in a workflow |
///
/// The type has no value, so variables and arguments may have the job's name. No other type and no
/// module beside it may. `use mail::send as send_mail` imports the function and the type. In
/// documentation, a link to the function is written `` [`add()`] ``, since `` [`add`] `` is
/// ambiguous. The type and its items have the first paragraph of the function's documentation. See
/// `pikake::jobs`.
///
/// An `async fn` runs as a task, a plain `fn` in a thread. Arguments and value are sent as JSON; an
/// argument of an `Option` type may be left out. If the return type is written as a `Result`, an
/// error is a failure of the job. Options:
///
/// * `name = "tasks.add"`: the name of the job in messages; by default the function's path;
/// * `queue = "mail"`: the job's queue; by default the application's;
/// * `retries = 3`: the number of retries after failures; by default none;
/// * `backoff(first = "1s", cap = "10m")`: the longest wait before a retry: `first`, doubled each
///   time, at most `cap`;
/// * `soft_limit = "30s"`: the time after which the job is interrupted; `hard_limit = "60s"`: the
///   time after which the job is dropped, or its process killed;
/// * `acks = "early"`: the message is acknowledged before the job runs. The job then runs at most
///   once (or twice if RabbitMQ is lost just then). The default is `"late"`, after the job's
///   outcome is stored;
/// * `blocking`: run in a thread, the default of a plain `fn`; `process`: run in a process of the
///   same program;
/// * `priority = 5`, `expires = "1h"`, `ignore_result`: properties of the message;
/// * `unique_for = "10m"`: the job is the only one with its arguments until it has ended, and for
///   that length at most; `unique_until = "begun"` or `"elapsed"` ends that earlier or later, and
///   `unique_by = "customer"` looks at that argument alone.
/// * `rate = "10/s"` (`/m`, `/h`): how often each worker begins the job at most;
///   `rate_by = "customer"`: the argument of which each value has that rate for itself;
/// * `batch(size = 100, wait = "5s")`: one run for up to 100 messages, of which the first waits for
///   5 s at most. The function takes a `Vec`, of which each message has an element. See
///   `pikake::jobs::RunBatch`;
/// * `crate = path`: the path of `pikake::jobs`, if another.
///
/// Lengths are `"500ms"`, `"30s"`, `"10m"`, `"2h"`, or a number of seconds.
///
/// # Examples
///
/// ```
/// #[pikake::job(name = "tasks.add", retries = 3)]
/// async fn add(a: i64, b: i64) -> i64 {
///     a + b
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # pikake::run(async {
/// let app = pikake::jobs::App::new("memory://")?.jobs([add::JOB]);
/// let worker = pikake::spawn(app.run_worker());
/// let app = app.connect().await?;
/// assert_eq!(add::delay(2, 3).await?.wait().await?, 5);
/// assert_eq!(add(2, 3).await, 5);
/// # drop(app);
/// # worker.request_cancel("the example is over");
/// # worker.await??;
/// # Ok(()) })
/// # }
/// ```
///
/// These do not compile: a method, a generic function, borrowed arguments, arguments without a
/// name, arguments or a value that are not JSON, and options that contradict each other.
///
/// ```compile_fail
/// #[pikake::job]
/// async fn borrows(name: &str) {}
/// ```
///
/// ```compile_fail
/// #[pikake::job]
/// async fn generic<T>(it: T) {}
/// ```
///
/// ```compile_fail
/// #[pikake::job]
/// async fn has_no_name((a, b): (u8, u8)) {}
/// ```
///
/// ```compile_fail
/// #[pikake::job]
/// async fn no_json() -> fn() { || () }
/// ```
///
/// ```compile_fail
/// #[pikake::job(process)]
/// async fn contradicts() {}
/// ```
///
/// ```compile_fail
/// #[pikake::job(retry = 3)]
/// async fn unknown_option() {}
/// ```
///
/// The same without the mistakes:
///
/// ```
/// #[pikake::job(retries = 3)]
/// async fn fine(name: String) {}
///
/// #[pikake::job(process)]
/// fn fine_too() -> Vec<u8> { Vec::new() }
/// ```
#[cfg(feature = "jobs")]
#[proc_macro_attribute]
pub fn job(options: TokenStream, function: TokenStream) -> TokenStream {
    let mut found = job::JobOptions::default();
    let parser = syn::meta::parser(|meta| found.take(&meta));
    parse_macro_input!(options with parser);
    let function = parse_macro_input!(function as ItemFn);
    job::rewrite(function, found).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Makes a client and a server of a trait, for calls between processes.
///
/// For a trait `Accounts`, `AccountsClient` has the same methods and calls them at a server.
/// `AccountsServer` offers an implementation of the trait to clients. An `Rc` of an implementation
/// is one as well. See `pikake::rpc`.
///
/// # Methods
///
/// Each method is an `async fn` that takes `&self` and owned arguments. serde must be able to write
/// and to read the arguments and the answer. Neither the trait nor a method has type parameters or
/// lifetimes.
///
/// If the return type is written as a `Result`, the client gets the error as `rpc::Error::Service`.
/// An alias with another name is a value like any other.
///
/// A method may have a body, which implementations without the method use. The client calls the
/// server all the same.
///
/// The client has a `new`, a `clone` and a constant `METHODS` of its own. A method that clients
/// call by such a name has another one in the trait, and the attribute `name`.
///
/// Attributes of methods:
///
/// * `#[idempotent]`: another attempt does no harm, so the client tries again though the first
///   attempt may have been executed;
/// * `#[notice]`: nothing is returned, and the client does not wait; a notice has no value, and is
///   not `idempotent`;
/// * `#[name = "…"]`: the method's name in messages; by default that in the trait;
/// * `cfg`, `doc` and `deprecated`: also for the client's method.
///
/// # Options
///
/// * `name = "Accounts"`: the service's name in messages; by default that of the trait;
/// * `crate = path`: the path of `pikake::rpc`, if another.
///
/// # Examples
///
/// ```
/// #[pikake::service]
/// pub trait Counter {
///     /// Adds, and returns the sum.
///     async fn add(&self, count: u64) -> u64;
///     #[idempotent]
///     async fn read(&self) -> u64;
/// }
/// ```
///
/// A type that cannot travel does not compile: serde cannot write an `io::Error`, and nobody owns a
/// `&str`.
///
/// ```compile_fail,E0277
/// #[pikake::service]
/// pub trait Files {
///     async fn size(&self, name: String) -> std::io::Result<u64>;
/// }
/// ```
///
/// ```compile_fail
/// #[pikake::service]
/// pub trait Files {
///     async fn size(&self, name: &str) -> Option<u64>;
/// }
/// ```
///
/// A method without an answer, and one with a name of the client's own:
///
/// ```
/// #[pikake::service]
/// pub trait Log {
///     #[notice]
///     async fn write(&self, line: String);
///     #[name = "new"]
///     async fn begin(&self, title: String) -> u64;
/// }
/// ```
#[cfg(feature = "rpc")]
#[proc_macro_attribute]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    let mut found = service::ServiceOptions::default();
    let parser = syn::meta::parser(|meta| found.take(&meta));
    parse_macro_input!(options with parser);
    let item = parse_macro_input!(item as syn::ItemTrait);
    service::rewrite(item, &found).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// The expansion of `pikake::select!`, which adds the path of the `pikake` crate in brackets.
#[doc(hidden)]
#[proc_macro]
pub fn select(branches: TokenStream) -> TokenStream {
    select::expand(parse_macro_input!(branches as select::Select)).into()
}

/// The error of `sim` in a build without simulations.
const NO_SIM: &str = "`#[pikake::sim]` needs the feature `sim` of pikake. Tests turn it on in \
                      Cargo.toml: below `[dev-dependencies]`, name pikake as below \
                      `[dependencies]`, and add `features = [\"sim\"]`";

/// The error of `threads = 0`.
const NO_THREADS: &str = "no kernel would run the function: `threads` is at least 1";

#[derive(Default)]
struct SimOptions {
    name: Option<LitStr>,
    seeds: Option<LitInt>,
    threads: Option<Expr>,
}

impl SimOptions {
    fn take(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("name") {
            self.name = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("seeds") {
            self.seeds = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("threads") {
            self.threads = Some(parse_threads(meta)?);
        } else {
            let message =
                "this attribute has only the options `seeds = …`, `threads = …` and `name = \"…\"`";
            return Err(meta.error(message));
        }
        Ok(())
    }
}

/// The value of `threads`, of which a literal zero is an error.
fn parse_threads(meta: &ParseNestedMeta<'_>) -> syn::Result<Expr> {
    match meta.value()?.parse()? {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) if number.base10_digits() == "0" => {
            Err(syn::Error::new(number.span(), NO_THREADS))
        }
        threads => Ok(threads),
    }
}

fn rewrite_sim(function: ItemFn, options: &SimOptions) -> syn::Result<Tokens> {
    check_signature(&function.sig)?;
    let ItemFn { attrs, vis, sig, block, .. } = function;
    let (function, output) = (&sig.ident, &sig.output);
    let function_name = || LitStr::new(&function.to_string(), Span::call_site());
    let name = options.name.clone().unwrap_or_else(function_name);
    let seeds = match &options.seeds {
        Some(seeds) => quote!(::core::option::Option::Some(#seeds)),
        None => quote!(::core::option::Option::None),
    };
    let kernels = match &options.threads {
        Some(threads) => quote!(#threads),
        None => quote!(1),
    };
    Ok(quote! {
        #(#attrs)*
        #[::core::prelude::v1::test]
        #vis fn #function() {
            async fn __pikake_body() #output #block
            const PATH: &str = ::core::concat!(
                ::core::module_path!(), "::", ::core::stringify!(#function),
            );
            ::pikake::__macros::simulate(PATH, #name, #seeds, #kernels, __pikake_body)
        }
    })
}

fn check_signature(sig: &Signature) -> syn::Result<()> {
    if sig.asyncness.is_none() {
        let message = "this attribute runs an `async fn`; the function is not `async`";
        return Err(syn::Error::new(sig.fn_token.span(), message));
    }
    if !sig.inputs.is_empty() {
        let message = "a function that is run by this attribute takes no arguments";
        return Err(syn::Error::new(sig.inputs.span(), message));
    }
    Ok(())
}

#[derive(Default)]
struct Options {
    /// The attribute of the function.
    attribute: Tokens,
    name: Option<LitStr>,
    /// A test shares its process with other tests, so it handles no signals and sets no subscriber.
    owns_process: bool,
    threads: Option<Expr>,
    signals: bool,
    console: bool,
}

impl Options {
    fn take(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("name") {
            self.name = Some(meta.value()?.parse()?);
            return Ok(());
        }
        if !self.owns_process {
            return Err(meta.error("this attribute has only the option `name = \"…\"`"));
        }
        if meta.path.is_ident("threads") {
            self.threads = Some(parse_threads(meta)?);
            return Ok(());
        }
        if meta.path.is_ident("console") {
            if !cfg!(feature = "console") {
                return Err(
                    meta.error("the option `console` needs the feature `console` of pikake")
                );
            }
            self.console = true;
            return Ok(());
        }
        if !meta.path.is_ident("signals") {
            let message = "this attribute has only the options `name = \"…\"`, `signals`, `console` \
                           and `threads = …`";
            return Err(meta.error(message));
        }
        if !cfg!(feature = "signals") {
            return Err(meta.error("the option `signals` needs the feature `signals` of pikake"));
        }
        self.signals = true;
        Ok(())
    }
}

fn expand(mut found: Options, options: TokenStream, function: TokenStream) -> TokenStream {
    let parser = syn::meta::parser(|meta| found.take(&meta));
    parse_macro_input!(options with parser);
    let function = parse_macro_input!(function as ItemFn);
    rewrite(function, &found).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn rewrite(function: ItemFn, options: &Options) -> syn::Result<Tokens> {
    check_signature(&function.sig)?;
    let ItemFn { attrs, vis, sig, block, .. } = function;
    let mut plain = sig.clone();
    plain.asyncness = None;
    let function_name = || LitStr::new(&sig.ident.to_string(), Span::call_site());
    let name = options.name.clone().unwrap_or_else(function_name);
    let output = match &sig.output {
        syn::ReturnType::Default => quote!(()),
        syn::ReturnType::Type(_, kind) => quote!(#kind),
    };
    let run = match (options.owns_process, options.signals) {
        (true, true) => quote!(run_main_until_signal),
        (true, false) => quote!(run_main),
        (false, _) => quote!(run_test),
    };
    let attribute = &options.attribute;
    let run = quote!(::pikake::__macros::#run(#name, __pikake_body()));
    let run = match &options.threads {
        Some(threads) => quote!(::pikake::__macros::with_threads(#threads, || #run)),
        None => run,
    };
    let run = match options.owns_process {
        true => {
            let console = options.console;
            quote!(::pikake::__macros::with_console(#console, || #run))
        }
        false => run,
    };
    Ok(quote! {
        #(#attrs)*
        #attribute
        #vis #plain {
            async fn __pikake_body() -> #output #block
            #run
        }
    })
}

#[cfg(test)]
mod tests {
    use syn::parse::Parser;

    use super::{NO_THREADS, Options, SimOptions};

    #[test]
    fn literal_zero_of_threads_is_refused() {
        for option in ["threads = 0", "threads = 0usize", "threads = 0x0"] {
            let mut of_main = Options { owns_process: true, ..Options::default() };
            let mut of_sim = SimOptions::default();
            for result in [
                syn::meta::parser(|meta| of_main.take(&meta)).parse_str(option),
                syn::meta::parser(|meta| of_sim.take(&meta)).parse_str(option),
            ] {
                let error = result.expect_err(option);
                assert_eq!(error.to_string(), NO_THREADS, "{option}");
                assert_eq!(
                    Some(error.span().source_text().unwrap().as_str()),
                    option.split(' ').next_back()
                );
            }
        }
        for option in ["threads = 1", "threads = CORES", "threads = 0 + CORES"] {
            let mut options = SimOptions::default();
            syn::meta::parser(|meta| options.take(&meta)).parse_str(option).expect(option);
        }
    }
}
