//! Rate limits: how often a worker begins the runs of a job.
//!
//! A run takes the next free moment of its job, or of its key, and the moment after that is one
//! interval later. So runs are spaced evenly, without bursts, as Celery's are.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use pikake_sync::Event;
use pikake_traps::Instant;

use crate::client::app::App;

/// How many keys a limiter has at least before it removes those that are free again.
const MANY_KEYS: usize = 1_024;

/// The longest interval: the clock gets to the moments of many of these.
const LONGEST_INTERVAL: Duration = Duration::from_secs(366 * 24 * 3_600);

/// How often a job begins at most, in one worker.
///
/// # Examples
///
/// ```
/// use pikake::jobs::Rate;
/// use std::time::Duration;
///
/// let rate: Rate = "120/m".parse()?;
/// assert_eq!(rate, Rate::new(120, Duration::from_secs(60)));
/// assert_eq!(rate.interval(), Duration::from_millis(500));
/// assert_eq!(rate.to_string(), "2/s");
/// # Ok::<_, pikake::jobs::WrongRate>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    interval: Duration,
}

impl Rate {
    /// A number of runs in a length of time.
    ///
    /// # Panics
    ///
    /// If the number is zero.
    #[track_caller]
    pub const fn new(count: u32, per: Duration) -> Self {
        assert!(count > 0, "a rate of no runs at all is no rate");
        Self::spaced(Duration::from_nanos(per.as_nanos() as u64 / count as u64))
    }

    /// One run in each interval. A worker counts an interval of more than 366 days as 366 days.
    pub const fn spaced(interval: Duration) -> Self {
        Self { interval }
    }

    /// The time from one run to the next.
    pub const fn interval(self) -> Duration {
        self.interval
    }
}

/// In Celery's form: `10/s`, `100/m`, `1000/h`, or a number of runs per second; not less than one
/// run in 366 days.
impl FromStr for Rate {
    type Err = WrongRate;

    fn from_str(text: &str) -> Result<Self, WrongRate> {
        let wrong = || WrongRate(text.to_owned());
        let (count, unit) = text.split_once('/').unwrap_or((text, "s"));
        let seconds = match unit.trim() {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return Err(wrong()),
        };
        let count: f64 = count.trim().parse().map_err(|_| wrong())?;
        match Duration::try_from_secs_f64(seconds / count) {
            Ok(interval) if !interval.is_zero() && interval <= LONGEST_INTERVAL => {
                Ok(Self { interval })
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = 1.0 / self.interval.as_secs_f64();
        let units = [(1.0, "s"), (60.0, "m"), (3_600.0, "h")];
        // An interval has whole nanoseconds, so a count is not exact.
        let counts =
            units.map(|(seconds, unit)| ((per_second * seconds * 1e6).round() / 1e6, unit));
        let (count, unit) =
            counts.into_iter().find(|(count, _)| *count >= 1.0).unwrap_or(counts[2]);
        write!(f, "{count}/{unit}")
    }
}

/// A text is not a rate such as `10/s`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongRate(String);

impl fmt::Display for WrongRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a rate: write `10/s`, `10/m`, `10/h`, or a number per second, and at least \
             one run in 366 days",
            self.0
        )
    }
}

impl Error for WrongRate {}

/// The rate limit of a job, and its next free moments.
#[derive(Debug, Default)]
pub(crate) struct Limiter {
    rate: Cell<Option<Rate>>,
    /// The next free moment of each key; of the empty key for a job without keys.
    free: RefCell<BTreeMap<String, Instant>>,
    /// Set when waiting runs must ask again; replaced by each change.
    changed: RefCell<Rc<Event>>,
}

/// The turn of a run.
#[derive(Debug)]
pub(crate) enum Turn {
    Now,
    /// After this length, unless the event is set earlier; then the run asks again.
    After(Duration, Rc<Event>),
}

impl Limiter {
    pub(crate) fn new(rate: Option<Rate>) -> Self {
        Self { rate: Cell::new(rate), ..Self::default() }
    }

    pub(crate) fn rate(&self) -> Option<Rate> {
        self.rate.get()
    }

    /// Sets the rate, and has the waiting runs ask again.
    pub(crate) fn set(&self, rate: Option<Rate>) {
        self.rate.set(rate);
        self.restart();
    }

    /// Frees all moments, and has the waiting runs ask again.
    pub(crate) fn restart(&self) {
        self.free.take();
        self.changed.take().set();
    }

    /// Takes the next free moment of a key.
    pub(crate) fn turn(&self, key: &str) -> Turn {
        let Some(rate) = self.rate.get() else { return Turn::Now };
        let now = Instant::now();
        let mut free = self.free.borrow_mut();
        if free.len() >= MANY_KEYS && free.len().is_power_of_two() {
            free.retain(|_, moment| *moment > now);
        }
        let moment = free.get(key).map_or(now, |moment| now.max(*moment));
        // At the end of the clock, all runs wait for its last moment.
        let next = moment.checked_add(rate.interval.min(LONGEST_INTERVAL)).unwrap_or(moment);
        free.insert(key.to_owned(), next);
        match moment > now {
            false => Turn::Now,
            true => Turn::After(moment - now, self.changed.borrow().clone()),
        }
    }
}

impl App {
    /// The rate limit of a registered job; `None` without one.
    pub fn rate(&self, job: &str) -> Option<Rate> {
        self.0.jobs.borrow().get(job)?.limiter.rate()
    }

    /// Sets the rate limit of a registered job in this application's worker, in place of the
    /// definition's. Returns `false` if no job has this name. Runs that wait are spaced anew.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::jobs::App;
    ///
    /// #[pikake::job(name = "mail.send", rate = "10/s")]
    /// async fn send(to: String) {}
    ///
    /// let app = App::new("memory://")?.jobs([send::JOB]);
    /// assert_eq!(app.rate("mail.send").unwrap().to_string(), "10/s");
    /// assert!(app.set_rate("mail.send", Some("1/s".parse()?)));
    /// assert!(app.set_rate("mail.send", None));
    /// assert!(!app.set_rate("mail.burn", None));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_rate(&self, job: &str, rate: Option<Rate>) -> bool {
        match self.0.jobs.borrow().get(job) {
            Some(job) => {
                job.limiter.set(rate);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn celerys_rates_are_read_and_written() {
        for (text, millis, written) in [
            ("10/s", 100, "10/s"),
            ("10", 100, "10/s"),
            ("0.5/s", 2_000, "30/m"),
            ("120/m", 500, "2/s"),
            ("7200/h", 500, "2/s"),
            ("1/h", 3_600_000, "1/h"),
            ("0.25/h", 14_400_000, "0.25/h"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.interval(), Duration::from_millis(millis), "{text}");
            assert_eq!(rate.to_string(), written, "{text}");
        }
        for text in ["", "0", "-1/s", "1/d", "nan", "inf/s", "x/s", "10/s/s", "1e-4/h", "1e-9/h"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        assert_eq!(Rate::new(3, Duration::from_secs(1)).to_string(), "3/s");
    }
}
