//! Names of all kinds: what a job's arguments are called, and what is called as the things that the
//! macro uses.

use pikake_jobs::Job;
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
        let all = (many, keywords, r#move, called::args, called::kwargs, called::options);
        let app = app.jobs(all).jobs((shadowed::task, shadowed::thread, shadowed::nothing));
        let app = app.jobs(own_result::refuses).connect().await.unwrap();
        let running = Running::start(&app, SECOND).await;
        let sum = many.delay(1, 2, 3, 4, 5, 6, 7).await.unwrap();
        assert_eq!(sum.wait().await.unwrap(), 28);
        let named = keywords.delay("kind".to_owned(), 1, 0).await.unwrap();
        assert_eq!(named.wait().await.unwrap(), "kind 2");
        assert_eq!(r#move.delay().await.unwrap().wait().await.unwrap(), 1);
        assert_eq!(called::args.delay(1).await.unwrap().wait().await.unwrap(), 11);
        assert_eq!(called::kwargs.delay(2).await.unwrap().wait().await.unwrap(), 12);
        assert_eq!(called::options.delay(3).await.unwrap().wait().await.unwrap(), 3);
        assert_eq!(shadowed::task.delay(4).await.unwrap().wait().await.unwrap(), 4);
        assert_eq!(shadowed::thread.delay(Some(5)).await.unwrap().wait().await.unwrap(), Some(5));
        shadowed::nothing.delay().await.unwrap().wait().await.unwrap();
        let refused = own_result::refuses.delay("no".to_owned()).await.unwrap().wait().await;
        assert!(refused.unwrap_err().to_string().contains("no"));
        running.end().await;
    });
}

/// What others send and see: Rust's `r#` is not theirs.
#[test]
fn raw_names_are_sent_bare() {
    fn facts<J: Job>(_: J) -> (&'static str, &'static [&'static str]) {
        (J::NAME, J::PARAMETERS)
    }
    assert_eq!(facts(keywords), ("jobs::names::keywords", &["type", "fn", "unused"][..]));
    assert_eq!(facts(r#move).0, "jobs::names::move");
}

/// Forty jobs, in two calls, with nested tuples.
#[test]
fn application_takes_any_number_of_jobs() {
    macro_rules! numbered {
        ($($name:ident)+) => {$(
            #[job(crate = pikake_jobs)]
            async fn $name() -> String {
                stringify!($name).to_owned()
            }
        )+
        const NAMES: &[&str] = &[$(concat!(module_path!(), "::", stringify!($name))),+];
        };
    }
    numbered! {
        a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 b0 b1 b2 b3 b4 b5 b6 b7 b8 b9
        c0 c1 c2 c3 c4 c5 c6 c7 c8 c9 d0 d1 d2 d3 d4 d5 d6 d7 d8 d9
    }
    in_worlds(async || {
        let (app, _store) = app();
        let app =
            app.jobs((a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5)).jobs((
                (b6, b7, b8, b9, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, d0, d1),
                (d2, d3, d4, d5, d6, d7),
                (d8, (d9,)),
            ));
        assert_eq!(NAMES.len(), 40);
        assert_eq!(NAMES.iter().find(|name| app.definition(name).is_none()), None);
        let app = app.connect().await.unwrap();
        let running = Running::start(&app, SECOND).await;
        assert_eq!(a0.delay().await.unwrap().wait().await.unwrap(), "a0");
        assert_eq!(d9.delay().await.unwrap().wait().await.unwrap(), "d9");
        running.end().await;
    });
}

#[test]
#[should_panic(expected = "two jobs have the name `jobs::names::move`")]
fn second_job_of_a_name_panics() {
    let (app, _store) = app();
    drop(app.jobs((many, r#move)).jobs((keywords, (r#move, called::args))));
}
