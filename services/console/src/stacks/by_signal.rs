//! Stacks by the signal SIGPROF, on Linux.

mod elf;
mod handler;
mod modules;
mod sampler;

use std::fs;

use self::modules::Modules;
pub(crate) use self::sampler::Sampler;
use crate::model::{Module, Stack};
use crate::stacks::NoStack;

/// The stack of one thread of this process: addresses, and these as text. Takes less than a
/// millisecond as a rule, and a fifth of a second at most. From any thread.
pub(crate) fn of_thread(tid: u32) -> Result<Stack, NoStack> {
    let addresses = handler::stack_of(tid)?;
    let thread = name_of_thread(tid)?;
    let modules = Modules::read()?.of(&addresses.iter().copied().collect());
    let frames = modules::frames(&modules, &addresses);
    Ok(Stack { thread, frames, count: 1, addresses })
}

/// The programs and libraries that the addresses of a stack are in.
pub(crate) fn modules_of(stack: &Stack) -> Vec<Module> {
    let addresses = stack.addresses.iter().copied().collect();
    Modules::read().map(|modules| modules.of(&addresses)).unwrap_or_default()
}

/// The functions of a stack of this process, the outermost first, by the tables of symbols in the
/// files: without the inlined ones, and without lines. The address as text where there is no name.
///
/// The tables are read in pieces, and nothing is kept.
pub(crate) fn names_in_process(stack: &Stack) -> Vec<String> {
    let names = modules::functions(&modules_of(stack), &stack.addresses);
    let name = |(address, frame): (&u64, &String)| names.get(address).unwrap_or(frame).clone();
    stack.addresses.iter().zip(&stack.frames).map(name).collect()
}

/// The name of a thread of this process.
fn name_of_thread(tid: u32) -> Result<String, NoStack> {
    let name = fs::read_to_string(format!("/proc/self/task/{tid}/comm"))
        .map_err(|error| format!("the thread cannot be looked at: {error}"))?;
    Ok(name.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use rustix::thread::gettid;

    use super::*;

    #[inline(never)]
    fn waits_for_the_end(end: &Receiver<()>) {
        let _ = end.recv();
        // So the call before is no tail call.
        std::hint::black_box(end);
    }

    /// A thread that waits in `waits_for_the_end`, and its number.
    fn waiting_thread() -> (u32, Sender<()>) {
        let (sender, receiver) = channel();
        let (stop, end) = channel();
        let work = move || {
            sender.send(gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            waits_for_the_end(&end);
        };
        thread::Builder::new().name("waits".into()).spawn(work).unwrap();
        (receiver.recv().unwrap(), stop)
    }

    #[test]
    fn names_of_a_waiting_thread_are_found_in_the_process() {
        let (tid, _end) = waiting_thread();
        // The thread may be not yet in the function.
        let stack = loop {
            let stack = of_thread(tid).unwrap();
            let names = names_in_process(&stack);
            assert_eq!(names.len(), stack.addresses.len());
            if names.iter().any(|name| name.contains("waits_for_the_end")) {
                break stack;
            }
        };
        assert_eq!((stack.thread.as_str(), stack.count), ("waits", 1));
        let modules = modules_of(&stack);
        let program = std::env::current_exe().unwrap();
        let program = modules.iter().find(|module| *module.path == *program).unwrap();
        let name = program.path.rsplit('/').next().unwrap();
        let shown = |(address, frame): (&u64, &String)| {
            let is_here = (program.begin..program.end).contains(address);
            is_here.then(|| assert_eq!(*frame, format!("{:#x} ({name})", address - program.bias)))
        };
        assert!(stack.addresses.iter().zip(&stack.frames).filter_map(shown).count() > 0);
    }

    #[test]
    fn thread_that_is_not_there_has_no_stack() {
        assert!(of_thread(u32::MAX / 2).unwrap_err().contains("no signal"));
    }
}
