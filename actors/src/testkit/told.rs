//! Events and Secrets in memory.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use secrecy::SecretString;

use super::wishes::key;
use super::world::lock;
use crate::domain::desired::{CloudInit, SecretRef};
use crate::domain::error::OpError;
use crate::domain::instance::{Credentials, SecretBytes};
use crate::domain::reason::Reason;
use crate::ports::{Event, EventSink, Secrets, Subject};

/// Keeps what was told.
#[derive(Debug, Default)]
pub struct RecordingSink {
    events: Mutex<Vec<Event>>,
    acked: Mutex<Vec<Event>>,
    fails: Mutex<Option<OpError>>,
}

impl RecordingSink {
    pub(super) fn forget(&self) {
        *lock(&self.events) = Vec::new();
        *lock(&self.acked) = Vec::new();
    }

    pub fn events(&self) -> Vec<Event> {
        lock(&self.events).clone()
    }

    pub fn about(&self, name: &str) -> Vec<Event> {
        of(name, self.events())
    }

    /// Those about a provider entry.
    pub fn about_entry(&self, name: &str) -> Vec<Event> {
        let is_it = |event: &Event| matches!(&event.about, Subject::Provider(entry) if entry.as_str() == name);
        self.events().into_iter().filter(is_it).collect()
    }

    /// Those about a Proxy that were written before something was given up.
    pub fn acked_about(&self, name: &str) -> Vec<Event> {
        of(name, lock(&self.acked).clone())
    }

    /// From now on events cannot be written; `None`: they can.
    pub fn refuse(&self, error: Option<OpError>) {
        *lock(&self.fails) = error;
    }
}

fn of(name: &str, events: Vec<Event>) -> Vec<Event> {
    let key = key(name);
    events.into_iter().filter(|e| matches!(&e.about, Subject::Proxy(k, _) if *k == key)).collect()
}

#[async_trait]
impl EventSink for RecordingSink {
    fn emit(&self, event: Event) {
        lock(&self.events).push(event);
    }

    async fn emit_acked(&self, event: Event) -> Result<(), OpError> {
        if let Some(error) = lock(&self.fails).clone() {
            return Err(error);
        }
        lock(&self.acked).push(event.clone());
        lock(&self.events).push(event);
        Ok(())
    }
}

/// Secrets by name, in whatever namespace; of user data the password alone. Beside them those without their label.
#[derive(Debug, Default)]
pub struct StaticSecrets(Mutex<HashMap<String, (String, String)>>, Mutex<HashSet<String>>);

impl StaticSecrets {
    pub fn put(&self, name: &str, username: &str, password: &str) {
        lock(&self.0).insert(name.to_owned(), (username.to_owned(), password.to_owned()));
    }

    pub fn remove(&self, name: &str) {
        lock(&self.0).remove(name);
        lock(&self.1).remove(name);
    }

    /// Takes the label that says that it may be used.
    pub fn unlabel(&self, name: &str) {
        lock(&self.1).insert(name.to_owned());
    }

    fn found(&self, namespace: &str, name: &str) -> Result<(String, String), OpError> {
        if lock(&self.1).contains(name) {
            return Err(OpError::permanent(
                Reason::SecretNotLabelled,
                format!("secret `{namespace}/{name}` has no label"),
            ));
        }
        let missing = || OpError::transient(Reason::SecretNotFound, format!("secret `{namespace}/{name}` not found"));
        lock(&self.0).get(name).cloned().ok_or_else(missing)
    }
}

#[async_trait]
impl Secrets for StaticSecrets {
    async fn credentials(&self, namespace: &str, secret: &SecretRef) -> Result<Credentials, OpError> {
        let (username, password) = self.found(namespace, &secret.name)?;
        Ok(Credentials { username: username.into(), password: Arc::new(SecretString::from(password)) })
    }

    async fn user_data(&self, namespace: &str, cloud_init: &CloudInit) -> Result<SecretBytes, OpError> {
        match cloud_init {
            CloudInit::Inline(text) => Ok(SecretBytes(text.as_bytes().into())),
            CloudInit::Secret { name, .. } => Ok(SecretBytes(self.found(namespace, name)?.1.as_bytes().into())),
        }
    }
}
