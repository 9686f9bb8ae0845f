//! The shutdown of a server: it interrupts requests at the soft deadline, and drops them at the
//! hard one.

use std::future::Future;
use std::time::Duration;

use pikake_traps::{Interrupted, TaskError, timeout_after};

use crate::gate::Gate;
use crate::report::{Left, Report};
use crate::requests::Running;

/// The reason with which a request's task is cancelled at the soft deadline.
pub const SHUTTING_DOWN: &str = "the server is being shut down";

impl Gate {
    pub(crate) fn report(&self) -> Report {
        Report {
            answered: self.answered.get(),
            upgraded: self.upgraded.get(),
            shed: self.shed.get(),
            ..Report::default()
        }
    }

    /// The requests and upgrades that run, and the connections without one.
    fn left(&self) -> Vec<Left> {
        let mut left = Vec::new();
        for (_, open) in &*self.open.borrow() {
            let peer = || open.peer.clone();
            let running = open.requests.running.borrow();
            if running.is_empty() {
                left.push(Left { peer: peer(), request: None, is_upgrade: false });
            }
            for (_, Running { line, .. }) in &*running {
                let (request, is_upgrade) = (Some(line.request()), line.is_upgrade);
                left.push(Left { peer: peer(), request, is_upgrade });
            }
        }
        left
    }

    /// Waits for the connections to end, up to the deadlines. The gate must be shut.
    pub(crate) async fn end<F, T>(
        &self,
        accepting: &mut F,
        soft: Duration,
        hard: Duration,
    ) -> Report
    where
        F: Future<Output = Result<T, TaskError>> + Unpin,
    {
        let (mut interrupted, mut dropped) = (Vec::new(), Vec::new());
        let mut cut_short_by = None;
        let mut ended = timeout_after(soft, &mut *accepting).await;
        if ended.is_err() {
            interrupted = self.left();
            self.interrupt_all();
            ended = timeout_after(hard.saturating_sub(soft), &mut *accepting).await;
        }
        if let Ok(Err(TaskError::Interrupted(second))) = &ended {
            cut_short_by = Some(second.clone());
        }
        if ended.is_err() || cut_short_by.is_some() {
            dropped = self.left();
            for left in &dropped {
                tracing::warn!(%left, "dropped by the shutdown of a server");
            }
            self.end_accepting();
            self.abort_all();
            // Aborted tasks end before the next step, so an interruption delays nothing.
            while let Err(TaskError::Interrupted(second)) = (&mut *accepting).await {
                cut_short_by.get_or_insert(second);
            }
        }
        Report { interrupted, dropped, cut_short_by, ..self.report() }
    }

    fn interrupt_all(&self) {
        let open: Vec<_> =
            self.open.borrow().iter().map(|(_, o)| (o.task.clone(), o.requests.clone())).collect();
        for (connection, requests) in open {
            if requests.running.borrow().is_empty() {
                connection.request_cancel(Interrupted::cancelled(SHUTTING_DOWN));
            }
            requests.cancel_all(SHUTTING_DOWN);
        }
    }

    fn abort_all(&self) {
        let mut tasks = Vec::new();
        for (_, open) in &*self.open.borrow() {
            tasks.extend(open.requests.all_running().into_iter().map(|running| running.task));
            tasks.push(open.task.clone());
        }
        for task in tasks {
            task.request_abort(Interrupted::cancelled(SHUTTING_DOWN));
        }
    }
}
