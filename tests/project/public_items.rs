//! The public items of crates, read from their sources: types, traits, functions and macros by the
//! paths of their users, and the methods of types and traits.
//!
//! Items inside of macros count as well. The target is a Unix system, with all features and
//! no other `cfg`: code for tests, documentation, Windows and `--cfg` flags is left out.
//! So is an item that is hidden from the documentation, or deprecated.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use proc_macro2::TokenStream;
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Attribute, ImplItem, Item, Meta, TraitItem, UseTree, Visibility};

use crate::expand::Rules;

/// A path as its segments; the first is a crate.
pub(crate) type Names = Vec<String>;

/// Crates that may use each other's names.
#[derive(Default)]
pub(crate) struct Crates {
    modules: BTreeMap<Names, Module>,
    /// The inherent methods of the types, and those of the traits, by the paths of their
    /// definitions.
    methods: BTreeMap<Names, BTreeSet<String>>,
    /// The traits of a type.
    traits: BTreeMap<Names, BTreeSet<Names>>,
    /// The names by which the documentation finds an item, too: `#[doc(alias = "…")]`.
    doc_aliases: BTreeMap<Names, BTreeSet<String>>,
    /// The types that other names stand for.
    aliases: BTreeMap<Names, Names>,
    impls: Vec<Impl>,
}

#[derive(Default)]
struct Module {
    /// A name can stand for a module and a function at once.
    names: Vec<(String, bool, Meaning)>,
    /// Paths of modules all of whose names are here, too.
    globs: Vec<(Names, bool)>,
}

#[derive(Clone)]
enum Meaning {
    Module,
    Item,
    Import(Names),
}

/// An `impl` block.
struct Impl {
    module: Names,
    self_type: Names,
    of_trait: Option<Names>,
    methods: BTreeSet<String>,
}

/// Where a path leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Definition {
    Module(Names),
    Item(Names),
    /// Of a crate that was not read.
    Foreign(Names),
}

/// So many imports lead from one to the next, at most.
const MOST_STEPS: usize = 12;

impl Crates {
    /// Reads a crate from its root file.
    pub(crate) fn read(&mut self, name: &str, root: &Path) {
        let folder = root.parent().expect("a file is in a folder");
        let files = files(folder);
        let macros = macros(&files);
        let module = vec![name.to_owned()];
        let reader = Reader { files, macros, crates: RefCell::new(self) };
        reader.file(&module, root, folder);
    }

    /// Adds the methods of all `impl` blocks to the types. Called when all crates are read.
    pub(crate) fn resolve_impls(&mut self) {
        for block in std::mem::take(&mut self.impls) {
            let Some(Definition::Item(item)) = self.find(&block.module, &block.self_type) else {
                continue;
            };
            let Some(of_trait) = &block.of_trait else {
                self.methods.entry(item).or_default().extend(block.methods);
                continue;
            };
            if let Some(Definition::Item(of_trait)) = self.find(&block.module, of_trait) {
                self.traits.entry(item).or_default().insert(of_trait);
            }
        }
    }

    /// The methods of a trait, or those of a type that are its own.
    pub(crate) fn methods(&self, definition: &Definition) -> BTreeSet<String> {
        let Definition::Item(item) = definition else { return BTreeSet::new() };
        self.methods.get(item).cloned().unwrap_or_default()
    }

    /// Whether a type has a method, itself or by a trait of the crates that were read.
    pub(crate) fn has_method(&self, definition: &Definition, name: &str) -> bool {
        let Definition::Item(item) = definition else { return false };
        let has = |item: &Names| self.methods.get(item).is_some_and(|all| all.contains(name));
        let behind = self.aliases.get(item).and_then(|path| {
            self.find(&item[..item.len() - 1], path).filter(|found| found != definition)
        });
        has(item)
            || self.traits.get(item).is_some_and(|traits| traits.iter().any(has))
            || behind.is_some_and(|behind| self.has_method(&behind, name))
    }

    /// The names by which the documentation finds an item, too.
    pub(crate) fn doc_aliases(&self, definition: &Definition) -> BTreeSet<String> {
        let Definition::Item(item) = definition else { return BTreeSet::new() };
        self.doc_aliases.get(item).cloned().unwrap_or_default()
    }

    /// The definition that a path leads to, for the users of its crate.
    pub(crate) fn public(&self, path: &[String]) -> Option<Definition> {
        self.lookup(&path[..1], &path[1..], 0, true)
    }

    /// The public items below a module, by their paths. Modules are not among them.
    pub(crate) fn all_public(&self, module: &[String]) -> BTreeMap<Names, Definition> {
        let mut found = BTreeMap::new();
        self.add_public(module, module, &mut found, 0);
        found
    }

    fn add_public(
        &self,
        module: &[String],
        shown: &[String],
        found: &mut BTreeMap<Names, Definition>,
        steps: usize,
    ) {
        let Some(names) = self.modules.get(module).filter(|_| steps < MOST_STEPS) else { return };
        for (name, is_public, _) in &names.names {
            if !is_public {
                continue;
            }
            let shown = below(shown, name);
            for definition in self.definitions(module, name, 0, true) {
                match definition {
                    Definition::Module(inner) => self.add_public(&inner, &shown, found, steps + 1),
                    item => drop(found.insert(shown.clone(), item)),
                }
            }
        }
        for (glob, is_public) in &names.globs {
            if let (true, Some(Definition::Module(inner))) = (is_public, self.find(module, glob)) {
                self.add_public(&inner, shown, found, steps + 1);
            }
        }
    }

    /// The definition that a path leads to within a module.
    fn find(&self, module: &[String], path: &[String]) -> Option<Definition> {
        self.find_after(module, path, 0)
    }

    fn find_after(&self, module: &[String], path: &[String], steps: usize) -> Option<Definition> {
        if steps > MOST_STEPS {
            return None;
        }
        let mut module = module.to_vec();
        let mut rest = path;
        let mut is_relative = false;
        while let [first, others @ ..] = rest {
            match &**first {
                "crate" => module.truncate(1),
                "self" => {}
                "super" => drop(module.pop()),
                _ => break,
            }
            (rest, is_relative) = (others, true);
        }
        let found = self.lookup(&module, rest, steps, false);
        if found.is_some() || is_relative {
            return found;
        }
        match self.modules.contains_key(&path[..1]) {
            true => self.lookup(&path[..1], &path[1..], steps, false),
            false => Some(Definition::Foreign(path.to_vec())),
        }
    }

    fn lookup(
        &self,
        module: &[String],
        path: &[String],
        steps: usize,
        is_public: bool,
    ) -> Option<Definition> {
        let [first, rest @ ..] = path else { return Some(Definition::Module(module.to_vec())) };
        self.definitions(module, first, steps, is_public).into_iter().find_map(
            |found| match found {
                found if rest.is_empty() => Some(found),
                Definition::Module(inner) => self.lookup(&inner, rest, steps, is_public),
                Definition::Foreign(path) => Some(Definition::Foreign([&path, rest].concat())),
                Definition::Item(_) => None,
            },
        )
    }

    /// All that a name stands for in a module, items first.
    fn definitions(
        &self,
        module: &[String],
        name: &str,
        steps: usize,
        is_public: bool,
    ) -> Vec<Definition> {
        let mut found = Vec::new();
        let Some(names) = self.modules.get(module) else { return found };
        if steps > MOST_STEPS {
            return found;
        }
        for (own, visible, meaning) in &names.names {
            if own != name || (is_public && !visible) {
                continue;
            }
            match meaning {
                Meaning::Module => found.push(Definition::Module(below(module, name))),
                Meaning::Item => found.push(Definition::Item(below(module, name))),
                Meaning::Import(path) => found.extend(self.find_after(module, path, steps + 1)),
            }
        }
        if found.is_empty() {
            for (glob, visible) in &names.globs {
                if is_public && !visible {
                    continue;
                }
                if let Some(Definition::Module(inner)) = self.find_after(module, glob, steps + 1)
                    && inner != module
                {
                    found.extend(self.definitions(&inner, name, steps + 1, true));
                }
            }
        }
        found.sort_by_key(|definition| matches!(definition, Definition::Module(_)));
        found
    }
}

pub(crate) fn below(module: &[String], name: &str) -> Names {
    [module, &[name.to_owned()]].concat()
}

/// The macros of a crate, with the files that define them.
type Macros = BTreeMap<String, Vec<(PathBuf, Rc<Rules>)>>;

/// Reads the files of a crate, module by module.
struct Reader<'a> {
    files: BTreeMap<PathBuf, syn::File>,
    macros: Macros,
    crates: RefCell<&'a mut Crates>,
}

/// Where the items come from that are read.
#[derive(Clone, Copy)]
struct From<'a> {
    module: &'a Names,
    file: &'a Path,
    /// The folder of the files of the modules below.
    folder: &'a Path,
}

impl Reader<'_> {
    fn file(&self, module: &Names, file: &Path, folder: &Path) {
        self.crates.borrow_mut().modules.entry(module.clone()).or_default();
        let Some(parsed) = self.files.get(file) else { panic!("{} is missing", file.display()) };
        if is_on(&parsed.attrs) {
            self.items(&parsed.items, From { module, file, folder });
        }
    }

    fn items(&self, items: &[Item], from: From<'_>) {
        for item in items {
            self.item(item, from);
        }
    }

    fn add(&self, from: From<'_>, name: &syn::Ident, is_public: bool, meaning: Meaning) {
        let mut crates = self.crates.borrow_mut();
        let module = crates.modules.entry(from.module.clone()).or_default();
        module.names.push((name.to_string(), is_public, meaning));
    }

    fn add_item(&self, from: From<'_>, name: &syn::Ident, vis: &Visibility, attrs: &[Attribute]) {
        if is_on(attrs) {
            self.add(from, name, is_public(vis, attrs), Meaning::Item);
            self.add_doc_aliases(from.module, name, attrs);
        }
    }

    fn add_doc_aliases(&self, module: &[String], name: &syn::Ident, attrs: &[Attribute]) {
        let aliases: BTreeSet<String> = attrs.iter().flat_map(doc_aliases).collect();
        let path = below(module, &name.to_string());
        self.crates.borrow_mut().doc_aliases.entry(path).or_default().extend(aliases);
    }

    fn item(&self, item: &Item, from: From<'_>) {
        match item {
            Item::Const(item) => self.add_item(from, &item.ident, &item.vis, &item.attrs),
            Item::Enum(item) => self.add_item(from, &item.ident, &item.vis, &item.attrs),
            Item::Fn(item) => self.add_item(from, &item.sig.ident, &item.vis, &item.attrs),
            Item::Static(item) => self.add_item(from, &item.ident, &item.vis, &item.attrs),
            Item::Struct(item) => self.add_item(from, &item.ident, &item.vis, &item.attrs),
            Item::Type(item) => {
                self.add_item(from, &item.ident, &item.vis, &item.attrs);
                if let syn::Type::Path(target) = &*item.ty {
                    let path = below(from.module, &item.ident.to_string());
                    self.crates.borrow_mut().aliases.insert(path, names(&target.path));
                }
            }
            Item::Union(item) => self.add_item(from, &item.ident, &item.vis, &item.attrs),
            Item::Trait(item) if is_on(&item.attrs) => {
                self.add_item(from, &item.ident, &item.vis, &item.attrs);
                let mut methods = BTreeSet::new();
                self.trait_items(&item.items, from, &mut methods);
                let path = below(from.module, &item.ident.to_string());
                self.crates.borrow_mut().methods.entry(path).or_default().extend(methods);
            }
            Item::Use(item) if is_on(&item.attrs) => {
                let is_public = is_public(&item.vis, &item.attrs);
                self.imports(&item.tree, &mut Vec::new(), is_public, from);
            }
            Item::Mod(item) if is_on(&item.attrs) => {
                self.add(from, &item.ident, is_public(&item.vis, &item.attrs), Meaning::Module);
                self.module(item, from);
            }
            Item::Impl(item) if is_on(&item.attrs) => {
                let syn::Type::Path(self_type) = &*item.self_ty else { return };
                let mut methods = BTreeSet::new();
                self.impl_items(&item.items, from, &mut methods);
                self.crates.borrow_mut().impls.push(Impl {
                    module: from.module.clone(),
                    self_type: names(&self_type.path),
                    of_trait: item.trait_.as_ref().map(|(path, _)| names(path)),
                    methods,
                });
            }
            Item::Macro(item) if is_on(&item.attrs) => match &item.ident {
                Some(name) => {
                    let is_exported =
                        item.attrs.iter().any(|at| at.path().is_ident("macro_export"));
                    if is_exported && !is_hidden(&item.attrs) {
                        let root = vec![from.module[0].clone()];
                        self.add(From { module: &root, ..from }, name, true, Meaning::Item);
                        self.add_doc_aliases(&root, name, &item.attrs);
                    }
                }
                None => {
                    let Ok(expanded) = syn::parse2::<syn::File>(self.expanded(&item.mac, from))
                    else {
                        return;
                    };
                    if is_on(&expanded.attrs) {
                        self.items(&expanded.items, from);
                    }
                }
            },
            _ => {}
        }
    }

    fn module(&self, item: &syn::ItemMod, from: From<'_>) {
        let name = item.ident.to_string();
        let module = below(from.module, &name);
        if let Some((_, items)) = &item.content {
            self.crates.borrow_mut().modules.entry(module.clone()).or_default();
            let folder = from.folder.join(&name);
            self.items(items, From { module: &module, folder: &folder, ..from });
            return;
        }
        if let Some(path) = path_attribute(&item.attrs) {
            let file = from.file.parent().expect("a file is in a folder").join(path);
            // A test's path may lead out of the crate's sources.
            if self.files.contains_key(&file) {
                self.file(&module, &file, file.parent().expect("a file is in a folder"));
            }
            return;
        }
        let folder = from.folder.join(&name);
        let file = from.folder.join(format!("{name}.rs"));
        let file = if self.files.contains_key(&file) { file } else { folder.join("mod.rs") };
        self.file(&module, &file, &folder);
    }

    fn imports(&self, tree: &UseTree, path: &mut Names, is_public: bool, from: From<'_>) {
        match tree {
            UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                self.imports(&inner.tree, path, is_public, from);
                path.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.imports(tree, path, is_public, from);
                }
            }
            UseTree::Glob(_) => {
                let mut crates = self.crates.borrow_mut();
                let module = crates.modules.entry(from.module.clone()).or_default();
                module.globs.push((path.clone(), is_public));
            }
            UseTree::Name(name) if name.ident == "self" => {
                let last = syn::Ident::new(path.last().expect("a path"), name.ident.span());
                self.add(from, &last, is_public, Meaning::Import(path.clone()));
            }
            UseTree::Name(name) => {
                let path = below(path, &name.ident.to_string());
                self.add(from, &name.ident, is_public, Meaning::Import(path));
            }
            UseTree::Rename(renamed) => {
                let path = match renamed.ident == "self" {
                    true => path.clone(),
                    false => below(path, &renamed.ident.to_string()),
                };
                self.add(from, &renamed.rename, is_public, Meaning::Import(path));
            }
        }
    }

    fn impl_items(&self, items: &[ImplItem], from: From<'_>, methods: &mut BTreeSet<String>) {
        for item in items {
            match item {
                ImplItem::Fn(item) if is_on(&item.attrs) && is_public(&item.vis, &item.attrs) => {
                    methods.insert(item.sig.ident.to_string());
                }
                ImplItem::Macro(item) if is_on(&item.attrs) => {
                    let expanded = Many::<ImplItem>::parse.parse2(self.expanded(&item.mac, from));
                    self.impl_items(&expanded.map_or(Vec::new(), |many| many.0), from, methods);
                }
                _ => {}
            }
        }
    }

    fn trait_items(&self, items: &[TraitItem], from: From<'_>, methods: &mut BTreeSet<String>) {
        for item in items {
            match item {
                TraitItem::Fn(item) if is_on(&item.attrs) && !is_hidden(&item.attrs) => {
                    methods.insert(item.sig.ident.to_string());
                }
                TraitItem::Macro(item) if is_on(&item.attrs) => {
                    let expanded = Many::<TraitItem>::parse.parse2(self.expanded(&item.mac, from));
                    self.trait_items(&expanded.map_or(Vec::new(), |many| many.0), from, methods);
                }
                _ => {}
            }
        }
    }

    /// The tokens of a macro's call, expanded. Those of a macro of another crate are what they
    /// are: `pin_project!` takes an item.
    fn expanded(&self, call: &syn::Macro, from: From<'_>) -> TokenStream {
        let name = call.path.segments.last().expect("a path").ident.to_string();
        let all = self.macros.get(&name).map_or(&[][..], |all| all);
        let rules = all.iter().find(|(file, _)| file == from.file).or(all.first());
        let Some((_, rules)) = rules else { return call.tokens.clone() };
        rules.expand(&call.tokens).unwrap_or_else(|| {
            panic!("{}: no rule of {name}! fits {}", from.file.display(), call.tokens)
        })
    }
}

/// A sequence of items.
struct Many<T>(Vec<T>);

impl<T: Parse> Parse for Many<T> {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut all = Vec::new();
        while !input.is_empty() {
            all.push(input.parse()?);
        }
        Ok(Self(all))
    }
}

/// The files below a folder, parsed.
fn files(folder: &Path) -> BTreeMap<PathBuf, syn::File> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let parsed = syn::parse_file(&text);
            let parsed = parsed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            found.insert(path, parsed);
        }
    }
    found
}

fn macros(files: &BTreeMap<PathBuf, syn::File>) -> Macros {
    let mut macros = Macros::new();
    for (path, file) in files {
        for item in &file.items {
            if let Item::Macro(item) = item
                && let Some(name) = &item.ident
            {
                let rules = Rc::new(Rules::parse(item.mac.tokens.clone()));
                macros.entry(name.to_string()).or_default().push((path.clone(), rules));
            }
        }
    }
    macros
}

fn names(path: &syn::Path) -> Names {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

fn is_public(vis: &Visibility, attrs: &[Attribute]) -> bool {
    matches!(vis, Visibility::Public(_)) && !is_hidden(attrs)
}

/// Whether an item is hidden from the documentation, or deprecated.
fn is_hidden(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("doc") && list.tokens.to_string() == "hidden",
        _ => false,
    } || attribute.path().is_ident("deprecated"))
}

/// The names of `#[doc(alias = "…")]` and `#[doc(alias("…", "…"))]`.
fn doc_aliases(attribute: &Attribute) -> Vec<String> {
    let Meta::List(list) = &attribute.meta else { return Vec::new() };
    if !list.path.is_ident("doc") {
        return Vec::new();
    }
    let literals = Punctuated::<syn::LitStr, syn::Token![,]>::parse_terminated;
    match list.parse_args::<Meta>() {
        Ok(Meta::NameValue(pair)) if pair.path.is_ident("alias") => {
            text(&pair.value).into_iter().collect()
        }
        Ok(Meta::List(list)) if list.path.is_ident("alias") => {
            let names = list.parse_args_with(literals).expect("names");
            names.iter().map(syn::LitStr::value).collect()
        }
        _ => Vec::new(),
    }
}

/// The text that an attribute has behind `=`.
fn text(value: &syn::Expr) -> Option<String> {
    match value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

fn path_attribute(attrs: &[Attribute]) -> Option<String> {
    attrs.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => text(&pair.value),
        _ => None,
    })
}

/// Whether the attributes allow an item on the target.
fn is_on(attrs: &[Attribute]) -> bool {
    attrs.iter().all(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args::<Meta>().is_ok_and(|condition| holds(&condition))
        }
        _ => true,
    })
}

fn holds(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("unix") || path.is_ident("true"),
        Meta::NameValue(pair) => {
            let is = |name: &str| pair.path.is_ident(name);
            let value = text(&pair.value).unwrap_or_default();
            is("feature")
                || is("target_has_atomic")
                || is("target_os") && value == "linux"
                || is("target_family") && value == "unix"
                || is("target_pointer_width") && value == "64"
                || is("target_arch") && value == "x86_64"
                || is("panic") && value == "unwind"
        }
        Meta::List(list) => {
            let parse = Punctuated::<Meta, syn::Token![,]>::parse_terminated;
            let inner = list.parse_args_with(parse).expect("conditions");
            match &*list.path.segments[0].ident.to_string() {
                "all" => inner.iter().all(holds),
                "any" => inner.iter().any(holds),
                "not" => !inner.iter().all(holds),
                other => panic!("the condition {other}"),
            }
        }
    }
}
