//! The functions of stacks: the client turns addresses of the process into names and lines.
//!
//! A module's file is opened through `/proc/PID`, which shows the file that the process runs, also
//! if it has been deleted or replaced since, and the files of another root folder. The build id
//! tells whether a file is the right one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use addr2line::{Loader, demangle_auto};
use object::{Object, ReadCache};
use pikake::console::answer::Answer;
use pikake::console::model::{Module, Stack};
use pikake::console::text::short_path;

/// Replaces the addresses in the stacks of an answer by functions, `name (file:line)`, with those
/// that are inlined. An address that has no name stays as it is; the first one of a file that
/// cannot be read has the reason. Stacks of a process that sends names stay as they are.
pub(crate) fn name_functions(pid: u32, answer: &mut Answer) {
    for blocked in &mut answer.blocked {
        if let Some(stack) = &mut blocked.stack {
            Files::new(pid, &blocked.modules).name(stack);
        }
    }
    if let Some(samples) = &mut answer.samples {
        let mut files = Files::new(pid, &samples.modules);
        samples.stacks.iter_mut().for_each(|stack| files.name(stack));
        samples.blocked.iter_mut().for_each(|it| files.name(&mut it.stack));
    }
}

/// The files of some modules.
struct Files<'a> {
    pid: u32,
    modules: &'a [Module],
    /// By the begin of the module. `None`: it cannot be read.
    read: BTreeMap<u64, Option<Loader>>,
    /// The functions at addresses, the outermost first.
    known: BTreeMap<u64, Vec<String>>,
}

impl<'a> Files<'a> {
    fn new(pid: u32, modules: &'a [Module]) -> Self {
        Self { pid, modules, read: BTreeMap::new(), known: BTreeMap::new() }
    }

    fn name(&mut self, stack: &mut Stack) {
        // A process with names sends no addresses.
        if stack.addresses.is_empty() {
            return;
        }
        let mut frames = Vec::new();
        for (address, frame) in stack.addresses.iter().zip(&stack.frames) {
            if !self.known.contains_key(address) {
                let functions = self.functions(*address, frame);
                self.known.insert(*address, functions);
            }
            frames.extend_from_slice(&self.known[address]);
        }
        stack.frames = frames;
    }

    /// The functions at an address, or the address.
    fn functions(&mut self, address: u64, frame: &str) -> Vec<String> {
        let as_it_is = || vec![frame.to_owned()];
        let is_here = |module: &&Module| (module.begin..module.end).contains(&address);
        let Some(module) = self.modules.iter().find(is_here) else { return as_it_is() };
        let at = address.wrapping_sub(module.bias);
        // The code that the system maps into each process is in no file.
        if !module.path.starts_with('/') {
            return as_it_is();
        }
        if !self.read.contains_key(&module.begin) {
            let (loader, why) = match open(self.pid, module) {
                Ok(loader) => (Some(loader), None),
                Err(why) => (None, Some(format!("{at:#x} ({}: {why})", module.path))),
            };
            self.read.insert(module.begin, loader);
            if let Some(why) = why {
                return vec![why];
            }
        }
        let Some(loader) = &self.read[&module.begin] else { return as_it_is() };
        match functions_at(loader, at) {
            functions if functions.is_empty() => as_it_is(),
            functions => functions,
        }
    }
}

/// The functions at an address of a file, the outermost first. Empty if the file has none.
fn functions_at(loader: &Loader, at: u64) -> Vec<String> {
    let mut functions = Vec::new();
    if let Ok(mut frames) = loader.find_frames(at) {
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.as_ref().and_then(|name| Some(name.demangle().ok()?.into()));
            let name: Option<String> = name.or_else(|| symbol(loader, at));
            let Some(name) = name else { continue };
            let place =
                frame.location.and_then(|it| Some((short_path(it.file?).to_owned(), it.line)));
            functions.push(match place {
                Some((file, Some(line))) => format!("{name} ({file}:{line})"),
                Some((file, None)) => format!("{name} ({file})"),
                None => name,
            });
        }
    }
    if functions.is_empty() {
        functions.extend(symbol(loader, at));
    }
    functions.reverse();
    functions
}

/// The function at an address, by the table of symbols.
fn symbol(loader: &Loader, at: u64) -> Option<String> {
    Some(demangle_auto(loader.find_symbol(at)?.into(), None).into_owned())
}

/// Opens the file of a module, or says why not.
fn open(pid: u32, module: &Module) -> Result<Loader, String> {
    let mut why = None;
    for path in paths(pid, module) {
        let read = check(&path, module)
            .and_then(|()| Loader::new(&path).map_err(|error| error.to_string()));
        match read {
            Ok(loader) => return Ok(loader),
            // The path that comes first tells the most.
            Err(error) => why = why.or(Some(error)),
        }
    }
    Err(why.unwrap_or_default())
}

/// Checks that a file is the one which the process runs, as far as both have build ids.
fn check(path: &Path, module: &Module) -> Result<(), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let pieces = ReadCache::new(file);
    let object = object::File::parse(&pieces).map_err(|error| error.to_string())?;
    let bytes = object.build_id().ok().flatten();
    let hexadecimal = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect();
    let build_id: Option<String> = bytes.map(hexadecimal);
    match (&build_id, &module.build_id) {
        (Some(of_file), Some(of_process)) if of_file != of_process => {
            Err("the file has been replaced since the process started".to_owned())
        }
        _ => Ok(()),
    }
}

/// The paths under which a module's file may be found, the best one first.
fn paths(pid: u32, module: &Module) -> Vec<PathBuf> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let program = process.join("exe");
    let is_program = fs::read_link(&program).is_ok_and(|target| {
        let target = target.to_string_lossy();
        target.strip_suffix(" (deleted)").unwrap_or(&target) == module.path
    });
    let in_root = process.join("root").join(module.path.trim_start_matches('/'));
    let path = PathBuf::from(&module.path);
    is_program.then_some(program).into_iter().chain([in_root, path]).collect()
}

#[cfg(test)]
mod tests {
    use pikake::console::model::Samples;

    use super::*;

    /// An answer with a stack of one address in a module of this process.
    fn answer(address: u64, module: Module) -> Answer {
        let stack = Stack {
            thread: "main".into(),
            frames: vec!["0x1 (file)".into()],
            count: 1,
            addresses: vec![address],
        };
        let samples = Samples { stacks: vec![stack], modules: vec![module], ..Samples::default() };
        Answer { samples: Some(samples), ..Answer::default() }
    }

    fn frames(mut answer: Answer) -> Vec<String> {
        name_functions(std::process::id(), &mut answer);
        answer.samples.unwrap().stacks.remove(0).frames
    }

    #[inline(never)]
    fn somewhere() -> u64 {
        std::hint::black_box(1)
    }

    /// The program of this test, as if it began at address 0, and the address of a function in it.
    fn program() -> (u64, Module) {
        let path = std::env::current_exe().unwrap();
        let loader = Loader::new(&path).unwrap();
        let here = somewhere as fn() -> u64 as usize as u64;
        // Programs begin at a page: the lowest twelve bits are those of the file.
        let pages = (0..1 << 20).map(|page| here % (1 << 12) + page * (1 << 12));
        let is_here = |at: &u64| symbol(&loader, *at).is_some_and(|it| it.ends_with("::somewhere"));
        let at = pages.into_iter().find(is_here).unwrap();
        let path = path.to_str().unwrap().to_owned();
        (at, Module { path, end: u64::MAX, ..Module::default() })
    }

    #[test]
    fn addresses_become_functions_with_lines() {
        let (at, module) = program();
        let has_lines = {
            let loader = Loader::new(&module.path).unwrap();
            loader.get_section_range(b".debug_line").is_some()
        };
        let frames = frames(answer(at, module));
        let name = "pikake_cli::functions::tests::somewhere";
        assert!(frames[0].starts_with(name), "{frames:?}");
        assert_eq!(frames[0].contains("functions.rs:"), has_lines, "{frames:?}");
    }

    #[test]
    fn replaced_file_gives_addresses_and_the_reason() {
        let (at, module) = program();
        let module = Module { build_id: Some("00ff".into()), ..module };
        let mut two = answer(at, module);
        let again = two.samples.as_mut().unwrap();
        again.stacks[0].addresses.push(at + 1);
        again.stacks[0].frames.push("0x2 (file)".into());
        let frames = frames(two);
        assert!(frames[0].contains("replaced since"), "{frames:?}");
        assert_eq!(frames[1], "0x2 (file)");
    }

    #[test]
    fn missing_file_gives_the_address_and_the_reason() {
        let path = "/no/such/file".to_owned();
        let module = Module { path, bias: 16, end: u64::MAX, ..Module::default() };
        let frames = frames(answer(32, module));
        assert!(frames[0].starts_with("0x10 (/no/such/file: No such file"), "{frames:?}");
    }

    #[test]
    fn names_of_an_older_process_stay() {
        let mut old = answer(1, Module::default());
        let stack = &mut old.samples.as_mut().unwrap().stacks[0];
        (stack.addresses, stack.frames) = (Vec::new(), vec!["main (src/main.rs:1)".into()]);
        assert_eq!(frames(old), ["main (src/main.rs:1)"]);
    }
}
