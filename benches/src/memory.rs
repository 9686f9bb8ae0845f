//! Resident memory per task. These workloads end the process.

use std::cell::Cell;
use std::future::{Future, pending};
use std::process;
use std::rc::Rc;
use std::time::Duration;

use crate::figures::{Figures, print, resident};
use crate::runtime::Runtime;

/// In which other tasks can begin.
const MOMENT: Duration = Duration::from_millis(1);

/// Longer than anybody waits.
const FAR: Duration = Duration::from_secs(600);

/// Tasks that sleep.
pub async fn sleeping<R: Runtime>(size: usize, _rounds: usize) -> Figures {
    waiting::<R, _>(size, || R::sleep(FAR)).await
}

/// Tasks that wait for what never comes.
pub async fn pending_forever<R: Runtime>(size: usize, _rounds: usize) -> Figures {
    waiting::<R, _>(size, pending).await
}

async fn waiting<R, F>(size: usize, wait: impl Fn() -> F + Copy + 'static) -> Figures
where
    R: Runtime,
    F: Future<Output = ()>,
{
    let begun = Rc::new(Cell::new(0));
    let before = resident();
    for _ in 0..size {
        let begun = begun.clone();
        R::detach(R::spawn(async move {
            begun.set(begun.get() + 1);
            wait().await;
        }));
    }
    while begun.get() < size {
        R::sleep(MOMENT).await;
    }
    print(&vec![("memory_B", (resident() - before) as f64 / size as f64)]);
    // Ending a million tasks takes some runtimes minutes.
    process::exit(0)
}
