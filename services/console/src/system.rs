//! The figures of the process, from the system.
//!
//! The files of `/proc` are open from the beginning: a process that is out of descriptors can be
//! looked into, too.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::process::{Resource, getrlimit};

use crate::model::ProcessStats;

/// The bytes of `/proc/self/stat` that are read: it has some fifty numbers.
const STAT_BYTES: usize = 2_048;

/// Where the number of threads and the pages in memory are in `/proc/self/stat`, counted from the
/// field after the program's name (proc_pid_stat(5), fields 20 and 24).
const THREADS_FIELD: usize = 17;
const RESIDENT_FIELD: usize = 21;

/// The entries `.` and `..` of a directory, and the descriptor that reads it, are no descriptors of
/// the program.
const NOT_COUNTED: u64 = 3;

/// What the figures are read from. Systems without `/proc` have a part of the figures only.
pub(crate) struct System {
    stat: Option<File>,
    descriptors: Option<Dir>,
}

impl System {
    pub(crate) fn open() -> Self {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open("/proc/self/fd", flags, Mode::empty());
        let descriptors = folder.and_then(|folder: OwnedFd| Dir::new(folder)).ok();
        Self { stat: File::open("/proc/self/stat").ok(), descriptors }
    }

    pub(crate) fn stats(&mut self) -> ProcessStats {
        let stat = self.read_stat();
        let field = |index| stat.as_deref()?.split(' ').nth(index)?.parse::<u64>().ok();
        let page = rustix::param::page_size() as u64;
        let mut stats = ProcessStats {
            resident_bytes: field(RESIDENT_FIELD).map(|pages| pages * page),
            descriptors: self.count_descriptors(),
            descriptor_limit: getrlimit(Resource::Nofile).current,
            threads: field(THREADS_FIELD),
            ..ProcessStats::default()
        };
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            let count = |count| u64::try_from(count).unwrap_or_default();
            stats.user_time = count(usage.user_time().num_microseconds()) * 1_000;
            stats.system_time = count(usage.system_time().num_microseconds()) * 1_000;
            stats.major_faults = count(usage.major_page_faults());
            stats.voluntary_switches = count(usage.voluntary_context_switches());
            stats.involuntary_switches = count(usage.involuntary_context_switches());
        }
        stats
    }

    /// The fields of `/proc/self/stat` after the name of the program, which may have spaces.
    fn read_stat(&self) -> Option<String> {
        let mut bytes = [0; STAT_BYTES];
        let length = self.stat.as_ref()?.read_at(&mut bytes, 0).ok()?;
        let text = String::from_utf8_lossy(&bytes[..length]);
        Some(text.rsplit_once(") ")?.1.to_owned())
    }

    fn count_descriptors(&mut self) -> Option<u64> {
        let folder = self.descriptors.as_mut()?;
        folder.rewind();
        let mut count = 0;
        while let Some(entry) = folder.read() {
            entry.ok()?;
            count += 1;
        }
        Some(u64::saturating_sub(count, NOT_COUNTED))
    }
}
