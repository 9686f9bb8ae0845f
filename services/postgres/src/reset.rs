//! The reset of a session, for which the pool does not wait.
//!
//! The pool's cleaning queues the reset, and the connection's driver sends it and reads its answer.
//! The next holder's first statement waits for that answer, if it has not come by then. It does not
//! follow the reset on the wire: the server runs what follows a message that has failed. If the
//! reset fails, the connection is closed, and the statement was not sent.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use pikake_sync::Event;
use pikake_traps::Interrupted;
use tokio_postgres::{Client, Error};

/// `DISCARD ALL` without `DEALLOCATE ALL` and `DISCARD PLANS`, so that prepared statements stay.
const RESET: &str = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; \
    SELECT FROM pg_catalog.pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES";

/// Sent with it after a `PREPARE` in SQL: forgets the statements of SQL, and leaves those of the
/// protocol.
const DEALLOCATE: &str = "; DO $$ DECLARE it pg_catalog.text; BEGIN \
    FOR it IN SELECT name FROM pg_catalog.pg_prepared_statements WHERE from_sql \
    LOOP EXECUTE pg_catalog.format('DEALLOCATE %I', it); END LOOP; END $$";

type Request = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// The resets of a connection.
pub(crate) struct Resets {
    /// The reset that is under way.
    request: RefCell<Option<Request>>,
    /// Set while no reset is under way.
    is_over: Event,
    has_failed: Cell<bool>,
}

impl Resets {
    pub(crate) fn new() -> Self {
        let is_over = Event::new().named("postgres reset");
        is_over.set();
        Self { request: RefCell::default(), is_over, has_failed: Cell::new(false) }
    }

    /// Queues a reset. The session has no transaction.
    pub(crate) fn begin(&self, client: Rc<Client>, has_prepared: bool) -> Result<(), Error> {
        self.request.replace(Some(Box::pin(async move {
            match has_prepared {
                true => client.batch_execute(&[RESET, DEALLOCATE].concat()).await,
                false => client.batch_execute(RESET).await,
            }
        })));
        self.is_over.clear();
        // The first poll puts the request into the driver's queue.
        self.read()
    }

    /// Reads the answer, as far as the driver has received it.
    pub(crate) fn read(&self) -> Result<(), Error> {
        let mut request = self.request.borrow_mut();
        let Some(under_way) = &mut *request else { return Ok(()) };
        // The driver brings the answer, and reads it after that: nobody has to be woken.
        match under_way.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => Ok(()),
            Poll::Ready(result) => {
                *request = None;
                self.has_failed.set(result.is_err());
                self.is_over.set();
                result
            }
        }
    }

    /// Ends the wait for an answer: the connection has ended.
    pub(crate) fn end(&self) {
        self.is_over.set();
    }

    /// Whether a reset has failed. The connection has ended then, or ends.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    pub(crate) fn is_under_way(&self) -> bool {
        !self.is_over.is_set()
    }

    /// Waits until no reset is under way.
    pub(crate) async fn over(&self) -> Result<(), Interrupted> {
        self.is_over.wait().await
    }
}
