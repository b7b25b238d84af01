//! The modules of a crate, followed from its root as the compiler does, and the crates below one in `Cargo.lock`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::names::{Name, Names, names_in};
use crate::tables::Tables;

/// One file.
#[derive(Debug)]
pub struct Module {
    /// `actors::domain::plan`, `root::server`, `actors` for the crate's root.
    pub path: String,
    pub file: String,
    /// What it names, in the same form: `actors::kit::tree`, `tokio::time::sleep`.
    pub names: BTreeSet<String>,
}

impl Module {
    /// `actors::domain`; nothing for a crate's root, which only says what there is.
    pub fn layer(&self) -> Option<String> {
        let mut segments = self.path.split("::");
        Some(format!("{}::{}", segments.next()?, segments.next()?))
    }
}

/// All modules of a crate that are built without tests.
pub fn modules(workspace: &Path, path: &str, file: &str) -> Vec<Module> {
    let source = std::fs::read_to_string(workspace.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let (module, children) = read(path, file, &source);
    let folder = match file.strip_suffix("/lib.rs").or_else(|| file.strip_suffix("/main.rs")) {
        Some(folder) => folder,
        None => file.strip_suffix(".rs").expect("a source file ends in .rs"),
    };
    let below = children.iter().flat_map(|child| {
        let (path, file) = (format!("{path}::{}", child.join("::")), format!("{folder}/{}.rs", child.join("/")));
        modules(workspace, &path, &file)
    });
    std::iter::once(module).chain(below).collect()
}

/// A module of this source.
pub fn parsed(path: &str, file: &str, source: &str) -> Module {
    read(path, file, source).0
}

fn read(path: &str, file: &str, source: &str) -> (Module, Vec<Name>) {
    let source = syn::parse_file(source).unwrap_or_else(|error| panic!("{file}: {error}"));
    let Names { seen, children, .. } = names_in(&source);
    let here: Name = path.split("::").map(ToOwned::to_owned).collect();
    let names = seen.into_iter().map(|(inside, name)| from_outside(&[here.clone(), inside].concat(), &name)).collect();
    (Module { path: path.to_owned(), file: file.to_owned(), names }, children)
}

/// The name as others would write it: without `crate`, `self` and `super`, and a macro at its home.
fn from_outside(here: &[String], name: &[String]) -> String {
    let ups = name.iter().take_while(|segment| *segment == "super").count();
    let (before, rest): (Vec<&str>, _) = match name[0].as_str() {
        "crate" => (vec![&here[0]], &name[1..]),
        "egress_actors" => (vec!["actors"], &name[1..]),
        "egress_operator" => (vec!["root"], &name[1..]),
        "self" => (here.iter().map(String::as_str).collect(), &name[1..]),
        "super" => (here[..here.len() - ups].iter().map(String::as_str).collect(), &name[ups..]),
        // A crate, or something in scope that a `use` has named already.
        _ => (vec![], name),
    };
    let name = before.into_iter().chain(rest.iter().map(String::as_str)).collect::<Vec<_>>().join("::");
    match Tables::home_of_macro(&name) {
        Some(home) => format!("{home}::{}", rest[0]),
        None => name,
    }
}

/// The crates that this one of `Cargo.lock` depends on, and those below them. For tests and benches too.
pub fn below(krate: &str, lock: &str) -> BTreeSet<String> {
    let mut depends: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let name = package.lines().find_map(|line| line.strip_prefix("name = ")).unwrap_or_default().trim_matches('"');
        // Two versions of one crate are taken together.
        let listed = package.lines().filter_map(|line| line.strip_prefix(" \"")?.split(['"', ' ']).next());
        depends.entry(name).or_default().extend(listed);
    }
    let mut below = BTreeSet::new();
    let mut next = vec![krate];
    while let Some(name) = next.pop() {
        for dependency in depends.get(name).into_iter().flatten() {
            if below.insert((*dependency).to_owned()) {
                next.push(dependency);
            }
        }
    }
    below
}
