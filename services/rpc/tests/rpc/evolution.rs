//! Two versions of a service against each other. The rules that follow are in the book, on the page
//! about calls.

use std::cell::Cell;
use std::rc::Rc;

use pikake::net::MemoryStream;
use pikake::rpc::{
    CallError, CallFailure, Client, Codec, Error, Executed, Server, Service, channel,
};
use serde::{Deserialize, Serialize};

const BOTH: [Codec; 2] = [Codec::Postcard, Codec::Json];

/// A client of a server of `service`, over memory.
fn client<S: Service>(codec: Codec, service: impl Fn() -> S + 'static) -> Client {
    let connect = move || {
        let (here, there) = MemoryStream::pair(4096);
        let server = Server::new().add(service());
        pikake::spawn(server.serve_connection(there)).detach();
        async move { Ok(here) }
    };
    Client::builder().codec(codec).server("memory", connect).build()
}

/// Runs `test` with each codec.
fn with_both<F: Future<Output = ()> + 'static>(test: impl Fn(Codec) -> F) {
    for codec in BOTH {
        pikake::sim::example(test(codec));
    }
}

fn assert_unknown(error: CallError) {
    assert!(matches!(error.failure, CallFailure::UnknownMethod), "{error}");
    assert_eq!(error.executed, Executed::No, "{error}");
}

fn assert_arguments(error: CallError, text: &str) {
    assert!(matches!(&error.failure, CallFailure::Arguments(why) if why == text), "{error}");
    assert_eq!(error.executed, Executed::No, "{error}");
}

/// Methods that come, go, move and are renamed.
mod methods {
    pub(super) mod old {
        #[pikake::service]
        pub(crate) trait Accounts {
            async fn first(&self, number: u8) -> u8;
            async fn second(&self, number: u8) -> u8;
            async fn removed(&self) -> u8;
            async fn deposit(&self) -> u8;
        }
    }

    pub(super) mod new {
        /// The trait has another name, too.
        #[pikake::service(name = "Accounts")]
        pub(crate) trait Books {
            async fn added(&self) -> u8;
            async fn second(&self, number: u8) -> u8;
            #[name = "deposit"]
            async fn credit(&self) -> u8;
            async fn first(&self, number: u8) -> u8;
        }
    }

    pub(super) struct Implementation;

    impl old::Accounts for Implementation {
        async fn first(&self, number: u8) -> u8 {
            number + 1
        }

        async fn second(&self, number: u8) -> u8 {
            number + 2
        }

        async fn removed(&self) -> u8 {
            3
        }

        async fn deposit(&self) -> u8 {
            4
        }
    }

    impl new::Books for Implementation {
        async fn added(&self) -> u8 {
            5
        }

        async fn second(&self, number: u8) -> u8 {
            number + 2
        }

        async fn credit(&self) -> u8 {
            4
        }

        async fn first(&self, number: u8) -> u8 {
            number + 1
        }
    }
}

#[test]
fn methods_may_come_go_move_and_get_other_names() {
    use methods::Implementation;
    use methods::new::{BooksClient, BooksServer};
    use methods::old::{AccountsClient, AccountsServer};

    with_both(async |codec| {
        let old = AccountsClient::new(client(codec, || BooksServer::new(Implementation)));
        assert_eq!(old.first(10).await.unwrap(), 11);
        assert_eq!(old.second(10).await.unwrap(), 12);
        assert_eq!(old.deposit().await.unwrap(), 4);
        assert_unknown(old.removed().await.unwrap_err());

        let new = BooksClient::new(client(codec, || AccountsServer::new(Implementation)));
        assert_eq!(new.first(10).await.unwrap(), 11);
        assert_eq!(new.second(10).await.unwrap(), 12);
        assert_eq!(new.credit().await.unwrap(), 4);
        assert_unknown(new.added().await.unwrap_err());
    });
}

/// Arguments that are added at the end, and one that is removed from there.
mod arguments {
    pub(super) mod old {
        #[pikake::service]
        pub(crate) trait Search {
            async fn optional(&self, text: String) -> String;
            async fn needed(&self, text: String) -> String;
            async fn without(&self) -> u8;
            async fn removed(&self, text: String, limit: u8) -> String;
        }
    }

    pub(super) mod new {
        use super::Cache;

        #[pikake::service]
        pub(crate) trait Search {
            async fn optional(
                &self,
                text: String,
                limit: Option<u8>,
                unit: (),
                cache: Cache,
            ) -> String;
            async fn needed(&self, text: String, limit: u8) -> String;
            async fn without(&self, first: Option<u8>, second: Option<String>) -> u8;
            async fn removed(&self, text: String) -> String;
        }
    }

    /// Not a byte in postcard, and an empty object in JSON.
    #[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
    pub(super) struct Cache {
        #[serde(skip)]
        found: u64,
    }

    pub(super) struct Implementation;

    impl old::Search for Implementation {
        async fn optional(&self, text: String) -> String {
            text
        }

        async fn needed(&self, text: String) -> String {
            text
        }

        async fn without(&self) -> u8 {
            0
        }

        async fn removed(&self, text: String, limit: u8) -> String {
            format!("{text} {limit}")
        }
    }

    impl new::Search for Implementation {
        async fn optional(&self, text: String, limit: Option<u8>, (): (), cache: Cache) -> String {
            format!("{text} {limit:?} {}", cache.found)
        }

        async fn needed(&self, text: String, limit: u8) -> String {
            format!("{text} {limit}")
        }

        async fn without(&self, first: Option<u8>, second: Option<String>) -> u8 {
            first.unwrap_or(7) + u8::from(second.is_some())
        }

        async fn removed(&self, text: String) -> String {
            text
        }
    }
}

#[test]
fn arguments_may_be_added_as_options_at_the_end() {
    use arguments::{Cache, Implementation, new, old};

    with_both(async |codec| {
        let it = old::SearchClient::new(client(codec, || new::SearchServer::new(Implementation)));
        let text = || "a".to_owned();
        assert_eq!(it.optional(text()).await.unwrap(), "a None 0");
        assert_eq!(it.without().await.unwrap(), 7);
        let error = it.needed(text()).await.unwrap_err();
        assert_arguments(error, "the argument `limit` is missing");
        assert_eq!(it.removed(text(), 3).await.unwrap(), "a");

        let it = new::SearchClient::new(client(codec, || old::SearchServer::new(Implementation)));
        let optional = it.optional(text(), Some(3), (), Cache::default());
        assert_eq!(optional.await.unwrap(), "a");
        assert_eq!(it.needed(text(), 3).await.unwrap(), "a");
        assert_eq!(it.without(Some(1), Some(text())).await.unwrap(), 0);
        let error = it.removed(text()).await.unwrap_err();
        assert_arguments(error, "the argument `limit` is missing");
    });
}

/// Variants that are added to enums at the end.
mod variants {
    use super::{Deserialize, Serialize};

    pub(super) mod old {
        use super::{Deserialize, Serialize};

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub(crate) enum Kind {
            Small,
            Large { size: u64 },
        }

        #[pikake::service]
        pub(crate) trait Shapes {
            async fn echo(&self, kind: Kind) -> Kind;
            async fn last(&self) -> Kind;
            async fn fail(&self, last: bool) -> Result<u8, Kind>;
        }
    }

    pub(super) mod new {
        use super::{Deserialize, Serialize};

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub(crate) enum Kind {
            Small,
            Large { size: u64 },
            Huge,
        }

        #[pikake::service]
        pub(crate) trait Shapes {
            async fn echo(&self, kind: Kind) -> Kind;
            async fn last(&self) -> Kind;
            async fn fail(&self, last: bool) -> Result<u8, Kind>;
        }
    }

    pub(super) struct Implementation;

    impl old::Shapes for Implementation {
        async fn echo(&self, kind: old::Kind) -> old::Kind {
            kind
        }

        async fn last(&self) -> old::Kind {
            old::Kind::Large { size: 1 }
        }

        async fn fail(&self, _: bool) -> Result<u8, old::Kind> {
            Err(old::Kind::Small)
        }
    }

    impl new::Shapes for Implementation {
        async fn echo(&self, kind: new::Kind) -> new::Kind {
            kind
        }

        async fn last(&self) -> new::Kind {
            new::Kind::Huge
        }

        async fn fail(&self, last: bool) -> Result<u8, new::Kind> {
            Err(if last { new::Kind::Huge } else { new::Kind::Small })
        }
    }
}

#[test]
fn variants_may_be_added_at_the_end() {
    use variants::{Implementation, new, old};

    with_both(async |codec| {
        let it = old::ShapesClient::new(client(codec, || new::ShapesServer::new(Implementation)));
        let large = || old::Kind::Large { size: 300 };
        assert_eq!(it.echo(large()).await.unwrap(), large());
        assert!(matches!(it.fail(false).await, Err(Error::Service(old::Kind::Small))));
        // The variant that the client does not know, as a value and as an error.
        let error = it.last().await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Answer(_)), "{error}");
        assert_eq!(error.executed, Executed::Yes);
        let error = it.fail(true).await.unwrap_err();
        assert!(
            matches!(&error, Error::Call(error) if matches!(error.failure, CallFailure::Answer(_)))
        );
        assert_eq!(error.executed(), Executed::Yes);

        let it = new::ShapesClient::new(client(codec, || old::ShapesServer::new(Implementation)));
        let large = || new::Kind::Large { size: 300 };
        assert_eq!(it.echo(large()).await.unwrap(), large());
        assert_eq!(it.last().await.unwrap(), new::Kind::Large { size: 1 });
        let error = it.echo(new::Kind::Huge).await.unwrap_err();
        let CallFailure::Arguments(text) = &error.failure else { panic!("{error}") };
        assert!(text.starts_with("the argument `kind`: "), "{text}");
        assert_eq!(error.executed, Executed::No);
    });
}

/// Fields that are added to structs.
mod fields {
    use super::{Deserialize, Serialize};

    pub(super) mod old {
        use super::{Deserialize, Serialize};

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub(crate) struct Person {
            pub(crate) name: String,
        }

        #[pikake::service]
        pub(crate) trait People {
            async fn echo(&self, person: Person) -> Person;
        }
    }

    pub(super) mod new {
        use super::{Deserialize, Serialize};

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub(crate) struct Person {
            pub(crate) name: String,
            #[serde(default)]
            pub(crate) age: u8,
        }

        #[pikake::service]
        pub(crate) trait People {
            async fn echo(&self, person: Person) -> Person;
        }
    }

    pub(super) struct Implementation;

    impl old::People for Implementation {
        async fn echo(&self, person: old::Person) -> old::Person {
            person
        }
    }

    impl new::People for Implementation {
        async fn echo(&self, person: new::Person) -> new::Person {
            person
        }
    }
}

/// With JSON, whose structs have names of fields.
#[test]
fn fields_with_defaults_may_be_added_in_json() {
    use fields::{Implementation, new, old};

    pikake::sim::example(async {
        let name = || "Ann".to_owned();
        let server = || new::PeopleServer::new(Implementation);
        let it = old::PeopleClient::new(client(Codec::Json, server));
        let echo = it.echo(old::Person { name: name() }).await;
        assert_eq!(echo.unwrap(), old::Person { name: name() });

        let server = || old::PeopleServer::new(Implementation);
        let it = new::PeopleClient::new(client(Codec::Json, server));
        let echo = it.echo(new::Person { name: name(), age: 7 }).await;
        assert_eq!(echo.unwrap(), new::Person { name: name(), age: 0 });
    });
}

/// With postcard, whose structs are their fields and nothing else.
#[test]
fn fields_cannot_be_added_in_postcard() {
    use fields::{Implementation, new, old};

    pikake::sim::example(async {
        let name = || "Ann".to_owned();
        let server = || new::PeopleServer::new(Implementation);
        let it = old::PeopleClient::new(client(Codec::Postcard, server));
        let error = it.echo(old::Person { name: name() }).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Arguments(_)), "{error}");

        // The server takes the field for a later argument, which it does not know.
        let server = || old::PeopleServer::new(Implementation);
        let it = new::PeopleClient::new(client(Codec::Postcard, server));
        let error = it.echo(new::Person { name: name(), age: 7 }).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Answer(_)), "{error}");
    });
}

/// A method that could not fail, and then can.
mod errors {
    pub(super) mod old {
        #[pikake::service]
        pub(crate) trait Stock {
            async fn take(&self, count: u8) -> u8;
        }
    }

    pub(super) mod new {
        #[pikake::service]
        pub(crate) trait Stock {
            async fn take(&self, count: u8) -> Result<u8, String>;
        }
    }

    pub(super) struct Implementation;

    impl old::Stock for Implementation {
        async fn take(&self, count: u8) -> u8 {
            count
        }
    }

    impl new::Stock for Implementation {
        async fn take(&self, count: u8) -> Result<u8, String> {
            if count > 9 { Err("not enough".to_owned()) } else { Ok(count) }
        }
    }
}

#[test]
fn values_may_become_results() {
    use errors::{Implementation, new, old};

    with_both(async |codec| {
        let it = old::StockClient::new(client(codec, || new::StockServer::new(Implementation)));
        assert_eq!(it.take(9).await.unwrap(), 9);
        let error = it.take(10).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Answer(_)), "{error}");
        assert_eq!(error.executed, Executed::Yes);

        let it = new::StockClient::new(client(codec, || old::StockServer::new(Implementation)));
        assert_eq!(it.take(10).await.unwrap(), 10);
    });
}

/// A method that gets a channel as its last argument.
mod channels {
    pub(super) mod old {
        #[pikake::service]
        pub(crate) trait Files {
            async fn put(&self, name: String) -> usize;
        }
    }

    pub(super) mod new {
        use pikake::rpc::Receiver;

        #[pikake::service]
        pub(crate) trait Files {
            async fn put(&self, name: String, bytes: Receiver<u8>) -> usize;
        }
    }

    pub(super) struct Implementation;

    impl old::Files for Implementation {
        async fn put(&self, name: String) -> usize {
            pikake::sleep(std::time::Duration::from_secs(60)).await.unwrap();
            name.len()
        }
    }

    impl new::Files for Implementation {
        async fn put(&self, name: String, _: pikake::rpc::Receiver<u8>) -> usize {
            name.len()
        }
    }
}

/// The old server grants no credit for a channel that it does not know.
#[test]
fn unknown_uploads_wait_until_their_call_ends() {
    use channels::{Implementation, new, old};

    with_both(async |codec| {
        let it = old::FilesClient::new(client(codec, || new::FilesServer::new(Implementation)));
        let error = it.put("name".to_owned()).await.unwrap_err();
        assert_arguments(error, "the argument `bytes` is missing");

        let it = new::FilesClient::new(client(codec, || old::FilesServer::new(Implementation)));
        let (sender, receiver) = channel(1);
        let call = pikake::spawn(async move { it.put("name".to_owned(), receiver).await });
        let mut sent = 0;
        while sender.send(1).await.is_ok() {
            sent += 1;
        }
        assert_eq!(sent, 16);
        assert_eq!(call.await.unwrap().unwrap(), 4);
    });
}

/// A method that had an answer, and then has none; and the other way round.
mod notices {
    use super::{Cell, Rc};

    pub(super) mod old {
        #[pikake::service]
        pub(crate) trait Log {
            async fn write(&self);
        }
    }

    pub(super) mod new {
        #[pikake::service]
        pub(crate) trait Log {
            #[notice]
            async fn write(&self);
        }
    }

    #[derive(Clone, Default)]
    pub(super) struct Count(pub(super) Rc<Cell<u32>>);

    impl old::Log for Count {
        async fn write(&self) {
            self.0.set(self.0.get() + 1);
        }
    }

    impl new::Log for Count {
        async fn write(&self) {
            self.0.set(self.0.get() + 1);
        }
    }
}

/// The client says whether it waits.
#[test]
fn methods_may_become_notices() {
    use notices::{Count, new, old};

    with_both(async |codec| {
        let count = Count::default();
        let shared = count.clone();
        let it = client(codec, move || new::LogServer::new(shared.clone()));
        let log = old::LogClient::new(it.clone());
        log.write().await.unwrap();
        assert_eq!(count.0.get(), 1);

        let shared = count.clone();
        let it = client(codec, move || old::LogServer::new(shared.clone()));
        let (notices, calls) = (new::LogClient::new(it.clone()), old::LogClient::new(it));
        notices.write().await.unwrap();
        calls.write().await.unwrap();
        // The handler of the notice may run later.
        pikake::sleep(std::time::Duration::from_secs(1)).await.unwrap();
        assert_eq!(count.0.get(), 3);
    });
}
