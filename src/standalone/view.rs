//! One complete look at DIR, turned from "files with objects" into "objects with the places where they are written".

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use egress_actors::domain::id::ProxyKey;

use super::Problem;
use super::documents::{Content, Object, ProxyManifest, SecretManifest, SecretName, Trouble};

/// All of DIR in one look, by file name.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    pub(super) files: BTreeMap<Arc<str>, Arc<Content>>,
}

/// One place where an object is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'v, T> {
    pub(super) file: &'v Arc<str>,
    pub(super) line: u64,
    pub(super) object: &'v Result<Arc<T>, Trouble>,
}

impl View {
    /// True if nothing in DIR changed between the two looks.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.files.len() == other.files.len()
            && self.files.iter().zip(&other.files).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(a.1, b.1))
    }

    /// Every Proxy with its places, in the order of file names and lines.
    pub(super) fn proxies(&self) -> BTreeMap<&ProxyKey, Vec<Place<'_, ProxyManifest>>> {
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (file, document) in self.documents() {
            if let Object::Proxy(key, object) = &document.object {
                found.entry(key).or_default().push(Place { file, line: document.line, object });
            }
        }
        found
    }

    /// Every Secret with its places.
    pub(super) fn secrets(&self) -> BTreeMap<&SecretName, Vec<Place<'_, SecretManifest>>> {
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (file, document) in self.documents() {
            if let Object::Secret(name, object) = &document.object {
                found.entry(name).or_default().push(Place { file, line: document.line, object });
            }
        }
        found
    }

    fn documents(&self) -> impl Iterator<Item = (&Arc<str>, &super::documents::Document)> {
        self.files.iter().flat_map(|(file, content)| content.documents.iter().map(move |document| (file, document)))
    }

    /// The problems that have no object.
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem> {
        self.files.iter().flat_map(|(file, content)| {
            content.problems.iter().map(|trouble| Problem {
                file: file.to_string(),
                line: trouble.line,
                message: trouble.message.clone(),
            })
        })
    }

    /// True if an object that came from this file and is not seen may still be in it: the file is there, and not all
    /// of it was understood.
    pub(super) fn may_hide(&self, file: &str) -> bool {
        self.files.get(file).is_some_and(|content| !content.complete)
    }

    /// Which of the places goes on: the one where the object came from, or else the first. The others are problems. None
    /// goes on if the object may still be where it came from.
    pub(super) fn choose<'p, 'v, T>(
        &self,
        what: fmt::Arguments<'_>,
        places: &'p [Place<'v, T>],
        origin: Option<&str>,
        problems: &mut Vec<Problem>,
    ) -> Option<&'p Place<'v, T>> {
        let known = places.iter().position(|place| origin == Some(&**place.file));
        let hidden = origin.filter(|file| known.is_none() && self.may_hide(file));
        let chosen = if hidden.is_some() { None } else { places.get(known.unwrap_or(0)) };
        for other in places.iter().filter(|place| chosen.is_none_or(|chosen| !std::ptr::eq(*place, chosen))) {
            let first = match chosen {
                Some(place) => format!("{} line {}, which goes on", place.file, place.line),
                None => format!("{}, which cannot be read completely", hidden.unwrap_or_default()),
            };
            problems.push(Problem {
                file: other.file.to_string(),
                line: other.line,
                message: format!("{what} is also in {first}; this one is passed over: remove one of the two"),
            });
        }
        chosen
    }
}
