//! The paths that a file names, as they are written.
//!
//! In `use`, in expressions, types and patterns, and among the tokens of macros and attributes, which nobody but their
//! macro can parse. Left out: what is built for tests only, and the place that `pub(in ..)` names.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, Item, Macro, Meta, UseTree, Visibility};

/// The segments of one path: `["super", "kit", "*"]`.
pub type Name = Vec<String>;

#[derive(Debug, Default)]
pub struct Names {
    /// Each with the modules inside the file in which it stands.
    pub seen: Vec<(Vec<String>, Name)>,
    /// The modules that have files of their own, with their place in this one.
    pub children: Vec<Vec<String>>,
    inside: Vec<String>,
}

pub fn names_in(file: &syn::File) -> Names {
    let mut names = Names::default();
    names.visit_file(file);
    names
}

impl Names {
    fn saw(&mut self, name: Name) {
        self.seen.push((self.inside.clone(), name));
    }

    fn used(&mut self, before: &[String], tree: &UseTree) {
        let with = |last: &str| [before, &[last.to_owned()]].concat();
        match tree {
            UseTree::Path(path) => self.used(&with(&path.ident.to_string()), &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.used(before, tree)),
            UseTree::Name(name) if name.ident == "self" => self.saw(before.to_vec()),
            UseTree::Rename(name) if name.ident == "self" => self.saw(before.to_vec()),
            UseTree::Name(name) => self.saw(with(&name.ident.to_string())),
            UseTree::Rename(name) => self.saw(with(&name.ident.to_string())),
            UseTree::Glob(_) => self.saw(with("*")),
        }
    }

    /// Identifiers with `::` between them.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut name = Name::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' && !name.is_empty() => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.ended(&mut name);
                    }
                    name.push(ident.to_string());
                }
                TokenTree::Group(group) => {
                    self.ended(&mut name);
                    self.tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => self.ended(&mut name),
            }
            colons = 0;
        }
        self.ended(&mut name);
    }

    fn ended(&mut self, name: &mut Name) {
        if name.len() > 1 {
            self.saw(std::mem::take(name));
        }
        name.clear();
    }
}

impl Visit<'_> for Names {
    fn visit_item(&mut self, item: &Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Macro(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => panic!("a kind of item that is not known here, in {:?}", self.inside),
        };
        if attributes.iter().any(is_for_tests) {
            return;
        }
        match item {
            Item::Use(item) => self.used(&[], &item.tree),
            Item::Mod(item) => {
                assert!(
                    !item.attrs.iter().any(|a| a.path().is_ident("path")),
                    "#[path] is not followed: {}",
                    item.ident
                );
                self.inside.push(item.ident.to_string());
                match &item.content {
                    Some((_, items)) => items.iter().for_each(|item| self.visit_item(item)),
                    None => self.children.push(self.inside.clone()),
                }
                self.inside.pop();
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_impl_item_fn(&mut self, item: &ImplItemFn) {
        if !item.attrs.iter().any(is_for_tests) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        // One segment is a name in scope.
        if path.segments.len() > 1 {
            self.saw(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &Macro) {
        self.tokens(called.tokens.clone());
        visit::visit_macro(self, called);
    }

    fn visit_attribute(&mut self, attribute: &Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_visibility(&mut self, _place: &Visibility) {}
}

/// `#[cfg(test)]`, and no other condition: what a feature turns on is built for others too.
fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg") && matches!(&attribute.meta, Meta::List(list) if list.tokens.to_string() == "test")
}
