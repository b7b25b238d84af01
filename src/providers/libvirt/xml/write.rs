//! Writing: elements in order, every value checked and escaped.

use quick_xml::Writer;
use quick_xml::events::{BytesEnd, BytesStart, BytesText, Event};

use super::XmlError;

/// A document in the making.
pub(in crate::providers::libvirt) struct Out(Writer<Vec<u8>>);

/// The text that `fill` writes.
pub(in crate::providers::libvirt) fn with(
    fill: impl FnOnce(&mut Out) -> Result<(), XmlError>,
) -> Result<String, XmlError> {
    let mut out = Out(Writer::new_with_indent(Vec::new(), b' ', 2));
    fill(&mut out)?;
    Ok(String::from_utf8(out.0.into_inner()).expect("only strings were written"))
}

impl Out {
    /// `<name a='b'/>`
    pub(in crate::providers::libvirt) fn empty(
        &mut self,
        name: &str,
        attributes: &[(&str, &str)],
    ) -> Result<(), XmlError> {
        let start = start(name, attributes)?;
        self.event(Event::Empty(start));
        Ok(())
    }

    /// `<name a='b'>text</name>`
    pub(super) fn text(&mut self, name: &str, attributes: &[(&str, &str)], text: &str) -> Result<(), XmlError> {
        check(name, text)?;
        let start = start(name, attributes)?;
        self.event(Event::Start(start));
        self.event(Event::Text(BytesText::new(text)));
        self.event(Event::End(BytesEnd::new(name)));
        Ok(())
    }

    /// `<name a='b'>` and what `fill` writes `</name>`
    pub(super) fn element(
        &mut self,
        name: &str,
        attributes: &[(&str, &str)],
        fill: impl FnOnce(&mut Self) -> Result<(), XmlError>,
    ) -> Result<(), XmlError> {
        let start = start(name, attributes)?;
        self.event(Event::Start(start));
        fill(self)?;
        self.event(Event::End(BytesEnd::new(name)));
        Ok(())
    }

    fn event(&mut self, event: Event<'_>) {
        self.0.write_event(event).expect("a vector takes every write");
    }
}

fn start<'a>(name: &'a str, attributes: &[(&str, &str)]) -> Result<BytesStart<'a>, XmlError> {
    let mut start = BytesStart::new(name);
    for (key, value) in attributes {
        check(key, value)?;
        start.push_attribute((*key, *value));
    }
    Ok(start)
}

/// XML 1.0 has no NUL and few control characters; tab and line feed are allowed, but do not come back from an attribute
/// as they went in, and no name, path or id of ours has one.
fn check(what: &str, value: &str) -> Result<(), XmlError> {
    if value.chars().any(|c| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}')) {
        return Err(XmlError::Forbidden { what: what.to_owned() });
    }
    Ok(())
}
