//! The public items with their signatures, read from `src`, are those of `public_items.txt`: nothing becomes public unseen, and
//! neither does a type of another crate in a signature.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
};

use quote::ToTokens;
use syn::{
    Attribute, Fields, File, ImplItem, Item, ItemEnum, ItemStruct, ItemTrait, TraitItem, Type,
    UseTree, Visibility,
};

use super::difference::{Difference, REQUIRED};

/// The parsed files, by the path of their module.
type Modules = BTreeMap<Vec<String>, File>;

#[test]
fn public_items_are_those_of_the_list() {
    let mut modules = Modules::new();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    read(&src, &[], &mut modules);
    let found = Surface::of(&modules);
    let count = found
        .lines
        .iter()
        .filter(|line| !line.starts_with(PARTS))
        .count();
    let text = format!("{count} items, and their variants and fields\n\n{}\n", {
        let lines: Vec<_> = found.lines.iter().cloned().collect();
        lines.join("\n")
    });
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join(LIST);
    let baseline = env::var_os("TOLLGATE_BASELINE").map_or_else(|| list.clone(), PathBuf::from);
    let listed = fs::read_to_string(&baseline).expect("a readable list");
    if text == listed {
        return;
    }
    let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("public_items.txt");
    fs::write(&new, &text).expect("a writable folder");
    let difference = Difference::of(&listed, &text);
    if baseline != list {
        println!("compared with {}: {difference}", baseline.display());
        assert!(!difference.is_breaking(), "{difference}");
        return;
    }
    panic!(
        "{difference}\nif that is meant: cp {} {LIST}",
        new.display()
    );
}

const LIST: &str = "tests/in_process/whole/public_items.txt";

/// How lines of variants and fields begin.
const PARTS: [char; 1] = [' '];

/// The items that a user can reach.
struct Surface<'a> {
    modules: &'a Modules,
    lines: BTreeSet<String>,
    /// Definitions that have a line: each is listed once, under its first path.
    seen: BTreeSet<(Vec<String>, String)>,
}

impl<'a> Surface<'a> {
    fn of(modules: &'a Modules) -> Self {
        let mut surface = Self {
            modules,
            lines: BTreeSet::new(),
            seen: BTreeSet::new(),
        };
        surface.module(&[]);
        surface.macros();
        surface
    }

    /// Adds the macros that the root of the crate exports, from whatever file.
    fn macros(&mut self) {
        for item in self.modules.values().flat_map(|file| &file.items) {
            let Item::Macro(item) = item else { continue };
            let is_exported = item
                .attrs
                .iter()
                .any(|attribute| tokens(attribute).contains("macro_export"));
            if let Some(name) = item.ident.as_ref().filter(|_| is_exported) {
                self.line(&format!("tollgate::{name}"), "macro");
            }
        }
    }

    /// Adds the public items of a public module.
    fn module(&mut self, path: &[String]) {
        let items = &self.modules[path].items;
        let public = |visibility: &Visibility| matches!(visibility, Visibility::Public(_));
        for item in items {
            match item {
                Item::Mod(module) if public(&module.vis) && is_shown(&module.attrs) => {
                    self.module(&joined(path, &module.ident.to_string()));
                }
                Item::Use(exported) if public(&exported.vis) && is_shown(&exported.attrs) => {
                    for (target, name) in leaves(&exported.tree, path) {
                        self.exported(path, &name, &target);
                    }
                }
                _ => {}
            }
        }
        for item in items {
            if let Some((name, visibility)) = definition(item)
                && public(visibility)
            {
                self.exported(path, &name, &joined(path, &name));
            }
        }
    }

    /// Adds an item that a public module exports under this name.
    fn exported(&mut self, module: &[String], name: &str, target: &[String]) {
        if module == ["prelude"] {
            let target = target.join("::");
            return self.line(
                &format!("tollgate::prelude::{name}"),
                &format!("use {target}"),
            );
        }
        let (home, item) = self.resolve(target);
        let is_new = self.seen.insert((home.clone(), name.to_owned()));
        if !is_new || !is_shown(attributes(item)) {
            return;
        }
        let path = [&["tollgate".to_owned()], module, &[name.to_owned()]]
            .concat()
            .join("::");
        match item {
            Item::Struct(item) => self.structure(&path, &home, item),
            Item::Enum(item) => self.enumeration(&path, &home, item),
            Item::Trait(item) => self.interface(&path, item),
            Item::Type(item) => self.line(&path, &format!("type {}", tokens(&item.ty))),
            Item::Const(item) => self.line(&path, &format!("const {}", tokens(&item.ty))),
            Item::Fn(item) => self.line(&path, &tokens(&item.sig)),
            Item::Macro(item) => self.line(&path, &format!("by {}", tokens(&item.mac.path))),
            _ => panic!("{path} is of a kind that is not listed"),
        }
    }

    fn line(&mut self, path: &str, text: &str) {
        let line = if text.is_empty() {
            path.to_owned()
        } else {
            format!("{path}: {text}")
        };
        self.lines.insert(line);
    }

    fn structure(&mut self, path: &str, home: &[String], item: &ItemStruct) {
        self.line(path, &format!("struct{}", tokens(&item.generics)));
        self.fields(path, &item.fields);
        self.methods(path, home, &item.ident.to_string());
    }

    fn fields(&mut self, path: &str, fields: &Fields) {
        for (index, field) in fields.iter().enumerate() {
            if matches!(field.vis, Visibility::Public(_)) {
                let name = field
                    .ident
                    .as_ref()
                    .map_or_else(|| index.to_string(), ToString::to_string);
                self.line(&format!("  {path}.{name}"), &tokens(&field.ty));
            }
        }
    }

    fn enumeration(&mut self, path: &str, home: &[String], item: &ItemEnum) {
        self.line(path, &format!("enum{}", tokens(&item.generics)));
        for variant in item
            .variants
            .iter()
            .filter(|variant| is_shown(&variant.attrs))
        {
            self.line(
                &format!("  {path}::{}", variant.ident),
                &fields_of(&variant.fields),
            );
        }
        self.methods(path, home, &item.ident.to_string());
    }

    fn interface(&mut self, path: &str, item: &ItemTrait) {
        self.line(path, &format!("trait{}", tokens(&item.generics)));
        for part in &item.items {
            match part {
                TraitItem::Fn(method) if is_shown(&method.attrs) => {
                    let end = if method.default.is_none() {
                        REQUIRED
                    } else {
                        ""
                    };
                    self.line(
                        &format!("{path}::{}", method.sig.ident),
                        &(tokens(&method.sig) + end),
                    );
                }
                TraitItem::Type(part) => self.line(&format!("{path}::{}", part.ident), "type"),
                _ => {}
            }
        }
    }

    /// Adds the methods of a type. Its impl blocks are in its own room, or in one that has no type of that name.
    fn methods(&mut self, path: &str, home: &[String], name: &str) {
        let room = &home[..home.len().min(1)];
        let mut lines = Vec::new();
        for (module, file) in self.modules {
            let other = module[..module.len().min(1)] != *room;
            if other && defines_in_room(self.modules, module, name) {
                continue;
            }
            for item in &file.items {
                let Item::Impl(block) = item else { continue };
                let Type::Path(of) = &*block.self_ty else {
                    continue;
                };
                let is_of = of
                    .path
                    .segments
                    .last()
                    .is_some_and(|last| last.ident == name);
                if block.trait_.is_none() && is_of {
                    lines.extend(block.items.iter().filter_map(|item| member(path, item)));
                }
            }
        }
        self.lines.extend(lines);
    }

    /// Returns the definition that a path leads to, through re-exports, or the macro that makes it, and its module.
    fn resolve(&self, target: &[String]) -> (Vec<String>, &'a Item) {
        let (name, module) = target.split_last().expect("a path has a name");
        let file = self
            .modules
            .get(module)
            .unwrap_or_else(|| panic!("no module {module:?}"));
        for item in &file.items {
            if definition(item).is_some_and(|(defined, _)| defined == *name) {
                return (module.to_vec(), item);
            }
        }
        for item in &file.items {
            let Item::Use(used) = item else { continue };
            let leaves = leaves(&used.tree, module);
            if let Some((target, _)) = leaves.into_iter().find(|(_, used)| used == name) {
                return self.resolve(&target);
            }
        }
        let is_macro = |item: &&Item| matches!(item, Item::Macro(_));
        let made = file.items.iter().rfind(is_macro);
        let made = made.unwrap_or_else(|| panic!("nothing is named {name} in {module:?}"));
        (module.to_vec(), made)
    }
}

/// Reads the files of a folder and of those in it.
fn read(folder: &Path, path: &[String], modules: &mut Modules) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let file = entry.expect("a readable entry").path();
        let name = file
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if file.is_dir() {
            read(&file, &joined(path, &name), modules);
        } else if file.extension().is_some_and(|extension| extension == "rs") {
            let module = match name.as_str() {
                "lib" | "mod" => path.to_vec(),
                _ => joined(path, &name),
            };
            let text = fs::read_to_string(&file).expect("a readable file");
            modules.insert(
                module,
                syn::parse_file(&text).expect("a file that compiles"),
            );
        }
    }
}

fn joined(path: &[String], name: &str) -> Vec<String> {
    [path, &[name.to_owned()]].concat()
}

/// Returns whether a module's room has another type of this name.
fn defines_in_room(modules: &Modules, module: &[String], name: &str) -> bool {
    let room = module.first();
    let files = modules.iter().filter(|(path, _)| path.first() == room);
    let mut items = files.flat_map(|(_, file)| &file.items);
    items.any(|item| {
        let is_type = matches!(item, Item::Struct(_) | Item::Enum(_));
        is_type && definition(item).is_some_and(|(defined, _)| defined == name)
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the fields of a variant.
fn fields_of(fields: &Fields) -> String {
    let types = fields.iter().map(|field| {
        let name = field.ident.as_ref().map(|name| format!("{name}: "));
        name.unwrap_or_default() + &tokens(&field.ty)
    });
    types.collect::<Vec<_>>().join(", ")
}

/// Returns the name and the visibility of a definition.
fn definition(item: &Item) -> Option<(String, &Visibility)> {
    let (name, visibility) = match item {
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        Item::Const(item) => (&item.ident, &item.vis),
        Item::Fn(item) => (&item.sig.ident, &item.vis),
        _ => return None,
    };
    Some((name.to_string(), visibility))
}

/// Returns the line of a public method or constant.
fn member(path: &str, item: &ImplItem) -> Option<String> {
    let (attributes, visibility, name, text) = match item {
        ImplItem::Fn(item) => (&item.attrs, &item.vis, &item.sig.ident, tokens(&item.sig)),
        ImplItem::Const(item) => {
            let text = format!("const {}", tokens(&item.ty));
            (&item.attrs, &item.vis, &item.ident, text)
        }
        _ => return None,
    };
    let is_public = matches!(visibility, Visibility::Public(_)) && is_shown(attributes);
    is_public.then(|| format!("{path}::{name}: {text}"))
}

/// Returns the paths that a `use` names, from the root of the crate, each with the name that it gives.
fn leaves(tree: &UseTree, module: &[String]) -> Vec<(Vec<String>, String)> {
    fn walk(tree: &UseTree, path: &[String], found: &mut Vec<(Vec<String>, String)>) {
        match tree {
            UseTree::Path(step) => {
                let name = step.ident.to_string();
                match name.as_str() {
                    "self" => walk(&step.tree, path, found),
                    "super" => walk(&step.tree, &path[..path.len() - 1], found),
                    "crate" => walk(&step.tree, &[], found),
                    _ => walk(&step.tree, &joined(path, &name), found),
                }
            }
            UseTree::Name(leaf) => {
                let name = leaf.ident.to_string();
                found.push((joined(path, &name), name));
            }
            UseTree::Rename(leaf) => {
                found.push((
                    joined(path, &leaf.ident.to_string()),
                    leaf.rename.to_string(),
                ));
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| walk(tree, path, found)),
            UseTree::Glob(_) => {}
        }
    }
    let mut found = Vec::new();
    walk(tree, module, &mut found);
    found
}

/// Returns whether an item is shown to users: neither hidden, nor made for fuzzing or for doc tests alone.
fn is_shown(attributes: &[Attribute]) -> bool {
    let hiding = |attribute: &Attribute| {
        let text = tokens(attribute);
        text.contains("doc(hidden)") || text.contains("fuzzing") || text.contains("doctest")
    };
    !attributes.iter().any(hiding)
}

/// Returns code in the usual spacing, as far as one line needs it.
fn tokens(code: &impl ToTokens) -> String {
    let text = code.to_token_stream().to_string();
    let tight = [
        (" :: ", "::"),
        (" < ", "<"),
        (" <", "<"),
        ("< ", "<"),
        (" >", ">"),
        (" ,", ","),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        ("& ", "&"),
        (" : ", ": "),
        (" ;", ";"),
        ("[ ", "["),
        (" ]", "]"),
        ("# [", "#["),
        (",)", ")"),
        ("-> ", "-> "),
        (" ?", "?"),
        (" ::", "::"),
        (":: ", "::"),
        ("{ ", "{ "),
    ];
    tight
        .iter()
        .fold(text, |text, (from, to)| text.replace(from, to))
        .trim()
        .to_owned()
}
