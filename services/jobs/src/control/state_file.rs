//! The file in which a worker keeps revoked jobs and paused queues over restarts.
//!
//! The file is written within a second of a change, and at the worker's end: a file beside it is
//! renamed over it, so that it is whole at any time.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pikake_traps::{Interrupted, TaskError, blocking, shield, sleep, wall_time};
use serde::{Deserialize, Serialize};

use crate::client::app::App;
use crate::control::command::seconds;

/// How long changes wait for more of them.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    /// The ids, oldest first, and since when they are revoked, in seconds since 1970.
    revoked: Vec<(String, f64)>,
    paused: BTreeSet<String>,
}

/// Reads the file, if the application has one.
pub(crate) async fn load(app: &App) -> Result<(), Interrupted> {
    let Some(path) = app.0.control.state_file.borrow().clone() else { return Ok(()) };
    let file = path.clone();
    match blocking(move || read(&file)).await {
        Ok(Ok(content)) => {
            let now = wall_time();
            let mut revoked = app.0.revoked.borrow_mut();
            for (id, since) in content.revoked {
                let since = Duration::try_from_secs_f64(since).unwrap_or_default();
                revoked.insert(id, SystemTime::UNIX_EPOCH + since, now);
            }
            app.0.control.paused.borrow_mut().extend(content.paused);
        }
        Ok(Err(error)) => {
            tracing::warn!(path = %path.display(), %error, "the state file cannot be read");
        }
        Err(TaskError::Interrupted(why)) => return Err(why),
        Err(_) => {}
    }
    Ok(())
}

fn read(path: &Path) -> io::Result<Content> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Content::default()),
        Err(error) => Err(error),
    }
}

/// Writes the file whenever something has changed.
pub(crate) async fn save_changes(app: App) -> Result<(), Interrupted> {
    loop {
        app.0.control.changed.wait().await?;
        sleep(PAUSE).await?;
        save(&app).await;
    }
}

/// Writes the file, if the application has one and something has changed.
pub(crate) async fn save(app: &App) {
    let control = &app.0.control;
    if !control.changed.is_set() {
        return;
    }
    control.changed.clear();
    let Some(path) = control.state_file.borrow().clone() else { return };
    let content = Content {
        revoked: {
            let revoked = app.0.revoked.borrow();
            revoked.iter().map(|(id, since)| (id.to_owned(), seconds(since))).collect()
        },
        paused: control.paused.borrow().clone(),
    };
    let file = path.clone();
    // In a shield: what is not written would count as saved.
    if let Ok(Err(error)) = shield(blocking(move || write(&file, &content))).await {
        tracing::warn!(path = %path.display(), %error, "the state file cannot be written");
    }
}

fn write(path: &Path, content: &Content) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = std::fs::File::create(&beside)?;
    serde_json::to_writer(&mut file, content)?;
    file.sync_all()?;
    std::fs::rename(beside, path)
}
