//! What a signal does when nobody listens to it any more.
//!
//! A handler that was installed stays: taking it out again could take out somebody else's. So the
//! handler itself does what would have been done without it, for as long as nobody listens. That is
//! the signal's default action, unless the process was started with the signal ignored, or somebody
//! else's handler had been there before, which is called in any case.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signal_hook::flag;

struct Entry {
    listeners: usize,
    /// Nobody listens. Read by the handler.
    nobody: Arc<AtomicBool>,
}

static ENTRIES: Mutex<BTreeMap<i32, Entry>> = Mutex::new(BTreeMap::new());

fn entries() -> MutexGuard<'static, BTreeMap<i32, Entry>> {
    // Whole after each statement, so a panic elsewhere on the thread leaves nothing half done.
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Somebody listens to these signals: they have no default action.
#[derive(Debug)]
pub(crate) struct Listening(Vec<i32>);

/// Has the handler do what is done without it, for signals that nobody listens to. To be called
/// before anything else handles them.
pub(crate) fn keep(signals: &[i32]) {
    let mut entries = entries();
    for signal in signals {
        if !entries.contains_key(signal) {
            let nobody = Arc::new(AtomicBool::new(true));
            if has_default_action(*signal) {
                // Refused for signals without a name, as the real-time ones: those are
                // ignored from now on while nobody listens.
                let _ = flag::register_conditional_default(*signal, nobody.clone());
            }
            entries.insert(*signal, Entry { listeners: 0, nobody });
        }
    }
}

impl Listening {
    /// From now on, for signals that are [kept](keep), when somebody hears of them already.
    pub(crate) fn to(signals: &[i32]) -> Self {
        let mut listening = Self(Vec::new());
        let mut entries = entries();
        for signal in signals {
            if let Some(entry) = entries.get_mut(signal) {
                entry.listeners += 1;
                entry.nobody.store(false, Ordering::SeqCst);
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
                entry.nobody.store(entry.listeners == 0, Ordering::SeqCst);
            }
        }
    }
}

/// Whether a signal was neither ignored nor handled until now. Where the system does not tell, it
/// counts as such.
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
