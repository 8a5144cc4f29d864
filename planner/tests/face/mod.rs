//! What a crate shows of itself, read from its source.

use std::collections::BTreeSet;
use std::path::Path;

use quote::ToTokens;
use syn::{
    Attribute, Fields, File, ImplItem, Item, ItemConst, ItemEnum, ItemFn, ItemImpl, ItemStruct,
    ItemType, Type, UseTree, Visibility,
};

/// The exported names, and what the source says of them.
pub(crate) struct Face {
    exported: BTreeSet<String>,
    lines: BTreeSet<String>,
}

impl Face {
    /// That of the crate with this folder of sources.
    pub(crate) fn of(source: &Path) -> Self {
        let mut face = Self { exported: BTreeSet::new(), lines: BTreeSet::new() };
        for item in parsed(&source.join("lib.rs")).items {
            if let Item::Use(used) = item
                && matches!(used.vis, Visibility::Public(_))
            {
                face.export(&used.tree);
            }
        }
        face.read(source);
        face
    }

    /// One line for each thing.
    pub(crate) fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }

    fn export(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.export(&path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.export(tree)),
            UseTree::Name(name) => {
                self.lines.insert(format!("use {}", name.ident));
                self.exported.insert(name.ident.to_string());
            }
            UseTree::Rename(_) | UseTree::Glob(_) => panic!("export each item by its name"),
        }
    }

    fn read(&mut self, folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.read(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                self.items(parsed(&path).items);
            }
        }
    }

    fn items(&mut self, items: Vec<Item>) {
        for item in items {
            match item {
                Item::Impl(item) => self.implementation(&item),
                // What it makes has the names that it is called with.
                Item::Macro(item) => {
                    let tokens = item.mac.tokens.to_string();
                    let is_ours = item.ident.is_some() || self.names(&tokens);
                    if is_ours && !item.mac.path.is_ident("thread_local") {
                        self.note(&without_docs(&tokens));
                    }
                }
                other => self.declaration(other),
            }
        }
    }

    fn names(&self, tokens: &str) -> bool {
        tokens.split(|c: char| !c.is_alphanumeric()).any(|word| self.exported.contains(word))
    }

    /// A struct, enum, function, type or constant, if it is exported.
    fn declaration(&mut self, mut item: Item) {
        let (Item::Struct(ItemStruct { vis, .. })
        | Item::Enum(ItemEnum { vis, .. })
        | Item::Fn(ItemFn { vis, .. })
        | Item::Type(ItemType { vis, .. })
        | Item::Const(ItemConst { vis, .. })) = &item
        else {
            return;
        };
        if !matches!(vis, Visibility::Public(_)) {
            return;
        }
        let name = match &mut item {
            Item::Struct(item) => {
                strip(&mut item.attrs);
                only_public(&mut item.fields);
                item.ident.clone()
            }
            Item::Enum(item) => {
                strip(&mut item.attrs);
                for variant in &mut item.variants {
                    variant.attrs.clear();
                    variant.fields.iter_mut().for_each(|field| field.attrs.clear());
                }
                item.ident.clone()
            }
            Item::Fn(item) => {
                let (name, signature) = (item.sig.ident.clone(), &item.sig);
                if self.exported.contains(&name.to_string()) {
                    self.note(&signature.to_token_stream().to_string());
                }
                return;
            }
            Item::Type(item) => {
                item.attrs.clear();
                item.ident.clone()
            }
            Item::Const(item) => {
                item.attrs.clear();
                item.ident.clone()
            }
            _ => return,
        };
        if self.exported.contains(&name.to_string()) {
            self.note(&item.to_token_stream().to_string());
        }
    }

    fn implementation(&mut self, item: &ItemImpl) {
        let Type::Path(of) = item.self_ty.as_ref() else { return };
        let Some(name) = of.path.segments.last().map(|segment| segment.ident.to_string()) else {
            return;
        };
        let is_test = item.attrs.iter().any(|attribute| attribute.path().is_ident("cfg"));
        if !self.exported.contains(&name) || is_test {
            return;
        }
        let (generics, of) = (&item.generics, of.to_token_stream());
        let generics = generics.to_token_stream();
        if let Some((_, of_trait, _)) = &item.trait_ {
            self.note(&format!("impl {generics} {} for {of}", of_trait.to_token_stream()));
            return;
        }
        for inside in &item.items {
            match inside {
                ImplItem::Fn(method) if matches!(method.vis, Visibility::Public(_)) => {
                    self.note(&format!("{of} :: {}", method.sig.to_token_stream()));
                }
                ImplItem::Const(constant) if matches!(constant.vis, Visibility::Public(_)) => {
                    let (name, of_type) = (&constant.ident, constant.ty.to_token_stream());
                    self.note(&format!("{of} :: const {name} : {of_type}"));
                }
                _ => {}
            }
        }
    }

    fn note(&mut self, tokens: &str) {
        self.lines.insert(tokens.split_whitespace().collect::<Vec<_>>().join(" "));
    }
}

fn parsed(path: &Path) -> File {
    let source = std::fs::read_to_string(path).unwrap();
    syn::parse_file(&source).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Leaves what a user can depend on: what is derived.
fn strip(attributes: &mut Vec<Attribute>) {
    attributes.retain(|attribute| {
        attribute.path().is_ident("derive") || attribute.path().is_ident("non_exhaustive")
    });
}

/// Leaves the public fields; whether there are others decides who can make the struct.
fn only_public(fields: &mut Fields) {
    let is_public = |vis: &Visibility| matches!(vis, Visibility::Public(_));
    if let Fields::Named(named) = fields {
        let all = std::mem::take(&mut named.named);
        let count = all.len();
        named.named = all.into_iter().filter(|field| is_public(&field.vis)).collect();
        if named.named.len() < count {
            named.named.push(syn::parse_quote!(private: ()));
        }
    }
    for field in fields.iter_mut() {
        field.attrs.clear();
        if !is_public(&field.vis) {
            field.ty = syn::parse_quote!(());
        }
    }
}

/// The tokens of a macro without documentation, which is no part of the face.
fn without_docs(tokens: &str) -> String {
    let mut rest = tokens;
    let mut kept = String::new();
    while let Some((before, doc)) = rest.split_once("# [doc = ") {
        kept += before;
        rest = doc.split_once("\"]").map_or("", |(_, after)| after);
    }
    kept + rest
}
