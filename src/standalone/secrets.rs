//! Secrets from the manifests, kept in memory only.
//!
//! The keeper's side is the [`Shelf`]: it takes in looks, and follows the same rules as for Proxies (a file that was not
//! understood keeps what it had, a removal needs two looks). The port's side reads what the shelf has put out. No value
//! is ever in an error or a `Debug`.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use egress_actors::domain::desired::{CloudInit, SecretRef};
use egress_actors::domain::error::OpError;
use egress_actors::domain::instance::{Credentials, SecretBytes};
use egress_actors::domain::reason::Reason;
use egress_actors::ports::{Secrets, SourceEvent};

use super::Problem;
use super::documents::{SecretManifest, SecretName};
use super::view::View;
use crate::crd::secret;

type Values = BTreeMap<SecretName, Arc<SecretManifest>>;

/// What both sides share: the keeper replaces the map, readers clone the `Arc`.
#[derive(Debug, Clone, Default)]
pub(super) struct Shared(Arc<RwLock<Arc<Values>>>);

impl Shared {
    fn read(&self) -> Arc<Values> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, values: Values) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(values);
    }
}

/// The keeper's side.
#[derive(Debug)]
pub(super) struct Shelf {
    shared: Shared,
    removal_after: Duration,
    entries: BTreeMap<SecretName, Entry>,
}

#[derive(Debug)]
struct Entry {
    manifest: Arc<SecretManifest>,
    origin: Arc<str>,
    absent_since: Option<Instant>,
}

impl Shelf {
    pub(super) fn new(shared: Shared, removal_after: Duration) -> Self {
        Self { shared, removal_after, entries: BTreeMap::new() }
    }

    /// Takes in one look, and puts out what is new at once. Returned are the changes of labelled Secrets.
    pub(super) fn look(&mut self, view: &View, now: Instant, problems: &mut Vec<Problem>) -> Vec<SourceEvent> {
        let mut changed = Vec::new();
        let written = view.secrets();
        for (name, places) in &written {
            let known = self.entries.get_mut(*name);
            let origin = known.as_ref().map(|entry| Arc::clone(&entry.origin));
            let chosen = view.choose(format_args!("Secret `{name}`"), places, origin.as_deref(), problems);
            let Some(place) = chosen else { continue };
            let manifest = match place.object {
                Ok(manifest) => manifest,
                Err(trouble) => {
                    let message = format!("Secret `{name}`: {}", trouble.message);
                    let (file, line) = (place.file.to_string(), trouble.line);
                    problems.push(Problem { file, line, message });
                    continue;
                }
            };
            let was_labelled = known.as_ref().is_some_and(|entry| entry.manifest.labelled);
            if known.is_none_or(|entry| entry.manifest != *manifest) && (was_labelled || manifest.labelled) {
                changed.push((*name).clone());
            }
            let (manifest, origin) = (Arc::clone(manifest), Arc::clone(place.file));
            self.entries.insert((*name).clone(), Entry { manifest, origin, absent_since: None });
        }
        self.entries.retain(|name, entry| {
            if written.contains_key(name) || view.may_hide(&entry.origin) {
                entry.absent_since = None;
                return true;
            }
            let since = *entry.absent_since.get_or_insert(now);
            let stays = now.duration_since(since) < self.removal_after;
            // One that was not labelled too: what is wrong with it is another thing now.
            if !stays {
                changed.push(name.clone());
            }
            stays
        });
        self.shared.replace(self.entries.iter().map(|(n, e)| (n.clone(), Arc::clone(&e.manifest))).collect());
        let event = |name: SecretName| SourceEvent::SecretChanged { namespace: name.namespace, name: name.name };
        changed.into_iter().map(event).collect()
    }

    /// True if a Secret is absent: then the next look counts, also if it shows nothing new.
    pub(super) fn is_waiting(&self) -> bool {
        self.entries.values().any(|entry| entry.absent_since.is_some())
    }

    /// DIR could not be read: no second look may count on a first one before it.
    pub(super) fn unreadable(&mut self) {
        for entry in self.entries.values_mut() {
            entry.absent_since = None;
        }
    }
}

/// The port's side.
#[derive(Debug, Clone)]
pub(super) struct ManifestSecrets(pub(super) Shared);

impl ManifestSecrets {
    fn labelled(&self, namespace: &str, name: &str) -> Result<Arc<SecretManifest>, OpError> {
        let key = SecretName { namespace: namespace.into(), name: name.into() };
        let values = self.0.read();
        let Some(secret) = values.get(&key) else {
            let detail = format!("there is no Secret `{key}` in the manifests: add one");
            return Err(OpError::transient(Reason::SecretNotFound, detail));
        };
        if !secret.labelled {
            return Err(secret::not_labelled(key));
        }
        Ok(Arc::clone(secret))
    }
}

#[async_trait]
impl Secrets for ManifestSecrets {
    async fn credentials(&self, namespace: &str, named: &SecretRef) -> Result<Credentials, OpError> {
        let manifest = self.labelled(namespace, &named.name)?;
        secret::credentials(&manifest.values, &format!("{namespace}/{}", named.name))
    }

    async fn user_data(&self, namespace: &str, cloud_init: &CloudInit) -> Result<SecretBytes, OpError> {
        match cloud_init {
            CloudInit::Inline(text) => Ok(SecretBytes(text.as_bytes().into())),
            CloudInit::Secret { name, key } => {
                let manifest = self.labelled(namespace, name)?;
                Ok(secret::value(&manifest.values, &format!("{namespace}/{name}"), key)?.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use egress_actors::domain::error::Class;
    use secrecy::ExposeSecret as _;

    use super::*;
    use crate::standalone::documents;

    const LABELLED: &str = "labels: {crawl.example.com/proxy-secret: 'true'}";

    fn secret(name: &str, labels: &str, data: &str) -> String {
        format!("---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: crawl, {labels}}}\n{data}\n")
    }

    fn view(files: &[(&str, &str)]) -> View {
        View { files: files.iter().map(|(n, text)| ((*n).into(), documents::read(text.as_bytes()).into())).collect() }
    }

    fn shelf() -> (Shelf, ManifestSecrets) {
        let shared = Shared::default();
        (Shelf::new(shared.clone(), Duration::from_secs(2)), ManifestSecrets(shared))
    }

    fn named(name: &str) -> SecretRef {
        SecretRef { name: name.into() }
    }

    #[tokio::test]
    async fn credentials_and_user_data_are_read_from_labelled_secrets() {
        let text = secret("s", LABELLED, "stringData: {username: u, password: 'p: ä', init: \"#cloud-config\\n\"}");
        let (mut shelf, secrets) = shelf();
        shelf.look(&view(&[("a.yaml", &text)]), Instant::now(), &mut Vec::new());
        let credentials = secrets.credentials("crawl", &named("s")).await.unwrap();
        assert_eq!((&*credentials.username, credentials.password.expose_secret()), ("u", "p: ä"));
        let from_secret = CloudInit::Secret { name: "s".into(), key: "init".into() };
        assert_eq!(&*secrets.user_data("crawl", &from_secret).await.unwrap().0, b"#cloud-config\n");
        assert_eq!(&*secrets.user_data("crawl", &CloudInit::Inline("x".into())).await.unwrap().0, b"x");
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_secret_is_said_without_its_values() {
        use Reason::{SecretInvalid, SecretNotFound, SecretNotLabelled};
        let text = [
            secret("bare", "labels: {}", "stringData: {username: hunter2, password: hunter2}"),
            secret("half", LABELLED, "stringData: {username: hunter2}"),
            secret("empty", LABELLED, "stringData: {username: hunter2, password: ''}"),
            secret("echoed", LABELLED, "stringData: {username: hunter2, password: \"hunter2\\n\"}"),
            secret("split", LABELLED, "stringData: {username: \"hunter2\\r\\nx\", password: p}"),
            secret("colon", LABELLED, "stringData: {username: 'hunter2:x', password: p}"),
            secret("binary", LABELLED, "stringData: {username: hunter2}\ndata: {password: /w==}"),
        ]
        .concat();
        let (mut shelf, secrets) = shelf();
        let mut problems = Vec::new();
        shelf.look(&view(&[("a.yaml", &text)]), Instant::now(), &mut problems);
        assert_eq!(problems, []);
        for (name, class, reason, detail) in [
            ("none", Class::Transient, SecretNotFound, "there is no Secret `crawl/none` in the manifests: add one"),
            (
                "bare",
                Class::Permanent,
                SecretNotLabelled,
                "Secret `crawl/bare` is not for proxies: label it crawl.example.com/proxy-secret: \"true\"",
            ),
            ("half", Class::Permanent, SecretInvalid, "Secret `crawl/half`: key `password` is missing: add it"),
            (
                "empty",
                Class::Permanent,
                SecretInvalid,
                "Secret `crawl/empty`: key `password` is empty: give it a value",
            ),
            (
                "echoed",
                Class::Permanent,
                SecretInvalid,
                "Secret `crawl/echoed`: key `password` ends with a line break: encode it with `printf %s` instead of `echo`",
            ),
            (
                "split",
                Class::Permanent,
                SecretInvalid,
                "Secret `crawl/split`: key `username` has control characters, which HTTP does not carry",
            ),
            (
                "colon",
                Class::Permanent,
                SecretInvalid,
                "Secret `crawl/colon`: `username` has a `:`, which ends a user name in HTTP",
            ),
            ("binary", Class::Permanent, SecretInvalid, "Secret `crawl/binary`: key `password` is not UTF-8 text"),
        ] {
            let error = secrets.credentials("crawl", &named(name)).await.unwrap_err();
            assert_eq!((error.class, error.reason, error.detail.as_str()), (class, reason, detail));
        }
        assert!(!format!("{secrets:?} {shelf:?}").contains("hunter2"));
    }

    #[tokio::test]
    async fn a_secret_outlives_a_file_that_broke_and_goes_after_two_looks() {
        let good = secret("s", LABELLED, "stringData: {username: u, password: p}");
        let (mut shelf, secrets) = shelf();
        let start = Instant::now();
        let mut look = |files: &[(&str, &str)], seconds: u64| {
            shelf.look(&view(files), start + Duration::from_secs(seconds), &mut Vec::new()).len()
        };
        assert_eq!(look(&[("a.yaml", &good)], 0), 1, "it came");
        assert_eq!(look(&[("a.yaml", &good)], 1), 0);
        assert_eq!(look(&[("a.yaml", "kind: [")], 10), 0, "the file broke");
        assert_eq!(look(&[("a.yaml", &good.replace("password: p", "password: q"))], 20), 1, "it changed");
        assert_eq!(look(&[], 30), 0, "one look is not enough");
        assert!(secrets.credentials("crawl", &named("s")).await.is_ok());
        assert_eq!(look(&[], 32), 1, "it went");
        assert!(secrets.credentials("crawl", &named("s")).await.is_err());
    }
}
