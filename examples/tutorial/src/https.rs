// ANCHOR: all
//! Pulse, from stage 6 on: the page over HTTPS, by axum.

use std::error::Error;
use std::io;

use axum::Router;
use axum::extract::State;
use pikake::http::axum::Local;
use pikake::http::axum::routing::get;
use pikake::http::serve;
use pikake::net::TcpListener;
use pikake::net::tls::Identity;
use pikake::try_task_group;

use crate::{Page, check_all, services};

// ANCHOR: serve
/// Checks the services of the command line and serves the page, until it is interrupted.
///
/// # Errors
///
/// If the command line is wrong, or the address cannot be listened on.
pub async fn check_and_serve<C>(check: C) -> Result<(), Box<dyn Error>>
where
    C: AsyncFn(&str) -> io::Result<()> + Copy + 'static,
{
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("arguments: ADDRESS CERTIFICATE KEY NAME=ADDRESS…");
    let listener = TcpListener::bind(next()?).await?;
    let identity = Identity::from_pem_files(next()?, next()?)?;
    let services = services(arguments)?;
    println!("the page is at https://{}", listener.local_addr()?);

    let page = Page::default();
    let report = try_task_group(async |tasks| {
        tasks.spawn_daemon(check_all(services, page.clone(), check));
        let app = Router::new().route("/", get(show)).with_state(Local::new(page));
        Ok::<_, Box<dyn Error>>(serve(listener, app).tls(identity).await?)
    })
    .await?;
    println!("{report}");
    Ok(())
}

/// Answers a request with the page.
async fn show(State(page): State<Local<Page>>) -> String {
    page.text()
}
// ANCHOR_END: serve
// ANCHOR_END: all
