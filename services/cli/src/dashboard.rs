//! `worker --http` and `dashboard`: health, metrics, and a page about all workers of a broker.
//!
//! | path | answer | for |
//! | --- | --- | --- |
//! | `/healthz` | 200 while the kernel takes steps | everybody who can connect |
//! | `/readyz` | 200 if the broker is connected and, of a worker, jobs are taken; else 503 and why | the same |
//! | `/metrics` | the figures of this process, as OpenMetrics | the same |
//! | `/TOKEN/` | the page | those who know the token |
//!
//! The page's server asks the broker and its workers only while somebody looks at the page
//! (`look.rs`), and pages get what it has seen last. So any number of pages costs the workers as
//! much as one.

mod assets;
mod history;
mod look;
mod site;

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use pikake::jobs::App;
use pikake::net::TcpListener;
use pikake::task::CancelOnDrop;
use pikake::{http, spawn};
use serde_json::json;

use crate::arguments::DashboardOptions;
use crate::dashboard::look::Looker;
use crate::dashboard::site::Site;
use crate::output::{Output, note};
use crate::page::Token;
use crate::queues::attach_in_time;
use crate::stop::Stop;

/// How many connections are open at a time. A page has six.
const CONNECTIONS: usize = 1_000;

/// How long the end of the command waits for answers that are being sent.
const GRACE: Duration = Duration::from_millis(500);

/// Whether jobs are taken, or why not.
pub(crate) type Readiness = Rc<dyn Fn() -> Result<(), String>>;

/// A server that listens.
pub(crate) struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    token: Token,
    /// Whether the token was made here, and not given.
    is_random: bool,
}

impl Bound {
    /// Listens at an address.
    pub(crate) async fn new(wanted: SocketAddr, token: Option<Token>) -> Result<Self, Stop> {
        let failed = |error| Stop::other(format!("nothing can listen at {wanted}: {error}"));
        let listener = TcpListener::bind(wanted).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let is_random = token.is_none();
        let token = match token {
            Some(token) => token,
            None => Token::random().map_err(|error| Stop::other(format!("no token: {error}")))?,
        };
        Ok(Self { listener, address, token, is_random })
    }

    /// The address of the page; without the token if somebody has given one, who knows it.
    fn page(&self) -> String {
        match self.is_random {
            true => format!("http://{}/{}/", self.address, self.token),
            false => format!("http://{}/TOKEN/", self.address),
        }
    }

    /// Serves an application's broker until it is interrupted.
    async fn serve(self, app: App, readiness: Readiness) -> Result<(), http::ServeError> {
        let looker = Looker::new(app, readiness);
        let looking = spawn(looker.clone().run()).cancel_on_drop();
        let _listening = spawn(looker.clone().listen()).cancel_on_drop();
        // With a random token, the address comes from this machine's screen. A proxy, which has a
        // host of its own, needs a token that it is given.
        let checks_host = self.is_random && self.address.ip().is_loopback();
        let site = Site::new(looker, self.token, checks_host);
        let server = http::serve(self.listener, site).connections(CONNECTIONS);
        let report = server.soft_deadline(Duration::ZERO).hard_deadline(GRACE).await;
        looking.request_cancel("the server of the page ends");
        let _ended = looking.await;
        report.map(drop)
    }
}

/// Serves beside a worker, until the handle is dropped.
pub(crate) fn beside_worker(bound: Bound, app: App, readiness: Readiness) -> CancelOnDrop<()> {
    note(&format!("dashboard, for those who have this address: {}", bound.page()));
    let serving = async move {
        if let Err(error) = bound.serve(app, readiness).await {
            tracing::error!(%error, "the HTTP server of this worker has ended");
        }
    };
    spawn(serving).cancel_on_drop()
}

/// The command `dashboard`.
pub(crate) async fn run(app: &App, options: DashboardOptions, output: Output) -> Result<(), Stop> {
    let token = options.token.chosen()?;
    let app = attach_in_time(app).await?;
    let bound = Bound::new(options.listen, token).await?;
    let page = bound.page();
    output.answer(|| json!({ "address": page }), || page.clone())?;
    note("Ctrl-C ends the page. Keep the address to yourself: it admits everyone who has it.");
    bound.serve(app, Rc::new(|| Ok(()))).await.map_err(Stop::other)
}
