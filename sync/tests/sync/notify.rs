//! The `Notify` of one kernel.

use pikake::sync::Notify;
use std::rc::Rc;

use crate::support::{Log, run};

#[path = "notify_cases.rs"]
mod cases;

#[test]
fn debug_shows_name_and_waiters() {
    run(async {
        let notify = Rc::new(Notify::new().named("work"));
        let _tasks = cases::waiters(&notify, &Log::default(), 2).await;
        assert_eq!(
            format!("{notify:?}"),
            r#"Notify { name: "work", is_notified: false, waiting: 2 }"#
        );
    });
}
