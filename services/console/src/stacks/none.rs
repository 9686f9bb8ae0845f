//! No stacks: the feature is off, or the system is another one.

use pikake_kernel::inspect::KernelView;

use crate::model::{Module, Samples, Stack};
use crate::stacks::NoStack;

const WHY: &str = match cfg!(feature = "profile") {
    true => "stacks need Linux on x86-64 or 64-bit ARM",
    false => "the program was built without pikake's feature `profile`",
};

pub(crate) fn of_thread(_: u32) -> Result<Stack, NoStack> {
    Err(WHY.into())
}

pub(crate) fn modules_of(_: &Stack) -> Vec<Module> {
    Vec::new()
}

pub(crate) fn names_in_process(stack: &Stack) -> Vec<String> {
    stack.frames.clone()
}

/// No samples.
pub(crate) enum Sampler {}

impl Sampler {
    pub(crate) fn start(_: Vec<KernelView>) -> Result<Self, NoStack> {
        Err(WHY.into())
    }

    pub(crate) fn finish(self) -> Result<std::iter::Empty<Samples>, NoStack> {
        match self {}
    }
}
