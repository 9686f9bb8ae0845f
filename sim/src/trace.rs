//! A file with every event of a run.

use std::io::Write;
use std::path::Path;

use crate::log::{HostName, LogEvent};

/// The variable with the path of the file, which gets one event per line.
const VARIABLE: &str = "PIKAKE_TRACE";

pub(crate) fn is_wanted() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Writes the events over those of the run before. So the file of a failed run, the last one,
/// stays.
pub(crate) fn write(events: &[LogEvent], names: &[HostName]) {
    let Some(path) = std::env::var_os(VARIABLE) else { return };
    let written = std::fs::File::create(&path).and_then(|file| {
        let mut file = std::io::BufWriter::new(file);
        events.iter().try_for_each(|event| writeln!(file, "{}", event.shown(names)))?;
        file.flush()
    });
    if let Err(error) = written {
        eprintln!("the trace could not be written to {}: {error}", Path::new(&path).display());
    }
}
