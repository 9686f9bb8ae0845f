//! The kernels that are in one step for too long, with the stacks of their threads.

use pikake_traps::blocking;

use super::Server;
use super::answers::{Sink, Trouble, failed, ping};
use crate::model::Blocked;
use crate::protocol::Part;
use crate::stacks;

/// Gives the kernels that do not answer, since they are in a step.
pub(super) async fn blocked(server: &Server, to: &impl Sink) -> Result<(), Trouble> {
    for (kernel, shown) in ping(server).await {
        let Some(step) = shown.stuck else { continue };
        let tid = kernel.tid();
        let look = move || match tid {
            Some(tid) => (stacks::doing(tid), stacks::of_thread(tid)),
            None => (None, Err("the system does not number its threads".into())),
        };
        let (thread, stack) = blocking(look).await.map_err(failed)?;
        // A stack that was taken after the step is no stack of the step.
        let is_over = kernel.current_step().is_none_or(|now| now.task.0 != step.task.task);
        if is_over {
            continue;
        }
        let (stack, no_stack) = match stack {
            Ok(stack) => (Some(stack), None),
            Err(why) => (None, Some(why)),
        };
        to.part(Part::Blocked(Blocked { kernel: shown.id, step, stack, no_stack, thread })).await?;
    }
    Ok(())
}
