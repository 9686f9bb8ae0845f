//! The programs and libraries in the memory of this process, by the system's list.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::path::Path;

use super::elf::Image;
use crate::model::Module;
use crate::stacks::NoStack;

/// The words that the system appends to the path of a file that has no name any more.
const DELETED: &str = " (deleted)";

/// The programs and libraries of the process at one moment.
pub(super) struct Modules(Vec<Listed>);

/// The places of one file in memory.
struct Listed {
    path: String,
    range: Range<u64>,
    /// The file begins at the begin of the range.
    is_whole: bool,
    has_code: bool,
}

impl Modules {
    /// Reads the list.
    pub(super) fn read() -> Result<Self, NoStack> {
        let failed = |error: io::Error| format!("no descriptor is left for it: {error}");
        let list = File::open("/proc/self/maps").map_err(failed)?;
        let mut modules: Vec<Listed> = Vec::new();
        for line in BufReader::new(list).split(b'\n') {
            let line = line.map_err(|error| error.to_string())?;
            let line = String::from_utf8_lossy(&line);
            let Some(part) = part_of(&line) else { continue };
            match modules.last_mut().filter(|last| last.path == part.path && !part.is_whole) {
                Some(last) => {
                    last.range.end = part.range.end;
                    last.has_code |= part.has_code;
                }
                None => modules.push(part),
            }
        }
        modules.retain(|module| module.has_code);
        Ok(Self(modules))
    }

    /// The code where no stack is walked.
    pub(super) fn never_in(&self) -> impl Iterator<Item = Range<u64>> {
        let is_one = |it: &&Listed| it.path == "[vdso]" || name_of(&it.path).starts_with("libgcc");
        self.0.iter().filter(is_one).map(|module| module.range.clone())
    }

    /// The modules that addresses are in. Reads the head of each from memory.
    pub(super) fn of(&self, addresses: &BTreeSet<u64>) -> Vec<Module> {
        let has_one = |it: &&Listed| addresses.range(it.range.clone()).next().is_some();
        let Ok(memory) = File::open("/proc/self/mem") else { return Vec::new() };
        let module = |it: &Listed| {
            let begin = it.range.start;
            let (bias, build_id) = Image { file: &memory, at: begin }.in_memory(begin).ok()?;
            let path = it.path.strip_suffix(DELETED).unwrap_or(&it.path).to_owned();
            Some(Module { path, build_id, begin, end: it.range.end, bias })
        };
        self.0.iter().filter(has_one).filter_map(module).collect()
    }
}

/// The part of a file that a line of the list is about (proc_pid_maps(5)).
fn part_of(line: &str) -> Option<Listed> {
    let mut fields = line.splitn(6, ' ');
    let (begin, end) = fields.next()?.split_once('-')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let range = number(begin)?..number(end)?;
    let has_code = fields.next()?.contains('x');
    let is_whole = number(fields.next()?)? == 0;
    let path = fields.nth(2)?.trim_start();
    let is_file = path.starts_with('/') || path == "[vdso]";
    is_file.then(|| Listed { path: path.to_owned(), range, is_whole, has_code })
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Addresses as text: the address in the file and the name of the file.
pub(super) fn frames(modules: &[Module], addresses: &[u64]) -> Vec<String> {
    let frame = |address: &u64| match modules.iter().find(|it| (it.begin..it.end).contains(address))
    {
        Some(it) => format!("{:#x} ({})", address.wrapping_sub(it.bias), name_of(&it.path)),
        None => format!("{address:#x}"),
    };
    addresses.iter().map(frame).collect()
}

/// The names of the functions that addresses are in, by the files' tables of symbols.
pub(super) fn functions(modules: &[Module], addresses: &[u64]) -> BTreeMap<u64, String> {
    let program = fs::read_link("/proc/self/exe").unwrap_or_default();
    let program = program.to_string_lossy();
    let program = program.strip_suffix(DELETED).unwrap_or(&program);
    let mut names = BTreeMap::new();
    for module in modules {
        let here = addresses.iter().filter(|it| (module.begin..module.end).contains(it));
        let in_file: Vec<u64> = here.map(|it| it.wrapping_sub(module.bias)).collect();
        // The program's file may have been deleted or replaced since.
        let is_program = module.path == program;
        let path = if is_program { Path::new("/proc/self/exe") } else { Path::new(&module.path) };
        let Ok(file) = File::open(path) else { continue };
        let found = Image { file: &file, at: 0 }.functions(&in_file).unwrap_or_default();
        names.extend(found.into_iter().map(|(at, name)| (at.wrapping_add(module.bias), name)));
    }
    names
}
