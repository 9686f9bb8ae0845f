//! A timer that ends the driver's wait to the microsecond.
//!
//! epoll_wait(2) takes whole milliseconds, and mio rounds up, so a sleep would be half a
//! millisecond late on average. A timerfd in the same epoll set is exact, at the price of a system
//! call. So only the last stretch of a wait uses the timerfd. Before that, the driver waits for
//! whole milliseconds. With a slack of a millisecond or more, it needs no timerfd.
//!
//! A wait lasts at least as long as the slack, so a timer fires late by that time at most, and the
//! timers that come due meanwhile cost no wait of their own.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// A wait of at least this length first lasts whole milliseconds.
const LAST_STRETCH: Duration = Duration::from_millis(2);

/// The timer of one driver.
#[derive(Debug, Default)]
pub(super) enum Alarm {
    /// No short wait has needed the timer so far.
    #[default]
    New,
    Ready(OwnedFd),
    /// The system has refused a timer, so waits are as exact as mio makes them.
    Refused,
}

impl Alarm {
    /// The limit to give to mio for a wait of the length `limit`, which is not zero. The wait may
    /// end early.
    pub(super) fn limit(
        &mut self,
        limit: Duration,
        slack: Duration,
        registry: &Registry,
        token: Token,
    ) -> Duration {
        const MILLISECOND: Duration = Duration::from_millis(1);
        let limit = limit.max(slack);
        if slack >= MILLISECOND {
            return limit;
        }
        if limit >= LAST_STRETCH {
            return Duration::from_millis((limit - MILLISECOND).as_millis() as u64);
        }
        if self.set(limit, registry, token).is_none() {
            return limit;
        }
        LAST_STRETCH
    }

    fn set(&mut self, after: Duration, registry: &Registry, token: Token) -> Option<()> {
        if let Self::New = self {
            let timer = timerfd(registry, token);
            *self = timer.map_or(Self::Refused, Self::Ready);
        }
        let Self::Ready(timer) = self else { return None };
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: 0, tv_nsec: after.subsec_nanos().into() },
        };
        timerfd_settime(timer, TimerfdTimerFlags::empty(), &once).ok()?;
        Some(())
    }
}

fn timerfd(registry: &Registry, token: Token) -> Option<OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok()?;
    registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE).ok()?;
    Some(timer)
}
