//! The common parts of the policies of joining.
//!
//! Every policy has three parts. A policy *waits* until an interruption, or until the result is
//! settled, and checks each finished member once. Then the policy *ends* the group: it asks all
//! running members to end, and waits for their ends, inside a shield. Last, the policy *sums up*
//! the outcomes. So a policy never returns while a member runs.

use std::collections::VecDeque;
use std::panic::Location;

use pikake_traps::{Interrupted, shield};

use crate::error::GroupError;
use crate::failure_rule::{FailureRule, Summary, has_failed, value_of};
use crate::group::TaskGroup;
use crate::members::Finished;

/// The end of a policy's wait.
enum Waited {
    /// All members have ended.
    All,
    /// The finished member with this index settles the result.
    Settled(usize),
    Interrupted,
}

impl<T: 'static> TaskGroup<T> {
    /// Waits until fewer than `limit` members run.
    pub(crate) async fn wait_for_room(
        &self,
        limit: usize,
        place: &'static Location<'static>,
    ) -> Result<(), Interrupted> {
        while self.members.running() >= limit {
            self.members.next_end(place).await?;
        }
        Ok(())
    }

    /// Waits for the next member to end.
    pub(crate) async fn wait_for_end(
        &self,
        place: &'static Location<'static>,
    ) -> Result<(), Interrupted> {
        self.members.next_end(place).await
    }

    pub(crate) async fn join<J: FailureRule<T>>(
        &mut self,
        place: &'static Location<'static>,
    ) -> Result<Vec<J::Value>, GroupError> {
        match self.wait(place, has_failed::<T, J>).await {
            Waited::All => self.end("its group has ended", place).await,
            Waited::Settled(_) => self.end("another member of its group failed", place).await,
            Waited::Interrupted => self.end(INTERRUPTED, place).await,
        }
        let interrupted = self.interrupted.take();
        let mut summary = self.take_summary::<J>();
        if interrupted.is_some() || !summary.failures.is_empty() {
            return Err(summary.into_error(interrupted));
        }
        summary.values.sort_unstable_by_key(|(number, _)| *number);
        Ok(summary.values.into_iter().map(|(_, value)| value).collect())
    }

    pub(crate) async fn any<J: FailureRule<T>>(
        &mut self,
        place: &'static Location<'static>,
    ) -> Result<J::Value, GroupError> {
        let is_settled = match self.wait(place, |_| true).await {
            Waited::All => false,
            Waited::Settled(_) => true,
            Waited::Interrupted => {
                self.end(INTERRUPTED, place).await;
                return Err(self.sum_up::<J>());
            }
        };
        self.end("another member of its group ended first", place).await;
        if is_settled && self.members.check(0, has_failed::<T, J>) == Some(false) {
            if let Some(value) = self.members.take(0).and_then(value_of::<T, J>) {
                // The drop of the other outcomes logs their panics.
                drop(self.members.take_finished());
                return Ok(value);
            }
        }
        Err(self.sum_up::<J>())
    }

    pub(crate) async fn first<J: FailureRule<T>>(
        &mut self,
        place: &'static Location<'static>,
    ) -> Result<J::Value, GroupError> {
        match self.wait(place, |finished| !has_failed::<T, J>(finished)).await {
            Waited::All => self.end("its group has ended", place).await,
            Waited::Interrupted => self.end(INTERRUPTED, place).await,
            Waited::Settled(nth) => {
                self.end("another member of its group gave a value first", place).await;
                let mut passed_over = self.members.take_finished();
                let mut rest = passed_over.split_off(nth);
                if let Some(value) = rest.pop_front().and_then(value_of::<T, J>) {
                    drop(rest);
                    for failure in Summary::of::<T, J>(passed_over, None).failures {
                        failure.log();
                    }
                    return Ok(value);
                }
            }
        }
        Err(self.sum_up::<J>())
    }

    pub(crate) fn take_summary<J: FailureRule<T>>(&mut self) -> Summary<J::Value> {
        Summary::of::<T, J>(self.members.take_finished(), self.members.why().as_ref())
    }

    fn sum_up<J: FailureRule<T>>(&mut self) -> GroupError {
        let interrupted = self.interrupted.take();
        self.take_summary::<J>().into_error(interrupted)
    }

    /// Waits until a finished member settles the result, or no member runs. Checks each member
    /// once.
    pub(crate) async fn wait_until(
        &mut self,
        place: &'static Location<'static>,
        settles: impl FnMut(&mut Finished<T>) -> bool,
    ) -> Result<(), Interrupted> {
        match self.wait(place, settles).await {
            Waited::All | Waited::Settled(_) => Ok(()),
            Waited::Interrupted => match self.interrupted.take() {
                Some(interrupted) => Err(interrupted),
                None => Ok(()),
            },
        }
    }

    async fn wait(
        &mut self,
        place: &'static Location<'static>,
        mut settles: impl FnMut(&mut Finished<T>) -> bool,
    ) -> Waited {
        if self.interrupted.is_some() {
            return Waited::Interrupted;
        }
        let mut checked = 0;
        loop {
            while let Some(is_settled) = self.members.check(checked, &mut settles) {
                if is_settled {
                    return Waited::Settled(checked);
                }
                checked += 1;
            }
            if self.members.running() == 0 {
                return Waited::All;
            }
            if let Err(interrupted) = self.members.next_end(place).await {
                self.interrupted = Some(interrupted);
                return Waited::Interrupted;
            }
        }
    }

    /// Asks all running members to end, and waits for their ends, without interruption.
    pub(crate) async fn end(&mut self, why: &str, place: &'static Location<'static>) {
        let members = &*self.members;
        members.end(&Interrupted::cancelled(why));
        let is_left = || members.running() + members.daemons() > 0;
        if is_left() {
            shield(async {
                while is_left() {
                    // The shield hides interruptions, and the loop checks again after each wake.
                    let _ = members.next_end(place).await;
                }
            })
            .await;
        }
    }

    /// Ends the group, and logs its failures, when the caller returns another error.
    pub(crate) async fn end_and_log<J: FailureRule<T>>(
        &mut self,
        why: &str,
        place: &'static Location<'static>,
    ) {
        self.end(why, place).await;
        for failure in self.take_summary::<J>().failures {
            failure.log();
        }
    }

    /// Takes all finished members, in the order of their ends.
    pub(crate) fn take_finished(&mut self) -> VecDeque<Finished<T>> {
        self.members.take_finished()
    }
}

/// The reason for members whose joiner was interrupted.
const INTERRUPTED: &str = "the join of its group was interrupted";
