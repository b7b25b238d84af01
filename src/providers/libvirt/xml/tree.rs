//! Reading: a document as a small tree, by local names.

use quick_xml::NsReader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::ResolveResult;

use super::XmlError;

/// libvirt's documents have some ten levels. Deeper ones are not read: dropping a tree takes stack.
const DEEPEST: usize = 64;

/// One element. Unknown ones are kept and do no harm.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Element {
    /// Without its prefix.
    pub name: String,
    /// `None` without one, and for a prefix that nobody declared.
    pub namespace: Option<String>,
    /// By local name, in order.
    pub attributes: Vec<(String, String)>,
    pub children: Vec<Element>,
    /// All text directly within it, trimmed at both ends.
    pub text: String,
}

impl Element {
    /// The root element of `xml`; `document` is what it is called in errors.
    ///
    /// # Errors
    /// [`XmlError::Malformed`] if it is no XML, ends early, has more than one root, or is nested too deep.
    pub fn parse(document: &'static str, xml: &str) -> Result<Self, XmlError> {
        let malformed = |why: String| XmlError::Malformed { document, why: why.chars().take(200).collect() };
        let mut reader = NsReader::from_str(xml);
        let mut open: Vec<Self> = Vec::new();
        let mut root = None;
        loop {
            let (namespace, event) = reader.read_resolved_event().map_err(|e| malformed(e.to_string()))?;
            let namespace = match namespace {
                ResolveResult::Bound(namespace) => Some(String::from_utf8_lossy(namespace.0).into_owned()),
                ResolveResult::Unbound | ResolveResult::Unknown(_) => None,
            };
            let closed = match event {
                Event::Start(start) => {
                    if open.len() == DEEPEST {
                        return Err(malformed("it is nested too deep".to_owned()));
                    }
                    open.push(Self::begin(&start, namespace).map_err(malformed)?);
                    continue;
                }
                Event::Empty(start) => Self::begin(&start, namespace).map_err(malformed)?,
                // The reader has checked that it is the end of what was opened last.
                Event::End(_) => open.pop().ok_or_else(|| malformed("an element ends that never began".to_owned()))?,
                Event::Text(text) => {
                    let text = text.xml10_content().map_err(|e| malformed(e.to_string()))?;
                    add(&mut open, &text).map_err(malformed)?;
                    continue;
                }
                Event::CData(text) => {
                    let text = text.xml10_content().map_err(|e| malformed(e.to_string()))?;
                    add(&mut open, &text).map_err(malformed)?;
                    continue;
                }
                Event::GeneralRef(reference) => {
                    let char = reference.resolve_char_ref().map_err(|e| malformed(e.to_string()))?;
                    let text = if let Some(char) = char {
                        char.to_string()
                    } else {
                        let name = reference.decode().map_err(|e| malformed(e.to_string()))?;
                        let unknown = || malformed(["unknown entity ", &name].concat());
                        resolve_predefined_entity(&name).ok_or_else(unknown)?.to_owned()
                    };
                    add(&mut open, &text).map_err(malformed)?;
                    continue;
                }
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => continue,
                Event::Eof if open.is_empty() => return root.ok_or_else(|| malformed("it is empty".to_owned())),
                Event::Eof => return Err(malformed("it ends early".to_owned())),
            };
            let closed = Self { text: closed.text.trim().to_owned(), ..closed };
            match open.last_mut() {
                Some(parent) => parent.children.push(closed),
                None if root.is_none() => root = Some(closed),
                None => return Err(malformed("it has two root elements".to_owned())),
            }
        }
    }

    /// The first child of that name.
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// All children of that name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// Down through the first children of those names.
    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |element, name| element.child(name))
    }

    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn begin(start: &BytesStart<'_>, namespace: Option<String>) -> Result<Self, String> {
        let mut attributes = Vec::new();
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|e| e.to_string())?;
            // `xmlns` and `xmlns:x` are declarations; `x:name` must not hide `name`.
            if attribute.key.prefix().is_some() || attribute.key.as_namespace_binding().is_some() {
                continue;
            }
            let key = String::from_utf8_lossy(attribute.key.local_name().into_inner()).into_owned();
            attributes.push((key, attribute.unescape_value().map_err(|e| e.to_string())?.into_owned()));
        }
        let name = String::from_utf8_lossy(start.local_name().into_inner()).into_owned();
        Ok(Self { name, namespace, attributes, ..Self::default() })
    }
}

/// Text outside of the root element is only allowed to be white space.
fn add(open: &mut [Element], text: &str) -> Result<(), String> {
    match open.last_mut() {
        Some(element) => element.text.push_str(text),
        None if text.trim_matches(['\u{feff}', ' ', '\t', '\r', '\n']).is_empty() => {}
        None => return Err("it has text outside of its root element".to_owned()),
    }
    Ok(())
}
