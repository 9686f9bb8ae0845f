//! Names, and connecting to hosts with several addresses.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use pikake::net::{
    ATTEMPT_DELAY, AddressErrors, DEFAULT_TTL, NEGATIVE_TTL, NameAnswer, NameError, NameSource,
    Resolver, TcpListener, interruption,
};
use pikake::testing::interrupt_everywhere;
use pikake::time::{elapsed_since, now};
use pikake::{sleep, spawn, timeout_after};

use crate::support::{OnDrop, ms, run};

const SECOND: Duration = Duration::from_secs(1);

/// The reaction of a source to a question.
#[derive(Clone)]
enum Says {
    Addresses(Vec<IpAddr>, Option<Duration>),
    Fails,
    Never,
}

/// A source that says what it is told to, after a second, and counts.
#[derive(Clone)]
struct Scripted {
    says: Rc<RefCell<Vec<Says>>>,
    asked: Rc<Cell<usize>>,
    /// Questions that were dropped unanswered.
    given_up: Rc<Cell<usize>>,
}

impl Scripted {
    fn new(says: impl IntoIterator<Item = Says>) -> Self {
        let mut says: Vec<Says> = says.into_iter().collect();
        says.reverse();
        Self { says: Rc::new(RefCell::new(says)), asked: Rc::default(), given_up: Rc::default() }
    }

    fn resolver(&self) -> Resolver {
        Resolver::builder().source(self.clone()).build()
    }
}

impl NameSource for Scripted {
    fn look_up(&self, _: &str) -> Pin<Box<dyn Future<Output = io::Result<NameAnswer>>>> {
        self.asked.set(self.asked.get() + 1);
        let says = self.says.borrow_mut().pop().expect("nothing more is asked");
        let given_up = self.given_up.clone();
        Box::pin(async move {
            let waits = OnDrop(|| given_up.set(given_up.get() + 1));
            sleep(SECOND).await?;
            let answer = match says {
                Says::Addresses(addresses, ttl) => Ok(NameAnswer { addresses, ttl }),
                Says::Fails => Err(io::Error::other("the server has lost its memory")),
                Says::Never => {
                    sleep(Duration::MAX).await?;
                    unreachable!("a sleep that never ends");
                }
            };
            std::mem::forget(waits);
            answer
        })
    }
}

fn here() -> Vec<IpAddr> {
    vec![Ipv4Addr::LOCALHOST.into()]
}

#[test]
fn answer_is_cached_until_its_ttl_ends() {
    run(async {
        let answers = [Some(60 * SECOND), None, Some(Duration::ZERO), Some(SECOND)];
        let source = Scripted::new(answers.map(|ttl| Says::Addresses(here(), ttl)));
        let resolver = source.resolver();
        for (asked, holds) in [(1, 60 * SECOND), (2, DEFAULT_TTL)] {
            assert_eq!(resolver.lookup("Example.org").await.unwrap(), here());
            let since = now();
            sleep(holds - ms(1)).await.unwrap();
            assert_eq!(resolver.lookup("example.ORG").await.unwrap(), here());
            assert_eq!(source.asked.get(), asked, "it holds until {holds:?}");
            sleep(holds - elapsed_since(since)).await.unwrap();
        }
        resolver.lookup("example.org").await.unwrap();
        assert_eq!((source.asked.get(), resolver.known()), (3, 0), "it is not kept");
        resolver.lookup("example.org").await.unwrap();
        assert_eq!((source.asked.get(), resolver.known()), (4, 1));
        resolver.forget();
        assert_eq!(resolver.known(), 0);
    });
}

#[test]
fn failed_lookup_is_cached_for_a_while() {
    run(async {
        let negative = Says::Addresses(Vec::new(), Some(60 * SECOND));
        let source = Scripted::new([Says::Fails, negative, Says::Fails]);
        let resolver = source.resolver();
        for _ in 0..3 {
            let error = resolver.lookup("example.org").await.unwrap_err();
            let text = "look up example.org: the server has lost its memory";
            assert_eq!(error.to_string(), text);
        }
        assert_eq!(source.asked.get(), 1);
        sleep(NEGATIVE_TTL).await.unwrap();
        for _ in 0..3 {
            let error = resolver.lookup("example.org").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            let error = error.get_ref().unwrap().downcast_ref::<NameError>().unwrap();
            assert_eq!(error.host(), "example.org");
            sleep(10 * SECOND).await.unwrap();
        }
        assert_eq!(source.asked.get(), 2);
        sleep(60 * SECOND).await.unwrap();
        resolver.lookup("example.org").await.unwrap_err();
        assert_eq!(source.asked.get(), 3);
    });
}

#[test]
fn cache_keeps_no_more_names_than_its_size() {
    run(async {
        let holding = |seconds| Says::Addresses(here(), Some(seconds * SECOND));
        let source = Scripted::new([100, 10, 50, 100, 3].map(holding));
        let resolver = Resolver::builder().source(source.clone()).capacity(3).build();
        for name in ["a", "b", "c", "d"] {
            resolver.lookup(name).await.unwrap();
        }
        assert_eq!(resolver.known(), 3);
        for name in ["a", "c", "d"] {
            resolver.lookup(name).await.unwrap();
        }
        assert_eq!(source.asked.get(), 4);
        resolver.lookup("b").await.unwrap();
        assert_eq!((source.asked.get(), resolver.known()), (5, 3), "b would have ended first");
    });
}

#[test]
fn numeric_address_needs_no_lookup() {
    run(async {
        let resolver = Scripted::new([]).resolver();
        assert_eq!(resolver.lookup("127.0.0.1").await.unwrap(), here());
        assert_eq!(resolver.lookup("::1").await.unwrap(), [IpAddr::from(Ipv6Addr::LOCALHOST)]);
    });
}

#[test]
fn concurrent_lookups_of_a_name_are_one() {
    run(async {
        let source = Scripted::new([Says::Addresses(here(), None)]);
        let resolver = source.resolver();
        let askers = (0..10).map(|_| {
            let resolver = resolver.clone();
            spawn(async move { resolver.lookup("example.org").await })
        });
        let since = now();
        for answer in join_all(askers).await {
            assert_eq!(answer.unwrap().unwrap(), here());
        }
        assert_eq!((source.asked.get(), elapsed_since(since)), (1, SECOND));
    });
}

#[test]
fn interrupted_lookup_leaves_others_their_answer() {
    run(async {
        let source = Scripted::new([Says::Addresses(here(), None)]);
        let resolver = source.resolver();
        // The first of them, which has begun the lookup, is interrupted.
        let first = spawn({
            let resolver = resolver.clone();
            async move { timeout_after(ms(10), resolver.lookup("example.org")).await }
        });
        let second = spawn(async move { resolver.lookup("example.org").await });
        assert!(first.await.unwrap().is_err());
        assert_eq!(second.await.unwrap().unwrap(), here());
        assert_eq!((source.asked.get(), source.given_up.get()), (1, 0));
    });
}

#[test]
fn lookup_without_waiters_is_cancelled() {
    run(async {
        let source = Scripted::new([Says::Never, Says::Addresses(here(), None)]);
        let resolver = source.resolver();
        let [one, other] = [10, 20].map(|after| {
            let resolver = resolver.clone();
            spawn(async move { timeout_after(ms(after), resolver.lookup("example.org")).await })
        });
        assert!(one.await.unwrap().is_err());
        assert_eq!(source.given_up.get(), 0);
        assert!(other.await.unwrap().is_err());
        sleep(ms(1)).await.unwrap();
        assert_eq!(source.given_up.get(), 1);
        // A later lookup begins anew.
        assert_eq!(resolver.lookup("example.org").await.unwrap(), here());
        assert_eq!(source.asked.get(), 2);
    });
}

#[test]
fn attempts_have_a_timeout_each_and_one_together() {
    run(async {
        let source = Scripted::new([Says::Never, Says::Never, Says::Addresses(here(), None)]);
        let patient = Resolver::builder().source(source.clone()).attempts(3, 2 * SECOND).build();
        let since = now();
        assert_eq!(patient.lookup("example.org").await.unwrap(), here());
        assert_eq!((elapsed_since(since), source.given_up.get()), (5 * SECOND, 2));

        let source = Scripted::new([Says::Never, Says::Never]);
        let resolver = Resolver::builder().source(source.clone()).attempts(2, 2 * SECOND).build();
        let since = now();
        let error = resolver.lookup("example.org").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("no answer within 2s, asked 2 times"), "{error}");
        assert!(interruption(&error).is_none(), "it is no interruption of whoever asks");
        assert_eq!(elapsed_since(since), 4 * SECOND);

        let source = Scripted::new([Says::Never, Says::Never]);
        let resolver =
            Resolver::builder().source(source).attempts(9, 2 * SECOND).timeout(3 * SECOND).build();
        let since = now();
        let error = resolver.lookup("example.org").await.unwrap_err();
        assert!(error.to_string().contains("no answer within 3s in all"), "{error}");
        assert_eq!(elapsed_since(since), 3 * SECOND);
    });
}

#[test]
fn an_interruption_at_every_wait() {
    let report = interrupt_everywhere(
        || async {
            let source = Scripted::new([Says::Addresses(here(), None)]);
            let resolver = source.resolver();
            let other = spawn({
                let resolver = resolver.clone();
                async move { resolver.lookup("example.org").await.map_err(|error| error.kind()) }
            });
            let asked = resolver.lookup("example.org").await;
            let told = asked.as_ref().err().map(|error| interruption(error).cloned());
            // The other lookup always has its answer.
            let other = pikake::shield(other).await.unwrap();
            (told, other)
        },
        |run| {
            let (told, other) = run.output.as_ref().unwrap();
            assert_eq!(*other, Ok(here()));
            match told {
                None => {}
                Some(why) => {
                    let is_told = why
                        .as_ref()
                        .is_some_and(|why| !why.is_cancel() || why.reason() == Some("injected"));
                    assert!(run.interruption.is_some() && is_told);
                }
            }
        },
    );
    assert!(report.suspensions >= 1 && report.cancels > 0, "{report:?}");
}

#[pikake::test]
async fn a_connection_by_name_of_the_system() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let resolver = Resolver::new();
    for _ in 0..2 {
        let stream = resolver.connect(("localhost", port)).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
    }
    assert_eq!(resolver.known(), 1);
}

#[pikake::test]
async fn an_error_lists_every_address() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let addresses = [1, 2, 3].map(|last| IpAddr::from([127, 0, 0, last])).to_vec();
    let resolver = {
        let says = Says::Addresses(addresses.clone(), None);
        Scripted::new([says]).resolver()
    };
    let error = resolver.connect(("example.org", port)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let errors = error.get_ref().unwrap().downcast_ref::<AddressErrors>().unwrap();
    let tried: Vec<IpAddr> = errors.tried().iter().map(|(address, _)| address.ip()).collect();
    assert_eq!(tried, addresses);
    let refused = "Connection refused (os error 111)";
    let list: Vec<String> =
        addresses.iter().map(|address| format!("{address}:{port}: {refused}")).collect();
    assert_eq!(error.to_string(), format!("connect to example.org:{port}: {}", list.join("; ")));
}

#[test]
fn attempt_delay_is_250_milliseconds() {
    assert_eq!(ATTEMPT_DELAY, ms(250));
}
