//! What the system allows, and what it knows about this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to what is wanted, as far as this process may, and tells what it
/// is then.
pub(crate) fn allow_descriptors(wanted: u64) -> u64 {
    let limit = || getrlimit(Resource::Nofile);
    let Rlimit { current, maximum } = limit();
    // Whether it worked is seen in what the limit is afterwards.
    let set = |current, maximum| setrlimit(Resource::Nofile, Rlimit { current, maximum }).ok();
    if current.is_some_and(|current| current < wanted) {
        if maximum.is_some_and(|maximum| maximum < wanted) {
            // Only the privileged may do this.
            set(Some(wanted), Some(wanted));
        }
        // What follows is what everybody may do.
        let Rlimit { maximum, .. } = limit();
        set(Some(maximum.map_or(wanted, |maximum| maximum.min(wanted))), maximum);
    }
    limit().current.unwrap_or(u64::MAX)
}

/// The size of the process's resident set; `None` where there is no Linux /proc.
pub(crate) fn resident_bytes() -> Option<u64> {
    const KIB: u64 = 1024;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * KIB)
}
