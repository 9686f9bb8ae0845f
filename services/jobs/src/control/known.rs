//! The workers that heartbeats have told an application of: bounded in number, forgotten when
//! heartbeats cease.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use pikake_traps::{CancelOnDrop, sleep, spawn, wall_time};
use serde_json::Value;

use crate::BrokerError;
use crate::broker::bus::{Notice, Topic};
use crate::client::app::{App, Inner};

/// How many workers are kept.
const LIMIT: usize = 20_000;
/// The longest name that is kept, in bytes.
const LONGEST_NAME: usize = 255;
/// After so many intervals without a heartbeat, a worker counts as gone. Celery's number.
const MISSED: f64 = 2.0;
/// The longest interval of heartbeats that is believed.
const LONGEST_INTERVAL: f64 = 3_600.0;
/// After so long, all workers with Celery's interval of two seconds have sent a heartbeat.
const COMPLETE_AFTER: Duration = Duration::from_secs(5);
/// The pause before heartbeats are subscribed again.
const AGAIN_PAUSE: Duration = Duration::from_secs(1);

/// The last heartbeat of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Heartbeat {
    /// When it arrived, by the clock of this process.
    pub(crate) at: SystemTime,
    interval: f64,
    pub(crate) active: u64,
    pub(crate) processed: u64,
}

impl Heartbeat {
    fn is_missed(&self, now: SystemTime) -> bool {
        let age = now.duration_since(self.at).unwrap_or_default();
        // A second for the way.
        age.as_secs_f64() > self.interval * MISSED + 1.0
    }
}

#[derive(Default)]
pub(crate) struct KnownWorkers {
    seen: RefCell<BTreeMap<String, Heartbeat>>,
    /// The task that reads heartbeats, and since when it does.
    watch: RefCell<Option<(CancelOnDrop<()>, SystemTime)>>,
}

impl KnownWorkers {
    /// The workers of which a heartbeat has come lately.
    pub(crate) fn living(&self, now: SystemTime) -> BTreeMap<String, Heartbeat> {
        let mut seen = self.seen.borrow_mut();
        seen.retain(|_, heartbeat| !heartbeat.is_missed(now));
        seen.clone()
    }

    /// Whether heartbeats have been read for long enough to know all workers.
    pub(crate) fn is_complete(&self, now: SystemTime) -> bool {
        let watch = self.watch.borrow();
        let since = watch.as_ref().and_then(|(_, since)| now.duration_since(*since).ok());
        since.is_some_and(|length| length > COMPLETE_AFTER)
    }

    /// Stops reading heartbeats.
    pub(crate) fn stop(&self) {
        let watch = self.watch.take();
        drop(watch);
        self.seen.take();
    }

    /// Reads an event of a worker.
    fn read(&self, notice: &Notice, now: SystemTime) {
        let Ok(event) = serde_json::from_slice::<Value>(&notice.body) else { return };
        let Some(name) = event["hostname"].as_str().filter(|name| name.len() <= LONGEST_NAME)
        else {
            return;
        };
        let mut seen = self.seen.borrow_mut();
        match event["type"].as_str() {
            Some("worker-offline") => drop(seen.remove(name)),
            Some("worker-online" | "worker-heartbeat") => {
                if seen.len() >= LIMIT && !seen.contains_key(name) {
                    seen.retain(|_, heartbeat| !heartbeat.is_missed(now));
                    if seen.len() >= LIMIT {
                        return;
                    }
                }
                let interval = event["freq"].as_f64().unwrap_or(2.0);
                let heartbeat = Heartbeat {
                    at: now,
                    interval: interval.clamp(0.0, LONGEST_INTERVAL),
                    active: event["active"].as_u64().unwrap_or(0),
                    processed: event["processed"].as_u64().unwrap_or(0),
                };
                seen.insert(name.to_owned(), heartbeat);
            }
            _ => {}
        }
    }
}

/// Begins to read heartbeats, unless that was begun.
pub(crate) fn watch(app: &App) {
    let mut watch = app.0.control.known.watch.borrow_mut();
    if watch.as_ref().is_some_and(|(task, _)| !task.is_finished()) {
        return;
    }
    let inner = std::rc::Rc::downgrade(&app.0);
    let task = spawn(async move {
        loop {
            let Some(broker) = inner.upgrade().and_then(|inner| App(inner).broker().ok()) else {
                return;
            };
            let Some(bus) = broker.bus() else { return };
            let error = match bus.subscribe(Topic::Events, "worker.").await {
                Ok(mut heartbeats) => loop {
                    match heartbeats.next().await {
                        Ok(notice) => {
                            let Some(inner) = inner.upgrade() else { return };
                            let inner: &Inner = &inner;
                            inner.control.known.read(&notice, wall_time());
                        }
                        Err(error) => break error,
                    }
                },
                Err(error) => error,
            };
            // An interruption is delivered once: the pause would wait to its end.
            if matches!(error, BrokerError::Interrupted(_)) || sleep(AGAIN_PAUSE).await.is_err() {
                return;
            }
        }
    });
    *watch = Some((task.cancel_on_drop(), wall_time()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heartbeat(name: &str) -> Notice {
        let body = serde_json::json!({"type": "worker-heartbeat", "hostname": name, "freq": 2.0});
        Notice::new(Topic::Events, "worker.heartbeat", body.to_string().into_bytes())
    }

    #[test]
    fn workers_are_bounded_and_forgotten() {
        let known = KnownWorkers::default();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        for number in 0..LIMIT + 10 {
            known.read(&heartbeat(&number.to_string()), now);
        }
        known.read(&heartbeat(&"x".repeat(LONGEST_NAME + 1)), now);
        assert_eq!(known.living(now).len(), LIMIT);
        let later = now + Duration::from_secs(6);
        known.read(&heartbeat("later"), later);
        assert_eq!(known.living(later).into_keys().collect::<Vec<_>>(), ["later"]);
        for body in ["", "[]", "{}", r#"{"hostname": 3}"#, r#"{"hostname": "x", "type": []}"#] {
            let notice = Notice::new(Topic::Events, "worker.heartbeat", body.as_bytes().to_vec());
            known.read(&notice, later);
        }
        assert_eq!(known.living(later).len(), 1);
    }
}
