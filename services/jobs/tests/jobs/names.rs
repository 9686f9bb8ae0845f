//! Names of all kinds: what a job's arguments are called, and what is called as the things that the
//! macro uses; and variables that are called as jobs.

use pikake_macros::job;

use crate::{Running, SECOND, app, in_worlds};

/// Named as what the macro makes, or nearly so.
#[job(crate = pikake_jobs)]
async fn many(args: u8, kwargs: u8, options: u8, self_: u8, __x: u8, call: u8, job: u8) -> u8 {
    args + kwargs + options + self_ + __x + call + job
}

#[job(crate = pikake_jobs)]
fn keywords(
    r#type: String,
    mut r#fn: u8,
    #[expect(unused_variables, reason = "attributes are kept")] unused: u8,
) -> String {
    r#fn += 1;
    format!("{} {}", r#type, r#fn)
}

#[job(crate = pikake_jobs)]
async fn r#move() -> u8 {
    1
}

/// Jobs that are called as what the macro makes.
mod called {
    use super::job;

    #[job(crate = pikake_jobs, retries = 1)]
    pub(super) async fn args(number: u8) -> u8 {
        number + is_sent()
    }

    #[job(crate = pikake_jobs, retries = 1)]
    pub(super) fn kwargs(number: u8) -> u8 {
        number + is_sent()
    }

    #[job(crate = pikake_jobs, retries = 1, backoff(first = "1s"))]
    pub(super) async fn options(number: u8) -> u8 {
        number
    }

    /// Not the macro's.
    fn is_sent() -> u8 {
        10
    }
}

/// A module in which nothing is what it is elsewhere.
#[expect(dead_code, non_camel_case_types, reason = "they are only to be in the way")]
mod shadowed {
    use pikake_macros::job as made_a_job;

    mod std {}
    mod core {}
    mod pikake {}
    struct Option;
    struct Box;
    struct Vec;
    struct String;
    struct Handle;
    struct Call;
    struct Ok;
    struct Err;
    struct Some;
    struct None;
    struct str;
    trait Clone {}
    trait Future {}
    trait Serialize {}
    fn drop() {}

    #[made_a_job(crate = pikake_jobs, queue = "shadowed", soft_limit = "10s")]
    pub(super) async fn task(number: u8) -> ::std::result::Result<u8, ::std::fmt::Error> {
        ::std::result::Result::Ok(number)
    }

    #[made_a_job(crate = pikake_jobs, queue = "shadowed", acks = "early")]
    pub(super) fn thread(number: ::std::option::Option<u8>) -> ::std::option::Option<u8> {
        number
    }

    #[made_a_job(crate = pikake_jobs)]
    pub(super) async fn nothing() {}
}

/// `Result` is somebody's own, with the error said once.
mod own_result {
    pub(super) type Result<T> = std::result::Result<T, String>;

    #[super::job(crate = pikake_jobs)]
    pub(super) async fn refuses(why: String) -> Result<u8> {
        Err(why)
    }
}

#[test]
fn whatever_they_are_called() {
    in_worlds(async || {
        let (app, _store) = app();
        let all = [many::JOB, keywords::JOB, r#move::JOB, called::args::JOB, called::kwargs::JOB];
        let app = app.jobs(all).jobs([called::options::JOB, shadowed::task::JOB]);
        let app = app.jobs([shadowed::thread::JOB, shadowed::nothing::JOB]);
        let app = app.jobs([own_result::refuses::JOB]).connect().await.unwrap();
        let running = Running::start(&app, SECOND).await;
        let sum = many::delay(1, 2, 3, 4, 5, 6, 7).await.unwrap();
        assert_eq!(sum.wait().await.unwrap(), 28);
        let named = keywords::delay("kind".to_owned(), 1, 0).await.unwrap();
        assert_eq!(named.wait().await.unwrap(), "kind 2");
        assert_eq!(r#move::delay().await.unwrap().wait().await.unwrap(), 1);
        assert_eq!(called::args::delay(1).await.unwrap().wait().await.unwrap(), 11);
        assert_eq!(called::kwargs::delay(2).await.unwrap().wait().await.unwrap(), 12);
        assert_eq!(called::options::delay(3).await.unwrap().wait().await.unwrap(), 3);
        assert_eq!(shadowed::task::delay(4).await.unwrap().wait().await.unwrap(), 4);
        assert_eq!(shadowed::thread::delay(Some(5)).await.unwrap().wait().await.unwrap(), Some(5));
        shadowed::nothing::delay().await.unwrap().wait().await.unwrap();
        let refused = own_result::refuses::delay("no".to_owned()).await.unwrap().wait().await;
        assert!(refused.unwrap_err().to_string().contains("no"));
        running.end().await;
    });
}

/// What others send and see: Rust's `r#` is not theirs.
#[test]
fn raw_names_are_sent_bare() {
    assert_eq!(keywords::JOB.name, "jobs::names::keywords");
    let shown = format!("{:?}", keywords::JOB);
    assert!(shown.contains(r#"parameters: ["type", "fn", "unused"]"#), "{shown}");
    assert_eq!(r#move::JOB.name, "jobs::names::move");
}

/// Jobs that have the names of their own parameters.
mod parameters {
    use super::job;

    #[job(crate = pikake_jobs)]
    pub(super) async fn total(total: u64) -> u64 {
        total + 1
    }

    #[job(crate = pikake_jobs)]
    pub(super) fn plain(mut plain: u64, total: u64) -> u64 {
        plain += total;
        plain
    }

    #[job(crate = pikake_jobs, batch(size = 1, wait = "1s"))]
    pub(super) async fn batch(batch: Vec<u64>) -> Vec<u64> {
        batch
    }
}

#[test]
fn parameter_has_the_name_of_its_job() {
    use parameters::{batch, plain, total};

    in_worlds(async || {
        let (app, _store) = app();
        let app = app.jobs([total::JOB, plain::JOB, batch::JOB]).connect().await.unwrap();
        let running = Running::start(&app, SECOND).await;
        assert_eq!(total::delay(4).await.unwrap().wait().await.unwrap(), 5);
        assert_eq!(plain::delay(4, 2).await.unwrap().wait().await.unwrap(), 6);
        assert_eq!(batch::delay(7).await.unwrap().wait().await.unwrap(), 7);
        let chained = total::with(1).then(plain::after(3)).then(total::after());
        assert_eq!(chained.send().await.unwrap().wait().await.unwrap(), 6);
        running.end().await;
    });
}

/// Before and after the jobs, in one block with them, in a pattern, and in a closure.
#[test]
fn variables_have_the_names_of_jobs() {
    in_worlds(async || {
        let total = 5;

        #[job(crate = pikake_jobs)]
        async fn total(numbers: Vec<u64>) -> u64 {
            numbers.into_iter().sum()
        }

        #[job(crate = pikake_jobs)]
        fn plain(number: u64) -> u64 {
            number
        }

        let Some(plain) = Some(total + 1) else { return };
        let (app, _store) = app();
        let app = app.jobs([total::JOB, plain::JOB]).connect().await.unwrap();
        let running = Running::start(&app, SECOND).await;
        let sent = total::delay(vec![total, plain]).await.unwrap();
        let total = sent.wait().await.unwrap();
        assert_eq!(total, 11);
        assert_eq!(plain::delay(total).await.unwrap().wait().await.unwrap(), 11);
        let add = |total: u64| total + plain;
        assert_eq!(add(total), 17);
        running.end().await;
    });
}

#[test]
fn job_is_called_as_a_function() {
    use parameters::total as sum;

    in_worlds(async || {
        assert_eq!(keywords("kind".to_owned(), 1, 0), "kind 2");
        assert_eq!(sum(1).await, 2);
        let each: Vec<fn(u64, u64) -> u64> = vec![parameters::plain];
        assert_eq!(each[0](1, 2), 3);

        let (app, _store) = app();
        let app = app.jobs([sum::JOB]).connect().await.unwrap();
        let running = Running::start(&app, SECOND).await;
        assert_eq!(sum::delay(1).await.unwrap().wait().await.unwrap(), 2);
        running.end().await;
    });
}

/// The lints of a careful program, which the code of the macro passes.
#[deny(
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    missing_docs,
    missing_debug_implementations,
    nonstandard_style,
    rustdoc::all,
    unused
)]
mod linted {
    use super::job;

    /// Sends a mail; see [`send()`] and [`answer`].
    ///
    /// [`answer`]: https://example.org
    #[job(crate = pikake_jobs)]
    pub(super) async fn send(to: String, subject: String) -> Result<usize, std::fmt::Error> {
        super::parameters::total(1).await;
        Ok(to.len() + subject.len())
    }

    /// More arguments than clippy likes.
    #[job(crate = pikake_jobs, queue = "many", process)]
    pub(super) fn many(a1: u8, a2: u8, a3: u8, a4: u8, b1: u8, b2: u8, b3: u8, b4: String) -> u8 {
        a1 + a2 + a3 + a4 + b1 + b2 + b3 + u8::try_from(b4.len()).unwrap_or(0)
    }

    #[test]
    fn careful_lints_pass() {
        #[job(crate = pikake_jobs, batch(size = 2, wait = "1s"), unique_for = "1m")]
        async fn inner(numbers: Vec<u64>) -> Result<(), std::fmt::Error> {
            super::parameters::total(numbers.len() as u64).await;
            Ok(())
        }

        assert_eq!([send::JOB, many::JOB, inner::JOB].len(), 3);
    }
}

#[deprecated]
#[job(crate = pikake_jobs)]
fn old() {}

#[test]
#[expect(deprecated, reason = "the type is deprecated, as its function is")]
fn deprecated_function_makes_a_deprecated_job() {
    assert_eq!(old::JOB.name, "jobs::names::old");
}

/// Seventy jobs, made by a macro of the program.
#[test]
fn application_takes_any_number_of_jobs() {
    macro_rules! numbered {
        ($($name:ident)+) => {
            $(
                #[job(crate = pikake_jobs)]
                async fn $name() -> String {
                    stringify!($name).to_owned()
                }
            )+
            const JOBS: &[pikake_jobs::Definition] = &[$($name::JOB),+];
        };
    }
    numbered! {
        a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 b0 b1 b2 b3 b4 b5 b6 b7 b8 b9 c0 c1 c2 c3 c4 c5 c6 c7 c8 c9
        d0 d1 d2 d3 d4 d5 d6 d7 d8 d9 e0 e1 e2 e3 e4 e5 e6 e7 e8 e9 f0 f1 f2 f3 f4 f5 f6 f7 f8 f9
        g0 g1 g2 g3 g4 g5 g6 g7 g8 g9
    }
    in_worlds(async || {
        let (app, _store) = app();
        let app = app.jobs(JOBS.iter().copied());
        assert_eq!(JOBS.len(), 70);
        assert_eq!(
            JOBS.iter().find(|job| app.definition(job.name).is_none()).map(|job| job.name),
            None
        );
        let app = app.connect().await.unwrap();
        let running = Running::start(&app, SECOND).await;
        assert_eq!(a0::delay().await.unwrap().wait().await.unwrap(), "a0");
        assert_eq!(g9::delay().await.unwrap().wait().await.unwrap(), "g9");
        running.end().await;
    });
}

#[test]
#[should_panic(expected = "two jobs have the name `jobs::names::move`")]
fn second_job_of_a_name_panics() {
    let (app, _store) = app();
    drop(app.jobs([many::JOB, r#move::JOB]).jobs([keywords::JOB, r#move::JOB, called::args::JOB]));
}
