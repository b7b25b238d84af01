//! The text of one manifest file, read into objects and problems.
//!
//! ```text
//! bytes -> UTF-8 -> documents (split at ---) -> head (kind, name) -> Proxy | Secret | problem
//! ```
//! Each document is parsed alone, so that a bad one harms no other. A [`Content`] says whether it is `complete`: if
//! anything in the file could not be made out, an object that is missing from it is not known to be gone (the file may
//! be half-written). Pure: no files, no clock. No message shows a value of a Secret or user data.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use egress_actors::domain::id::ProxyKey;
use egress_actors::domain::instance::SecretBytes;
use k8s_openapi::ByteString;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny, IntoDeserializer, value};

use super::wording;
use crate::crd::proxy::ProxySpec;
use crate::crd::{API_VERSION, GROUP, SECRET_LABEL};

/// What one file says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Content {
    pub(super) documents: Vec<Document>,
    /// Trouble that has no object.
    pub(super) problems: Vec<Trouble>,
    /// False if something in the file was not understood, and so objects may be missing from `documents`.
    pub(super) complete: bool,
}

impl Content {
    /// A file that could not be read at all.
    pub(super) fn unreadable(line: u64, message: impl Into<String>) -> Self {
        Self { documents: Vec::new(), problems: vec![Trouble { line, message: message.into() }], complete: false }
    }
}

/// A problem and where in the file it is; line 0 is the whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) line: u64,
    pub(super) message: String,
}

/// One object of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Document {
    /// Where it begins.
    pub(super) line: u64,
    pub(super) object: Object,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Object {
    Proxy(ProxyKey, Result<Arc<ProxyManifest>, Trouble>),
    Secret(SecretName, Result<Arc<SecretManifest>, Trouble>),
}

/// A Proxy as written in a manifest: shape checked, values not yet.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ProxyManifest {
    pub(super) spec: ProxySpec,
    /// Ours only: those under `crawl.example.com/`.
    pub(super) annotations: BTreeMap<String, String>,
}

/// `namespace/name` of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SecretName {
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Secret's values, decoded.
#[derive(Clone)]
pub(super) struct SecretManifest {
    pub(super) labelled: bool,
    pub(super) values: BTreeMap<String, SecretBytes>,
}

impl fmt::Debug for SecretManifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.values.keys().collect();
        f.debug_struct("SecretManifest").field("labelled", &self.labelled).field("keys", &keys).finish()
    }
}

impl PartialEq for SecretManifest {
    fn eq(&self, other: &Self) -> bool {
        self.labelled == other.labelled
            && self.values.len() == other.values.len()
            && self.values.iter().zip(&other.values).all(|(a, b)| a.0 == b.0 && a.1.0 == b.1.0)
    }
}

/// Reads a whole file. Never panics, whatever the bytes.
pub(super) fn read(bytes: &[u8]) -> Content {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => {
            let before = &bytes[..e.valid_up_to()];
            let line = 1 + before.iter().fold(0_u64, |n, &b| n + u64::from(b == b'\n'));
            return Content::unreadable(line, "is not UTF-8 text: save the file as UTF-8");
        }
    };
    let mut content = Content { complete: true, ..Content::default() };
    for part in split(text) {
        read_document(part, &mut content);
    }
    content
}

/// One document's text.
#[derive(Clone, Copy)]
struct Part<'a> {
    /// The number of its first line.
    line: u64,
    /// The number of the first line with content: what is wrong with the whole is told there, as before it are only the
    /// marker and what belongs to nobody.
    begins: u64,
    text: &'a str,
}

/// Cuts at `---` and `...` in the first column, which YAML allows nowhere but between documents, not even in block
/// scalars. Parts without content are left out.
fn split(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut add = |line: u64, text| {
        // Without content it is no document.
        if let Some(before) = lines_before_content(text) {
            parts.push(Part { line, begins: line + before, text });
        }
    };
    let (mut start, mut start_line, mut at) = (0, 1, 0);
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let next = at + line.len();
        if is_marker(line, "---") {
            add(start_line, &text[start..at]);
            (start, start_line) = (at, number);
        } else if is_marker(line, "...") {
            add(start_line, &text[start..at]);
            (start, start_line) = (next, number + 1);
        }
        at = next;
    }
    add(start_line, &text[start..]);
    parts
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn lines_before_content(part: &str) -> Option<u64> {
    let has_content = |line: &str| {
        let line = line.trim_start_matches('\u{feff}');
        let line = if is_marker(line, "---") { &line[3..] } else { line };
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#') && !line.starts_with('%')
    };
    (0..).zip(part.lines()).find(|(_, line)| has_content(line)).map(|(before, _)| before)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<HeadMetadata>,
}

#[derive(Deserialize)]
struct HeadMetadata {
    name: Option<String>,
    namespace: Option<String>,
}

fn read_document(part: Part<'_>, content: &mut Content) {
    let mut nameless = |line: u64, message: String| {
        content.problems.push(Trouble { line, message });
        content.complete = false;
    };
    if let Some(at) = part.text.find('\0') {
        let line = part.line + part.text[..at].matches('\n').fold(0, |n, _| n + 1);
        return nameless(line, "has a NUL character: the file is damaged, or not completely written".to_owned());
    }
    let head: Head = match parse(part) {
        Ok(head) => head,
        Err(trouble) => return nameless(trouble.line, trouble.message),
    };
    let Some(kind) = head.kind.filter(|kind| !kind.is_empty()) else {
        return nameless(part.begins, "has no `kind`: write `kind: Proxy` or `kind: Secret`".to_owned());
    };
    let metadata = head.metadata.unwrap_or(HeadMetadata { name: None, namespace: None });
    if kind == "List" {
        let message = "kind `List` is not read: give each object a document of its own, with `---` between them";
        return nameless(part.begins, message.to_owned());
    }
    let Some(name) = metadata.name.filter(|name| !name.is_empty()) else {
        return nameless(part.begins, format!("a {} without `metadata.name`: give it one", wording::shown(&kind)));
    };
    let expected = match kind.as_str() {
        "Proxy" => API_VERSION,
        "Secret" => "v1",
        _ => {
            let message =
                format!("kind {} is not read here and was skipped: only Proxy and Secret are", wording::shown(&kind));
            content.problems.push(Trouble { line: part.begins, message });
            return;
        }
    };
    // A Secret's name follows the same rules as a Proxy's.
    let key = match ProxyKey::new(metadata.namespace.as_deref().unwrap_or("default"), &name) {
        Ok(key) => key,
        Err(e) => {
            let message = format!("metadata.{}: {} {}", e.what, wording::shown(&e.given), e.why);
            return nameless(part.begins, message);
        }
    };
    let version = match head.api_version.as_deref() {
        Some(given) if given == expected => Ok(()),
        given => Err(Trouble {
            line: part.begins,
            message: format!(
                "apiVersion: {} given, must be `{expected}` for kind {kind}",
                given.map_or_else(|| "nothing".to_owned(), wording::shown)
            ),
        }),
    };
    let object = if kind == "Proxy" {
        Object::Proxy(key, version.and_then(|()| proxy(part)))
    } else {
        let name = SecretName { namespace: key.namespace().into(), name: key.name().into() };
        Object::Secret(name, version.and_then(|()| secret(part)))
    };
    content.complete &= matches!(&object, Object::Proxy(_, Ok(_)) | Object::Secret(_, Ok(_)));
    content.documents.push(Document { line: part.begins, object });
}

/// Metadata as people write it, or as `kubectl get -o yaml` prints it; what the server owns is passed over.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the fields say what is allowed")]
struct Metadata {
    name: IgnoredAny,
    namespace: Option<IgnoredAny>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
    uid: Option<IgnoredAny>,
    generation: Option<IgnoredAny>,
    resource_version: Option<IgnoredAny>,
    creation_timestamp: Option<IgnoredAny>,
    managed_fields: Option<IgnoredAny>,
    finalizers: Option<IgnoredAny>,
    owner_references: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the fields say what is allowed")]
struct ProxyDocument {
    api_version: IgnoredAny,
    kind: IgnoredAny,
    metadata: Metadata,
    spec: ProxySpec,
    status: Option<IgnoredAny>,
}

fn proxy(part: Part<'_>) -> Result<Arc<ProxyManifest>, Trouble> {
    let document: ProxyDocument = parse(part)?;
    let ours = |name: &String| name.split_once('/').is_some_and(|(prefix, _)| prefix == GROUP);
    let annotations = document.metadata.annotations.unwrap_or_default();
    let annotations = annotations.into_iter().filter(|(name, _)| ours(name)).collect();
    Ok(Arc::new(ProxyManifest { spec: document.spec, annotations }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "the fields say what is allowed")]
struct SecretDocument {
    api_version: IgnoredAny,
    kind: IgnoredAny,
    metadata: Metadata,
    r#type: Option<IgnoredAny>,
    immutable: Option<IgnoredAny>,
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
    #[serde(default)]
    string_data: Option<BTreeMap<String, String>>,
}

fn secret(part: Part<'_>) -> Result<Arc<SecretManifest>, Trouble> {
    let document: SecretDocument = parse(part)?;
    let mut values = BTreeMap::new();
    for (key, text) in document.data.unwrap_or_default() {
        let decoder: value::StrDeserializer<'_, value::Error> = text.trim().into_deserializer();
        let bytes = ByteString::deserialize(decoder).map_err(|_| Trouble {
            line: part.begins,
            message: format!(
                "data.{}: is not base64: encode it, or write it as it is under `stringData`",
                wording::shown(&key)
            ),
        })?;
        values.insert(key, SecretBytes(bytes.0.into()));
    }
    // As in the API server: `stringData` wins.
    for (key, text) in document.string_data.unwrap_or_default() {
        values.insert(key, SecretBytes(text.into_bytes().into()));
    }
    let labels = document.metadata.labels.unwrap_or_default();
    let labelled = labels.get(SECRET_LABEL).is_some_and(|value| value == "true");
    Ok(Arc::new(SecretManifest { labelled, values }))
}

/// Bounds for one document: far above any Proxy or Secret, far below what an alias bomb needs.
fn limits() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_nodes: 20_000,
            max_events: 50_000,
            max_aliases: 100,
            max_anchors: 100,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 20_000 },
    }
}

fn parse<T: DeserializeOwned>(part: Part<'_>) -> Result<T, Trouble> {
    let mut path = String::new();
    let parsed = serde_saphyr::with_deserializer_from_str_with_options(part.text, limits(), |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|e| {
            path = e.path().to_string();
            e.into_inner()
        })
    });
    parsed.map_err(|error| {
        let line = error.location().map_or(0, |at| at.line());
        Trouble { line: (part.line + line.max(1) - 1).max(part.begins), message: wording::of(&error, &path) }
    })
}

#[cfg(test)]
mod tests;
