//! The end of a server: who is let go, who is told, who is dropped, and when.

use std::future::Future;
use std::time::Duration;

use pikake_traps::{Interrupted, TaskError, timeout_after};

use crate::gate::Gate;
use crate::report::{Left, Report};
use crate::request::Running;

/// The reason with which a request's task is cancelled at the soft deadline.
pub const SHUTTING_DOWN: &str = "the server is being shut down";

impl Gate {
    pub(crate) fn report(&self) -> Report {
        Report { answered: self.answered.get(), told: Vec::new(), dropped: Vec::new() }
    }

    /// Who is there: each request, and each connection without one.
    fn left(&self) -> Vec<Left> {
        let mut left = Vec::new();
        for (_, open) in &*self.open.borrow() {
            let peer = || open.peer.clone();
            let running = open.requests.running.borrow();
            if running.is_empty() {
                left.push(Left { peer: peer(), request: None });
            }
            for (_, Running { line, .. }) in &*running {
                left.push(Left { peer: peer(), request: Some(line.to_string()) });
            }
        }
        left
    }

    /// Waits for the connections, up to the deadlines. The gate is shut.
    pub(crate) async fn end<F, T>(
        &self,
        accepting: &mut F,
        soft: Duration,
        hard: Duration,
    ) -> Report
    where
        F: Future<Output = Result<T, TaskError>> + Unpin,
    {
        let (mut told, mut dropped) = (Vec::new(), Vec::new());
        let mut ended = timeout_after(soft, &mut *accepting).await;
        if ended.is_err() {
            told = self.left();
            self.tell();
            ended = timeout_after(hard.saturating_sub(soft), &mut *accepting).await;
        }
        if let Err(_) | Ok(Err(TaskError::Interrupted(_))) = ended {
            dropped = self.left();
            for left in &dropped {
                tracing::warn!(%left, "dropped at the hard deadline of a shutdown");
            }
            self.drop_all();
            // They are gone before the next step; interrupted once more, nothing is left to do.
            drop(accepting.await);
        }
        Report { told, dropped, ..self.report() }
    }

    fn tell(&self) {
        let open: Vec<_> =
            self.open.borrow().iter().map(|(_, o)| (o.task.clone(), o.requests.clone())).collect();
        for (connection, requests) in open {
            if requests.running.borrow().is_empty() {
                connection.request_cancel(Interrupted::cancelled(SHUTTING_DOWN));
            }
            requests.tell(SHUTTING_DOWN);
        }
    }

    fn drop_all(&self) {
        let mut tasks = Vec::new();
        for (_, open) in &*self.open.borrow() {
            tasks.extend(open.requests.tasks());
            tasks.push(open.task.clone());
        }
        for task in tasks {
            task.request_abort(Interrupted::cancelled(SHUTTING_DOWN));
        }
    }
}
