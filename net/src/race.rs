//! Connecting to a host that has several addresses: happy eyeballs, version 2 (RFC 8305).
//!
//! A host may have addresses of two families, of which one may be unreachable without an error. So
//! attempts overlap: the next one begins when the one before has failed, or has not succeeded
//! within [`ATTEMPT_DELAY`]. The first connection wins, and the other sockets are closed.
//!
//! ```text
//! ::1        ├──────────────────────────────── …          no answer
//! 127.0.0.1      250 ms ├────┤ connected                  the winner
//! ::2                              never begun
//! ```

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pikake_traps::{KernelTrap, SleepTrap, Until, kernel_trap_at};

use crate::error::{AddressErrors, interruption};

/// The delay between two attempts to connect: the RFC's "Connection Attempt Delay".
pub const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The addresses in the order of the attempts: as given, but alternating the families (RFC 8305,
/// section 4), and without duplicates.
fn interleaved(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let Some(first) = addresses.first() else { return addresses };
    let is_v6 = first.is_ipv6();
    let (mut own, mut other): (VecDeque<_>, VecDeque<_>) =
        addresses.iter().copied().partition(|address| address.is_ipv6() == is_v6);
    let mut order = Vec::with_capacity(addresses.len());
    while !own.is_empty() || !other.is_empty() {
        for address in [own.pop_front(), other.pop_front()].into_iter().flatten() {
            if !order.contains(&address) {
                order.push(address);
            }
        }
    }
    order
}

/// A running attempt.
struct Attempt<S> {
    number: usize,
    connecting: Pin<Box<dyn Future<Output = io::Result<S>>>>,
}

struct Race<S, C> {
    addresses: Vec<SocketAddr>,
    connect: C,
    begun: usize,
    attempts: Vec<Attempt<S>>,
    failed: Vec<(usize, io::Error)>,
    /// The delay until the next attempt, if there is a next one.
    stagger: Option<KernelTrap<SleepTrap>>,
    place: &'static Location<'static>,
}

impl<S, C, F> Race<S, C>
where
    C: Fn(SocketAddr) -> F,
    F: Future<Output = io::Result<S>> + 'static,
{
    /// Begins the next attempt; `false` if there is none.
    fn begin(&mut self) -> bool {
        let Some(address) = self.addresses.get(self.begun) else { return false };
        let connecting = Box::pin((self.connect)(*address));
        self.attempts.push(Attempt { number: self.begun, connecting });
        self.begun += 1;
        self.stagger = (self.begun < self.addresses.len())
            .then(|| kernel_trap_at(SleepTrap::new(Until::After(ATTEMPT_DELAY)), self.place));
        true
    }

    /// The winner, `None` if all attempts failed, or the interruption.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<S>>> {
        if self.begun == 0 {
            self.begin();
        }
        let mut at = 0;
        while at < self.attempts.len() {
            let Attempt { number, connecting } = &mut self.attempts[at];
            match connecting.as_mut().poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(Ok(connected)) => return Poll::Ready(Ok(Some(connected))),
                Poll::Ready(Err(error)) if interruption(&error).is_some() => {
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(Err(error)) => {
                    self.failed.push((*number, error));
                    self.attempts.remove(at);
                    self.begin();
                }
            }
        }
        if let Some(stagger) = &mut self.stagger {
            match Pin::new(stagger).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(interrupted)) => return Poll::Ready(Err(interrupted.into())),
                Poll::Ready(Ok(())) => {
                    self.begin();
                    return self.poll(cx);
                }
            }
        }
        if self.attempts.is_empty() { Poll::Ready(Ok(None)) } else { Poll::Pending }
    }
}

/// The first connection that succeeds to one of the addresses.
pub(crate) async fn race<S, C, F>(
    addresses: Vec<SocketAddr>,
    mut errors: AddressErrors,
    connect: C,
    place: &'static Location<'static>,
) -> io::Result<S>
where
    C: Fn(SocketAddr) -> F,
    F: Future<Output = io::Result<S>> + 'static,
{
    let mut race = Race {
        addresses: interleaved(addresses),
        connect,
        begun: 0,
        attempts: Vec::new(),
        failed: Vec::new(),
        stagger: None,
        place,
    };
    match poll_fn(|cx| race.poll(cx)).await {
        Ok(Some(connected)) => Ok(connected),
        Ok(None) => {
            race.failed.sort_by_key(|(number, _)| *number);
            for (number, error) in race.failed {
                errors.add(race.addresses[number], error);
            }
            Err(errors.into())
        }
        Err(interrupted) => Err(interrupted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(addresses: &[&str]) -> Vec<String> {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        interleaved(addresses).iter().map(SocketAddr::to_string).collect()
    }

    #[test]
    fn address_families_alternate() {
        let both = ["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "[::1]:1", "2.2.2.2:1"];
        assert_eq!(order(&both), ["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"],);
        assert_eq!(order(&["1.1.1.1:1", "2.2.2.2:1"]), ["1.1.1.1:1", "2.2.2.2:1"]);
        assert_eq!(order(&["1.1.1.1:1", "[::1]:1"]), ["1.1.1.1:1", "[::1]:1"]);
        assert!(order(&[]).is_empty());
    }
}
