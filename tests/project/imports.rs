//! Which file of a crate imports which: by `use`, and by paths in code.
//!
//! An imported name counts for the file that defines it, and not for a module that only hands it
//! on (`pub use`). The root of a crate hands on all of it, so the root imports nothing. A declared
//! module is no import, but a use of its names is one.

use std::collections::{BTreeMap, BTreeSet};

use std::path::Path;

use xtask::source::{Token, tokens};
use xtask::tree::Tree;

/// A file names something of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    pub(crate) from: String,
    pub(crate) to: String,
    /// The first line that does.
    pub(crate) line: usize,
    /// As it is written there.
    pub(crate) path: String,
}

/// A path in a module, and the name that it gets there if it is imported.
struct Named<'a> {
    module: Vec<String>,
    path: Vec<&'a str>,
    name: Option<&'a str>,
    /// Whether other modules may import the name from here.
    is_handed_on: bool,
    at: usize,
}

/// The imports between the files of a library or program, one for each pair of files.
pub(crate) fn imports(tree: &Tree) -> Vec<Import> {
    let (mut names, mut modules) = (BTreeMap::new(), BTreeMap::new());
    let mut found = Vec::new();
    for (module, file) in &tree.modules {
        let file = file.to_str().expect("names are ASCII");
        modules.insert(module.clone(), file);
        for named in named(&tree.sources[Path::new(file)].code, module) {
            modules.entry(named.module.clone()).or_insert(file);
            if let Some(name) = named.name {
                let path: Vec<&str> = named.path.clone();
                names.entry((named.module.clone(), name)).or_insert(path);
            }
            found.push((file, named));
        }
    }
    let scopes = Scopes { names, modules };
    let mut imports = BTreeMap::new();
    let root = tree.modules.get(&Vec::new()).and_then(|file| file.to_str());
    for (file, named) in found {
        if root == Some(file) || named.is_handed_on {
            continue;
        }
        let used = scopes.file(&named.module, &named.path, 0).filter(|used| *used != file);
        if let Some(to) = used {
            imports.entry((file, to)).or_insert_with(|| Import {
                from: file.to_owned(),
                to: to.to_owned(),
                line: tree.sources[Path::new(file)].line(named.at),
                path: named.path.join("::"),
            });
        }
    }
    imports.into_values().collect()
}

struct Scopes<'a> {
    /// The path of each imported name of a module.
    names: BTreeMap<(Vec<String>, &'a str), Vec<&'a str>>,
    modules: BTreeMap<Vec<String>, &'a str>,
}

/// So many modules hand a name on, one to the next. A macro's name can lead to itself.
const MOST_STEPS: usize = 8;

impl<'a> Scopes<'a> {
    /// The file of this crate that defines what a path leads to.
    fn file(&self, module: &[String], path: &[&'a str], steps: usize) -> Option<&'a str> {
        if steps > MOST_STEPS {
            return None;
        }
        let mut module = module.to_vec();
        let mut rest = path;
        match path[0] {
            "crate" => module.clear(),
            "self" | "super" => {}
            first => {
                let is_name = self.names.contains_key(&(module.clone(), first));
                if !is_name && !self.modules.contains_key(&below(&module, first)) {
                    return None;
                }
            }
        }
        while let [first, others @ ..] = rest {
            match *first {
                "crate" | "self" => {}
                "super" => drop(module.pop()),
                name if self.modules.contains_key(&below(&module, name)) => {
                    module.push(name.to_owned());
                }
                name => {
                    // The name of another crate is defined by the module that hands it on.
                    let path = self.names.get(&(module.clone(), name));
                    let path = path.map(|path| [&path[..], others].concat());
                    let handed_on = path.and_then(|path| self.file(&module, &path, steps + 1));
                    return handed_on.or_else(|| self.modules.get(&module).copied());
                }
            }
            rest = others;
        }
        self.modules.get(&module).copied()
    }
}

fn below(module: &[String], name: &str) -> Vec<String> {
    [module, &[name.to_owned()]].concat()
}

/// The imported paths, and the paths of two names or more, in a file's code.
fn named<'a>(code: &'a str, module: &[String]) -> Vec<Named<'a>> {
    let tokens = tokens(code);
    let (mut found, mut blocks) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        let token = tokens[at];
        let before = at.checked_sub(1).map(|at| tokens[at].text);
        let here = || {
            let inner = blocks.iter().flatten().map(|name: &&str| (*name).to_owned());
            module.iter().cloned().chain(inner).collect::<Vec<_>>()
        };
        match token.text {
            "use" => {
                let mut paths = Vec::new();
                at += 1;
                use_tree(&tokens, &mut at, &[], &mut paths);
                let is_handed_on = matches!(before, Some("pub" | ")"));
                found.extend(paths.into_iter().map(|(path, name)| Named {
                    module: here(),
                    path,
                    name,
                    is_handed_on,
                    at: token.at,
                }));
            }
            "{" => {
                let is_module = at >= 2 && tokens[at - 2].text == "mod";
                blocks.push(before.filter(|_| is_module));
                at += 1;
            }
            "}" => {
                blocks.pop();
                at += 1;
            }
            _ => {
                let path = path(&tokens[at..]);
                at += (2 * path.len()).max(2) - 1;
                if path.len() > 1 && before != Some("::") {
                    found.push(Named {
                        module: here(),
                        path,
                        name: None,
                        is_handed_on: false,
                        at: token.at,
                    });
                }
            }
        }
    }
    found
}

/// The names that tokens begin with, joined by `::`.
fn path<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    let is_name =
        |token: &Token<'_>| token.text.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let mut path = Vec::new();
    for two in tokens.chunks(2) {
        if !is_name(&two[0]) {
            break;
        }
        path.push(two[0].text);
        if two.get(1).is_none_or(|join| join.text != "::") {
            break;
        }
    }
    path
}

/// The paths of an import from its first name on, with the name that each gets.
fn use_tree<'a>(
    tokens: &[Token<'a>],
    at: &mut usize,
    prefix: &[&'a str],
    found: &mut Vec<(Vec<&'a str>, Option<&'a str>)>,
) {
    let mut path = prefix.to_vec();
    let mut name = None;
    while let Some(token) = tokens.get(*at) {
        match token.text {
            ";" | "," | "}" => {
                // Behind the last comma of a list is nothing.
                if path.len() > prefix.len() {
                    if path.len() > 1 && path.last() == Some(&"self") {
                        path.pop();
                    }
                    let name = name.or(path.last().copied());
                    found.push((path, name));
                }
                return;
            }
            "{" => {
                while tokens.get(*at).is_some_and(|token| token.text != "}") {
                    *at += 1;
                    use_tree(tokens, at, &path, found);
                }
                *at += 1;
                return;
            }
            "*" => {
                found.push((path, None));
                *at += 1;
                return;
            }
            "as" => {
                name = tokens.get(*at + 1).map(|token| token.text);
                *at += 2;
            }
            // At the beginning it leads to another crate.
            "::" => {
                if path.is_empty() {
                    path.push("::");
                }
                *at += 1;
            }
            word => {
                path.push(word);
                *at += 1;
            }
        }
    }
}

/// The files that import each other, and those between them: each group in order.
pub(crate) fn circles(imports: &[Import]) -> BTreeSet<Vec<String>> {
    let mut used: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for import in imports {
        used.entry(&import.from).or_default().push(&import.to);
    }
    let reached = |from| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(file) = open.pop() {
            let new = used.get(file).into_iter().flatten().filter(|to| reached.insert(**to));
            open.extend(new);
        }
        reached
    };
    let all: BTreeMap<&str, BTreeSet<&str>> =
        used.keys().map(|file| (*file, reached(*file))).collect();
    let circle = |(file, reached): (&&str, &BTreeSet<&str>)| {
        let is_back = |other: &&&str| all.get(**other).is_some_and(|back| back.contains(file));
        reached.iter().filter(is_back).map(|file| (*file).to_owned()).collect()
    };
    all.iter().filter(|(file, reached)| reached.contains(**file)).map(circle).collect()
}
