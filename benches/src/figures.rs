//! What one run of a workload measures, about itself.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Metrics and their values, in the order in which they are printed. A unit is part of the name.
pub type Figures = Vec<(&'static str, f64)>;

pub fn print(figures: &Figures) {
    for (metric, value) in figures {
        println!("{metric}\t{value:.3}");
    }
}

/// Wall time and this process's processor time since the start.
pub struct Stopwatch {
    wall: Instant,
    cpu: Usage,
}

impl Stopwatch {
    pub fn start() -> Self {
        Self { wall: Instant::now(), cpu: Usage::of_this_process() }
    }

    /// Nanoseconds per operation.
    pub fn per(&self, operations: usize) -> Figures {
        let wall = self.wall.elapsed();
        let cpu = Usage::of_this_process().since(&self.cpu);
        let per = |time: Duration| time.as_secs_f64() * 1e9 / operations as f64;
        vec![("wall_ns", per(wall)), ("cpu_ns", per(cpu.user + cpu.system))]
    }
}

/// Processor time of this process, all threads.
#[derive(Clone, Copy, Default, Debug)]
pub struct Usage {
    pub user: Duration,
    pub system: Duration,
}

impl Usage {
    pub fn of_this_process() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the pointer is to a `rusage`, which the call fills.
        let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
        assert_eq!(result, 0, "getrusage does not fail for this process");
        // SAFETY: all zeros is a `rusage`, and the call has filled it.
        let usage = unsafe { usage.assume_init() };
        let duration = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
        };
        Self { user: duration(usage.ru_utime), system: duration(usage.ru_stime) }
    }

    pub fn since(&self, earlier: &Self) -> Self {
        let system = self.system.saturating_sub(earlier.system);
        Self { user: self.user.saturating_sub(earlier.user), system }
    }
}

/// Resident memory of this process, in bytes.
pub fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).and_then(|field| field.parse::<usize>().ok());
    // SAFETY: no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.expect("a number") * usize::try_from(page).expect("a size")
}

/// The value below which a share of the values lies.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}
