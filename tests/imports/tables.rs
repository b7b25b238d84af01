//! The tables of rules, and what a module names against them.

use crate::tree::Module;
use crate::{ACTORS, ALONE, MACROS, NEVER, ROOT};

/// Each row: a name, and what stands to the right of it.
type Rows = Vec<(String, Vec<String>)>;

#[derive(Debug)]
pub struct Tables {
    /// A layer, and what it may name.
    layers: Rows,
    /// A crate, and who alone may name it.
    alone: Rows,
    /// A part of the tree, and what it must not name.
    never: Rows,
}

impl Tables {
    pub fn read() -> Self {
        Self {
            layers: [rows(ACTORS, "actors"), rows(ROOT, "root")].concat(),
            alone: rows(ALONE, ""),
            never: rows(NEVER, ""),
        }
    }

    pub fn home_of_macro(name: &str) -> Option<String> {
        rows(MACROS, "").into_iter().find_map(|(called, home)| (called == name).then(|| home[0].clone()))
    }

    pub fn layers(&self) -> impl Iterator<Item = &str> {
        self.layers.iter().map(|(layer, _)| layer.as_str())
    }

    /// Every name in this module that no row allows, or that a row forbids.
    pub fn forbidden(&self, module: &Module) -> Vec<String> {
        let bad = module.names.iter().filter(|name| !self.allows(module, name));
        bad.map(|name| format!("{} ({}) names {name}", module.path, module.file)).collect()
    }

    fn allows(&self, module: &Module, name: &str) -> bool {
        if ["actors", "root"].iter().any(|krate| is_of(name, krate)) {
            let Some(layer) = module.layer() else { return false };
            return is_of(name, &layer) || self.may_name(&layer, name);
        }
        let never = self.never.iter().filter(|(part, _)| is_of(&module.path, part));
        let alone = self.alone.iter().filter(|(krate, _)| is_of(name, krate));
        never.flat_map(|(_, what)| what).all(|what| !is_of(name, what))
            && alone.into_iter().all(|(_, who)| who.iter().any(|part| is_of(&module.path, part)))
    }

    fn may_name(&self, layer: &str, name: &str) -> bool {
        let row = self.layers.iter().find(|(own, _)| own == layer);
        row.is_some_and(|(_, allowed)| allowed.iter().any(|rule| rule == "everything" || is_of(name, rule)))
    }

    /// Rows that name what stands below them.
    pub fn upside_down(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (at, (layer, allowed)) in self.layers.iter().enumerate() {
            let above = &self.layers[..at];
            let stands = |rule: &String| above.iter().any(|(other, _)| is_of(rule, other));
            let bad = allowed.iter().filter(|rule| *rule != "everything" && !stands(rule));
            wrong.extend(bad.map(|rule| format!("{layer} <- {rule}")));
        }
        wrong
    }
}

/// `actors::kit::tree` is of `actors::kit`; `actors::kits` is not.
fn is_of(name: &str, part: &str) -> bool {
    name.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Rows of one name are one. In a table of a package, a name is of that package unless it is of `actors`.
fn rows(table: &str, krate: &str) -> Rows {
    let full = |name: &str| match name.trim() {
        name if krate.is_empty() || name == "everything" || is_of(name, "actors") => name.to_owned(),
        name => format!("{krate}::{name}"),
    };
    let mut rows = Rows::new();
    for line in table.lines().filter(|line| !line.trim().is_empty()) {
        let rule = line.split("--").next().unwrap_or_default();
        let (left, right) = rule.split_once("<-").unwrap_or_else(|| panic!("no `<-` in `{line}`"));
        let right = right.split(',').filter(|name| name.trim() != "nothing").map(full);
        for name in left.split(',').map(full) {
            match rows.iter_mut().find(|(known, _)| *known == name) {
                Some((_, there)) => there.extend(right.clone()),
                None => rows.push((name, right.clone().collect())),
            }
        }
    }
    rows
}
