//! Traits that can be services, in all their forms. The tests of `pikake-macros` have those that
//! cannot.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::MemoryStream;
use pikake::rpc::{Answer, CallError, CallFailure, Client, Error, Executed, Server};
use serde::{Deserialize, Serialize};

/// Runs `test` with a client of one server, over memory.
fn with_server<F: Future<Output = ()> + 'static>(
    server: impl Fn() -> Server + 'static,
    test: impl FnOnce(Client) -> F + 'static,
) {
    pikake::sim::example(async move {
        let connect = move || {
            let (here, there) = MemoryStream::pair(4096);
            pikake::spawn(server().serve_connection(there)).detach();
            async move { Ok(here) }
        };
        test(Client::builder().server("memory", connect).build()).await;
    });
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Refusal {
    Empty,
    Unknown { name: String },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::other(refusal.to_string())
    }
}

mod aliases {
    /// The error is in the alias.
    pub(super) type Result<T> = std::result::Result<T, super::Refusal>;
}

type Outcome = std::result::Result<u8, Refusal>;

/// Every form of a method.
#[pikake::service(name = "forms.Forms")]
trait Forms {
    async fn nothing(&self);
    async fn unit(&self) -> ();
    async fn pair(&self, a: u8, b: String) -> (String, u8);
    async fn full(&self, name: String) -> std::result::Result<usize, Refusal>;
    async fn alias(&self, name: String) -> aliases::Result<usize>;
    /// Not written as a `Result`, so it is a value.
    async fn outcome(&self) -> Outcome;
    /// Calls another method.
    async fn with_body(&self, mut number: u8) -> u8 {
        number += 1;
        self.pair(number, String::new()).await.1
    }
    async fn r#match(&self, r#type: u8) -> u8;
    #[allow(clippy::too_many_arguments)]
    async fn many(
        &self,
        a: u8,
        b: u8,
        c: u8,
        d: u8,
        e: u8,
        f: u8,
        g: u8,
        h: u8,
        i: u8,
        j: u8,
        k: u8,
        l: u8,
        m: u8,
        n: u8,
        o: u8,
        p: u8,
        q: u8,
    ) -> Vec<u8>;
    /// Names that the attribute could use itself.
    #[allow(clippy::too_many_arguments)]
    async fn names(
        &self,
        call: u8,
        arguments: u8,
        writer: u8,
        reader: u8,
        index: u8,
        client: u8,
        method: u8,
        this: u8,
    ) -> u8;
    async fn call(&self) -> u8;
    async fn methods(&self) -> u8;
    async fn metadata(&self) -> u8;
    #[name = "new"]
    async fn renamed(&self) -> u8;
    #[cfg(any())]
    async fn left_out(&self, unknown: Unknown);
    #[cfg(not(any()))]
    async fn kept(&self) -> u8;
    #[cfg(any())]
    async fn one_of_two(&self) -> u8;
    #[cfg(not(any()))]
    async fn one_of_two(&self, number: u8) -> u8;
    #[deprecated = "for the test"]
    async fn old(&self) -> u8;
}

struct Plain;

impl Forms for Plain {
    async fn nothing(&self) {}

    async fn unit(&self) -> () {}

    async fn pair(&self, a: u8, b: String) -> (String, u8) {
        (b, a)
    }

    async fn full(&self, name: String) -> std::result::Result<usize, Refusal> {
        self.alias(name).await
    }

    async fn alias(&self, name: String) -> aliases::Result<usize> {
        match &*name {
            "" => Err(Refusal::Empty),
            "?" => Err(Refusal::Unknown { name }),
            name => Ok(name.len()),
        }
    }

    async fn outcome(&self) -> Outcome {
        Err(Refusal::Empty)
    }

    async fn r#match(&self, r#type: u8) -> u8 {
        r#type
    }

    async fn many(
        &self,
        a: u8,
        b: u8,
        c: u8,
        d: u8,
        e: u8,
        f: u8,
        g: u8,
        h: u8,
        i: u8,
        j: u8,
        k: u8,
        l: u8,
        m: u8,
        n: u8,
        o: u8,
        p: u8,
        q: u8,
    ) -> Vec<u8> {
        vec![a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q]
    }

    async fn names(
        &self,
        call: u8,
        arguments: u8,
        writer: u8,
        reader: u8,
        index: u8,
        client: u8,
        method: u8,
        this: u8,
    ) -> u8 {
        call + arguments + writer + reader + index + client + method + this
    }

    async fn call(&self) -> u8 {
        1
    }

    async fn methods(&self) -> u8 {
        2
    }

    async fn metadata(&self) -> u8 {
        3
    }

    async fn renamed(&self) -> u8 {
        4
    }

    async fn kept(&self) -> u8 {
        5
    }

    async fn one_of_two(&self, number: u8) -> u8 {
        number
    }

    async fn old(&self) -> u8 {
        6
    }
}

#[test]
fn methods_have_many_forms() {
    with_server(
        || Server::new().add(FormsServer::new(Plain)),
        async |client| {
            let forms = FormsClient::new(client);
            let () = forms.nothing().await.unwrap();
            let () = forms.unit().await.unwrap();
            assert_eq!(forms.pair(1, "b".to_owned()).await.unwrap(), ("b".to_owned(), 1));
            assert_eq!(forms.full("four".to_owned()).await.unwrap(), 4);
            let refused: Result<usize, Error<Refusal>> = forms.alias(String::new()).await;
            assert!(matches!(refused, Err(Error::Service(Refusal::Empty))));
            let refused = forms.full("?".to_owned()).await;
            assert!(
                matches!(refused, Err(Error::Service(Refusal::Unknown { name })) if name == "?")
            );
            let outcome: Result<Outcome, CallError> = forms.outcome().await;
            assert_eq!(outcome.unwrap(), Err(Refusal::Empty));
            assert_eq!(forms.with_body(6).await.unwrap(), 7);
            assert_eq!(forms.r#match(8).await.unwrap(), 8);
            let many = forms.many(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16);
            assert_eq!(many.await.unwrap(), (0..17).collect::<Vec<_>>());
            assert_eq!(forms.names(1, 2, 3, 4, 5, 6, 7, 8).await.unwrap(), 36);
            assert_eq!(forms.call().await.unwrap(), 1);
            assert_eq!(forms.methods().await.unwrap(), 2);
            assert_eq!(forms.metadata().await.unwrap(), 3);
            assert_eq!(forms.renamed().await.unwrap(), 4);
            assert_eq!(forms.kept().await.unwrap(), 5);
            assert_eq!(forms.one_of_two(9).await.unwrap(), 9);
            #[expect(deprecated, reason = "the client's method is as deprecated as the trait's")]
            let old = forms.old().await.unwrap();
            assert_eq!(old, 6);
        },
    );
}

#[test]
fn names_in_messages_are_those_of_the_attributes() {
    let names: Vec<_> = FormsClient::METHODS.iter().map(|method| method.name).collect();
    let all = [
        "nothing",
        "unit",
        "pair",
        "full",
        "alias",
        "outcome",
        "with_body",
        "match",
        "many",
        "names",
        "call",
        "methods",
        "metadata",
        "new",
        "kept",
        "one_of_two",
        "old",
    ];
    assert_eq!(names, all.map(|name| format!("forms.Forms.{name}")));
}

/// Postcard writes no names of fields and types.
#[test]
fn types_that_need_names_fail_with_postcard() {
    #[derive(Debug, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u8),
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        Number { number: u8 },
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Flat {
        #[serde(flatten)]
        inner: std::collections::BTreeMap<String, u8>,
    }

    #[pikake::service]
    trait Odd {
        async fn untagged(&self, it: Untagged) -> Untagged;
        async fn tagged(&self, it: Tagged) -> Tagged;
        async fn flat(&self, it: Flat) -> Flat;
    }

    struct Echo;

    impl Odd for Echo {
        async fn untagged(&self, it: Untagged) -> Untagged {
            it
        }

        async fn tagged(&self, it: Tagged) -> Tagged {
            it
        }

        async fn flat(&self, it: Flat) -> Flat {
            it
        }
    }

    with_server(
        || Server::new().add(OddServer::new(Echo)),
        async |client| {
            let odd = OddClient::new(client);
            let flat = Flat { inner: [("number".to_owned(), 1)].into() };
            for error in [
                odd.untagged(Untagged::Number(1)).await.unwrap_err(),
                odd.tagged(Tagged::Number { number: 1 }).await.unwrap_err(),
                odd.flat(flat).await.unwrap_err(),
            ] {
                assert_eq!(error.executed, Executed::No, "{error}");
            }
        },
    );
}

/// The trait may be of another crate, so the attribute writes the implementation.
#[test]
fn services_may_be_shared() {
    let adder = Rc::new(Adder);
    let shared = adder.clone();
    with_server(
        move || Server::new().add(shadows::SServer::new(shared.clone())),
        async move |client| {
            assert_eq!(shadows::SClient::new(client).add(1).await.unwrap(), 2);
            assert_eq!(shadows::S::add(&adder, 2).await, Ok(3));
        },
    );
}

/// Servers that accept connections themselves keep one limit of calls.
#[test]
fn connections_of_a_server_share_its_limit() {
    #[pikake::service]
    trait Waits {
        async fn wait(&self);
    }

    struct Sleeper;

    impl Waits for Sleeper {
        async fn wait(&self) {
            let _ = pikake::sleep(Duration::from_secs(60)).await;
        }
    }

    let server = Server::new().add(WaitsServer::new(Sleeper)).all_calls(1);
    pikake::sim::example(async move {
        let connect = move || {
            let (here, there) = MemoryStream::pair(4096);
            pikake::spawn(server.serve_connection(there)).detach();
            async move { Ok(here) }
        };
        let connect = Rc::new(connect);
        let client = || {
            let connect = connect.clone();
            let builder = Client::builder().server("memory", move || connect()).attempts(1);
            WaitsClient::new(builder.build())
        };
        let (first, second) = (client(), client());
        let waiting = pikake::spawn(async move { first.wait().await });
        pikake::sleep(Duration::from_secs(1)).await.unwrap();
        let error = second.wait().await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Overloaded), "{error}");
        waiting.await.unwrap().unwrap();
    });
}

#[test]
fn interceptors_tell_errors_from_values() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let noted = seen.clone();
    let server = move || {
        let noted = noted.clone();
        Server::new()
            .add(FormsServer::new(Plain))
            .intercept(async move |call, next| {
                let answer = next.await;
                noted.borrow_mut().push((call.method, answer.is_error()));
                answer
            })
            .intercept(async |call, next| match call.method {
                "forms.Forms.match" => Answer::refused("for the test"),
                _ => next.await,
            })
    };
    with_server(server, async |client| {
        let forms = FormsClient::new(client);
        forms.nothing().await.unwrap();
        forms.full("four".to_owned()).await.unwrap();
        forms.full(String::new()).await.unwrap_err();
        // A value, as the client sees it.
        forms.outcome().await.unwrap().unwrap_err();
        forms.r#match(1).await.unwrap_err();
    });
    let is_error = seen.take().into_iter().map(|(_, is_error)| is_error).collect::<Vec<_>>();
    assert_eq!(is_error, [false, false, true, false, true]);
}

/// The names are usual ones in a trait of the user's.
mod shadows {
    #![allow(dead_code, non_camel_case_types, reason = "names alone")]

    struct Client;
    struct Server;
    struct Method;
    struct Handler;
    struct Answer;
    struct String;
    struct Vec;
    struct Box;
    enum Option {}
    enum Result {}
    trait Service {}
    fn drop() {}

    #[pikake::service]
    pub(crate) trait S {
        async fn add(&self, a: u8) -> core::result::Result<u8, u8>;
    }

    #[pikake::service]
    trait Empty {}

    pub(crate) trait Supertrait {}

    /// Whether an `Rc` of an implementation is one as well depends on the supertraits.
    #[pikake::service]
    trait Sub: Supertrait + std::fmt::Debug {
        async fn none(&self);
    }

    #[cfg(any())]
    #[pikake::service]
    trait Before {
        async fn none(&self, unknown: Unknown);
    }

    #[pikake::service]
    #[cfg(any())]
    trait After {
        async fn none(&self, unknown: Unknown);
    }

    #[pikake::service(crate = pikake::rpc)]
    trait r#gen {
        async fn r#gen(&self);
    }
}

#[derive(Debug)]
struct Adder;

impl shadows::S for Adder {
    async fn add(&self, a: u8) -> Result<u8, u8> {
        a.checked_add(1).ok_or(a)
    }
}

#[test]
fn names_of_the_user_change_nothing() {
    with_server(
        || Server::new().add(shadows::SServer::new(Adder)),
        async |client| {
            let client = shadows::SClient::new(client);
            assert_eq!(client.add(1).await.unwrap(), 2);
            assert!(matches!(client.add(255).await, Err(Error::Service(255))));
            assert_eq!(format!("{:?}", shadows::SServer::new(Adder)), "SServer(Adder)");
        },
    );
}
