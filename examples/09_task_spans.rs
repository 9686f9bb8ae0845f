//! A span of `tracing` for each task, so that each line of a log names the task which wrote it.
//!
//! An observer sees what a kernel does. The observer below makes a span when a task is spawned, and
//! enters the span for each of the task's steps. `observe_new_kernels` gives such an observer to
//! each kernel of the program, also with `#[pikake::main(threads = 4)]`.
//!
//! It prints:
//!
//! ```text
//! ERROR task{id=2 name="ann"}: the oven is cold
//! ERROR task{id=3 name="bob"}: the oven is cold
//! ERROR task{id=2 name="ann"}: the bread is burnt
//! ERROR task{id=3 name="bob"}: the bread is burnt
//! ERROR task{id=1 name="bakery"}: there is no bread
//! ```

use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use pikake::kernel::{Observer, observe_new_kernels};
use pikake::traps::{Exit, TaskId, TaskRef};
use pikake::{Interrupted, task, yield_now};
use tracing::Level;
use tracing::span::{EnteredSpan, Span};

/// Gives each task a span, which is entered while the task is stepped.
#[derive(Default)]
struct TaskSpans {
    spans: RefCell<HashMap<TaskId, Span>>,
    /// A task that begins at once is stepped inside the step that spawns it.
    entered: RefCell<Vec<EnteredSpan>>,
}

impl Observer for TaskSpans {
    fn created(&self, task: &TaskRef) {
        // At this level, each filter of levels that shows an event of the task shows its span.
        // Without a parent: tasks that spawn each other would be one long chain of spans.
        let span = tracing::error_span!(parent: None, "task", id = task.id().0, name = task.name());
        self.spans.borrow_mut().insert(task.id(), span);
    }

    fn stepping(&self, task: &TaskRef) {
        let span = self.spans.borrow().get(&task.id()).cloned().unwrap_or_else(Span::none);
        self.entered.borrow_mut().push(span.entered());
    }

    fn stepped(&self, _: &TaskRef, _: Duration) {
        self.entered.borrow_mut().pop();
    }

    fn exited(&self, task: &TaskRef, _: Exit) {
        self.spans.borrow_mut().remove(&task.id());
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let log = tracing_subscriber::fmt().with_max_level(Level::ERROR).with_ansi(false);
    log.with_target(false).without_time().init();
    // Before the call of `bakery`, which builds the kernel.
    observe_new_kernels(|| Some(Box::new(TaskSpans::default())));
    bakery()
}

#[pikake::main]
async fn bakery() -> Result<(), Box<dyn Error>> {
    let bakers = ["ann", "bob"].map(|name| task::Builder::new().name(name).spawn(bake()));
    for baker in bakers {
        baker.await??;
    }
    tracing::error!("there is no bread");
    Ok(())
}

async fn bake() -> Result<(), Interrupted> {
    tracing::error!("the oven is cold");
    yield_now().await?;
    tracing::error!("the bread is burnt");
    Ok(())
}
