//! The kernels that are in one step for too long, with the stacks of their threads.

use pikake_traps::blocking;

use super::Server;
use super::answers::{Sink, Trouble, failed, ping};
use crate::long_steps;
use crate::model::Blocked;
use crate::protocol::Part;
use crate::stacks;
use crate::threads::look_at_thread;

/// Gives the last long steps that are over.
pub(super) async fn long_steps(to: &impl Sink) -> Result<(), Trouble> {
    for step in blocking(long_steps::over).await.map_err(failed)? {
        to.part(Part::Blocked(step)).await?;
    }
    Ok(())
}

/// Gives the kernels that do not answer, since they are in a step.
pub(super) async fn blocked(server: &Server, to: &impl Sink) -> Result<(), Trouble> {
    for (kernel, shown) in ping(server).await {
        let Some(step) = shown.stuck else { continue };
        let tid = kernel.tid();
        let look = move || {
            let Some(tid) = tid else {
                return (None, Err("the system does not number its threads".into()));
            };
            let (doing, stack) = look_at_thread(tid);
            (doing, stack.map(|stack| (stacks::modules_of(&stack), stack)))
        };
        let (thread, stack) = blocking(look).await.map_err(failed)?;
        // A stack that was taken after the step is no stack of the step.
        let is_over = kernel.current_step().is_none_or(|now| now.task.0 != step.task.task);
        if is_over {
            continue;
        }
        let (stack, modules, no_stack) = match stack {
            Ok((modules, stack)) => (Some(stack), modules, None),
            Err(why) => (None, Vec::new(), Some(why)),
        };
        let blocked =
            Blocked { kernel: shown.id, step, stack, no_stack, thread, modules, ago: None };
        to.part(Part::Blocked(blocked)).await?;
    }
    Ok(())
}
