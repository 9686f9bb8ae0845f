//! The log: events of `tracing` on standard error, as lines for people or as JSON.

use std::env;
use std::io::{self, Write};
use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::json;
use tracing::dispatcher;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, fmt, registry};

/// The variable that chooses the events, without `--log-level`.
const VARIABLE: &str = "RUST_LOG";
/// The least severe level without either.
const DEFAULT: LevelFilter = LevelFilter::WARN;

/// Whether all that goes to standard error is JSON. Not set: lines for people.
static IS_JSON: OnceLock<bool> = OnceLock::new();

#[derive(Debug, Args)]
pub(crate) struct LogOptions {
    /// The events on standard error: `off`, `error`, `warn`, `info` or `debug`, also by target,
    /// such as `warn,pikake::jobs=info`; by default RUST_LOG, or else `warn`
    #[arg(long, global = true, value_name = "LEVEL", value_parser = targets)]
    pub(crate) log_level: Option<Targets>,
    /// Writes standard error as text, or as one JSON document for each line
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub(crate) log_format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// Prints events to standard error, unless the program has set a subscriber.
pub(crate) fn start(options: &LogOptions) {
    let is_json = options.log_format == Format::Json;
    // A second application of this process keeps the first one's format.
    let _ = IS_JSON.set(is_json);
    if dispatcher::has_been_set() {
        return;
    }
    let targets = match (&options.log_level, is_json) {
        (None, false) => return pikake::log_to_stderr(),
        (Some(targets), _) => targets.clone(),
        (None, true) => from_environment(),
    };
    let lines = fmt::layer().with_ansi(false).log_internal_errors(false).with_writer(io::stderr);
    let lines = match is_json {
        false => lines.boxed(),
        true => lines.json().flatten_event(true).with_current_span(false).boxed(),
    };
    // Fails if another thread has set a subscriber since, which then stays.
    let _ = tracing::subscriber::set_global_default(registry().with(lines).with(targets));
}

/// The events that the variable asks for; warnings and errors if it asks for none or is wrong.
fn from_environment() -> Targets {
    let text = env::var(VARIABLE).unwrap_or_default();
    text.parse()
        .ok()
        .filter(|_| !text.trim().is_empty())
        .unwrap_or(Targets::new().with_default(DEFAULT))
}

/// Reads `--log-level`. A misspelt level would count as the name of a target.
fn targets(text: &str) -> Result<Targets, String> {
    for part in text.split(',').filter(|part| !part.contains('=')) {
        let _: LevelFilter = part.trim().parse().map_err(|_| {
            format!("`{part}` is no level: write `off`, `error`, `warn`, `info`, `debug` or `trace`, or `target=level`")
        })?;
    }
    text.parse().map_err(|error| format!("{error}"))
}

/// Writes a line for people to standard error; as an event where that is JSON.
pub(crate) fn write_line(level: &str, text: &str) {
    let line = match IS_JSON.get() {
        Some(true) => {
            let timestamp = Timestamp::now().to_string();
            json!({ "timestamp": timestamp, "level": level, "message": text, "target": "pikake_cli" }).to_string()
        }
        _ => text.to_owned(),
    };
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "{line}");
}
