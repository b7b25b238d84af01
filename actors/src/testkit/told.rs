//! Events and Secrets in memory.

use std::collections::HashMap;
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

/// Secrets by name, in whatever namespace.
#[derive(Debug, Default)]
pub struct StaticSecrets(Mutex<HashMap<String, (String, String)>>);

impl StaticSecrets {
    pub fn put(&self, name: &str, username: &str, password: &str) {
        lock(&self.0).insert(name.to_owned(), (username.to_owned(), password.to_owned()));
    }

    pub fn remove(&self, name: &str) {
        lock(&self.0).remove(name);
    }
}

#[async_trait]
impl Secrets for StaticSecrets {
    async fn credentials(&self, namespace: &str, secret: &SecretRef) -> Result<Credentials, OpError> {
        let found = lock(&self.0).get(&*secret.name).cloned();
        let (username, password) = found.ok_or_else(|| {
            OpError::transient(Reason::SecretNotFound, format!("secret `{namespace}/{}` not found", secret.name))
        })?;
        Ok(Credentials { username: username.into(), password: Arc::new(SecretString::from(password)) })
    }

    async fn user_data(&self, _: &str, cloud_init: &CloudInit) -> Result<SecretBytes, OpError> {
        match cloud_init {
            CloudInit::Inline(text) => Ok(SecretBytes(text.as_bytes().into())),
            CloudInit::Secret { name, .. } => {
                Err(OpError::transient(Reason::SecretNotFound, format!("secret `{name}` not found")))
            }
        }
    }
}
