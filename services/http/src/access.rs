//! The access log: an event for each request, when its answer has ended.
//!
//! The [`Entry`] of a request is shared by the future of the response, its body, and the parts of
//! the body that hyper has not written. The drop of the last of them is the end of the answer.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode, Version};
use http_body::SizeHint;
use pikake_time::Ticks;
use pikake_traps::{door, elapsed_since, now};

use crate::requests::{RequestLine, Requests};

/// The service has answered, and the connection took all of it.
pub(crate) const ANSWERED: &str = "answered";
/// A part of the answer was not written.
const CUT_SHORT: &str = "cut_short";
/// There is no answer: the client has gone, or a shutdown has dropped the request.
const UNANSWERED: &str = "unanswered";
/// There is no answer: the service has returned an error.
const FAILED: &str = "failed";
/// The handler has panicked.
pub(crate) const PANICKED: &str = "panicked";
/// The handler's task was cancelled before it began, or aborted.
pub(crate) const CANCELLED: &str = "cancelled";
/// The service was not called, since the server was late.
pub(crate) const SHED: &str = "shed";
/// The service was not called: the request is invalid, or the connection has too many.
pub(crate) const REFUSED: &str = "refused";

/// A request in the access log. The drop is the event.
pub(crate) struct Entry {
    requests: Rc<Requests>,
    line: Arc<RequestLine>,
    version: Version,
    began: Ticks,
    status: Cell<Option<StatusCode>>,
    outcome: Cell<&'static str>,
    /// The length of the body, if the answer announces it.
    announced: Cell<Option<u64>>,
    /// The bytes of the body that hyper has taken.
    taken: Cell<u64>,
    /// Those that hyper has written.
    written: Cell<u64>,
}

impl Entry {
    /// The entry of a request whose head has come; `None` if the server has no access log.
    pub(crate) fn begin(
        requests: &Rc<Requests>,
        line: &Arc<RequestLine>,
        version: Version,
    ) -> Option<Rc<Self>> {
        requests.logged_peer.as_ref()?;
        Some(Rc::new(Self {
            requests: requests.clone(),
            line: line.clone(),
            version,
            began: now(),
            status: Cell::default(),
            outcome: Cell::new(UNANSWERED),
            announced: Cell::default(),
            taken: Cell::default(),
            written: Cell::default(),
        }))
    }

    /// The service has returned an error.
    pub(crate) fn fail(&self) {
        self.outcome.set(FAILED);
    }

    /// hyper gets the answer.
    pub(crate) fn answer(
        &self,
        status: StatusCode,
        outcome: &'static str,
        headers: &HeaderMap,
        hint: SizeHint,
    ) {
        let header =
            headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        self.status.set(Some(status));
        self.outcome.set(outcome);
        self.announced.set(header.or(hint.exact()));
    }

    /// hyper takes a part of the body.
    pub(crate) fn take(&self, bytes: u64) {
        self.taken.set(self.taken.get() + bytes);
    }

    /// hyper drops a part of the body, of which it has not written `left` bytes.
    pub(crate) fn write(&self, bytes: u64, left: u64) {
        self.written.set(self.written.get() + (bytes - left));
        if left > 0 {
            self.outcome.set(CUT_SHORT);
        }
    }

    /// hyper drops the body. It asks for no more than is announced, and so may not learn of the
    /// end.
    pub(crate) fn end_body(&self, is_complete: bool) {
        if !is_complete && self.announced.get() != Some(self.taken.get()) {
            self.outcome.set(CUT_SHORT);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let uri = self.line.uri();
        let peer = self.requests.logged_peer.as_deref();
        // A kernel that is dropped in the task of another one has no clock.
        let time = door::is_open().then(|| elapsed_since(self.began).as_micros());
        tracing::info!(
            target: "pikake::http::access",
            method = %self.line.method,
            path = uri.path(),
            query = uri.query(),
            version = ?self.version,
            peer,
            status = self.status.get().map(|status| status.as_u16()),
            bytes = self.written.get(),
            time_us = time.map(|micros| u64::try_from(micros).unwrap_or(u64::MAX)),
            outcome = self.outcome.get(),
        );
    }
}
