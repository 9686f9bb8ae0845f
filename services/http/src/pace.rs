//! How long a client may keep its connection waiting.
//!
//! A connection waits either for its client (the head of a request, the rest of a body that a
//! handler reads, the reading of a response) or for its server. Time counts only while the
//! connection waits for its client.
//!
//! ```text
//!                  ┌────────── a request has begun ─────────┐
//!                  │                                        ▼
//!     `Idle`: awaits a request's head         `AwaitsServer`: awaits a response
//!                  ▲                            │ (1)  ▲         │ (3)  ▲
//!                  │                            ▼      │ (2)     ▼      │ (4)
//!                  │         `AwaitsClient`: a body  ──┘   `AwaitsClient`: the reading
//!                  └─────────── the response is sent ──────────────┘
//! ```
//!
//! (1) A handler waits for a part of the request's body ([`Incoming`](crate::Incoming)); (2) the
//! part has arrived. (3) A part of the response is not yet written
//! ([`Reply`](crate::reply::Reply)); (4) all parts are, and hyper asks for the next. HTTP/2 has
//! several requests at a time: `AwaitsServer` if one of them awaits the server.
//!
//! A client has an [`Allowance`] of time for each of the two waits. Waiting for the client uses it
//! up. Bytes of a request or a response earn some back; bytes without a request, such as HTTP/2's
//! pings, earn none. A client that has *caught up* gets all of it back: a response is sent, or the
//! client has all of one that goes on, and no other request waits for the client. A request that is
//! begun, or reset, gets nothing back. So a client that stops, sends single bytes or asks for no
//! answer is cut off, a slow one is not.
//!
//! One task of the server checks all its connections periodically ([`Gate`](crate::gate::Gate)).
//! So requests pay for counting only, and idle connections for nothing.

use std::time::Duration;

/// The rate at which a client earns the time that it takes, in bytes a second: a thousandth of a
/// bad mobile connection's.
///
/// Bytes count when the system takes them from the server, which it does in steps of up to its
/// buffer, 64 KB for example. So [`stall_timeout`](crate::Server::stall_timeout) has to be longer
/// than the client takes for one such step.
pub const MINIMUM_PACE: u32 = 500;

/// How often an allowance is checked before it can run out.
const CHECKS: u32 = 4;

/// How long a connection waits for its client, and a request for its kernel; `None`: for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Without a request.
    pub(crate) idle: Option<Duration>,
    /// During a request.
    pub(crate) stalled: Option<Duration>,
    /// At a shutdown, for another request.
    pub(crate) last: Duration,
    /// From the end of the client's side to that of the handlers of its requests.
    pub(crate) gone: Option<Duration>,
    /// How late the kernel may be when a request begins.
    pub(crate) late: Option<Duration>,
}

impl Limits {
    /// The time between two checks; `None` without limits.
    pub(crate) fn interval(&self) -> Option<Duration> {
        let shortest = [self.idle, self.stalled].into_iter().flatten().min()?;
        Some((shortest / CHECKS).max(Duration::from_millis(1)))
    }
}

/// For which side a connection waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// For a request.
    Idle,
    /// For the client, in all its requests.
    AwaitsClient,
    /// For the server, in at least one request.
    AwaitsServer,
}

/// The time that a client has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Without a request.
    idle: Duration,
    /// During requests.
    stalled: Duration,
    /// The bytes at the last check.
    moved: u64,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { idle: Duration::MAX, stalled: Duration::MAX, moved: 0 }
    }
}

impl Allowance {
    /// Spends the time `passed` if the connection awaits its client, and returns whether the
    /// allowance is used up.
    pub(crate) fn spend(
        &mut self,
        limits: &Limits,
        passed: Duration,
        phase: Phase,
        moved: u64,
        is_caught_up: bool,
    ) -> bool {
        let bytes = moved - std::mem::replace(&mut self.moved, moved);
        if is_caught_up {
            self.stalled = Duration::MAX;
        }
        if is_caught_up || phase != Phase::Idle {
            self.idle = Duration::MAX;
        }
        let (left, limit, earned) = match phase {
            Phase::Idle => (&mut self.idle, limits.idle, Duration::ZERO),
            Phase::AwaitsClient => {
                let earned = Duration::from_secs_f64(bytes as f64 / f64::from(MINIMUM_PACE));
                (&mut self.stalled, limits.stalled, earned)
            }
            Phase::AwaitsServer => return false,
        };
        let Some(limit) = limit.filter(|_| !is_caught_up) else { return false };
        // The phase may have begun at any time since the last check: assume the latest, in favour
        // of the client.
        let whole = limit + passed;
        *left = (*left).min(whole).saturating_add(earned).min(whole).saturating_sub(passed);
        left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    const LIMITS: Limits = Limits {
        idle: Some(Duration::from_secs(4)),
        stalled: Some(Duration::from_secs(8)),
        last: SECOND,
        gone: None,
        late: None,
    };

    /// The second at which a phase uses up the allowance, with this many bytes a second.
    fn lasts(phase: Phase, bytes: u64) -> Option<u64> {
        let mut allowance = Allowance::default();
        (1..100).find(|second| allowance.spend(&LIMITS, SECOND, phase, second * bytes, false))
    }

    #[test]
    fn inactive_client_is_cut_off_at_its_limit() {
        assert_eq!(lasts(Phase::Idle, 0), Some(5));
        assert_eq!(lasts(Phase::AwaitsClient, 0), Some(9));
        assert_eq!(lasts(Phase::AwaitsServer, 0), None);
    }

    #[test]
    fn client_below_minimum_pace_is_cut_off() {
        assert_eq!(lasts(Phase::AwaitsClient, u64::from(MINIMUM_PACE)), None);
        assert_eq!(lasts(Phase::AwaitsClient, 1), Some(10));
        assert_eq!(lasts(Phase::AwaitsClient, u64::from(MINIMUM_PACE) / 2), Some(17));
    }

    #[test]
    fn bytes_without_a_request_earn_nothing() {
        assert_eq!(lasts(Phase::Idle, 1_000_000), Some(5));
    }

    #[test]
    fn burst_earns_at_most_one_allowance() {
        let mut allowance = Allowance::default();
        let mut spend = |moved| allowance.spend(&LIMITS, SECOND, Phase::AwaitsClient, moved, false);
        assert!(!spend(1_000_000));
        assert_eq!((1..100).find(|_| spend(1_000_000)), Some(8));
    }

    #[test]
    fn client_that_catches_up_gets_its_allowance_back() {
        let mut allowance = Allowance::default();
        for _ in 0..10 {
            assert!(!allowance.spend(&LIMITS, 3 * SECOND, Phase::AwaitsClient, 0, false));
            assert!(!allowance.spend(&LIMITS, 3 * SECOND, Phase::AwaitsClient, 0, true));
            assert!(!allowance.spend(&LIMITS, 3 * SECOND, Phase::Idle, 0, true));
            assert!(!allowance.spend(&LIMITS, 3 * SECOND, Phase::Idle, 0, false));
        }
    }

    /// A wait for the server uses up nothing and restores nothing but the time of an idle
    /// connection.
    #[test]
    fn stalled_allowance_survives_other_phases() {
        let mut allowance = Allowance::default();
        let phases = [Phase::AwaitsClient, Phase::Idle, Phase::AwaitsServer].into_iter().cycle();
        let ends = phases
            .take(100)
            .position(|phase| allowance.spend(&LIMITS, 3 * SECOND, phase, 0, false));
        assert_eq!(ends, Some(9));
    }

    #[test]
    fn unlimited_phases_are_not_checked() {
        let mut limits = Limits { idle: None, stalled: None, last: SECOND, gone: None, late: None };
        assert_eq!(limits.interval(), None);
        limits.stalled = Some(4 * SECOND);
        assert_eq!(limits.interval(), Some(SECOND));
        let mut allowance = Allowance::default();
        assert!((1..100).all(|_| !allowance.spend(&limits, SECOND, Phase::Idle, 0, false)));
    }
}
