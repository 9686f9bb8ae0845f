//! The default action of signals without listeners.
//!
//! An installed handler stays, since removing it could remove another library's handler. So the
//! handler itself performs the default action while there are no listeners. It does not if the
//! process was started with the signal ignored, or if another handler was installed before, which
//! is called in any case.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signal_hook::flag;

struct Entry {
    listeners: usize,
    /// Whether there are no listeners. Read by the handler.
    has_no_listener: Arc<AtomicBool>,
}

static ENTRIES: Mutex<BTreeMap<i32, Entry>> = Mutex::new(BTreeMap::new());

fn entries() -> MutexGuard<'static, BTreeMap<i32, Entry>> {
    // Each statement leaves the map consistent, so a poisoned lock is usable.
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A listener of these signals, which suppresses their default action.
#[derive(Debug)]
pub(crate) struct Listening(Vec<i32>);

/// Registers the default action of signals, for the times without listeners. Must be called before
/// other handlers are installed.
pub(crate) fn keep(signals: &[i32]) {
    let mut entries = entries();
    for signal in signals {
        if !entries.contains_key(signal) {
            let has_no_listener = Arc::new(AtomicBool::new(true));
            if has_default_action(*signal) {
                // Fails for unnamed signals, as the real-time ones: these are ignored from now on
                // while there are no listeners.
                let _ = flag::register_conditional_default(*signal, has_no_listener.clone());
            }
            entries.insert(*signal, Entry { listeners: 0, has_no_listener });
        }
    }
}

impl Listening {
    /// Suppresses the default action of signals that were [kept](keep). To be called when the
    /// listener's handler is installed.
    pub(crate) fn to(signals: &[i32]) -> Self {
        let mut listening = Self(Vec::new());
        let mut entries = entries();
        for signal in signals {
            if let Some(entry) = entries.get_mut(signal) {
                entry.listeners += 1;
                entry.has_no_listener.store(false, Ordering::SeqCst);
                listening.0.push(*signal);
            }
        }
        listening
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut entries = entries();
        for signal in &self.0 {
            if let Some(entry) = entries.get_mut(signal) {
                entry.listeners -= 1;
                entry.has_no_listener.store(entry.listeners == 0, Ordering::SeqCst);
            }
        }
    }
}

/// Whether a signal is neither ignored nor handled. `true` if the system does not report it.
fn has_default_action(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_in = |set: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(set)).unwrap_or_default();
        let mask = u64::from_str_radix(mask.trim(), 16).unwrap_or_default();
        // The set's lowest bit is signal 1.
        mask >> (signal - 1) & 1 == 1
    };
    !is_in("SigIgn:") && !is_in("SigCgt:")
}
